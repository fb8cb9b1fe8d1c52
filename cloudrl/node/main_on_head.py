"""verl's main program with its controller on Ray's head node: `python3 -m cloudrl_on_head verl.trainer.main_ppo ...`.

Ray starts verl's controller, an actor without resources, on a node of its own choice (Ray 2.60, gcs_actor_scheduler.cc:
SelectRandomAliveNode). The controller saves the state of the data loader and the tracker of steps on its disk, and
makes the folders into which TransferQueue saves; a resume looks for all of them on the head. verl itself is unchanged:
its `run_ppo` takes the class of the controller (verl 0.9.1, trainer/main_ppo.py).

With CLOUDRL_TRAINING_NODES, addresses with commas between them, training runs on these nodes, the first ranks on the
first of them. A resume needs those that have the shards, where Ray would choose any (Ray 2.60,
scheduling/policy/scorer.cc), and verl would count ranks by address (verl 0.9.1, single_controller/ray/base.py).

The agent lays this file as `cloudrl_on_head` onto the PYTHONPATH of jobs; it imports nothing of ours.
"""

import importlib
import os
import sys
from typing import Any, List, Sequence

_HEAD = {"resources": {"node:__internal_head__": 0.001}, "num_cpus": 0}
"""Ray gives its head node one of that resource. An actor that names a resource and no CPUs holds a CPU while it lives
(Ray 2.60, _private/ray_constants.py: DEFAULT_ACTOR_CREATION_CPU_SPECIFIED), for which the workers would wait."""

_TRAINING_NODES = "CLOUDRL_TRAINING_NODES"
"""As in `cloudrl.protocol.folders`."""
_POOL = "global_pool"
"""verl's name of the pool that trains (verl 0.9.1, trainer/ppo/v1/trainer_base.py: _init_resource_pool_mgr)."""


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


def _training_on(controller: Any, addresses: Sequence[str]) -> Any:
    """The class of a controller that trains on these nodes, in this order.

    verl makes a placement group for each of them and sorts the groups by address (verl 0.9.1,
    single_controller/ray/base.py: get_placement_groups). Each node has a resource of its own, `node:ADDRESS`, by which
    a bundle of a group gets there.
    """
    import ray

    original = controller.__ray_actor_class__

    class OnNodes(original):  # type: ignore[misc,valid-type]
        def run(self, config: Any) -> Any:
            from verl.single_controller.ray import base

            make, sort = base.placement_group, base.sort_placement_group_by_node_ip
            pool: List[Any] = []

            def make_here(bundles: Any, *arguments: Any, name: str = "", **named: Any) -> Any:
                if not name.startswith(_POOL):
                    return make(bundles, *arguments, name=name, **named)
                here = {f"node:{addresses[len(pool)]}": 0.001}
                pool.append(make([{**bundle, **here} for bundle in bundles], *arguments, name=name, **named))
                return pool[-1]

            base.placement_group = make_here
            base.sort_placement_group_by_node_ip = lambda groups: groups if groups == pool else sort(groups)
            return super().run(config)

    OnNodes.__name__ = OnNodes.__qualname__ = original.__name__  # by which Ray's log and its list of actors call it
    return ray.remote(OnNodes)


def main() -> None:
    """Run the program that the first argument names, with the others."""
    name = sys.argv.pop(1)
    program = importlib.import_module(name)
    controller = getattr(program, "TaskRunnerV1", None)  # a fork, or verl before 0.9, has none
    if controller is not None:
        addresses = os.environ.get(_TRAINING_NODES)
        placed = _training_on(controller, addresses.split(",")) if addresses else controller
        setattr(program, "TaskRunnerV1", _OnHead(placed))  # noqa: B010  the type is not known
    # Hydra counts `--config-path ./config` from the file of a main program, and not from a module (hydra 1.3, utils.py)
    os.environ.setdefault("HYDRA_MAIN_MODULE", "__main__")
    program.main()


if __name__ == "__main__":
    main()
