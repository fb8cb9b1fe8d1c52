"""A job that is watched: its events, and looks at job and cluster between them."""

import pytest
from fake_clock import Clock

from cloudrl.errors import Interrupted, JobFailed
from cloudrl.jobs import Ended, Line, Progress, Step, find_job
from cloudrl.jobs.look import Look, look_fields
from cloudrl.protocol.exchange import Response
from cloudrl.protocol.failures import ApiError, ErrorCode
from cloudrl.protocol.report import Usage
from cloudrl.protocol.usage_rows import to_row
from cloudrl.protocol.wire import to_json
from cloudrl.sdk.callbacks import Notice, Update
from cloudrl.sdk.watching import watch
from cloudrl.testing import FakeCluster
from cloudrl.testing_answers import Call

pytestmark = pytest.mark.usefixtures("home")

STEP = "step:{} - critic/score/mean:{} - timing_s/step:2.0\n"
RUN = {"job_name": "run", "cloudrl_checkpoints": "/c/run"}


class Watched:
    """A cluster, and what watching a job of it has told; an answer takes `answer_s` seconds, showing it `show_s`."""

    def __init__(self) -> None:
        self.cluster, self.clock = FakeCluster(), Clock()
        self.answer_s, self.show_s = 1.0, 0.0
        self.told: list[Update] = []
        self.cluster.on_request = lambda _method, _path: self.clock.sleep(self.answer_s)

    def ended(self, log: str, status: str = "SUCCEEDED") -> None:
        """Job `one` of the run `run`, which has ended."""
        self.cluster.add("one", log.encode(), metadata=RUN)
        self.cluster.end("one", status)

    def watch(self) -> Progress | None:
        """Watch it to its end."""
        job = find_job(self.cluster.connection(), "one")
        return watch(job, on_progress=self._show, clock=self.clock, now=lambda: 1000.0 + self.clock())

    def _show(self, update: Update) -> None:
        self.told.append(update)
        self.clock.sleep(self.show_s)

    @property
    def looks(self) -> list[Look]:
        return [each for each in self.told if isinstance(each, Look)]


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_events_with_looks_between_them(watched: Watched):
    watched.ended("starting\n" + STEP.format(1, 0.1) + STEP.format(2, 0.2))

    last = watched.watch()

    events = [type(each) for each in watched.told if not isinstance(each, Look)]
    assert events == [Line, Line, Step, Progress, Line, Step, Progress, Ended]
    assert (last.step, last.reward) == (2, 0.2)
    first, final = watched.looks[0], watched.looks[-1]
    assert watched.told[0] is first
    assert [node.rank for node in first.nodes] == [0, 1]
    assert watched.told[-2] is final, "nothing is shown after the end"
    assert (final.status, [step.reward for step in final.steps]) == ("SUCCEEDED", [0.1, 0.2])


def test_a_rollout_with_nodes_of_its_own(watched: Watched):
    cluster = watched.cluster
    nodes = [row["node_id"] for row in cluster.nodes]
    names = [("WorkerDict", "xactor_WorkerDict_0:0"), ("CheckpointEngineWorker", "rollout_standalone_1Checkpoint")]
    cluster.actors = [
        {"node_id": node, "class_name": each, "name": name} for node, (each, name) in zip(nodes, names, strict=True)
    ]
    count = "(TaskRunnerV1 pid=9) pending: 1, running: 3, finished: 2, failure: 0\n"
    command = "python3 -m verl.trainer.main_ppo trainer.v1.trainer_mode=separate_async"
    cluster.add("one", (count + STEP.format(1, 0.1)).encode(), metadata=RUN, entrypoint=command)
    cluster.end("one", "SUCCEEDED")

    watched.watch()

    last = watched.looks[-1]
    assert last.pools == {0: "training", 1: "rollout"}
    assert dict(last.balance.rows)["prompts when training last waited"] == "4 under way, 2 ready"
    said = look_fields(last)
    assert (said["pools"], said["balance"]["prompts"]["running"]) == ({"0": "training", "1": "rollout"}, 3)


def test_what_the_nodes_remember_of_the_hour_before(watched: Watched):
    now = Usage(990.0, 30.0)
    watched.cluster.status["nodes"][0]["usage"] = to_json(now)
    watched.cluster.usage = {"hour": {"0": [to_row(Usage(at, 10.0)) for at in (100.0, 980.0, 990.0)], "7": []}}
    watched.ended(STEP.format(1, 0.1))

    watched.watch()

    assert [each.sampled_at for each in watched.looks[0].usage[0]] == [100.0, 980.0, 990.0]
    assert watched.looks[0].usage[0][-1] == now
    assert watched.looks[0].usage[1] == ()
    assert watched.cluster.requests.count(("GET", "/v1/usage")) == 1


def test_a_long_log_is_not_shown_line_by_line(watched: Watched):
    watched.ended("line\n" * 1000)
    watched.answer_s = 0.0

    watched.watch()

    assert len(watched.looks) == 2, "at the beginning and in the end"
    assert watched.looks[-1].lines == ("line",) * 60


def test_how_often_it_looks_and_the_agent_is_asked(watched: Watched):
    watched.ended("line\n" * 1000)
    watched.answer_s, watched.show_s = 0.0, 0.0625

    watched.watch()

    assert 60 <= len(watched.looks) <= 66, "every second of a minute"
    assert watched.cluster.requests.count(("GET", "/v1/status")) in (13, 14), "every five seconds"


def test_the_steps_of_earlier_attempts(watched: Watched):
    watched.cluster.add("zero", (STEP.format(1, 0.1) + STEP.format(2, 0.2)).encode(), metadata=RUN)
    watched.cluster.end("zero")
    watched.ended(STEP.format(2, 0.3))

    watched.watch()

    assert [(step.step, step.reward) for step in watched.looks[-1].steps] == [(1, 0.1), (2, 0.3)]


def test_the_price_that_the_agents_count_with(watched: Watched):
    watched.cluster.status["budget"] = {"cost": 4.5, "price_per_hour": 3600.0}
    watched.ended("")

    watched.watch()

    assert 4.5 <= watched.looks[0].cost < 10.0
    assert watched.looks[-1].cost > watched.looks[0].cost, "it goes on by the second"


@pytest.mark.parametrize("budget", [{}, {"cost": 0.0}, {"cost": 0.0, "price_per_hour": 0.0}])
def test_what_costs_nothing_has_no_price(watched: Watched, budget: dict[str, float]):
    watched.cluster.status["budget"] = budget
    watched.ended("")

    watched.watch()

    assert watched.looks[-1].cost is None


def test_a_job_that_fails(watched: Watched):
    watched.ended("boom\n", "FAILED")

    with pytest.raises(JobFailed, match="job one ended as FAILED"):
        watched.watch()

    assert [type(each) for each in watched.told[-2:]] == [Look, Ended]
    assert watched.looks[-1].status == "FAILED"


def test_a_connection_that_breaks_is_shown(watched: Watched):
    watched.ended("one\ntwo\n")
    watched.cluster.chunk_bytes = 100
    watched.cluster.cuts = [4]

    watched.watch()

    assert [each.text for each in watched.told if isinstance(each, Line)] == ["one", "two"]
    [notice] = [each.text for each in watched.told if isinstance(each, Notice)]
    assert notice in [look.notice for look in watched.looks]
    assert watched.looks[-1].notice == ""


def test_ctrl_c_before_its_log_is_read(watched: Watched):
    watched.ended("")
    job = find_job(watched.cluster.connection(), "one")

    def interrupt(_method: str, _path: str) -> None:
        raise KeyboardInterrupt

    watched.cluster.on_request = interrupt
    with pytest.raises(Interrupted, match="no longer following; job one keeps running"):
        watch(job)


def test_an_agent_that_does_not_answer(watched: Watched, monkeypatch: pytest.MonkeyPatch):
    watched.ended(STEP.format(1, 0.1))

    def fail(_call: Call) -> Response:
        raise ApiError(ErrorCode.BAD_GATEWAY, "busy")

    monkeypatch.setattr(watched.cluster, "agent_status", fail)
    watched.watch()

    assert watched.looks[-1].nodes == ()
    assert watched.looks[-1].steps[0].reward == 0.1
