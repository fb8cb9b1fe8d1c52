"""On dstack: how long from `dstack apply` until a job has read data and model on every node.

    make bench-dstack                      # or: PYTHONPATH=tests python benchmarks/bench_dstack.py [--quick]

The real dstack server and CLI, ssh and Ray, on two stand-in hosts (tests/dstack_hosts/README.md); as root. Two tasks
take turns on the same hosts in this one run:

- guide: the task of verl's multi-node guide: on a node first the data, then the model, then `ray start`.
  Once Ray counts two nodes at localhost:8265, `ray job submit`.
- cloudrl: the file that `cloudrl task create` writes, by the same `dstack apply`. Once it says READY,
  `cloudrl submit`.

The job is the same: one task on each node reads the data set and the model there (probe_job.py); the clock stops when
the command that submitted it has ended.

How downloads are simulated: data and model are really made, by the children of the agent's own file in both cases,
which sleep first (costly_agent.py). In favour of the guide: its data and model steps run on both nodes (as it stands,
rank 1 has neither, and the job fails there); `ray start` gets `--block` (without it dstack ends the task at once);
the worker waits for the head's port and asks each second, since `ray start --address` of Ray 2.60 that comes too early
joins 8 to 30 s late. Ray has no authentication there.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from costly_agent import write_costly_agent
from dstack_hosts import Lab, LabUnavailable
from dstack_hosts.user import SHAPE, User

from cloudrl.errors import ConnectionFailed
from cloudrl.render.agent import AGENT_FILE
from cloudrl.transport import RayClient

HERE = Path(__file__).parent
TIMEOUT_S = 400.0
AGENT = f"/opt/cloudrl/{AGENT_FILE}"
PROBE = (sys.executable, str(HERE / "probe_job.py"), "--nodes", "2")
GUIDE = """\
type: task
name: guide
nodes: 2
image: any
user: root
files:
  - {agent}:{path}
env:
  - PYTHONUNBUFFERED=1
  - RAY_AUTH_MODE=disabled
  - RAY_USAGE_STATS_ENABLED=0
commands:
  - |
    python3 {path} data addition --to /root/data/addition --result /root/data.json
    python3 {path} model tiny-qwen2 --to /root/models --result /root/model.json
    if [ $DSTACK_NODE_RANK = 0 ]; then
      ray start --head --port=6379 --block --node-ip-address=$DSTACK_MASTER_NODE_IP {ray}
    else
      until (echo > /dev/tcp/$DSTACK_MASTER_NODE_IP/6379) 2>/dev/null; do sleep 1; done
      ray start --address=$DSTACK_MASTER_NODE_IP:6379 --block {ray}
    fi
shell: bash
ports:
  - 8265
resources:
  cpu: x86:1..
  memory: 1GB..
  disk: 1GB..
volumes:
  - /checkpoints:/checkpoints
fleets: [bench]
"""
# ports of workers away from dstack's own, and the same size as the agent gives
RAY = "--min-worker-port=20000 --max-worker-port=29999 --num-cpus=8 --num-gpus=1"


@dataclass(frozen=True)
class Reading:
    """From `dstack apply`, in seconds: until the cluster can take a job, and until the job has read everything."""

    ready_s: float
    done_s: float


def main() -> int:
    args = _arguments()
    try:
        with Lab(2) as lab:
            _run(args, User(lab))
    except (LabUnavailable, AssertionError, TimeoutError, subprocess.TimeoutExpired) as error:
        print(f"bench-dstack failed: {error}", file=sys.stderr)
        return 1
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--data-s", type=float, default=20.0, help="what the data step costs")
    parser.add_argument("--model-s", type=float, default=20.0, help="what the model costs")
    parser.add_argument("--quick", action="store_true", help="one round, costs of 3 s: does it work?")
    args = parser.parse_args()
    if args.quick:
        args.rounds, args.data_s, args.model_s = 1, 3.0, 3.0
    return args


def _run(args: argparse.Namespace, user: User) -> None:
    user.lab.create_fleet("bench")
    folder = user.lab.folder / "tasks"
    agent = write_costly_agent(folder, data_s=args.data_s, model_s=args.model_s)
    task = _write_tasks(user, folder, agent)
    guides, ours = [], []
    for number in range(args.rounds):
        guides.append(_guide(user, folder))
        ours.append(_cloudrl(user, task))
        print(
            f"  round {number + 1}: verl's guide {guides[-1].done_s:.1f} s, cloudrl {ours[-1].done_s:.1f} s", flush=True
        )
    _report(args, guides, ours)


def _write_tasks(user: User, folder: Path, agent: Path) -> Path:
    """The guide's task and ours, beside the agent with the slow downloads."""
    (folder / "guide.dstack.yml").write_text(GUIDE.format(agent=agent.name, path=AGENT, ray=RAY))
    own = folder / "own"
    own.mkdir()
    words = ("--set", "dstack.fleets=[bench]", "--nodes", "2", *SHAPE, "--data", "addition", "--model", "tiny-qwen2")
    user.types("cloudrl", "task", "create", "own", *words, cwd=own)
    (own / agent.name).write_bytes(agent.read_bytes())
    entry = ", ".join(f'"{word}"' for word in PROBE)
    (user.lab.home / "probe.yml").write_text(
        f"name: probe\ndevice: cpu\ndata: [addition]\nmodel: tiny-qwen2\nentrypoint: [{entry}]\n"
    )
    return own / "own.dstack.yml"


def _guide(user: User, folder: Path) -> Reading:
    """As the guide says: apply, stay attached, submit to localhost:8265."""
    began = time.monotonic()
    client = user.lab.popen("dstack", "apply", "-y", "-f", "guide.dstack.yml", cwd=folder)
    try:
        with user.lab.network():
            _until(_two_nodes, lambda: client.output)
        ready_s = time.monotonic() - began
        probe = shlex.join(
            [*PROBE, "--data", "/root/data/addition/train.parquet", "--model", "/root/models/tiny-qwen2"]
        )
        env = {"RAY_ADDRESS": "http://localhost:8265", "RAY_AUTH_MODE": "disabled"}
        done = user.lab.run("ray", "job", "submit", "--", *shlex.split(probe), env=env, timeout_s=TIMEOUT_S)
        assert done.returncode == 0, done.stdout
        return Reading(ready_s, time.monotonic() - began)
    finally:
        client.close()
        user.lab.runs.stop("guide")


def _two_nodes() -> bool:
    try:
        return len(RayClient("http://127.0.0.1:8265").nodes()) == 2
    except ConnectionFailed:
        return False


def _cloudrl(user: User, task: Path) -> Reading:
    began = time.monotonic()
    user.lab.runs.apply(task)
    try:
        user.lab.runs.wait_for_line("own", "READY", timeout_s=TIMEOUT_S)
        ready_s = time.monotonic() - began
        user.types("cloudrl", "submit", "probe.yml", timeout_s=TIMEOUT_S)
        return Reading(ready_s, time.monotonic() - began)
    finally:
        user.lab.runs.stop("own")


def _until(condition: Callable[[], bool], story: Callable[[], str]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(story())
        time.sleep(0.5)


def _report(args: argparse.Namespace, guides: list[Reading], ours: list[Reading]) -> None:
    print(f"\nTwo hosts on dstack, data step {args.data_s:g} s, model {args.model_s:g} s; seconds from `dstack apply`")
    _table("until the cluster takes jobs", [each.ready_s for each in guides], [our.ready_s for our in ours])
    guide, own = [each.done_s for each in guides], [our.done_s for our in ours]
    _table("until a job has read them on each node", guide, own)
    print(
        f"\nbench-dstack: a job has read data and model on both nodes after {median(own):.1f} s, "
        f"with the task of verl's guide after {median(guide):.1f} s ({median(guide) / median(own):.2f}x)"
    )


def _table(title: str, guide: list[float], own: list[float]) -> None:
    print(f"  {title:40}  median  raw")
    for name, values in (("verl's guide", guide), ("cloudrl", own)):
        print(f"  {name:40}  {median(values):6.1f}  {' '.join(f'{value:.1f}' for value in values)}")


if __name__ == "__main__":
    sys.exit(main())
