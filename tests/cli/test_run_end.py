"""What becomes of the cluster when `cloudrl run` is through, one way or the other."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fake_clock import Clock
from fake_local import FakeLocal, rent_disks
from typed_command import Run

from cloudrl.cli import _output
from cloudrl.errors import ConnectionFailed, Interrupted, Unauthorized
from cloudrl.protocol import backoff
from cloudrl.providers.local.provider import LocalProvider
from cloudrl.sdk.teardown import ending

pytestmark = pytest.mark.io

LOG = "step:1 - training/global_step:1 - critic/score/mean:0.25\n"
RUN = ("run", "grpo-tiny", "--cluster", "lab", "--steps", "1")
HOME = LocalProvider()


@pytest.fixture
def lab(home: Path) -> Iterator[FakeLocal]:
    with FakeLocal("lab") as fake:
        fake.cluster.finish_jobs(LOG)
        fake.cluster.status["budget"] = {"price_per_hour": 12.3, "cost": 4.5}
        yield fake


@pytest.fixture
def started(lab: FakeLocal, monkeypatch: pytest.MonkeyPatch) -> FakeLocal:
    """The cluster counts as one that the command has started."""
    monkeypatch.setattr(LocalProvider, "up", lambda self, _plan, **_: self.attach("lab"))
    monkeypatch.setattr("cloudrl.jobs.run_plan.find_running", lambda *_, **__: None)
    return lab


@pytest.fixture
def rented(lab: FakeLocal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What its disks hold goes with it."""
    rent_disks(monkeypatch)
    actor = tmp_path / "disk" / "grpo" / "global_step_1" / "actor"
    actor.mkdir(parents=True)
    (actor / "model_world_size_1_rank_0.pt").write_bytes(b"x" * 1000)
    lab.cluster.disks = {0: tmp_path / "disk", 1: tmp_path / "disk"}


def is_up() -> bool:
    return bool(HOME.status("lab").is_ready)


def answers(monkeypatch: pytest.MonkeyPatch, *, answer: bool) -> list[str]:
    """Somebody is there and answers; the questions."""
    asked: list[str] = []
    monkeypatch.setattr(_output, "is_interactive", lambda: True)

    def answered(question: str) -> bool:
        asked.append(question)
        return answer

    monkeypatch.setattr(_output, "ask", answered)
    return asked


class TestCheckpointsThatWouldBeLost:
    @pytest.mark.parametrize("status", ["SUCCEEDED", "FAILED"])
    @pytest.mark.usefixtures("rented")
    def test_keep_the_cluster_where_nobody_is_asked(self, run: Run, started: FakeLocal, status: str) -> None:
        started.cluster.finish_jobs(LOG, status)
        run(*RUN, "--down").ended(
            0 if status == "SUCCEEDED" else 4,
            "grpo, step 1, actor",
            "Merge one first: cloudrl checkpoints merge --cluster lab --to ./model\n",
            "lab is not ended: checkpoints would be lost with it",
            "cluster lab keeps running",
        )
        assert is_up()

    @pytest.mark.usefixtures("rented", "started")
    @pytest.mark.parametrize("word", ["--down", "-y"])
    @pytest.mark.parametrize("answer", [True, False])
    def test_are_in_the_question_that_y_alone_does_not_answer(
        self, run: Run, monkeypatch: pytest.MonkeyPatch, word: str, answer: bool
    ) -> None:
        asked = answers(monkeypatch, answer=answer)
        done = run(*RUN, word)
        assert (done.code, "grpo, step 1, actor" in done.err) == (0, True)
        assert "checkpoints would be lost" in asked[-1]
        assert word != "-y" or len(asked) == 1
        assert is_up() is not answer

    @pytest.mark.usefixtures("rented", "started")
    def test_go_with_down_and_y(self, run: Run) -> None:
        done = run(*RUN, "--down", "-y")
        assert "These checkpoints exist only" in done.err
        assert not is_up()


@pytest.mark.usefixtures("started")
def test_without_any_it_ends_if_that_was_asked_for(run: Run) -> None:
    assert "cluster lab keeps running" in run(*RUN, "-y").err
    assert is_up()
    assert run(*RUN, "--submission-id", "two", "--down").code == 0
    assert not is_up()


class TestAClusterThatWasThere:
    def test_is_ended_after_a_question_only(self, run: Run, lab: FakeLocal) -> None:
        assert "not ended: it was up before this run" in run(*RUN, "--down").err
        assert is_up()
        assert run(*RUN, "--submission-id", "two", "--down", "-y").code == 0
        assert not is_up()

    def test_with_jobs_of_others_not_even_with_y(self, run: Run, lab: FakeLocal) -> None:
        lab.cluster.add("theirs")
        done = run(*RUN, "--down", "-y")
        assert "not ended: jobs are running on it: theirs" in done.err
        assert is_up()


def test_nobody_is_asked_about_one_that_is_over(run: Run, lab: FakeLocal, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = {"phase": "ended", "failure": {"reason": "idle for 30m", "kind": "down", "rank": 0}}
    lab.cluster.finish_jobs(LOG, on_end=lambda: lab.cluster.status.update(ended))
    asked = answers(monkeypatch, answer=True)
    assert "cluster lab has ended: idle for 30m" in run(*RUN).err
    assert asked == []


class Away:
    """A server that does not answer from the end of the job until the clock says so; waiting costs no time."""

    def __init__(self, lab: FakeLocal, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock, self.back_at_s = Clock(), float("inf")
        self.error: type[ConnectionFailed] = ConnectionFailed
        self._is_away = False
        for verb in ("status", "down"):
            monkeypatch.setattr(LocalProvider, verb, self._asking(getattr(LocalProvider, verb)))
        self.clock.on_sleep = self.waits
        again = partial(backoff.retry, clock=self.clock, sleep=self.clock.sleep)
        monkeypatch.setattr("cloudrl.sdk.teardown.retry", again)
        lab.cluster.finish_jobs(LOG, on_end=self.goes)

    def goes(self) -> None:
        self._is_away = True

    def waits(self) -> None:
        self._is_away = self.clock.now < self.back_at_s

    def _asking(self, really: Callable[[LocalProvider, str], Any]) -> Callable[[LocalProvider, str], Any]:
        def ask(provider: LocalProvider, name: str) -> Any:
            if self._is_away:
                raise self.error("no dstack server answers", hint="Is it running?")
            return really(provider, name)

        return ask


GOES_ON = "no dstack server answers; cluster lab keeps running and costs about $12.30/h"


class TestAServerThatIsAwayAtTheEnd:
    @pytest.fixture
    def away(self, started: FakeLocal, monkeypatch: pytest.MonkeyPatch) -> Away:
        return Away(started, monkeypatch)

    def test_and_comes_back(self, run: Run, away: Away) -> None:
        away.back_at_s = 200
        done = run(*RUN, "--down").ended(0)
        assert done.err.count("no dstack server answers; trying again for 5 min 00 s") == 1
        assert "lab is down" in done.err
        assert not is_up()

    def test_and_stays_away(self, run: Run, away: Away) -> None:
        done = run(*RUN, "--down", "-y").ended(5)
        assert 300 <= away.clock.now <= 310
        assert f"error: {GOES_ON}\n" in done.err
        assert done.err.endswith("  → Is it running?\n  → End it: cloudrl down lab\n")

    def test_after_a_job_that_failed_which_is_what_is_said(self, run: Run, started: FakeLocal, away: Away) -> None:
        started.cluster.finish_jobs(LOG, "FAILED", on_end=away.goes)
        done = run(*RUN, "--down").ended(4, f"while the cluster was being ended: {GOES_ON}", "End it: cloudrl down lab")
        assert "ended as FAILED" in done.err.splitlines()[-2]

    def test_a_token_that_is_refused_is_refused_again(self, run: Run, away: Away) -> None:
        away.error = Unauthorized
        done = run(*RUN, "--down")
        assert (done.code, away.clock.now) == (5, 0)
        assert GOES_ON in done.err

    def test_a_request_that_came_through_before(self, run: Run, away: Away, monkeypatch: pytest.MonkeyPatch) -> None:
        """The cluster ends, and the answer is lost."""
        really, lost = LocalProvider.down, ["the answer"]
        away.back_at_s = 0

        def down(provider: LocalProvider, name: str) -> bool:
            was_running = really(provider, name)
            if lost:
                lost.clear()
                raise ConnectionFailed("no answer")
            return was_running

        monkeypatch.setattr(LocalProvider, "down", down)
        run(*RUN, "--down").ended(0, "lab is down")


class TestDownWithAServerThatIsAway:
    def gone(self, *_: Any) -> Any:
        raise ConnectionFailed("no dstack server answers")

    @pytest.mark.parametrize(
        ("verb", "said"),
        [("status", "no dstack server answers; cluster lab keeps running\n"), ("down", f"{GOES_ON}\n")],
    )
    def test_says_that_the_cluster_goes_on(
        self, run: Run, lab: FakeLocal, monkeypatch: pytest.MonkeyPatch, verb: str, said: str
    ) -> None:
        monkeypatch.setattr(LocalProvider, verb, self.gone)
        run("down", "local/lab", "-y").ended(5, f"error: {said}", "End it: cloudrl down lab\n")


class TestCtrlC:
    def press(self, *_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    def test_while_a_cluster_is_being_ended(self, run: Run, lab: FakeLocal, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(LocalProvider, "down", self.press)
        for words in (["down", "lab", "-y"], [*RUN, "--down", "-y"]):
            run(*words).ended(
                130, "cluster lab may not have ended and costs $12.30/h, $4.50 so far", "End it: cloudrl down lab"
            )

    def test_right_after_it_was_started(self, run: Run, started: FakeLocal, monkeypatch: pytest.MonkeyPatch) -> None:
        """The first look at it may take a while."""
        really, keys = LocalProvider.status, []

        def up(provider: LocalProvider, _plan: Any, **_: Any) -> Any:
            keys.append("Ctrl-C")
            return provider.attach("lab")

        def status(provider: LocalProvider, name: str) -> Any:
            return self.press() if keys and keys.pop() else really(provider, name)

        monkeypatch.setattr(LocalProvider, "up", up)
        monkeypatch.setattr(LocalProvider, "status", status)
        run(*RUN).ended(130, "cluster lab keeps running and costs $12.30/h, $4.50 so far", "End it: cloudrl down lab")
        assert started.cluster.jobs == {}

    def test_after_it_has_ended(self, lab: FakeLocal) -> None:
        with pytest.raises(Interrupted, match="cluster lab has ended"), ending(HOME, "lab"):  # noqa: PT012
            HOME.down("lab")
            raise KeyboardInterrupt

    def test_while_the_model_comes_home(self, run: Run, lab: FakeLocal, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("cloudrl.sdk.training.merge_result", self.press)
        done = run(*RUN, "--to", "model").ended(130, "Go on: cloudrl checkpoints merge --cluster lab --to model")
        assert "cloudrl run" not in done.err
