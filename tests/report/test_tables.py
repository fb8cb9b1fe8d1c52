"""What is known around a run, as rows of text."""

from dataclasses import replace

from recordings import load

from cloudrl.protocol.facts import ClusterFacts
from cloudrl.protocol.phases import Phase
from cloudrl.protocol.report import GpuUsage, NodeReport, Usage
from cloudrl.providers.model import Status
from cloudrl.report.tables import about_run, attempts_table, cost_table, kept_nodes_table, nodes_table
from cloudrl.transport.ray_job import JobStatus, RayJob

STATUS = Status(ClusterFacts("lab", "", "dstack", 2), Phase.READY, price_per_hour=12.5, cost=3.0)


def test_nodes_with_what_they_use():
    usage = Usage(
        0.0, memory_used_bytes=2 * 10**9, memory_total_bytes=8 * 10**9,
        gpus=(GpuUsage(0, utilization_percent=93.4, memory_used_mib=40960, memory_total_mib=81920), GpuUsage(1)),
    )  # fmt: skip
    table = nodes_table([NodeReport(0, "10.0.0.1", gpus=2, usage=usage), NodeReport(1, "10.0.0.2")])
    assert table.rows[0][4:] == ("2", "0: 93 %, 40 of 80 GiB\n1: -", "2.0 GB of 8.0 GB")
    assert table.rows[1][4:] == ("0", "", "")


def test_attempts_of_the_job_and_of_the_cluster():
    lost = {"attempt": 1, "submitted_at": 100.0, "ended_at": 160.0, "reason": "interrupted"}
    jobs = [RayJob("run-1", JobStatus.FAILED, start_time=200.0, end_time=233.0), RayJob("run-2", JobStatus.RUNNING)]
    rows = attempts_table(jobs, replace(STATUS, previous_attempts=[lost])).rows
    assert [(row[0], row[1], row[3]) for row in rows] == [
        ("run-1", "FAILED", "33 s"),
        ("run-2", "RUNNING", ""),
        ("cluster, attempt 1", "ended and was started again: interrupted", "1 min 00 s"),
    ]


def test_cost_where_somebody_says_it():
    assert cost_table(STATUS).rows == (("lab", "dstack", "$12.50", "$3.00", "-"),)
    assert cost_table(replace(STATUS, price_per_hour=None, cost=None)).rows == ()


def test_nodes_of_a_cluster_that_is_gone():
    held = load("kill")
    table = kept_nodes_table(held)
    assert [row[0] for row in table.rows] == ["0", "1"]
    assert {row[2] for row in table.rows} == {"ALIVE"}


# -- a run at a glance --------------------------------------------------------------------------------------------


def test_a_run_begins_with_what_was_asked_for_the_versions_and_the_time() -> None:
    metadata = {
        "cloudrl_recipe": "grpo", "job_name": "mine", "cloudrl_overrides": "--steps=4 'data.prompt_key=my prompt'",
        "cloudrl_commit": "1a2b3c4", "cloudrl_group": "seeds",
    }  # fmt: skip
    job = RayJob("grpo-1", JobStatus.SUCCEEDED, start_time=200.0, end_time=520.0, metadata=metadata)
    about = about_run(
        job, [NodeReport(0, "10.0.0.1", verl_version="0.9.1", ray_version="2.56.0", python_version="3.12")]
    )
    assert about.pop("Started")
    assert about == {
        "Command": "cloudrl submit grpo --name mine --group seeds --steps=4 'data.prompt_key=my prompt'",
        "Group": "seeds",
        "Overrides of mine": "--steps=4\ndata.prompt_key=my prompt",
        "Versions": "verl 0.9.1, Ray 2.56.0, Python 3.12",
        "Git commit": "1a2b3c4",
        "Duration": "5 min 20 s",
    }


def test_of_a_job_of_others_only_what_is_known_is_said() -> None:
    assert about_run(RayJob("raysubmit_1", JobStatus.PENDING)) == {}
