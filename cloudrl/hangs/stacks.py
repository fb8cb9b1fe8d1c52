"""Stacks of a Python process, as py-spy or `faulthandler` writes them. Pure functions over their text.

py-spy 0.4 `dump`:                                  faulthandler (Python 3.9 to 3.14):
    Thread 30555 (idle): "AsyncIO Thread: default"      Thread 0x00007f2a (most recent call first):
        barrier (torch/distributed/c10d.py:5220)          File "/x/site-packages/torch/distributed/c10d.py", line 5220 in barrier
"""  # noqa: E501  as both write it

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from cloudrl.protocol.job_phases import JobPhase

_THREAD = re.compile(r'^(?:Current thread|Thread) (?:0x)?([0-9a-fA-F]+)(?:[^"\[]*(?:"([^"]*)"|\[([^\]]*)\]))?')
_SPY_FRAME = re.compile(r"^ {4}(\S.*?) \((.+):([0-9]+)\)$")
_OWN_FRAME = re.compile(r'^  File "(.+)", line ([0-9]+|\?\?\?) in (.+)$')
_PATHS = re.compile(
    r"^.*/(?:(?:site-packages|dist-packages|_ray_pkg_[0-9a-f]+|lib/python3\.[0-9]+)/"
    r"|(?=verl/(?:checkpoint_engine|experimental|single_controller|trainer|utils|workers)/))"
)
"""What is cut off a path. Images have verl from its sources: /workspace/verl/verl/trainer."""
_STANDARD = re.compile(r"/lib/python3\.[0-9]+/(?!site-packages/|dist-packages/)")
_MOST_THREADS, _MOST_FRAMES = 500, 200

_LIBRARIES = (
    "asyncio/", "concurrent/", "contextlib.py", "functools.py", "grpc/", "importlib", "logging/", "multiprocessing/",
    "queue.py", "ray/", "runpy.py", "selectors.py", "socket.py", "ssl.py", "subprocess.py", "tensordict/",
    "threading.py", "torch/", "torchdata/", "tqdm/", "transfer_queue/", "transformers/", "uvicorn/", "uvloop", "zmq/",
    "httpx", "httpcore", "urllib", "requests/", "aiohttp/", "codetiming/", "cupy/", "numpy/", "pandas/", "datasets/",
    "pyarrow/", "hydra/", "omegaconf/", "re.py", "re/", "sre_", "sympy/", "http/", "starlette/", "fastapi/", "anyio/",
    "<frozen", "<string", "cloudrl_look_hook", "multiprocess/",
)  # fmt: skip
_STANDING = re.compile(
    r"^(?:main_loop \(ray/_private/worker|gc_collect_manager|_worker \(concurrent/futures/thread|_start_loop"
    r"|notify_data_status_loop|_run_notify_loop|_read_ready|_do_wait|monitor|run \(tqdm/_monitor|_read_thread"
    r"|_recv_msg|_run_event_loop|run_forever|_run_once)"
)
_COLLECTIVE = re.compile(
    r"^(?:\w*(?:all_reduce|all_gather|allgather|reduce_scatter|broadcast|barrier|all_to_all|alltoall|wait_tensor)\w*"
    r"|synchronize|\w+) \((?:torch/distributed/distributed_c10d\.py|torch/distributed/_functional_collectives\.py"
    r"|torch/distributed/c10d_logger\.py|torch/distributed/fsdp/_fully_shard/_fsdp_collectives\.py)"
)
_FORKS = ("multiprocessing/popen_fork.py", "multiprocess/popen_fork.py")
"""Where Python's multiprocessing forks, and its copy that `datasets` uses. What is below in a child is its parent's."""
_AT_WORK = ("actor_method_executor", "execute_task", "_resume_span")

_FRAMES = {
    "_compute_reward_colocate": JobPhase.REWARD, "_balance_batch": JobPhase.STEP,
    "_compute_old_log_prob": JobPhase.OLD_LOG_PROB, "_compute_ref_log_prob": JobPhase.REF,
    "_compute_values": JobPhase.VALUES, "_compute_advantage": JobPhase.ADV, "_update_critic": JobPhase.UPDATE_CRITIC,
    "_update_actor": JobPhase.UPDATE_ACTOR, "_save_checkpoint": JobPhase.SAVE_CHECKPOINT,
    "_load_checkpoint": JobPhase.LOAD_CHECKPOINT, "_validate": JobPhase.TESTING,
    "update_weights": JobPhase.UPDATE_WEIGHTS, "_log_rollout_data": JobPhase.STEP, "_compute_metrics": JobPhase.STEP,
    "_fetch_one_gen_batch": JobPhase.DATA, "_next_train_batch": JobPhase.DATA, "_init_dataloader": JobPhase.DATA,
    "sample": JobPhase.GEN, "_setup": JobPhase.INIT, "_init_tokenizer": JobPhase.INIT,
    "create_resource_pool": JobPhase.PLACEMENT, "get_placement_groups": JobPhase.PLACEMENT,
}  # fmt: skip
"""Functions of verl's driver that name a phase (verl 0.9.1, trainer/ppo/v1/trainer_base.py, single_controller/ray)."""
_FILES = (
    ("torch/utils/data/", JobPhase.DATA),
    ("torchdata/", JobPhase.DATA),
    ("verl/utils/dataset", JobPhase.DATA),
    ("verl/checkpoint_engine", JobPhase.UPDATE_WEIGHTS),
)
NAMED_FRAMES = tuple(_FRAMES)
"""What has to be in verl's source, for the test that holds this table against a release."""


@dataclass(frozen=True)
class Frame:
    """One call.

    Attributes:
        file: below `site-packages`, the standard library or the job's working directory; else the whole path.
        is_standard: whether it is in the standard library.
    """

    function: str
    file: str
    line: str
    is_standard: bool = False

    def __str__(self) -> str:
        return f"{self.function} ({self.file}:{self.line})"

    @property
    def is_library(self) -> bool:
        """Whether neither verl nor the user has written it."""
        return self.is_standard or self.file.startswith(_LIBRARIES)


@dataclass(frozen=True)
class Thread:
    """One thread; `frames` begin with the innermost."""

    name: str
    frames: tuple[Frame, ...] = ()


def parse(text: str) -> tuple[Thread, ...]:
    """The threads of one dump, of py-spy or of faulthandler; of several dumps, those of the last."""
    threads: list[tuple[str, list[Frame]]] = []
    seen: set[str] = set()
    for line in text.splitlines():
        head = _THREAD.match(line)
        if head is not None:
            if head[1] in seen:  # faulthandler appends: another dump begins
                threads.clear()
                seen.clear()
            seen.add(head[1])
            threads.append((head[2] or head[3] or "", []))
        elif threads and len(threads) <= _MOST_THREADS and len(threads[-1][1]) < _MOST_FRAMES:
            frame = _frame(line)
            if frame is not None:
                threads[-1][1].append(frame)
    return tuple(Thread(name, _without_parents(frames)) for name, frames in threads[:_MOST_THREADS])


def work_frames(threads: Sequence[Thread]) -> tuple[Frame, ...]:
    """Of the thread that runs the actor's call, innermost first; else of the main thread, or ().

    An asynchronous actor, such as verl's WorkerDict, runs its calls in a thread beside the main one.
    """
    for thread in threads:
        if any(frame.function in _AT_WORK for frame in thread.frames):
            return thread.frames
    return next((thread.frames for thread in threads if thread.name == "MainThread"), _last(threads))


def phase_of(frames: Sequence[Frame]) -> str | None:
    """The phase in which verl's driver is: that of the innermost frame which names one."""
    for frame in frames:
        for path, phase in _FILES:
            if frame.file.startswith(path):
                return str(phase)
        if frame.function in _FRAMES and frame.file.startswith("verl/"):
            return str(_FRAMES[frame.function])
    return None


def first_own(frames: Sequence[Frame]) -> Frame | None:
    """The innermost frame of the user's code or verl's: what a person reads first. None in libraries alone."""
    return next((frame for frame in frames if not frame.is_library), None)


def collective(frames: Sequence[Frame]) -> str | None:
    """The function of torch that waits for other ranks, None where none does."""
    found = [frame.function for frame in frames[:14] if _COLLECTIVE.match(str(frame))]
    named = [function for function in found if not function.startswith(("_", "wrapper"))]
    return next(iter(named or found), None)


def loader_frames(frames: Sequence[Frame]) -> tuple[Frame, ...] | None:
    """What a worker of torch's data loader runs for the next batch; None in any other process.

    It is forked from the trainer, whose title it has.
    """
    at = next((at for at, frame in enumerate(frames) if _is_loader(frame)), None)
    return tuple(frames[:at]) if at is not None else None


def is_forked(threads: Sequence[Thread]) -> bool:
    """Whether a process is a worker that multiprocessing has forked: it has the title of its parent."""
    return any(thread.frames and _is_fork(thread.frames[-1]) for thread in threads)


def threads_at_work(threads: Sequence[Thread]) -> tuple[Thread, ...]:
    """Threads that run or wait in code of the user's or verl's, without loops and pools that stand idle."""
    return tuple(
        thread
        for thread in threads
        if thread.frames
        and not any(_STANDING.match(str(frame)) for frame in thread.frames[:2])
        and any(not frame.is_library for frame in thread.frames)
    )


def _is_fork(frame: Frame) -> bool:
    return frame.function == "_launch" and frame.file in _FORKS


def _without_parents(frames: Sequence[Frame]) -> tuple[Frame, ...]:
    """The frames up to the fork that began the process: those below it show where its parent was then."""
    at = next((at for at, frame in enumerate(frames, 1) if _is_fork(frame)), len(frames))
    return tuple(frames[:at])


def _is_loader(frame: Frame) -> bool:
    return frame.function == "_worker_loop" and frame.file.startswith(("torch/utils/data/", "torchdata/"))


def _frame(line: str) -> Frame | None:
    spy = _SPY_FRAME.match(line)
    if spy is not None:
        return _frame_of(spy[1].rpartition(".")[2], spy[2], spy[3])
    own = _OWN_FRAME.match(line)
    return _frame_of(own[3], own[1], own[2]) if own is not None else None


def _frame_of(function: str, path: str, line: str) -> Frame:
    return Frame(function, _PATHS.sub("", path), line, _STANDARD.search(path) is not None)


def _last(threads: Sequence[Thread]) -> tuple[Frame, ...]:
    """The main thread of a dump without names: faulthandler writes it last."""
    return threads[-1].frames if threads else ()
