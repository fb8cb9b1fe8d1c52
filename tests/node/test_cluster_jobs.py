"""Jobs that outlive their machines, on clusters of real agents, each with a disk of its own."""

import hashlib
import json
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from fake_s3 import BUCKET, SECRET, serve
from node_harness import Maker, Nodes, kill_all, until
from small_step import write_step

from cloudrl.errors import InputError
from cloudrl.jobs.supervised import check_mirror
from cloudrl.protocol import job_calls
from cloudrl.protocol.durable_jobs import DurableJob, Result, Verdict
from cloudrl.protocol.folders import TRAINING_NODES, USER_FILES
from cloudrl.protocol.manifest import Manifest, Part

pytestmark = pytest.mark.agents


def _start(cluster: Nodes, addresses: Sequence[str] = ()) -> None:
    for rank in range(cluster.count):
        disk = cluster.folder / f"disk-{rank}"
        disk.mkdir(exist_ok=True)
        own = {"CLOUDRL_NODE_IP": addresses[rank]} if addresses else {}
        cluster.start_one(rank, f"--checkpoints={disk}", **own)
    cluster.ready()


def _job(name: str) -> DurableJob:
    request = {"entrypoint": f"train {name}", "submission_id": name, "runtime_env": {}, "metadata": {"job_name": name}}
    return DurableJob(name, name, "", request, 0.0, world_size=2, total_steps=4)


def _on_ray(cluster: Nodes) -> dict[str, str]:
    file = cluster.control / "jobs"
    rows = json.loads(file.read_text()) if file.exists() else []
    return {row["submission_id"]: row["status"] for row in rows}


def _end(cluster: Nodes, name: str, **changes: object) -> None:
    rows = json.loads((cluster.control / "jobs").read_text())
    rows = [{**row, **changes} if row["submission_id"] == name else row for row in rows]
    (cluster.control / "new").write_text(json.dumps(rows))
    (cluster.control / "new").replace(cluster.control / "jobs")


def _known(cluster: Nodes) -> dict[str, DurableJob]:
    return {job.job_id: job for job in job_calls.list_jobs(cluster[0].agent)}


def test_a_queue_outlives_its_cluster(nodes: Maker) -> None:
    cluster = nodes(2)
    _start(cluster)
    agent = cluster[0].agent
    for name in ("first", "second", "third"):
        job_calls.submit_job(agent, _job(name))
    job_calls.submit_job(agent, _job("second"))  # the answer to the first call may have been lost
    with pytest.raises(InputError, match="the id first is taken"):
        job_calls.submit_job(agent, replace(_job("first"), request={"entrypoint": "another"}))
    until(lambda: _on_ray(cluster) == {"first": "RUNNING"}, "the first job alone runs")
    assert job_calls.stop_job(agent, "third")
    until(lambda: _known(cluster)["third"].outcome is not None, "the third job is out of the queue")
    assert not job_calls.stop_job(agent, "unknown")
    kept = [job_calls.read_journal(agent, rank) for rank in (0, 1)]
    assert kept[0] == kept[1], "the journal is on both disks"

    kill_all([cluster[0].pid, cluster[1].pid])
    cluster.exit_codes()
    until(lambda: not cluster.processes(), "all of the cluster has gone")
    (cluster.control / "jobs").unlink()
    cluster.renew_key()
    (cluster.folder / "disk-0" / ".cloudrl" / "jobs" / "first.json").unlink()  # another machine, with an empty disk
    _start(cluster)

    until(lambda: _on_ray(cluster) == {"first-2": "RUNNING"}, "the first job goes on")
    first = _known(cluster)["first"]
    assert first.attempts[0].verdict is Verdict.INFRASTRUCTURE
    _end(cluster, "first-2", status="SUCCEEDED", driver_exit_code=0)
    until(lambda: "second" in _on_ray(cluster), "the second job follows")
    assert _known(cluster)["first"].outcome.result is Result.SUCCEEDED  # type: ignore[union-attr]
    _end(cluster, "second", status="FAILED", driver_exit_code=1, message="ValueError: no such row")
    until(lambda: _known(cluster)["second"].outcome is not None, "the second job is over")
    assert _known(cluster)["second"].outcome.reason == "ValueError: no such row"  # type: ignore[union-attr]
    assert "third" not in _on_ray(cluster)


def _save(cluster: Nodes, step: int) -> None:
    """Two ranks of run `first`, each on its node's disk, as verl saves; what belongs to no rank is rank 0's."""
    whole = write_step(cluster.folder / "whole", step)
    for path in whole.rglob("*.*"):
        if path.is_file():
            rank = 1 if "_rank_1" in path.name else 0
            target = cluster.folder / f"disk-{rank}" / "first" / path.relative_to(cluster.folder / "whole")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, target)


def _saved_files(cluster: Nodes, rank: int) -> dict[str, bytes]:
    disk = cluster.folder / f"disk-{rank}" / "first" / "global_step_10"
    names = (path for path in disk.rglob("*") if path.is_file() and "cloudrl_" not in path.name)
    return {str(path.relative_to(disk)): path.read_bytes() for path in names}


def _send_file(cluster: Nodes, content: bytes) -> str:
    """A file of a job, on all nodes; returns its address."""
    manifest = Manifest((Part("reward.py", len(content), hashlib.sha256(content).hexdigest()),))
    agent = cluster[0].agent
    agent.announce_files(manifest.address, manifest.to_json())
    agent.put_file(manifest.address, "reward.py", [content], offset=0, size_bytes=len(content))
    until(lambda: all(each.complete for each in agent.files_state(manifest.address)[1].values()), "all nodes have it")
    return manifest.address


def test_a_job_goes_on_from_its_last_save_though_the_disk_of_the_head_is_gone(nodes: Maker) -> None:
    cluster = nodes(2)
    _start(cluster)
    address = _send_file(cluster, b"def compute_score(): ...")
    job = replace(_job("first"), total_steps=40)
    request = {**job.request, "entrypoint": f"train reward=/c/.cloudrl/user-files/{address}/reward.py"}
    job_calls.submit_job(cluster[0].agent, replace(job, request=request))
    until(lambda: _on_ray(cluster) == {"first": "RUNNING"}, "the job runs")
    _save(cluster, 10)
    saved = {**_saved_files(cluster, 0), **_saved_files(cluster, 1)}
    until(lambda: _saved_files(cluster, 0) == saved, "rank 0 has a copy of each file", timeout_s=60)
    until(lambda: _saved_files(cluster, 1) == saved, "rank 1 has a copy of each file", timeout_s=60)
    until(lambda: "step 10: two nodes have it now" in cluster[0].text(), "rank 0 has seen it", timeout_s=60)

    kill_all([cluster[0].pid, cluster[1].pid])
    cluster.exit_codes()
    until(lambda: not cluster.processes(), "all of the cluster has gone")
    (cluster.control / "jobs").unlink()
    cluster.renew_key()
    shutil.rmtree(cluster.folder / "disk-0")  # another machine takes its place
    _start(cluster)

    until(lambda: _on_ray(cluster) == {"first-2": "RUNNING"}, "the job goes on", timeout_s=90)
    assert _known(cluster)["first"].attempts[-1].from_step == 10
    needed = {path: content for path, content in saved.items() if "_rank_0" in path or path == "data.pt"}
    assert needed.items() <= _saved_files(cluster, 0).items()
    parts = (cluster.folder / "disk-0").rglob
    until(lambda: not list(parts("*.part")), "the partner's files are copied as well, and no part stays", timeout_s=60)
    sent = cluster.folder / "disk-0" / ".cloudrl" / "user-files" / address / "reward.py"
    assert sent.read_bytes() == b"def compute_score(): ..."


def test_the_best_step_stays_by_what_the_log_says_and_the_record_remembers_it(nodes: Maker) -> None:
    cluster = nodes(1)
    _start(cluster)
    run = cluster.folder / "disk-0" / "first"
    job = replace(_job("first"), total_steps=40, keep=1, keep_best="val-core/x/mean@1")
    job_calls.submit_job(cluster[0].agent, job)
    until(lambda: _on_ray(cluster) == {"first": "RUNNING"}, "the job runs")

    for step in (10, 20, 30):
        write_step(run, step)
    _log(
        cluster, "first",
        "".join(f"(TaskRunnerV1 pid=1) step:{10 * n} - val-core/x/mean@1:0.{9 - n} - a:1\n" for n in (1, 2, 3)),
    )  # fmt: skip

    until(lambda: not (run / "global_step_20").exists(), "the step between goes", timeout_s=90)
    assert sorted(path.name for path in run.glob("global_step_*")) == ["global_step_10", "global_step_30"]
    until(lambda: len(_known(cluster)["first"].scores) == 3, "the values are recorded")
    [recorded] = job_calls.read_journal(cluster[0].agent, 0)
    assert (recorded.scores[0].step, recorded.scores[0].value) == (10, 0.8)


def test_a_job_that_trains_on_one_of_two_nodes_goes_on_where_its_shard_is(nodes: Maker) -> None:
    """The other one only generates, and keeps the copy."""
    addresses = ("127.0.0.1", "127.0.0.2")
    cluster = nodes(2)
    _start(cluster, addresses)
    job = replace(_job("first"), training_nodes=1, is_placed=True, total_steps=40)
    job_calls.submit_job(cluster[0].agent, job)
    until(lambda: _on_ray(cluster) == {"first": "RUNNING"}, "the job runs")
    assert _training_nodes(cluster, "first") == addresses[0]
    whole = write_step(cluster.folder / "whole", 10)
    shutil.copytree(cluster.folder / "whole", cluster.folder / "disk-0" / "first")
    saved = {str(path.relative_to(whole)) for path in whole.rglob("*") if path.is_file()}
    until(lambda: _saved_files(cluster, 1).keys() >= saved, "rank 1 has a copy of each file", timeout_s=60)

    kill_all([cluster[0].pid, cluster[1].pid])
    cluster.exit_codes()
    until(lambda: not cluster.processes(), "all of the cluster has gone")
    (cluster.control / "jobs").unlink()
    shutil.rmtree(cluster.folder / "disk-0")  # another machine takes its place
    _start(cluster, addresses)

    until(lambda: _on_ray(cluster) == {"first-2": "RUNNING"}, "the job goes on", timeout_s=90)
    assert _known(cluster)["first"].attempts[-1].from_step == 10
    assert _training_nodes(cluster, "first-2") == addresses[1]
    assert "data.pt" in _saved_files(cluster, 0), "the controller reads it on the head"


def _training_nodes(cluster: Nodes, submission_id: str) -> str:
    rows = {row["submission_id"]: row for row in json.loads((cluster.control / "jobs").read_text())}
    return str(rows[submission_id]["runtime_env"]["env_vars"][TRAINING_NODES])


def test_newer_steps_of_an_earlier_attempt_are_out_of_the_way(nodes: Maker) -> None:
    cluster = nodes(1)
    _start(cluster)
    left = cluster.folder / "disk-0" / "first" / "global_step_3" / "actor"
    left.mkdir(parents=True)
    (left / "model_world_size_1_rank_0.pt").write_bytes(b"half of it")

    job_calls.submit_job(cluster[0].agent, replace(_job("first"), world_size=1))

    until(lambda: _on_ray(cluster) == {"first": "RUNNING"}, "it begins anew: no step of the run was ever whole")
    assert not left.exists()
    [aside] = (cluster.folder / "disk-0" / "first").glob(".cloudrl-set-aside-global_step_3-*")
    assert (aside / "actor" / "model_world_size_1_rank_0.pt").read_bytes() == b"half of it"


def test_a_step_that_was_whole_once_is_not_trained_again_without_a_word(nodes: Maker) -> None:
    cluster = nodes(1)
    _start(cluster)
    run = cluster.folder / "disk-0" / "first"
    (run / "global_step_3" / "actor").mkdir(parents=True)
    (run / "global_step_3" / "actor" / "model_world_size_1_rank_0.pt").write_bytes(b"cut off")
    (run / "latest_checkpointed_iteration.txt").write_text("3")

    job_calls.submit_job(cluster[0].agent, replace(_job("first"), world_size=1))

    until(lambda: _known(cluster)["first"].outcome is not None, "no step of it can be loaded")
    assert "step 3" in _known(cluster)["first"].outcome.reason  # type: ignore[union-attr]


def test_the_id_of_another_job_is_taken(nodes: Maker) -> None:
    cluster = nodes(1)
    _start(cluster)
    (cluster.control / "jobs").write_text('[{"submission_id": "raw", "status": "RUNNING", "metadata": null}]')

    with pytest.raises(InputError, match="the id raw is taken"):
        job_calls.submit_job(cluster[0].agent, replace(_job("raw"), world_size=1))
    with pytest.raises(InputError, match="its command cannot be read"):
        job_calls.submit_job(cluster[0].agent, replace(_job("odd"), request={"entrypoint": "train 'open"}))

    assert _on_ray(cluster) == {"raw": "RUNNING"}


def _start_for_a_job(
    cluster: Nodes, mirror: str = "", variables: Sequence[Mapping[str, str]] = ({}, {}), *, is_late: bool = False
) -> None:
    """As a script for Slurm does, in each of its starts."""
    file = cluster.folder / "job.json"
    plan = {"world_size": cluster.count, "total_steps": None, "saves": True, "chooses_step": False, "mirror": mirror}
    job = {"submission_id": "own", "argv": ["train"], "runtime_env": {}, "metadata": {"job_name": "first"}}
    file.write_text(json.dumps({**job, "durable": plan}))
    for rank in range(cluster.count):
        if rank and is_late:
            cluster[0].await_detail("waiting for rank 1: not heard of")
        words = [f"--job={file}"] if rank == 0 else []
        cluster.start_one(rank, *words, CLOUDRL_RETRY_STATUS="75", **variables[rank])


def _log(cluster: Nodes, name: str, text: str) -> None:
    [logs] = (cluster[0].temp_dir).glob("session_*/logs")
    (logs / f"job-driver-{name}.log").write_text(text)


def test_a_cluster_for_one_job_goes_on_with_it_and_ends_with_its_exit_code(nodes: Maker) -> None:
    cluster = nodes(2)
    _start_for_a_job(cluster)
    until(lambda: _on_ray(cluster) == {"own": "RUNNING"}, "the job runs")
    _log(cluster, "own", "step 10 of the training\n")
    until(lambda: "step 10 of the training" in cluster[0].text(), "its log is in that of rank 0")
    write_step(cluster.checkpoints / "first", 10)
    kill_all([cluster[1].pid])
    assert cluster.exit_codes()[0] == 75, "a lost node has the cluster started again"
    (cluster.control / "jobs").unlink()
    cluster.renew_key()

    _start_for_a_job(cluster)
    until(lambda: _on_ray(cluster) == {"own-2": "RUNNING"}, "the next attempt runs")
    [row] = json.loads((cluster.control / "jobs").read_text())
    assert "trainer.resume_from_path=" in row["entrypoint"]
    assert _known(cluster)["own"].attempts[-1].from_step == 10
    _log(cluster, "own-2", "step 11 of the training")
    _end(cluster, "own-2", status="SUCCEEDED", driver_exit_code=0)
    assert cluster[0].exit_code() == 0, cluster[0].text()
    assert "step 11 of the training" in cluster[0].text(), "its log is printed to its last byte"
    cluster.exit_codes()

    cluster.renew_key()
    _start_for_a_job(cluster)
    assert cluster[0].exit_code() == 0, "a job that has succeeded does not begin anew"


def test_a_cluster_for_a_job_that_fails_has_its_exit_code_and_tries_it_anew_when_it_is_started_again(
    nodes: Maker,
) -> None:
    cluster = nodes(1)
    for _ in range(2):
        _start_for_a_job(cluster)
        until(lambda: _on_ray(cluster) == {"own": "RUNNING"}, "the job runs")
        _end(cluster, "own", status="FAILED", driver_exit_code=7, message="ValueError: no such row")
        assert cluster[0].exit_code() == 7, cluster[0].text()
        assert "job own: failed: ValueError: no such row" in cluster[0].text()
        (cluster.control / "jobs").unlink()
        cluster.renew_key()


def test_a_cluster_for_a_job_whose_mirror_cannot_be_used_ends_before_its_training(nodes: Maker) -> None:
    cluster = nodes(2)
    _start_for_a_job(cluster, str(cluster.folder / "absent" / "mirror"))
    assert cluster.exit_codes()[0] == 4, "it is not started again"
    reason = cluster[0].reason()
    assert re.search(r"rank 0, preflight: --mirror /.*: node 0 cannot use it: .*No such file.* Mount a volume", reason)
    assert not (cluster.control / "jobs").exists(), "no training began"

    cluster.renew_key()
    with serve() as storage:
        wrong = {**storage.environment, "AWS_SECRET_ACCESS_KEY": "another"}
        _start_for_a_job(cluster, f"s3://{BUCKET}/jobs", [storage.environment, wrong])
        assert cluster.exit_codes()[0] == 4
        assert "node 1 cannot use it: GET jobs/.cloudrl/probe: SignatureDoesNotMatch (403)" in cluster[0].reason()
        assert not (cluster.control / "jobs").exists()

        cluster.renew_key()
        # rank 0 waits for a late rank at the barrier, whose limit is that of joining
        _start_for_a_job(cluster, f"s3://{BUCKET}/jobs", [storage.environment] * 2, is_late=True)
        until(lambda: _on_ray(cluster) == {"own": "RUNNING"}, "with the right keys it trains")
        kill_all([cluster[1].pid])
        assert cluster.exit_codes()[0] == 75
        (cluster.control / "jobs").unlink()

    cluster.renew_key()
    _start_for_a_job(cluster, f"s3://{BUCKET}/jobs", [storage.environment] * 2)  # that does not answer any more
    until(lambda: "READY" in cluster[0].text(), "a job that has trained before is not given up")


def test_a_cluster_ends_itself_before_its_time_is_up_and_its_job_goes_on(nodes: Maker) -> None:
    cluster = nodes(2)
    for rank in range(2):
        cluster.start_one(rank, "--max-duration-s=12", "--started-again=yes")
    cluster.ready()
    job_calls.submit_job(cluster[0].agent, _job("first"))
    reason = cluster.failed(1)
    assert reason == "this start may run for 12 s; the cluster starts again, as a durable job goes on"
    assert "job first is asked to save: the cluster ends in" in cluster[0].text()
    (cluster.control / "jobs").unlink()

    cluster.renew_key()
    cluster.start().ready()
    until(lambda: _on_ray(cluster) == {"first-2": "RUNNING"}, "the job goes on")


@pytest.mark.parametrize(("count", "has_bucket"), [(1, False), (2, False), (2, True)])
def test_all_disks_are_lost_and_the_job_goes_on_from_its_mirror(nodes: Maker, count: int, has_bucket: bool) -> None:
    cluster = nodes(count)
    with serve() as storage:
        if has_bucket:
            _lose_all_disks(cluster, count, f"s3://{BUCKET}/jobs", storage.environment)
            assert not any(SECRET in log for log in _all_text(cluster.folder)), "keys are written nowhere"
        else:
            _lose_all_disks(cluster, count, str(cluster.folder / "mirror"), {})


def _all_text(folder: Path) -> Iterator[str]:
    for path in folder.rglob("*"):
        if path.is_file() and path.name != "control":
            yield path.read_text(errors="replace")


def _lose_all_disks(cluster: Nodes, count: int, mirror: str, keys: Mapping[str, str]) -> None:
    variables = {**keys, "CLOUDRL_MIRROR": mirror}
    for rank in range(count):
        cluster.start_one(rank, f"--checkpoints={cluster.folder / f'disk-{rank}'}", **variables)
    cluster.ready()
    address = _send_file(cluster, b"def compute_score(): ...")
    job = replace(_job("first"), total_steps=40, mirror=mirror)
    request = {**job.request, "entrypoint": f"train --reward {USER_FILES}/{address}/reward.py"}
    agent = cluster[0].agent
    assert check_mirror(agent, mirror) or keys, "a folder of the test is on the disk of the nodes"
    job_calls.submit_job(agent, replace(job, request=request))
    until(lambda: _on_ray(cluster) == {"first": "RUNNING"}, "the job runs")
    if count == 2:
        _save(cluster, 10)
    else:
        write_step(cluster.folder / "disk-0" / "first", 10)
    saved = {name: content for rank in range(count) for name, content in _saved_files(cluster, rank).items()}
    until(lambda: job_calls.mirrored_steps(agent), "the step is in the mirror")
    [step] = job_calls.mirrored_steps(agent)
    assert (step.step, step.mirror) == (10, mirror)

    kill_all([cluster[rank].pid for rank in range(count)])
    cluster.exit_codes()
    until(lambda: not cluster.processes(), "all of the cluster has gone")
    (cluster.control / "jobs").unlink()
    cluster.renew_key()
    for rank in range(count):
        shutil.rmtree(cluster.folder / f"disk-{rank}")
        cluster.start_one(rank, f"--checkpoints={cluster.folder / f'disk-{rank}'}", **variables)
    cluster.ready()

    until(lambda: _on_ray(cluster) == {"first-2": "RUNNING"}, "the job goes on")
    assert _known(cluster)["first"].attempts[-1].from_step == 10
    brought = [_saved_files(cluster, rank) for rank in range(count)]
    assert all(brought[rank][name] == saved[name] for rank in range(count) for name in brought[rank])
    assert set(saved) == {name for files in brought for name in files}
    if count == 2:
        assert not any("_rank_0" in name for name in brought[1])
