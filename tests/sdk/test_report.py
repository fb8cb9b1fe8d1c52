"""Reports from a cluster that answers, from what is kept of one that is gone, and from a log."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from fake_cluster import FakeCluster
from fake_local import FakeLocal
from kept_logs import keep as keep_piece
from recordings import keep, load
from small_step import write_step

from cloudrl.errors import CloudrlError, InputError
from cloudrl.jobs import find_job
from cloudrl.node.attempts import Attempts
from cloudrl.protocol.ray_state import RayState
from cloudrl.protocol.report import GpuUsage, Usage
from cloudrl.protocol.usage_rows import FILE, to_row
from cloudrl.protocol.wire import to_json
from cloudrl.report import RunReport
from cloudrl.saves.archive import driver_log, state_file
from cloudrl.sdk.callbacks import Update
from cloudrl.sdk.report import ReportSource, report
from cloudrl.sdk.report_sources import JobSource

pytestmark = pytest.mark.io

HEAD = "f4a49f9ed5b5d6f210.0.0.1"


def log(
    *steps: int, reward: float = 0.5, total: int = 9, folder: str = "/c/run", name: str = "run", lr: str = "1e-06"
) -> bytes:
    """A driver's log with validations in `folder`."""
    config = {
        "actor_rollout_ref": {"lr": lr, "api_key": "sk-0123456789"},
        "trainer": {
            "experiment_name": name,
            "default_local_dir": folder,
            "validation_data_dir": f"{folder}/validation",
        },
    }
    lines = [f"step:{step} - critic/score/mean:{reward} - timing_s/step:2.0 - val-core/a:0.5" for step in steps]
    return "\n".join([f"Total training steps: {total}", repr(config), *lines, ""]).encode()


def busy(at: float) -> Usage:
    """A node with a GPU."""
    return Usage(at, 20.0, gpus=(GpuUsage(0, "", 70.0, 40, 80),))


def keep_job(folder: Path, job: str, content: bytes, at: int, state: RayState | None = None, *, run: str = "r") -> None:
    """Leave a job in the archive below a folder, as if it was written to at this time."""
    files = {driver_log(job): content}
    if state is not None:
        files[state_file(job)] = json.dumps(to_json(state)).encode()
    for path, each in files.items():
        keep_piece(folder, path, each, run=run, at=at)


def write_samples(folder: Path, *steps: int) -> None:
    (folder / "run/validation").mkdir(parents=True)
    for step in steps:
        row = {"input": f"prompt {step}", "output": "2", "score": 1.0, "step": step}
        (folder / f"run/validation/{step}.jsonl").write_text(json.dumps(row) + "\n")


def table(run: RunReport, title: str) -> list[tuple[str, ...]]:
    return [row for each in run.tables if each.title == title for row in each.rows]


class TestAClusterThatAnswers:
    RUN = {"job_name": "run", "cloudrl_checkpoints": "/c/run"}  # noqa: RUF012

    @pytest.fixture
    def cluster(self) -> Iterator[FakeCluster]:
        with FakeCluster() as fake:
            fake.status["facts"]["checkpoint_dir"] = "/c"
            yield fake

    def look(self, cluster: FakeCluster, job: str = "run-2") -> RunReport:
        return JobSource(find_job(cluster.connection(), job)).look()

    def test_attempts_are_one_run(self, cluster: FakeCluster) -> None:
        cluster.add("run-1", log(1, 2, 3, reward=0.1), "FAILED", metadata=self.RUN)
        cluster.add("run-2", log(3, 4, reward=0.2), metadata=self.RUN)
        run = self.look(cluster)
        assert [(step.step, step.reward) for step in run.steps] == [(1, 0.1), (2, 0.1), (3, 0.2), (4, 0.2)]
        assert (run.name, run.job, run.status, run.total_steps) == ("run", "ray://lab/run-2", "RUNNING", 9)
        assert [row[:2] for row in table(run, "Attempts")] == [("run-1", "FAILED"), ("run-2", "RUNNING")]
        assert [row[:2] for row in table(run, "Nodes")] == [("0", "10.0.0.1"), ("1", "10.0.0.2")]
        assert run.cause is None

    @pytest.mark.parametrize("with_state", [True, False])
    def test_attempts_of_an_earlier_ray_are_read_where_they_are_kept(
        self, cluster: FakeCluster, tmp_path: Path, *, with_state: bool
    ) -> None:
        state = RayState(1.0, {"status": "FAILED", "metadata": self.RUN})
        keep_job(tmp_path, "run-0", log(1, 2, reward=0.1), 1, state if with_state else None, run="id-1")
        keep_job(tmp_path, "other", log(7, name="other"), 2, run="id-1")
        cluster.disks = dict.fromkeys(range(2), tmp_path)
        cluster.add("run-2", log(2, 3, reward=0.2), metadata=self.RUN)
        run = self.look(cluster)
        assert [(step.step, step.reward) for step in run.steps] == [(1, 0.1), (2, 0.2), (3, 0.2)]
        expected = [("run-0", "FAILED" if with_state else "UNKNOWN"), ("run-2", "RUNNING")]
        assert [row[:2] for row in table(run, "Attempts")] == expected

    def test_how_busy_the_nodes_were_while_it_was_trained(self, cluster: FakeCluster) -> None:
        cluster.add("run-2", log(1), metadata=self.RUN)
        started = cluster.connection().ray().get_job("run-2").start_time
        times = [started + 60 * minute for minute in (-5, 0, 1, 2)]
        cluster.usage = {
            "day": {"0": [to_row(Usage(at, 10.0)) for at in times]},
            "hour": {"0": [to_row(Usage(times[-1] + more, 20.0)) for more in (-5, 0, 5)], "1": []},
        }
        [node] = self.look(cluster).usage
        assert [each.cpu_percent for each in node.samples] == [10.0, 10.0, 10.0, 20.0]
        cluster.status["nodes"] = []
        cluster.usage = {"day": {"0": [[]]}}
        assert self.look(cluster).usage == ()

    def test_secrets_are_masked(self, cluster: FakeCluster) -> None:
        cluster.add("run-1", log(1, lr="sk-abcdefgh"), runtime_env={"env_vars": {"MY_API_KEY": "sk-abcdefgh"}})
        config = self.look(cluster, "run-1").config
        assert (config["actor_rollout_ref.api_key"], config["actor_rollout_ref.lr"]) == ("***", "***")

    def test_before_its_log_has_it_the_configuration_is_the_command(self, cluster: FakeCluster) -> None:
        cluster.add("run-1", entrypoint="python3 -m verl 'a.b=1 2' +c.token=abc --name=x")
        assert self.look(cluster, "run-1").config == {"a.b": "1 2", "c.token": "***"}

    def test_samples_come_from_the_node_that_has_them(self, cluster: FakeCluster, tmp_path: Path) -> None:
        cluster.disks = {rank: tmp_path / f"{rank}" for rank in range(2)}
        write_samples(cluster.disks[1], 4, 5)
        cluster.add("run-2", log(3, 4, 5), metadata=self.RUN)
        source = JobSource(find_job(cluster.connection(), "run-2"))
        assert [sample.prompt for sample in source.look().samples] == ["prompt 4", "prompt 5"]
        asked = len(cluster.requests)
        source.look()
        again = [path for _, path in cluster.requests[asked:] if path.endswith(".jsonl")]
        assert [path.rpartition("/")[2] for path in again] == ["3.jsonl", "3.jsonl", "5.jsonl"]

    def test_a_node_that_does_not_answer_is_said_unless_another_has_them(
        self, cluster: FakeCluster, tmp_path: Path
    ) -> None:
        cluster.disks = {1: tmp_path}
        write_samples(tmp_path, 3)
        cluster.add("run-1", log(3), metadata=self.RUN)
        cluster.add("run-2", log(3, 4), metadata=self.RUN)
        assert [sample.prompt for sample in self.look(cluster, "run-1").samples] == ["prompt 3"]
        note = self.look(cluster).notes[0]
        assert note.startswith("samples cannot be read now: ")
        assert "rank 0 (10.0.0.1) does not answer" in note

    def test_a_failure_has_its_cause(self, cluster: FakeCluster) -> None:
        cluster.add("run-2", b"", "FAILED", metadata=self.RUN)
        cluster.tasks = [
            {"task_id": "t", "name": "early", "state": "FAILED", "error_type": "TASK_EXECUTION_EXCEPTION",
             "error_message": "ValueError: no", "end_time_ms": 1000, "node_id": HEAD, "worker_pid": 7},
        ]  # fmt: skip
        cause = self.look(cluster).cause
        assert cause is not None
        assert (cause.error, cause.rank, cause.process) == ("ValueError: no", 0, "early (pid 7)")

    def test_the_runs_of_a_group_with_the_newest_job_of_each(self, lab: FakeLocal) -> None:
        for job, run, group in (("a-1", "a", "x"), ("b-1", "b", "x"), ("a-2", "a", "x"), ("c-1", "c", "y")):
            lab.cluster.add(job, log(1), metadata={"job_name": run, "cloudrl_group": group})
        made = report(cluster="lab", group="x")
        assert [run.job for run in made.runs] == ["ray://lab/a-2", "ray://lab/b-1"]
        assert [(group.name, group.places) for group in made.groups] == [("x", (0, 1))]
        mixed = report(["a-2", "c-1"], "lab", group="mine")
        assert [(group.name, group.places) for group in mixed.groups] == [("mine", (0, 1))]
        with pytest.raises(InputError, match="no run has the label 'z'"):
            report(cluster="lab", group="z")

    def test_what_is_new_is_read_and_what_was_there_stays(self, lab: FakeLocal) -> None:
        lab.cluster.add("run-1", log(1))
        times = iter(range(0, 1000, 10))
        source = ReportSource(["run-1"], "lab", clock=lambda: next(times))
        assert len(source().runs[0].steps) == 1
        lab.cluster.write("run-1", b"step:2 - critic/score/mean:0.7 - timing_s/step:2.0\n")
        assert [step.reward for step in source().runs[0].steps] == [0.5, 0.7]
        lab.cluster.down()
        [gone] = source().runs
        assert len(gone.steps) == 2
        assert gone.notes[0].startswith("not up to date: ")


class TestAClusterThatIsGone:
    def state(self, job: str, status: str, **fields: object) -> RayState:
        metadata = {"job_name": "run", "cloudrl_checkpoints": "/elsewhere/run"}
        nodes = ({"node_id": "n0", "node_ip": "10.0.0.1", "state": "ALIVE", "is_head_node": True},)
        return RayState(1.0, {"submission_id": job, "status": status, "metadata": metadata, **fields}, nodes=nodes)

    def test_its_attempts_checkpoints_and_samples(self, tmp_path: Path) -> None:
        keep_job(tmp_path, "run-1", log(1, 2, reward=0.1), 1, self.state("run-1", "FAILED"))
        keep_job(tmp_path, "other", log(7), 2, replace(self.state("other", "FAILED"), job={"metadata": {}}))
        keep_job(tmp_path, "run-2", log(2, 3, reward=0.2, folder="/elsewhere/run"), 3, self.state("run-2", "STOPPED"))
        write_samples(tmp_path, 3)
        write_step(tmp_path / "run", 2)
        [run] = report(["run-2"], folder=tmp_path).runs
        assert [(step.step, step.reward) for step in run.steps] == [(1, 0.1), (2, 0.2), (3, 0.2)]
        assert (run.name, run.status, run.cause) == ("run", "STOPPED", None)
        assert [row[:2] for row in table(run, "Attempts")] == [("run-1", "FAILED"), ("run-2", "STOPPED")]
        assert table(run, "Nodes") == [("0", "10.0.0.1", "ALIVE", "")]
        assert [row[0] for row in table(run, "Checkpoints")] == ["2"]
        assert [sample.prompt for sample in run.samples] == ["prompt 3"]
        missing = (
            "read from what the cluster has kept; not kept: its cost, as its agents knew no price, the use of its nodes"
        )
        assert run.notes[0] == missing

    def test_its_cost_and_the_use_of_its_nodes(self, tmp_path: Path) -> None:
        times = {"start_time": 1_000_000, "end_time": 2_000_000}
        keep_job(tmp_path, "run-1", log(1), 3000, self.state("run-1", "SUCCEEDED", **times))
        lines = [
            {
                "at": at,
                "cost": at / 1000,
                "per_hour": 3.6,
                "nodes": {"0": to_row(Usage(at, 10.0)), "1": to_row(busy(at))},
            }
            for at in (500.0, 990.0, 1500.0, 2050.0, 2500.0)
        ]
        text = "\n".join([*map(json.dumps, lines), "not whole", "[]", '{"nodes": {"x": [1]}}', ""])
        keep_piece(tmp_path, f"agent/{FILE}", text.encode(), run="r")
        [run] = report(["run-1"], folder=tmp_path).runs
        assert table(run, "Cost") == [("r", "$3.60", "$2.50")]
        assert [(node.rank, [each.sampled_at for each in node.samples]) for node in run.usage] == [
            (0, [990.0, 1500.0, 2050.0]), (1, [990.0, 1500.0, 2050.0]),
        ]  # fmt: skip
        assert run.usage[1].samples[0].gpus[0].utilization_percent == 70.0
        assert run.notes[-1] == "read from what the cluster has kept"

    def test_its_cost_if_only_the_record_of_attempts_is_left(self, tmp_path: Path) -> None:
        keep_job(tmp_path, "run-1", log(1), 1, self.state("run-1", "FAILED"))
        Attempts(tmp_path, "r", rank=1, attempt="1").write_cost(12.5, 0.0)
        [run] = report(["run-1"], folder=tmp_path).runs
        assert table(run, "Cost") == [("r", "-", "$12.50")]

    def test_its_cost_as_its_provider_says(self, lab: FakeLocal, tmp_path: Path) -> None:
        keep_job(tmp_path, "run-1", log(1), 1, self.state("run-1", "FAILED"))
        lab.cluster.status["budget"] = {"cost": 4.0, "price_per_hour": 2.0}
        [run] = report(["run-1"], "lab", folder=tmp_path).runs
        assert table(run, "Cost") == [("lab", "local", "$2.00", "$4.00", "-")]
        [unknown] = report(["run-1"], "no-such", folder=tmp_path).runs
        assert any(note.startswith("cost cannot be had now: ") for note in unknown.notes)

    @pytest.mark.parametrize("with_state", [True, False])
    def test_its_cause(self, tmp_path: Path, *, with_state: bool) -> None:
        job = keep(tmp_path, load("unknown_key"), with_state=with_state)
        told: list[Update] = []
        [run] = report(folder=tmp_path, on_progress=told.append).runs
        assert run.cause is not None
        assert (run.name, run.status, run.cause.signature) == (job, "FAILED" if with_state else "", "unknown-key")
        assert ("Ray's records went with its head" in f"{told}") is not with_state

    @pytest.mark.parametrize("job", [{"metadata": [1]}, {"start_time": "soon"}, {"status": []}])
    def test_records_that_are_none(self, tmp_path: Path, job: dict[str, object]) -> None:
        keep_job(tmp_path, "run-1", log(1), 1, RayState(1.0, job))
        assert report(folder=tmp_path).runs[0].name == "run"

    def test_the_runs_of_its_group(self, lab: FakeLocal) -> None:
        for place, job in enumerate(("a-1", "b-1", "c-1")):
            metadata = {"job_name": job[0], "cloudrl_group": "x" if job != "c-1" else "y"}
            keep_job(
                lab.state.checkpoints,
                job,
                log(1),
                place,
                self.state(job, "STOPPED", metadata=metadata),
                run=lab.state.id,
            )
        lab.cluster.down()
        lab.ends_with("{}")
        assert [run.name for run in report(cluster="lab", group="x").runs] == ["a", "b"]
        assert [run.name for run in report(folder=lab.state.checkpoints, group="x").runs] == ["a", "b"]

    def test_the_name_of_a_cluster_of_this_machine_is_enough(self, lab: FakeLocal) -> None:
        keep_job(lab.state.checkpoints, "run-1", log(1), 1, self.state("run-1", "STOPPED"))
        lab.cluster.down()
        lab.ends_with("{}")
        assert report(["run-1"], "lab").runs[0].status == "STOPPED"


class TestALog:
    def test_it_is_read_as_it_grows(self, tmp_path: Path) -> None:
        path = tmp_path / "job-driver-x.log"
        path.write_bytes(log(1))
        source = ReportSource([str(path)], clock=iter(range(0, 100, 10)).__next__)
        [before] = source().runs
        path.write_bytes(log(1, 2))
        [after] = source().runs
        assert (len(before.steps), len(after.steps), after.name, after.status) == (1, 2, "run", "")

    def test_its_cause_unless_it_has_reached_its_end(self, tmp_path: Path) -> None:
        (tmp_path / "a.log").write_bytes(log(1) + b"Traceback (most recent call last):\nKeyError: 2\n")
        (tmp_path / "b.log").write_bytes(log(1, total=1) + b"Traceback (most recent call last):\nKeyError: 2\n")
        failed, done = report([str(tmp_path / "a.log"), str(tmp_path / "b.log")]).runs
        assert failed.cause is not None
        assert (failed.cause.error, done.cause) == ("KeyError: 2", None)
        assert failed.notes[-1] == "the first cause is that of the driver's log alone"
        assert (failed.name, done.name) == ("run (1)", "run (2)")

    def test_without_a_configuration_it_has_its_file_name(self, tmp_path: Path) -> None:
        (tmp_path / "job-driver-y.log").write_bytes(b"step:1 - a:1\n")
        assert report([str(tmp_path / "job-driver-y.log")]).runs[0].name == "y"

    def test_a_last_line_without_an_end_is_read_unless_it_may_grow(self, tmp_path: Path) -> None:
        path = tmp_path / "x.log"
        path.write_bytes(log(1, 2).rstrip())
        assert len(report([str(path)]).runs[0].steps) == 2
        assert len(ReportSource([str(path)])().runs[0].steps) == 1

    def test_one_of_no_run_of_verls(self, tmp_path: Path) -> None:
        (tmp_path / "x.log").write_text("a shopping list\n")
        [run] = report([str(tmp_path / "x.log")]).runs
        assert run.notes == ("no step of verl's in this log",)

    def test_one_that_is_not_there(self) -> None:
        with pytest.raises(InputError, match="cannot be read: No such file"):
            report(["./x.log"])


def test_nobody_answers(home: Path) -> None:
    with pytest.raises(CloudrlError):
        report(["ray://gone/run-1"])
