"""Jobs that are no training: one takes the CPUs of both nodes but two, one ends the queue of a training as another one
would, and one waits for an actor that no node has room for.

    python other_jobs.py cpus | queue | actor

verl asks for three CPUs with each GPU (0.9.1, single_controller/ray/base.py: `max_colocate_count`); its queue has a
fixed name (TransferQueue 0.1.11, interface.py).
"""

import sys
import time

import ray
from ray.util.placement_group import placement_group

_LEFT = 2


class Judge:
    """Never starts."""


def main(way: str) -> None:
    ray.init()
    if way == "queue":
        ray.kill(ray.get_actor("TransferQueueController", namespace="transfer_queue"))
        return
    if way == "actor":
        ray.get(ray.remote(num_gpus=99)(Judge).remote().__ray_ready__.remote())
    cpus = [node["Resources"]["CPU"] - _LEFT for node in ray.nodes()]
    ray.get(placement_group([{"CPU": count} for count in cpus], strategy="STRICT_SPREAD").ready())
    print("held", flush=True)
    while True:
        time.sleep(60)


if __name__ == "__main__":
    main(sys.argv[1])
