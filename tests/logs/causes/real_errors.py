"""Makes the errors that torch, transformers, datasets and verl really raise, and prints their tracebacks as JSON.

No Ray, no network, no training: each is one call that cannot work.
"""

import datetime as dt
import json
import multiprocessing
import os
import resource
import socket
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

LIMIT_S = 3.0


def join(store: str, rank: int = 0, world_size: int = 2) -> None:
    timeout = dt.timedelta(seconds=LIMIT_S)
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world_size, timeout=timeout)


def free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


def port_taken() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        join(f"tcp://127.0.0.1:{held.getsockname()[1]}")


def rank_missing() -> None:
    join(f"tcp://127.0.0.1:{free_port()}", world_size=3)


def store_missing() -> None:
    join(f"tcp://127.0.0.1:{free_port()}", rank=1)


def no_interface() -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "nope0"
    try:
        join(f"tcp://127.0.0.1:{free_port()}", world_size=1)
    finally:
        del os.environ["GLOO_SOCKET_IFNAME"]


def peer_gone() -> None:
    reduce_with(lambda: os._exit(9))


def peer_silent() -> None:
    reduce_with(lambda: time.sleep(2 * LIMIT_S))


def _second_rank(store: str, other: Callable[[], None]) -> None:
    join(store, 1)
    other()


def reduce_with(other: Callable[[], None]) -> None:
    """Rank 0 reduces, and rank 1, a child, does something else."""
    store = f"tcp://127.0.0.1:{free_port()}"
    child = multiprocessing.get_context("fork").Process(target=_second_rank, args=(store, other))
    child.start()
    try:
        join(store)
        dist.all_reduce(torch.zeros(1))
    finally:
        dist.destroy_process_group()
        child.join()


def nan() -> None:
    torch.multinomial(torch.full((4,), float("nan")), 1)


def out_of_memory() -> None:
    torch.empty(1 << 50)


def too_many_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))
    held: list[int] = []
    try:
        while True:
            held.append(os.open("/dev/null", os.O_RDONLY))
    finally:
        for each in held:
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def disk_full() -> None:
    Path("/dev/full").write_bytes(bytes(1 << 20))


def shards_missing() -> None:
    torch.load("/nowhere/global_step_10/actor/model_world_size_4_rank_1.pt")


def wrong_model() -> None:
    from transformers import AutoConfig

    AutoConfig.from_pretrained("nobody/no-such-model")


def wrong_folder() -> None:
    from transformers import AutoConfig

    AutoConfig.from_pretrained("/nowhere/model")


def data_missing() -> None:
    import datasets

    datasets.load_dataset("parquet", data_files="/nowhere/train.parquet")


def divisibility() -> None:
    from verl.protocol import DataProto

    DataProto.from_dict({"a": torch.zeros(9, 1)}).chunk(2)


def reward_missing() -> None:
    from verl.utils.import_utils import load_module

    load_module("/nowhere/reward.py")


def reward_unknown() -> None:
    from verl.utils.reward_score import default_compute_score

    default_compute_score("nq", "<answer> Lima </answer>", {"target": ["Lima"]})


def reward_fails() -> None:
    from verl.utils.import_utils import load_module

    Path("reward.py").write_text("def compute_score(**_):\n    return 1 / 0\n")
    load_module(str(Path("reward.py").absolute())).compute_score()


def tool_fails() -> None:
    from verl.tools.function_tool import load_function_tools_from_path

    Path("tools.py").write_text("import no_such_module\n")
    load_function_tools_from_path(str(Path("tools.py").absolute()))


ERRORS = (
    port_taken, rank_missing, store_missing, no_interface, peer_gone, peer_silent, nan, out_of_memory, too_many_files,
    disk_full, shards_missing, wrong_model, wrong_folder, data_missing, divisibility, reward_missing,
    reward_unknown, reward_fails, tool_fails,
)  # fmt: skip


def text_of(error: Callable[[], None]) -> str:
    try:
        error()
    except Exception:  # noqa: BLE001 - whatever it is, it is what is wanted
        return traceback.format_exc()
    return "nothing was raised"


if __name__ == "__main__":
    found = {error.__name__: text_of(error) for error in ERRORS}
    Path(sys.argv[1]).write_text(json.dumps(found))
