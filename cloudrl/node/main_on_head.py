"""verl's main program with its controller on Ray's head node: `python3 -m cloudrl_on_head verl.trainer.main_ppo ...`.

Ray starts verl's controller, an actor without resources, on a node of its own choice (Ray 2.60, gcs_actor_scheduler.cc:
SelectRandomAliveNode). The controller saves the state of the data loader and the tracker of steps on its disk, and
makes the folders into which TransferQueue saves; a resume looks for all of them on the head. verl itself is unchanged:
its `run_ppo` takes the class of the controller (verl 0.9.1, trainer/main_ppo.py).

The agent lays this file as `cloudrl_on_head` onto the PYTHONPATH of jobs; it imports nothing of ours.
"""

import importlib
import os
import sys
from typing import Any

_HEAD = {"resources": {"node:__internal_head__": 0.001}, "num_cpus": 0}
"""Ray gives its head node one of that resource. An actor that names a resource and no CPUs holds a CPU while it lives
(Ray 2.60, _private/ray_constants.py: DEFAULT_ACTOR_CREATION_CPU_SPECIFIED), for which the workers would wait."""


class _OnHead:
    """The class of the controller as verl uses it, with the head as its place."""

    def __init__(self, controller: Any) -> None:
        self._controller = controller

    def options(self, **options: Any) -> Any:
        """As verl calls it when it profiles with Nsight."""
        return self._controller.options(**{**_HEAD, **options})

    def remote(self, *arguments: Any, **named: Any) -> Any:
        """Start the controller."""
        return self.options().remote(*arguments, **named)


def main() -> None:
    """Run the program that the first argument names, with the others."""
    name = sys.argv.pop(1)
    program = importlib.import_module(name)
    controller = getattr(program, "TaskRunnerV1", None)  # a fork, or verl before 0.9, has none
    if controller is not None:
        setattr(program, "TaskRunnerV1", _OnHead(controller))  # noqa: B010  the type is not known
    # Hydra counts `--config-path ./config` from the file of a main program, and not from a module (hydra 1.3, utils.py)
    os.environ.setdefault("HYDRA_MAIN_MODULE", "__main__")
    program.main()


if __name__ == "__main__":
    main()
