"""What goes wrong with dstack, told from a server's answers: no server and no socket is needed for these."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest
from dstack._internal.core.models.configurations import TaskConfiguration
from fake_clock import Clock
from fake_dstack import FakeDstack, attempt, fleet, run, submission_id

from cloudrl.errors import WaitTimeout
from cloudrl.protocol import outcome
from cloudrl.protocol.outcome import STARTED, Outcome
from cloudrl.protocol.phases import Phase
from cloudrl.providers.dstack import diagnostics, runs, watcher
from cloudrl.providers.dstack.machines import DstackFleets
from cloudrl.providers.dstack.runs import Attempt, RunState
from cloudrl.providers.model import CheckpointRetention


def held(dstack: FakeDstack, *attempts: Any, **changes: Any) -> RunState:
    """The run that the server holds, as a look at it."""
    dstack.held_runs = [run(*attempts, **changes)]
    return runs.get(dstack.server, "lab")


def latest(dstack: FakeDstack, **changes: Any) -> Attempt:
    return held(dstack, attempt(**changes)).nodes[0].latest


class TestTheEnd:
    @pytest.mark.parametrize(
        ("changes", "said"),
        [
            ({"status": "failed", "code": "log_quota_exceeded"}, r"prints too much: 50 MB in an hour"),
            ({"said": "the host is gone"}, "^the host is gone$"),
        ],
    )
    def test_is_explained_where_it_is_not_plain(self, dstack: FakeDstack, changes: dict[str, Any], said: str) -> None:
        assert re.search(said, diagnostics.describe_failure(latest(dstack, **changes)))

    @pytest.mark.parametrize(
        ("code", "said"),
        [
            ("terminated_due_to_utilization_policy", "one of its GPUs did less than its utilization_policy asks for"),
            ("max_duration_exceeded", "it has run for its max_duration"),
        ],
    )
    def test_at_a_limit_of_the_users(self, dstack: FakeDstack, code: str, said: str) -> None:
        """The nodes are "terminated" and the run has failed."""
        worker = attempt(status="terminated", code="terminated_by_server", host="10.0.0.2", ended=8.0)
        head = attempt(status="terminated", code=code, said="in dstack's words", ended=9.0)
        dstack.held_outputs[head.id] = "^C"
        phase, reason = diagnostics.exit_reason(dstack.server, held(dstack, head, others=[worker], status="failed"))
        assert (phase, reason.startswith(f"rank 0: {said}")) == (Phase.FAILED, True)
        assert reason.endswith("(in dstack's words)")

    @pytest.mark.parametrize(
        ("code", "said", "enough", "hint"),
        [
            ("creating_container_error", "manifest unknown", 2, "docker pull nowhere/nothing:1"),
            ("creating_container_error", "pull: context deadline exceeded", 3, "a pull 20 minutes"),
            (
                "creating_container_error",
                "nvidia-container-cli: requirement error: unsatisfied condition: cuda>=13.0, please update your driver",
                2,
                "The driver of this machine is older than the CUDA of the image",
            ),
            (
                "creating_container_error",
                'could not select device driver "" with capabilities: [[gpu]]',
                2,
                "NVIDIA's container toolkit",
            ),
            ("container_exited_with_error", "no sshd", 3, "needs python3, and sshd"),
            ("executor_error", "unknown user", 3, "needs python3, and sshd"),
            ("executor_error", "mkdir /checkpoints: read-only file system", 3, "/var/lib/cloudrl/checkpoints:"),
            ("executor_error", "create instance mount directory: not a directory", 3, "--volume /FOLDER:/checkpoints"),
        ],
    )
    def test_a_node_that_never_gets_to_its_agent_ends_the_wait(
        self, dstack: FakeDstack, code: str, said: str, enough: int, hint: str
    ) -> None:
        broken = [attempt(n, status="failed", code=code, said=said) for n in range(enough)]
        assert diagnostics.unrecoverable_error(dstack.server, held(dstack, *broken[1:])) is None
        failed = diagnostics.unrecoverable_error(dstack.server, held(dstack, *broken))
        assert failed is not None
        assert (
            f"rank 0 has ended {enough} times before its agent started, the last time on 10.0.0.1: " in failed.message
        )
        assert said in failed.message
        assert failed.message.endswith("; image nowhere/nothing:1")
        assert hint in str(failed.hint)

    def test_a_run_that_no_client_waits_for_is_named_after_five(self, dstack: FakeDstack) -> None:
        """As after `dstack apply`, or with the laptop off."""
        broken = [attempt(n, status="failed", code="executor_error", said="unknown user") for n in range(5)]
        assert diagnostics.endless_restarts(dstack.server, held(dstack, *broken[1:])) is None
        notice = diagnostics.endless_restarts(dstack.server, held(dstack, *broken))
        assert notice is not None
        assert "rank 0 has ended 5 times before its agent started" in notice.text
        assert notice.hint.startswith("End it: cloudrl down lab")
        assert diagnostics.endless_restarts(dstack.server, held(dstack, *broken, status="failed")) is None

    @pytest.mark.parametrize("code", ["instance_unreachable", "container_exited_with_error"])
    def test_others_do_not(self, dstack: FakeDstack, code: str) -> None:
        """A lost machine; an agent, which counts its failures by itself."""
        lost = [attempt(n, status="failed", code=code, said="ended") for n in range(5)]
        for each in lost:
            lines = [f"[12:00:00 rank 0] {STARTED}lab, rank 0 of 1, 10.0.0.1", *("set-up" for _ in range(2000))]
            dstack.held_outputs[each.id] = "".join(f"{line}\r\n" for line in lines)
        assert diagnostics.unrecoverable_error(dstack.server, held(dstack, *lost)) is None


MOUNT = SimpleNamespace(instance_path="/checkpoints", path="/checkpoints")


class TestRetention:
    def of(self, dstack: FakeDstack, folder: str = "/checkpoints", **changes: Any) -> CheckpointRetention:
        mine = held(dstack, attempt(backend=changes.pop("backend", "aws")), **{"volumes": [MOUNT], **changes})
        known = DstackFleets(dstack.server).list()
        return watcher.retention(mine, folder, known[0] if known else None)

    def test_ssh_hosts_keep_theirs(self, dstack: FakeDstack) -> None:
        kept = self.of(dstack, backend="remote")
        assert (kept.destroyed, kept.location) == (False, "in /checkpoints of your hosts 10.0.0.1")

    @pytest.mark.parametrize(
        ("idle_s", "said"),
        [(1800, "gives the machines back when they were idle for 30m"), (-1, "when fleet gpu-fleet is deleted")],
    )
    def test_rented_machines_go_with_their_disks(self, dstack: FakeDstack, idle_s: int, said: str) -> None:
        dstack.held_fleets = [fleet(idle_s=idle_s)]
        kept = self.of(dstack, "/checkpoints/mine")
        assert kept.destroyed
        assert said in kept.location

    def test_network_volumes_stay(self, dstack: FakeDstack) -> None:
        kept = self.of(dstack, volumes=[SimpleNamespace(name=["ckpt-0", "ckpt-1"], path="/checkpoints")])
        assert (kept.destroyed, kept.location) == (False, "on network volume ckpt-0, ckpt-1")

    def test_a_folder_that_is_on_no_volume(self, dstack: FakeDstack) -> None:
        assert self.of(dstack, "/elsewhere").destroyed


class TestFleetsThatNeverIdleOut:
    @pytest.mark.parametrize(
        ("changes", "said"),
        [
            ({}, ""),
            ({"idle_s": -1}, "its idle_duration is off"),
            ({"idle_s": None}, ""),
            ({"least": 1}, "it keeps 1 machine at any time (nodes: min 1)"),
            ({"least": 2}, "it keeps 2 machines at any time (nodes: min 2)"),
            ({"ssh": True, "idle_s": -1}, ""),
        ],
    )
    def test_why(self, dstack: FakeDstack, changes: dict[str, Any], said: str) -> None:
        dstack.held_fleets = [fleet(**changes)]
        [look] = DstackFleets(dstack.server).list()
        notice = look.never_released
        assert (notice is not None) == bool(said)
        assert notice is None or notice.text.endswith(f"while idle: {said}")


class Statuses:
    """A run whose status is another one at each look; the last one stays."""

    def __init__(self, dstack: FakeDstack, *statuses: str) -> None:
        self.left, self.stops = list(statuses), 0
        dstack.runs.get = lambda *_: run(status=self.left.pop(0) if len(self.left) > 1 else self.left[0])
        dstack.runs.stop = self._stop

    def _stop(self, *_: Any) -> None:
        self.stops += 1


def test_a_stop_that_the_server_has_forgotten_is_asked_again(dstack: FakeDstack, clock: Clock) -> None:
    there = Statuses(dstack, "terminating", "terminating", "running", "terminating", "terminated")
    runs.end(dstack.server, "one", sleep=clock.sleep)
    assert (there.stops, there.left) == (1, ["terminated"])


def test_a_run_that_does_not_end_is_told(dstack: FakeDstack, clock: Clock) -> None:
    Statuses(dstack, "running")
    with pytest.raises(WaitTimeout, match="still there after 5 s"):
        runs.end(dstack.server, "one", timeout_s=5.0, clock=clock, sleep=clock.sleep)


def lost(dstack: FakeDstack, reason_of_the_head: str = "terminated_by_server") -> runs.RunState:
    """Two nodes; rank 1 was lost in the first attempt."""
    head, worker, another = "10.0.0.11", "10.0.0.12", "10.0.0.13"
    dstack.held_runs = [
        run(
            attempt(0, host=head, status="failed", code=reason_of_the_head, ended=52.0),
            attempt(1, host=head),
            others=[
                attempt(0, host=worker, status="failed", code="instance_unreachable", ended=50.0),
                attempt(1, host=another),
            ],
        )
    ]
    return runs.get(dstack.server, "lab")


def test_attempts_that_ended(dstack: FakeDstack) -> None:
    [before] = diagnostics.previous_attempts(dstack.server, lost(dstack))
    assert before["reason"] == "rank 1 (10.0.0.12): instance unreachable"
    assert (before["attempt"], before["submitted_at"], before["ended_at"]) == (1, 0.0, 52.0)
    assert [(node["rank"], node["ip"], node["detail"]) for node in before["nodes"]] == [
        (0, "10.0.0.11", "terminated by server"),
        (1, "10.0.0.12", "instance unreachable"),
    ]


def test_the_agents_own_words_come_first(dstack: FakeDstack) -> None:
    seen = lost(dstack, "container_exited_with_error")
    words = "rank 1 (b, 10.0.0.12) was lost in phase ready: no heartbeat for 30 s"
    line = Outcome(Phase.FAILED, words, final=False, at=1.0).to_line()
    dstack.held_outputs[submission_id(0, "10.0.0.11")] = f"{line}\r\n"
    [before] = diagnostics.previous_attempts(dstack.server, seen)
    assert before["reason"] == words


def test_attempts_without_a_machine_for_each_rank_are_one_entry(dstack: FakeDstack) -> None:
    """As dstack 0.22.5 lists them while a lost machine takes a place in its fleet: some of rank 1's are missing."""
    again = {"status": "terminated", "code": "terminated_by_server", "said": "Run is to be resubmitted"}
    full = {"status": "failed", "code": "failed_to_start_due_to_no_capacity", "said": "Fleet is at capacity"}
    lost = {"status": "failed", "code": "interrupted_by_no_capacity", "said": "Instance is unreachable"}
    heads = [attempt(n, **again, ended=100.0 + n) for n in range(5)]
    workers = [attempt(0, **lost, ended=100.0), attempt(3, **full, host="0.0.0.0", ended=103.0), attempt(5)]
    dstack.held_runs = [run(*heads, attempt(5), others=workers)]
    first, waiting = diagnostics.previous_attempts(dstack.server, runs.get(dstack.server, "lab"))
    assert (first["attempt"], first["last_attempt"]) == (1, 1)
    assert "Instance is unreachable" in first["reason"]
    assert (waiting["attempt"], waiting["last_attempt"]) == (2, 5)
    assert waiting["reason"] == "no machine for rank 1: Fleet is at capacity"
    assert (waiting["submitted_at"], waiting["ended_at"]) == (heads[1].submitted_at.timestamp(), 104.0)


def test_one_attempt_has_no_past(dstack: FakeDstack) -> None:
    dstack.held_runs = [run()]
    assert diagnostics.previous_attempts(dstack.server, runs.get(dstack.server, "lab")) == ()


DOWN = Outcome(Phase.DOWN, "idle for 30m", final=True, at=1.0)
FINAL = Outcome(Phase.FAILED, "rank 1, setup: no", final=True, at=1.0)
PASSING = Outcome(Phase.FAILED, "rank 0 was lost", final=False, at=1.0)


@pytest.mark.parametrize(
    ("status", "outputs", "said"),
    [
        ("done", (FINAL.to_line(), DOWN.to_line()), (Phase.DOWN, DOWN.reason)),
        ("done", (PASSING.to_line(), FINAL.to_line()), (Phase.FAILED, FINAL.reason)),
        ("terminated", ("READY", ""), (Phase.DOWN, "")),
        ("terminated", ("READY", PASSING.to_line()), (Phase.DOWN, "")),
        ("terminated", (FINAL.to_line(), PASSING.to_line()), (Phase.FAILED, FINAL.reason)),
        ("failed", ("", "x\nno module named y"), (Phase.FAILED, "rank 0: out of memory")),
        (
            "failed",
            ("no module named y\n", ""),
            (Phase.FAILED, "rank 0: out of memory; its last line: no module named y"),
        ),
    ],
)
def test_how_a_run_has_ended(
    dstack: FakeDstack, status: str, outputs: tuple[str, str], said: tuple[Phase, str]
) -> None:
    hosts = ("10.0.0.11", "10.0.0.12")
    head, worker = (attempt(host=host, status="failed", said="out of memory", ended=5.0) for host in hosts)
    dstack.held_runs = [run(head, others=[worker], status=status)]
    dstack.held_outputs = {submission_id(0, host): text for host, text in zip(hosts, outputs, strict=True)}
    assert diagnostics.exit_reason(dstack.server, runs.get(dstack.server, "lab")) == said


@pytest.mark.parametrize(
    ("command", "checkpoints"),
    [
        ("exec python3 /opt/cloudrl/cloudrl-node.pyz run \\\n  --device gpu \\\n  --checkpoints '/a b'", "/a b"),
        ("exec python3 /opt/cloudrl/cloudrl-node.pyz run --checkpoints=/vol --of-a-later-release 5", "/vol"),
        ("exec python3 /opt/cloudrl/cloudrl-node.pyz run --gpus-per-node none", "/checkpoints"),
        ("python3 /opt/cloudrl/cloudrl-node.pyz data addition", None),
        ("python3 serve.py", None),
    ],
)
def test_what_the_nodes_of_a_run_were_told(dstack: FakeDstack, command: str, checkpoints: str | None) -> None:
    dstack.held_runs = [run()]
    dstack.held_runs[0].run_spec.configuration.commands = ["pip list", command]
    options = runs.get(dstack.server, "lab").agent_options
    assert (options and str(options.checkpoints)) == checkpoints


def test_what_the_nodes_of_groups_were_told(dstack: FakeDstack) -> None:
    told = "exec python3 /opt/cloudrl/cloudrl-node.pyz run --checkpoints=/{}"
    groups = [{"nodes": nodes, "commands": ["pip list", told.format(nodes)]} for nodes in (1, 2)]
    dstack.held_runs = [run()]
    dstack.held_runs[0].run_spec.configuration = TaskConfiguration.model_validate({"groups": groups})
    options = runs.get(dstack.server, "lab").agent_options
    assert (options and str(options.checkpoints)) == "/1"


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"phase": "failed"}', '{"phase": 1, "reason": "x", "at": "y"}']
)
def test_an_outcome_that_was_cut_short_is_none(text: str) -> None:
    assert outcome.from_text(text) is None
    assert outcome.from_output(f"READY\nCLOUDRL OUTCOME {text}\n") is None


def test_many_ranks_without_a_machine_are_spans() -> None:
    full = SimpleNamespace(code="failed_to_start_due_to_no_capacity", reason="Fleet is at capacity", hostname="")
    lost = SimpleNamespace(code="interrupted_by_no_capacity", reason="Instance is unreachable", hostname="b")
    many: Any = [(rank, full if rank > 9 else lost) for rank in range(256)]
    assert diagnostics._lack(many, {}) == "no machine for ranks 10-255: Fleet is at capacity"
    assert diagnostics._dstack_reason(many) == "rank 0 (b): Instance is unreachable; likewise ranks 1-9"
