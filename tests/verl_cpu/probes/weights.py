"""Two training and two rollout workers: two updates of their weights through the checkpoint engine over gloo.

It prints, for each rollout worker and update, whether all weights arrived as they were sent.
"""

import asyncio
import json
import multiprocessing
from typing import Any

import ray
import torch

from cloudrl.verl_cpu.checkpoint_engine import GlooCheckpointEngine

WEIGHTS = {
    "float": torch.arange(12.0).view(3, 4),
    "bfloat16": torch.ones(5, dtype=torch.bfloat16),
    "scalar": torch.tensor(3.0),
    "a column": torch.arange(6.0).view(3, 2)[:, 1],
}


def work(role: str, index: int, masters: Any, answers: Any, end: Any) -> None:
    engine = GlooCheckpointEngine(bucket_size=40, is_master=role == "training" and index == 0)
    for update in (1, 2):
        own = engine.prepare()
        if own is not None:
            for _ in range(3):
                masters.put(own)
        master = own or masters.get(timeout=60)
        training, rollout = engine.build_topology(2, 2, [master, None, None, None])
        arguments = training if role == "training" else rollout
        engine.init_process_group(**{name: values[index] for name, values in arguments.items()})
        if role == "training":
            asyncio.run(engine.send_weights(((name, tensor * update) for name, tensor in WEIGHTS.items()), update))
        else:
            answers.put((index, update, asyncio.run(is_equal(engine, update))))
        end.wait(60)  # as verl waits for all before the group ends
        engine.finalize()


async def is_equal(engine: Any, update: int) -> bool:
    received = {name: tensor async for name, tensor in engine.receive_weights(update)}
    return received.keys() == WEIGHTS.keys() and all(
        received[name].dtype == tensor.dtype and torch.equal(received[name], tensor * update)
        for name, tensor in WEIGHTS.items()
    )


if __name__ == "__main__":
    ray.util.get_node_ip_address = lambda: "127.0.0.1"
    context = multiprocessing.get_context("fork")
    masters, answers = context.Queue(), context.Queue()
    end = context.Barrier(4)
    roles = [("training", 0), ("training", 1), ("rollout", 0), ("rollout", 1)]
    processes = [context.Process(target=work, args=(*role, masters, answers, end)) for role in roles]
    for process in processes:
        process.start()
    arrived = [answers.get(timeout=60) for _ in range(4)]
    for process in processes:
        process.join(60)
    print(json.dumps(sorted(arrived)))
