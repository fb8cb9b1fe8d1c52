"""Jobs beside a training: one that takes the CPUs of both nodes but two, one that ends its queue as another one would.

    python other_jobs.py cpus | queue

verl asks for three CPUs with each GPU (0.9.1, single_controller/ray/base.py: `max_colocate_count`); its queue has a
fixed name (TransferQueue 0.1.11, interface.py).
"""

import sys
import time

import ray
from ray.util.placement_group import placement_group

_LEFT = 2


def main(way: str) -> None:
    ray.init()
    if way == "queue":
        ray.kill(ray.get_actor("TransferQueueController", namespace="transfer_queue"))
        return
    cpus = [node["Resources"]["CPU"] - _LEFT for node in ray.nodes()]
    ray.get(placement_group([{"CPU": count} for count in cpus], strategy="STRICT_SPREAD").ready())
    print("held", flush=True)
    while True:
        time.sleep(60)


if __name__ == "__main__":
    main(sys.argv[1])
