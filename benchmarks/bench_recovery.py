"""After the loss of a machine: how long until the training makes a new step, and how many steps are done again.

    make bench-recovery                 # or: PYTHONPATH=tests python benchmarks/bench_recovery.py [--case reboot]

The real dstack server and CLI, ssh, Ray and verl, on stand-in hosts (tests/dstack_hosts/README.md), each with a disk of
its own; as root. Two ways to train take turns in the same lab, with the same overrides on two nodes:

- dstack: a task by dstack's and verl's guides: `ray start`, then verl on rank 0, with `trainer.resume_mode=auto` and
  dstack's own `retry`.
- cloudrl: `cloudrl up`, then `cloudrl submit`.

Once the fifth step is done, and the fourth is saved, a machine loses its power:

- worker: that of rank 1, for good; the fleet's third host takes its place, with an empty disk.
- head: that of rank 0, likewise.
- reboot: that of rank 1, which comes back at once, with its disk; there is no third host.

The clock runs from the loss to the first step that had not been done before. The lab's server takes a silent host for
lost after 15 s instead of two minutes, in both. A new step that has not come after `--give-up` seconds counts as never.

The share of effective training is 1 - (time until the new step) / (time between two losses) - (time of a save) / (time
between two saves), as RobustRL reckons it (arXiv 2512.22492), for losses as often as `--losses-every` says.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dstack_hosts import Lab, LabUnavailable
from dstack_hosts.user import FILES, MODEL, User

from cloudrl.render.agent import AGENT_FILE, write_agent
from cloudrl.units import duration_text
from cloudrl.verl.metrics import parse_step

if TYPE_CHECKING:
    from dstack_hosts.client import Client

SAVE_EVERY, LOST_AFTER = 2, 5
START_TIMEOUT_S = 900.0
AGENT = f"/opt/cloudrl/{AGENT_FILE}"
RAY = "--min-worker-port=20000 --max-worker-port=29999 --num-cpus=8 --num-gpus=1"  # as the agent gives it
PLAIN = """\
type: task
name: plain
nodes: 2
image: any
user: root
files:
  - {agent}:{path}
env: {env}
commands:
  - |
    python3 {path} data addition --to {data} --result /root/data.json
    python3 {path} model tiny-qwen2 --to {models} --result /root/model.json
    if [ $DSTACK_NODE_RANK = 0 ]; then
      ray start --head --port=6379 --node-ip-address=$DSTACK_MASTER_NODE_IP {ray}
      until ray status 2>/dev/null | grep -q "0.0/2.0 GPU"; do sleep 1; done
      {train}
    else
      until (echo > /dev/tcp/$DSTACK_MASTER_NODE_IP/6379) 2>/dev/null; do sleep 1; done
      ray start --address=$DSTACK_MASTER_NODE_IP:6379 --block {ray}
    fi
shell: bash
resources:
  cpu: x86:1..
  memory: 1GB..
  disk: 1GB..
volumes:
  - /var/lib/cloudrl/checkpoints:/checkpoints
fleets: [{fleet}]
retry:
  on_events: [no-capacity, interruption, error]
  duration: 1h
"""


@dataclass(frozen=True)
class Case:
    """Which machine is lost, and whether it comes back."""

    fleet: str
    rank: int
    comes_back: bool = False


CASES = {"worker": Case("three", 1), "head": Case("three", 0), "reboot": Case("two", 1, comes_back=True)}
FLEETS = {"three": (0, 1, 2), "two": (3, 4)}


@dataclass(frozen=True)
class Reading:
    """What a loss has cost.

    Attributes:
        new_step_s: from the loss to the first step that had not been done before; None if it did not come.
        lost_steps: steps that were done again.
        done_steps: steps that were done before.
        why: what was said last where no step came.
    """

    new_step_s: float | None
    lost_steps: int = 0
    done_steps: int = 0
    why: str = ""

    def __str__(self) -> str:
        if self.new_step_s is None:
            return f"never ({self.why})"
        return f"{duration_text(self.new_step_s)}, {self.lost_steps} of {self.done_steps} steps done again"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--case", choices=CASES, action="append", help="one of them; repeatable. Default: all")
    parser.add_argument("--give-up", type=float, default=600.0, help="seconds after the loss")
    parser.add_argument("--losses-every", type=float, default=3600.0, help="seconds between two losses")
    args = parser.parse_args()
    try:
        with Lab(5) as lab:
            user = User(lab)
            for fleet, hosts in FLEETS.items():
                lab.create_fleet(fleet, hosts)
            readings = {name: _measure(user, CASES[name], args.give_up) for name in args.case or CASES}
    except (LabUnavailable, AssertionError, TimeoutError, subprocess.TimeoutExpired) as error:
        print(f"bench-recovery failed: {error}", file=sys.stderr)
        return 1
    _report(readings, args.losses_every)
    return 0


def _measure(user: User, case: Case, give_up_s: float) -> dict[str, Reading]:
    """Both ways, one after the other; the first tells the second what to run."""
    user.up("own", case.fleet, *FILES)
    try:
        words = ("grpo-tiny", *MODEL, "--cluster", "own", "--name", "own", "--steps", "1000")
        words = (*words, f"trainer.save_freq={SAVE_EVERY}")
        shown = user.types("cloudrl", "submit", *words, "--no-durable", "--dry-run", "--json").stdout
        sent = json.JSONDecoder().raw_decode(shown[shown.index("\n{") + 1 :])[0]  # notes come first
        follower = user.lab.popen("cloudrl", "submit", *words)
        try:
            own = _lose(user, case, "own", lambda: _own_steps(follower), give_up_s, lambda: follower.output[-300:])
        finally:
            follower.close()
    finally:
        _clean_up(user, "own")
    print(f"  {case}, load {os.getloadavg()[1]:.0f}\n    cloudrl: {own}", flush=True)
    task = _write_plain(user, case, sent)
    user.lab.runs.apply(task)
    try:
        plain = _lose(user, case, "plain", lambda: _plain_steps(user), give_up_s, lambda: _last_error(user))
    finally:
        _clean_up(user, "plain")
    print(f"    dstack:  {plain}, load {os.getloadavg()[1]:.0f}", flush=True)
    return {"dstack": plain, "cloudrl": own}


def _clean_up(user: User, run: str) -> None:
    """End the run; all hosts are there again, with empty disks."""
    user.lab.runs.stop(run)
    for host in user.lab.hosts:
        host.start()
        subprocess.run(["rm", "-rf", str(host.path("/var/lib/cloudrl/checkpoints"))], check=True)


def _lose(
    user: User, case: Case, run: str, steps: Callable[[], list[int]], give_up_s: float, why: Callable[[], str]
) -> Reading:
    """Wait until enough steps are done, take a machine away, and wait for the first new step.

    `steps` gives all that have been reported, in their order, those that were done again too; `why` what is said last.
    """
    _wait_for_steps(steps, why)
    host = user.hosts_of(run)[case.rank]
    host.kill()
    lost_at, done = time.monotonic(), steps()
    if case.comes_back:
        host.start()
    while time.monotonic() - lost_at < give_up_s:
        again = steps()[len(done) :]
        if again and max(again) > max(done):
            return Reading(time.monotonic() - lost_at, sum(step <= max(done) for step in again), max(done))
        time.sleep(0.5)
    return Reading(None, why=why())


def _wait_for_steps(steps: Callable[[], list[int]], why: Callable[[], str]) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while len(steps()) < LOST_AFTER:
        if time.monotonic() > deadline:
            raise TimeoutError(f"no {LOST_AFTER} steps: {why()}")
        time.sleep(0.5)


def _own_steps(follower: Client) -> list[int]:
    return [int(step) for step in re.findall(r"^step (\d+)/", follower.output, re.MULTILINE)]


def _plain_steps(user: User) -> list[int]:
    """Those of all attempts: an attempt that goes on from a step reports the next."""
    found = user.lab.runs.logs("plain")
    return [step.step for line in found.splitlines() if (step := parse_step(line)) is not None]


def _last_error(user: User) -> str:
    """The last line that names an exception, and how often the task was started."""
    errors = [line for line in user.lab.runs.logs("plain").splitlines() if re.search(r"\w+Error\b", line)]
    return f"{user.lab.runs.attempts('plain')} attempts; {errors[-1][-160:] if errors else 'no error'}"


def _write_plain(user: User, case: Case, sent: dict[str, Any]) -> Path:
    """The guide's task, with the overrides and the variables of our job."""
    words = shlex.split(sent["entrypoint"])
    overrides = [word for word in words if re.match(r"[+~]*[a-z_]+[.\w]*=", word)]
    values = dict(word.split("=", 1) for word in overrides)
    overrides = [word for word in overrides if not word.startswith("trainer.resume_")]
    train = shlex.join(["python3", "-m", "verl.trainer.main_ppo", *overrides, "trainer.resume_mode=auto"])
    env = {**sent["runtime_env"]["env_vars"], "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
    env |= {"PYTHONPATH": AGENT, "VERL_USE_EXTERNAL_MODULES": "cloudrl.verl_cpu.plugin", "PYTHONUNBUFFERED": "1"}
    folder = user.lab.folder / "plain"
    folder.mkdir(exist_ok=True)
    agent = write_agent(folder, for_cpu=True)
    text = PLAIN.format(
        agent=agent.name, path=AGENT, env=json.dumps(env), ray=RAY, fleet=case.fleet, train=train,
        data=Path(values["data.train_files"]).parent, models=Path(values["actor_rollout_ref.model.path"]).parent,
    )  # fmt: skip
    path = folder / "plain.dstack.yml"
    path.write_text(text)
    return path


def _report(readings: dict[str, dict[str, Reading]], losses_every_s: float) -> None:
    print(f"\nTwo nodes with disks of their own, a save each {SAVE_EVERY} steps; from the loss to the first new step")
    print(f"  {'':8}  {'dstack retry + resume_mode=auto':58}  cloudrl")
    for name, reading in readings.items():
        print(f"  {name:8}  {str(reading['dstack'])[:58]:58}  {reading['cloudrl']}")
    own = [reading["cloudrl"] for reading in readings.values()]
    came = [reading.new_step_s for reading in own if reading.new_step_s is not None]
    plain = [reading["dstack"].new_step_s for reading in readings.values()]
    share = 1 - max(came, default=losses_every_s) / losses_every_s
    print(
        f"\nbench-recovery: cloudrl makes a new step in {len(came)} of {len(own)} cases, after at most "
        f"{duration_text(max(came, default=0.0))} and {max(each.lost_steps for each in own)} steps done again; "
        f"with a loss each {duration_text(losses_every_s)} that leaves {share:.0%} of the time. dstack's retry: "
        f"{sum(each is not None for each in plain)} of {len(plain)}"
    )


if __name__ == "__main__":
    sys.exit(main())
