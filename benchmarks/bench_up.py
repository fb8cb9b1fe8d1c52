"""How long until a job can read its data and its model on every node; and what the agent itself costs.

    make bench-up                          # or: python benchmarks/bench_up.py [--quick]

Two measurements, each side by side in this one run, the sides taking turns:

1. Bare `ray start` of two nodes against two nodes of cloudrl without data and model. Both are ready when Ray
   counts two nodes and takes jobs, asked with the same code. For cloudrl there are two times: that of the whole
   command, with the start of Python and its imports, and that of `up` alone. Claim: at most 1 s more.
2. The commands of verl's multi-node guide for dstack (on rank 0 data, then model, then the head of Ray;
   on rank 1 `ray start --address`) against cloudrl, which does these at the same time. The clock stops when a
   Ray job, submitted as soon as the cluster is ready, has read the data set and the model in one task on each
   node.

How downloads are simulated: data and model are really made, by the children of the agent's own file in both
cases (`data addition`, `model tiny-qwen2`). The file is a copy of cloudrl-node.pyz whose `__main__.py`, and
nothing else, sleeps first when it is started as such a child (costly_agent.py). The agents run it as they run
their own file; the guide's sequence runs the same two commands.

In favour of the bare side: its worker looks for the port of Ray's control store once a second (0.1 s in the first
measurement) and then starts Ray. Started at once, as the guide does, Ray 2.60 waits inside `ray start`, and
joined 8 to 30 s after the head was there. Both nodes share this machine's disk, so that the guide's worker finds
files that it would not have on a machine of its own. Authentication is off there.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from types import FrameType
from typing import TYPE_CHECKING

from bare_ray import BareRay
from costly_agent import write_costly_agent

from cloudrl.providers.local import processes, state
from cloudrl.providers.local.provider import LocalProvider
from cloudrl.transport import AgentClient, RayClient

if TYPE_CHECKING:
    from cloudrl.child_process import Child
    from cloudrl.protocol.report import ClusterStatus, NodeReport
    from cloudrl.transport import Connection

HERE = Path(__file__).parent
DATA, MODEL = "addition", "tiny-qwen2"
TIMEOUT_S = 300.0
POLL_S = 0.1
CLAIM_S = 1.0


class Failed(Exception):
    """Something did not work, so there is nothing to compare."""


@dataclass(frozen=True)
class Start:
    """How long two nodes of cloudrl took, in seconds.

    Attributes:
        command_s: The whole command.
        up_s: `up` within it.
        steps: What the agents say, a line for each rank.
    """

    command_s: float
    up_s: float
    steps: str


@dataclass(frozen=True)
class Reading:
    """From nothing to a job that has read everything on both nodes, in seconds."""

    ready_s: float
    done_s: float


def main() -> int:
    args = _arguments()
    signal.signal(signal.SIGTERM, _on_term)
    try:
        with tempfile.TemporaryDirectory(prefix="cbench-", dir="/tmp") as name:  # short: sockets are in it
            _run(args, Path(name))
    except (Failed, subprocess.TimeoutExpired) as error:
        print(f"bench-up failed: {error}", file=sys.stderr)
        return 1
    return 0


def _on_term(number: int, _frame: FrameType | None) -> None:
    """End as Ctrl-C does, clusters and folder first; once only, since `timeout` sends the signal twice."""
    signal.signal(number, signal.SIG_IGN)
    sys.exit(128 + number)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="of the first measurement")
    parser.add_argument("--job-rounds", type=int, default=2, help="of the second")
    parser.add_argument("--data-s", type=float, default=20.0, help="what the data step costs")
    parser.add_argument("--model-s", type=float, default=20.0, help="what the model costs")
    parser.add_argument("--quick", action="store_true", help="one round of each, costs of 3 s: does it work?")
    args = parser.parse_args()
    if args.quick:
        args.rounds, args.job_rounds, args.data_s, args.model_s = 1, 1, 3.0, 3.0
    return args


def _run(args: argparse.Namespace, folder: Path) -> None:
    os.environ["CLOUDRL_HOME"] = str(folder / "home")
    _say(f"{os.cpu_count()} CPUs, Python {sys.version.split()[0]}, {args.rounds} and {args.job_rounds} rounds")
    _bare(folder / "warm")  # not counted: Ray's files come from the disk
    bare, starts = [], []
    for number in range(args.rounds):
        bare.append(_bare(folder / f"b{number}"))
        starts.append(start := _cloudrl(f"bench-{number}", folder))
        _say(f"round {number + 1}: bare {bare[-1]:.2f} s, up {start.up_s:.2f} s, {start.steps}")
    costly = write_costly_agent(folder / "costly", data_s=args.data_s, model_s=args.model_s)
    guide, ours = [], []
    for number in range(args.job_rounds):
        guide.append(_guide(folder / f"g{number}", costly))
        ours.append(_cloudrl_job(f"bench-job-{number}", costly, folder))
        _say(f"round {number + 1}: verl's guide {guide[-1].done_s:.2f} s, cloudrl {ours[-1].done_s:.2f} s")
    _report(args, bare, starts, guide, ours)


def _say(text: str) -> None:
    print(f"  [load {os.getloadavg()[0]:.1f}] {text}", flush=True)


# -- bare Ray ---------------------------------------------------------------------------------------------------


@contextmanager
def _bare_ray(folder: Path) -> Iterator[BareRay]:
    ray = BareRay(folder)
    try:
        yield ray
    finally:
        ray.end()
        shutil.rmtree(folder, ignore_errors=True)


def _bare(folder: Path) -> float:
    """Head, and the worker as soon as there is something to join."""
    with _bare_ray(folder) as ray:
        began = time.monotonic()
        head = ray.run(ray.head, "head.log")
        _until(ray.answers, [head], POLL_S)
        worker = ray.run(ray.worker, "worker.log")
        _until(ray.is_ready, [head, worker], POLL_S)
        return time.monotonic() - began


def _guide(folder: Path, agent: Path) -> Reading:
    """Rank 0: data, model, head, one after the other. Rank 1: the worker, once the head can be reached."""
    with _bare_ray(folder) as ray:
        data, models = folder / DATA, folder / "models"
        began = time.monotonic()
        python = [sys.executable, str(agent)]
        result = f"--result={folder / 'result.json'}"
        _finish(ray.run([*python, "data", DATA, "--to", str(data), result], "data.log"))
        _finish(ray.run([*python, "model", MODEL, "--to", str(models), result], "model.log"))
        head = ray.run(ray.head, "head.log")
        _until(ray.answers, [head], 1.0)
        worker = ray.run(ray.worker, "worker.log")
        _until(ray.is_ready, [head, worker], POLL_S)
        ready_s = time.monotonic() - began
        _run_job(RayClient(ray.url), data / "train.parquet", models / MODEL)
        return Reading(ready_s, time.monotonic() - began)


def _finish(child: Child) -> None:
    if child.wait(TIMEOUT_S) != 0:
        raise Failed(child.tail())


def _until(condition: Callable[[], bool], children: Sequence[Child], poll_s: float) -> None:
    """Poll; fail when a child has ended or the time is over."""
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        for child in children:
            if child.poll() is not None or time.monotonic() > deadline:
                raise Failed(child.tail())
        time.sleep(poll_s)


# -- cloudrl ----------------------------------------------------------------------------------------------------


@contextmanager
def _up(name: str, folder: Path, *options: str) -> Iterator[float]:
    """Start a cluster in a process of its own, as `cloudrl up` is one; yields how long `up` itself took."""
    command = [sys.executable, str(HERE / "start_cluster.py"), name, *options]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False, cwd=folder)
        if done.returncode != 0:
            raise Failed(f"{shlex.join(command)}: {done.stderr[-2000:]}")
        yield float(done.stdout.splitlines()[-1])
    finally:
        _down(name)


def _down(name: str) -> None:
    known = state.read(name)
    if known is None:
        return
    LocalProvider().down(name)
    left = processes.of_cluster(known.id)
    if left:
        raise Failed(f"cluster {name} has left processes {sorted(left)}")


def _cloudrl(name: str, folder: Path) -> Start:
    """Two nodes without data and model."""
    began = time.monotonic()
    with _up(name, folder, "--no-files") as up_s:
        command_s = time.monotonic() - began
        return Start(command_s, up_s, "; ".join(map(_steps, _status(LocalProvider().attach(name)).nodes)))


def _steps(node: NodeReport) -> str:
    steps = [f"{step} {seconds:.1f}" for step, seconds in node.seconds.items()]
    return f"rank {node.rank}: {', '.join(steps)}"


def _cloudrl_job(name: str, agent: Path, folder: Path) -> Reading:
    began = time.monotonic()
    with _up(name, folder, "--agent", str(agent)):
        ready_s = time.monotonic() - began
        connection = LocalProvider().attach(name)
        data, model = _files(connection)
        _run_job(RayClient(connection.ray_url, connection.ray_token), data, model)
        return Reading(ready_s, time.monotonic() - began)


def _files(connection: Connection) -> tuple[Path, Path]:
    """Where the agents say that data and model are."""
    status = _status(connection)
    return Path(status.data[DATA]["train"]), Path(status.models[MODEL])


def _status(connection: Connection) -> ClusterStatus:
    return AgentClient(str(connection.agent_url), str(connection.agent_token)).status()


# -- both -------------------------------------------------------------------------------------------------------


def _run_job(api: RayClient, data: Path, model: Path) -> None:
    """Submit probe_job.py and wait until it has read both files on two nodes."""
    command = [sys.executable, str(HERE / "probe_job.py"), "--data", str(data), "--model", str(model)]
    job = api.submit_job({"entrypoint": shlex.join([*command, "--nodes", "2"]), "submission_id": "probe"})
    deadline = time.monotonic() + TIMEOUT_S
    while not (seen := api.get_job(job)).status.is_terminal and time.monotonic() < deadline:
        time.sleep(POLL_S)
    if str(seen.status) != "SUCCEEDED":
        raise Failed(f"the probing job is {seen.status}: {seen.message[-2000:]}")


def _report(
    args: argparse.Namespace,
    bare: Sequence[float],
    starts: Sequence[Start],
    guide: Sequence[Reading],
    ours: Sequence[Reading],
) -> None:
    command, up = [start.command_s for start in starts], [start.up_s for start in starts]
    guide_done, our_done = [each.done_s for each in guide], [our.done_s for our in ours]
    print("\nTwo nodes, nothing to fetch; in turns, after one start that is not counted")
    _table("until ready", {"bare ray start": bare, "cloudrl, up alone": up, "cloudrl, command": command})
    print(f"\nData step {args.data_s:g} s, model {args.model_s:g} s; both nodes share this machine's disk, so that")
    print("the guide's worker finds files that it would not have on a machine of its own; cloudrl brings them there")
    ready = {"verl's guide": [each.ready_s for each in guide], "cloudrl": [our.ready_s for our in ours]}
    _table("until cluster and files are there", ready)
    _table("until a job has read them on each node", {"verl's guide": guide_done, "cloudrl": our_done})
    up_s, command_s = median(up) - median(bare), median(command) - median(bare)
    verdict = "holds" if command_s <= CLAIM_S else "holds for up alone" if up_s <= CLAIM_S else "DOES NOT HOLD"
    print(
        f"\nbench-up: a job has read data and model on both nodes after {median(our_done):.1f} s, "
        f"with verl's guide after {median(guide_done):.1f} s ({median(guide_done) / median(our_done):.2f}x); "
        f"cloudrl's own overhead {up_s:+.2f} s, with its command {command_s:+.2f} s; "
        f"at most {CLAIM_S:g} s: {verdict}"
    )


def _table(title: str, rows: Mapping[str, Sequence[float]]) -> None:
    """Each row's median in seconds, its ratio to the first row's, and the raw numbers."""
    first = median(next(iter(rows.values())))
    print(f"  {title:40}  median  ratio  raw")
    for name, values in rows.items():
        raw = " ".join(f"{value:.2f}" for value in values)
        print(f"  {name:40}  {median(values):6.2f}  {median(values) / first:5.2f}  {raw}")


if __name__ == "__main__":
    sys.exit(main())
