"""`cloudrl watch`, and `--watch` of `submit` and `run`, towards a stand-in cluster."""

import json
import signal
import sys
import time

import pytest
from fake_local import FakeLocal
from terminal_page import in_terminal
from typed_command import Run

from cloudrl.cli._terminal import Terminal
from cloudrl.jobs.evidence import RunWarning
from cloudrl.jobs.look import Look
from cloudrl.transport.ray_job import JobStatus

pytestmark = pytest.mark.io

STEP = (
    "step:{} - critic/score/mean:{} - critic/score/min:0.0 - critic/score/max:{} - actor/entropy:0.5 - "
    "timing_s/gen:1.5 - timing_s/step:2.0\n"
)
LOG = "Runtime env is setting up.\n" + "".join(STEP.format(step, step / 10, 1.0) for step in (1, 2, 3))
COMMAND = [sys.executable, "-W", "error", "-c", "from cloudrl.cli.main import main; main()"]


@pytest.fixture
def job(lab: FakeLocal) -> FakeLocal:
    """A cluster with a job that has succeeded."""
    lab.cluster.chunk_bytes = 1 << 20
    lab.cluster.status["budget"] = {"price_per_hour": 12.3, "cost": 4.5}
    lab.cluster.add("one", LOG.encode(), metadata={"cloudrl_checkpoints": "/c/run", "cloudrl_total_steps": "20"})
    lab.cluster.end("one")
    return lab


class TestWithoutATerminal:
    def test_a_line_for_each_step(self, job: FakeLocal, run: Run):
        done = run("watch").ended(0, "one succeeded; checkpoints are in /c/run")

        steps = [line for line in done.err.splitlines() if line.startswith("step ")]
        assert [line.split("  ")[:2] for line in steps] == [
            ["step 1/20", "reward 0.100"], ["step 2/20", "reward 0.200"], ["step 3/20", "reward 0.300"],
        ]  # fmt: skip
        assert "\x1b" not in done.err
        assert done.out == ""

    def test_a_warning_once(self, lab: FakeLocal, run: Run):
        lab.cluster.add("one", "".join(STEP.format(step, 0.0, 0.0) for step in range(1, 9)).encode())
        lab.cluster.end("one")

        done = run("watch", "one").ended(0, "every answer of the last 5 steps scored 0", "  → Read some answers")
        assert done.err.count("warning: ") == 1

    def test_submit_warns_too(self, lab: FakeLocal, run: Run):
        lab.cluster.chunk_bytes = 1 << 20
        lab.cluster.finish_jobs("".join(STEP.format(step, 0.0, 0.0) for step in range(1, 9)))

        words = ("grpo-tiny", "--cluster", "lab", "--submission-id", "two", "--steps", "8")
        done = run("submit", *words).ended(0, "every answer of the last 5 steps scored 0", "  → Read some answers")
        assert done.err.count("warning: every answer") == 1

    def test_json(self, job: FakeLocal, run: Run):
        events = [json.loads(line) for line in run("watch", "--json").ended(0).out.splitlines()]

        kinds = [event["event"] for event in events]
        assert {kind: kinds.count(kind) for kind in ("step", "progress", "ended")} == {
            "step": 3, "progress": 3, "ended": 1,
        }  # fmt: skip
        looks = [event for event in events if event["event"] == "look"]
        assert (kinds[0], looks[-1]["status"], len(looks[-1]["nodes"])) == ("look", "SUCCEEDED", 2)
        assert looks[-1]["cost"] >= 4.5

    def test_a_job_that_fails(self, job: FakeLocal, run: Run):
        job.cluster.end("one", "FAILED", "boom")
        run("watch", "one").ended(4, "The end of the log:", "job one ended as FAILED: boom")


class TestInATerminal:
    @pytest.mark.parametrize(("columns", "rows"), [(80, 24), (200, 50)])
    def test_a_screen_that_stays_when_it_ends(self, job: FakeLocal, columns: int, rows: int):
        with in_terminal([*COMMAND, "watch"], columns, rows) as seen:
            assert seen.end() == 0

        assert "ray://lab/one  SUCCEEDED" in seen.screen
        assert "step 3/20  reward 0.300  2.0 s/step" in seen.screen
        assert "$4.50 so far" in seen.screen
        assert "a step:  rollout 1.5 s  other 0.5 s" in seen.screen
        assert "10.0.0.2" in seen.screen
        assert "actor/entropy 0.5" in seen.screen
        left = [line for line in seen.page.lines if line]
        end = left.index("one succeeded; checkpoints are in /c/run")
        assert left[:end] == [line for line in seen.page.screen if line]
        assert "cloudrl checkpoints merge --cluster lab --name one --to ./model" in "".join(left[end + 1 :])

    def test_without_colour(self, job: FakeLocal):
        with in_terminal([*COMMAND, "watch", "one"], 80, 24) as seen:
            assert seen.end() == 0
        assert "\x1b[36m" in seen.sent

        with in_terminal(["env", "NO_COLOR=1", *COMMAND, "watch", "one"], 80, 24) as seen:
            assert seen.end() == 0
        assert "\x1b[36m" not in seen.sent

    def test_ctrl_c_leaves_the_job_running(self, job: FakeLocal):
        job.cluster.jobs["one"].status = "RUNNING"
        with in_terminal([*COMMAND, "watch", "one"], 120, 30) as seen:
            seen.read(until="Runtime env is setting up.")  # the last line of what is drawn
            seen.process.send_signal(signal.SIGINT)
            assert seen.end() == 130

        assert (seen.page.is_screen, seen.page.has_cursor) == (False, True)
        told = " ".join(" ".join(seen.page.lines).split())
        assert (
            "error: no longer following; job one keeps running without this computer, and does not start again" in told
        )
        assert "  → Follow it: cloudrl watch ray://lab/one" in seen.page.lines

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
    def test_a_signal_leaves_the_terminal_as_it_was(self, job: FakeLocal, number: signal.Signals):
        job.cluster.jobs["one"].status = "RUNNING"
        with in_terminal([*COMMAND, "watch", "one"], 120, 30) as seen:
            seen.read(until="Runtime env is setting up.")
            seen.process.send_signal(number)
            assert seen.end() == 128 + number

        assert (seen.page.is_screen, seen.page.has_cursor) == (False, True)

    @pytest.mark.parametrize("words", [("submit",), ("run", "--keep")])
    def test_submit_and_run_show_it_when_asked(self, lab: FakeLocal, words: tuple[str, ...]):
        lab.cluster.chunk_bytes = 1 << 20
        lab.cluster.finish_jobs(LOG)
        options = ("grpo-tiny", "--cluster", "lab", "--submission-id", "two", "--steps", "20", "--watch")
        with in_terminal([*COMMAND, *words, *options], 100, 30) as seen:
            assert seen.end() == 0
            assert seen.process.stdout.read() == b"ray://lab/two\n"

        assert "ray://lab/two  SUCCEEDED" in seen.screen

    def test_hostile_text_of_a_log_steers_nothing(self, lab: FakeLocal):
        lab.cluster.chunk_bytes = 1 << 20
        evil = "\x1b]0;owned\x07\x1b[2J\u202e\x9b31mred"
        step = f"step:1 - critic/score/mean:0.5 - val-core/{evil}:0.5 - timing_s/{evil}:1.0 - timing_s/step:2.0"
        lab.cluster.add("one", f"{step}\n{evil}\n{evil * 5000}\n".encode())
        lab.cluster.end("one")
        with in_terminal([*COMMAND, "watch", "one"], 80, 24) as seen:
            assert seen.end() == 0  # the page takes no code that we do not write

        assert "31mred" in seen.screen


def test_without_a_terminal_each_problem_is_printed_once_and_another_notice_as_well(capsys: pytest.CaptureFixture[str]):
    def look(left_s: int, rank: int) -> Look:
        seen = f"node {rank} is taken back in {left_s} s: spot notice of AWS"
        return Look(
            "u", JobStatus.RUNNING, warnings=(RunWarning("spot", seen, "", f"rank {rank}: spot notice of AWS"),)
        )

    with Terminal() as terminal:
        for left_s, rank in ((110, 1), (105, 1), (110, 0)):
            terminal(look(left_s, rank))
    assert [line for line in capsys.readouterr().err.splitlines() if "taken back" in line] == [
        "warning: node 1 is taken back in 110 s: spot notice of AWS",
        "warning: node 0 is taken back in 110 s: spot notice of AWS",
    ]


def test_jobs_status_names_a_machine_that_is_taken_back(job: FakeLocal, run: Run):
    notice = {"cloud": "AWS", "event": "spot", "ends_at": time.time() - 1.0}
    job.cluster.status["nodes"][1]["interruption"] = notice
    assert "taken back" not in run("jobs", "status", "one").err, "the job has ended"

    job.cluster.jobs["one"].status = "RUNNING"

    said = "warning: node 1 is taken back at any moment: spot notice of AWS\n  → A durable job saves if there is time"
    assert said in run("jobs", "status", "one").err
