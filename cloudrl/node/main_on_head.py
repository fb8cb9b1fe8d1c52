"""verl's main program with its controller on Ray's head node: `python3 -m cloudrl_on_head verl.trainer.main_ppo ...`.

Ray starts verl's controller, an actor without resources, on a node of its own choice (Ray 2.60, gcs_actor_scheduler.cc:
SelectRandomAliveNode). The controller saves the state of the data loader and the tracker of steps on its disk, and
makes the folders into which TransferQueue saves; a resume looks for all of them on the head. verl itself is unchanged:
its `run_ppo` takes the class of the controller (verl 0.9.1, trainer/main_ppo.py).

The agent lays this file as `cloudrl_on_head` onto the PYTHONPATH of jobs; it imports nothing of ours.
"""

import importlib
import sys

_HEAD = {"node:__internal_head__": 0.001}
"""Ray gives its head node one of that resource."""


def main() -> None:
    """Run the program that the first argument names, with the others."""
    name = sys.argv.pop(1)
    program = importlib.import_module(name)
    controller = getattr(program, "TaskRunnerV1", None)  # a fork, or verl before 0.9, has none
    if controller is not None:
        setattr(program, "TaskRunnerV1", controller.options(resources=_HEAD))  # noqa: B010  the type is not known
    program.main()


if __name__ == "__main__":
    main()
