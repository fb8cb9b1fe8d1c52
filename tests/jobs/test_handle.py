import pytest
from fake_clock import Clock
from fake_cluster import FakeCluster

from cloudrl.errors import ConnectionFailed, FailedError, InputError, JobFailed, Unauthorized
from cloudrl.jobs import Ended, JobHandle, Line, Progress, find_job
from cloudrl.jobs.handle import newest_job
from cloudrl.protocol.backoff import Backoff
from cloudrl.transport import Connection
from cloudrl.transport.ray_job import JobStatus

pytestmark = pytest.mark.io

STEP = "\x1b[36m(TaskRunnerV1 pid=9)\x1b[0m step:{} - critic/score/mean:{} - timing_s/step:2.0\n"
LOG = "Runtime env is setting up.\n训练\n" + STEP.format(1, 0.1) + STEP.format(2, 0.2) + "done, no end"


@pytest.fixture(params=["agent", "plain ray"])
def connection(request: pytest.FixtureRequest, cluster: FakeCluster) -> Connection:
    """Both ways to a log: through our agent, and through Ray alone."""
    if request.param == "plain ray":
        return Connection(cluster.url, cluster.url, cluster.token)
    return cluster.connection()


def lines(events: list[object]) -> list[str]:
    return [event.text for event in events if isinstance(event, Line)]


def test_a_handle_prints_as_one_word(cluster: FakeCluster, connection: Connection):
    cluster.add("run-1", metadata={"job_name": "run", "cloudrl_checkpoints": "/c/run", "cloudrl_total_steps": "7"})
    job = find_job(connection, "run-1")
    place = "lab" if connection.cluster_id else cluster.url.removeprefix("http://")
    assert str(job) == job.url == f"ray://{place}/run-1"
    assert (job.name, job.checkpoint_dir, job.total_steps) == ("run", "/c/run", 7)
    assert cluster.token not in repr(job)
    cluster.add("raysubmit_1", metadata={"cloudrl_total_steps": "many"})
    job = find_job(connection, "raysubmit_1")
    assert (job.name, job.checkpoint_dir, job.total_steps) == ("raysubmit_1", None, None), "somebody else's"


def test_following_to_the_end(cluster: FakeCluster, connection: Connection):
    cluster.add("run", LOG.encode(), metadata={"cloudrl_total_steps": "4"})
    cluster.end("run")
    events = list(find_job(connection, "run").follow(lines=True, sleep=lambda _: None))
    assert lines(events) == LOG.splitlines()
    assert [event for event in events if isinstance(event, Progress)] == [
        Progress(1, 4, {"reward": 0.1}, 2.0, None),
        Progress(2, 4, {"reward": 0.2}, 2.0, 4.0),
    ]
    assert events[-1] == Ended(JobStatus.SUCCEEDED, "Job finished.")


@pytest.mark.parametrize("cuts", [[0, 0], [1, 2, 3], [3, 5, 2], [5] * 9])
def test_a_stream_that_breaks_goes_on(cluster: FakeCluster, connection: Connection, cuts: list[int]):
    cluster.add("run", LOG.encode())
    cluster.end("run")
    cluster.cuts = list(cuts)
    breaks: list[ConnectionFailed] = []
    events = list(find_job(connection, "run").follow(lines=True, sleep=lambda _: None, on_break=breaks.append))
    assert lines(events) == LOG.splitlines()
    assert breaks


def test_a_tunnel_that_dies_and_comes_back(cluster: FakeCluster, connection: Connection):
    cluster.add("run", b"before\nhalf")
    down = False

    def pass_time(_: float) -> None:
        if not cluster._servers:
            cluster.write("run", b" and half\nafter\n")
            cluster.end("run")
            cluster.up()

    seen = []
    for event in find_job(connection, "run").follow(lines=True, sleep=pass_time):
        seen.append(event)
        if not down:
            cluster.down()
            down = True

    assert lines(seen) == ["before", "half and half", "after"]


def test_giving_up_leaves_the_job_alone(cluster: FakeCluster, connection: Connection, clock: Clock):
    cluster.add("run", b"text\n")
    job = find_job(connection, "run")
    cluster.down()
    with pytest.raises(ConnectionFailed):
        list(job.follow(lines=True, clock=clock, sleep=clock.sleep, backoff=Backoff(give_up_s=30)))
    assert clock.now > 30


def test_a_cluster_that_was_restarted_while_it_was_followed(cluster: FakeCluster, connection: Connection):
    cluster.add("run", b"text\n")
    job = find_job(connection, "run")
    events = job.follow(lines=True, sleep=lambda _: None)
    next(events)
    cluster.jobs.clear()
    for follow_or_wait in (lambda: list(events), lambda: list(job.follow(lines=True)), job.wait, job.result):
        with pytest.raises(FailedError, match=r"does not know 'run' any more: the cluster was restarted"):
            follow_or_wait()


def test_a_token_that_changed(cluster: FakeCluster, connection: Connection):
    cluster.add("run", b"text\n")
    job = find_job(connection, "run")
    cluster.token = "another"
    with pytest.raises(Unauthorized):
        list(job.follow(lines=True, sleep=lambda _: None))


def test_the_log_as_it_is_now(cluster: FakeCluster, connection: Connection):
    cluster.add("run", LOG.encode() + b"\xff")
    assert list(find_job(connection, "run").logs()) == (LOG + "�").splitlines()


def test_the_verbs_of_a_future(cluster: FakeCluster, connection: Connection):
    """As of concurrent.futures, so that users know them already."""
    cluster.add("run", b"text\n")
    job = find_job(connection, "run")
    assert not job.done()
    with pytest.raises(TimeoutError, match="job run is still RUNNING after 0 s"):
        job.wait(timeout_s=0)
    cluster.end("run")
    assert job.done()
    assert job.wait(timeout_s=5) is JobStatus.SUCCEEDED
    assert job.result().succeeded
    assert job.exception() is None


def test_waiting_for_a_failure_names_its_first_cause(cluster: FakeCluster, connection: Connection):
    log = b"Traceback:\nKeyError: 'a'\nTraceback:\nray.exceptions.ActorDiedError: died\n"
    cluster.add("run", log)
    cluster.end("run", "FAILED", "Job entrypoint command failed with exit code 1, last available logs: ...")
    with pytest.raises(JobFailed, match=r"job run ended as FAILED: KeyError: 'a' \(rank 0, driver\)") as caught:
        find_job(connection, "run").result()
    assert str(find_job(connection, "run").exception()) == str(caught.value)
    assert find_job(connection, "run").wait() is JobStatus.FAILED
    place = "lab" if connection.cluster_id else connection.ray_url.removeprefix("http://")
    assert caught.value.hint == f"More of it: cloudrl why ray://{place}/run"


def test_the_first_cause_of_a_failure_over_all_nodes(cluster: FakeCluster, connection: Connection):
    """By Ray's state, in which the job is found by its own id, and the last words of the process that died."""
    cluster.add("run", b"ray.exceptions.ActorDiedError: died\n", "FAILED")
    at, worker = "f4a49f9ed5b5d6f210.0.0.2", {"worker_id": "w1", "pid": 7, "exit_type": "SYSTEM_ERROR"}
    cluster.actors = [{"actor_id": "a", "class_name": "Rank", "name": "Rank_1", "pid": 7, "node_id": at}]
    cluster.workers = [{**worker, "node_id": at, "exit_detail": "End of file. Some", "end_time_ms": 5}]
    cluster.logs[at, "worker-w1-01000000-7.err"] = b"x\ntorch.OutOfMemoryError: CUDA out of memory. Tried\n"
    job = find_job(connection, "run")
    cause = job.cause()
    assert (cause.rank, cause.process, cause.signature) == (1, "Rank_1 (pid 7)", "gpu-memory")
    with pytest.raises(
        JobFailed, match=r"OutOfMemoryError: CUDA out of memory. Tried \(rank 1, Rank_1 \(pid 7\)\)\nA GPU"
    ) as caught:
        job.result()
    assert caught.value.hint.startswith("Fewer tokens at once")
    cluster.end("run", "STOPPED")
    assert find_job(connection, "run").cause() is None


def test_waiting_for_a_failure_without_any_error(cluster: FakeCluster, connection: Connection):
    cluster.add("run", b"text\n")
    cluster.end("run", "FAILED", "runtime_env setup failed:\n" + "frame\n" * 50 + "OSError: no such package")
    with pytest.raises(JobFailed, match="OSError: no such package") as caught:
        find_job(connection, "run").result()
    assert len(caught.value.message.splitlines()) <= 20


def test_cancelling(cluster: FakeCluster, connection: Connection):
    cluster.add("run")
    job = find_job(connection, "run")
    assert job.cancel() is True
    assert job.status().status is JobStatus.STOPPED
    assert job.cancel() is False
    with pytest.raises(JobFailed, match="ended as STOPPED"):
        job.result()


def test_listing(cluster: FakeCluster, connection: Connection):
    with pytest.raises(InputError, match="nothing was submitted"):
        newest_job(connection)
    cluster.add("first")
    cluster.add("second")
    assert newest_job(connection).submission_id == "second"
    with pytest.raises(InputError, match="knows no job 'x'"):
        find_job(connection, "x")


def test_a_log_that_is_on_another_node_than_the_agents(cluster: FakeCluster):
    """Somebody submitted it with resources for its driver, so that Ray placed it on a worker."""
    cluster.add("run", b"text\n").node_ip = "10.0.0.2"
    cluster.end("run")
    assert lines(list(find_job(cluster.connection(), "run").follow(lines=True, sleep=lambda _: None))) == ["text"]


@pytest.mark.parametrize(
    ("address", "url"),
    [
        ("http://10.0.0.1:8265", "ray://10.0.0.1:8265/run-1"),
        ("https://ray.example.com/rl/", "ray+https://ray.example.com/rl/run-1"),
    ],
)
def test_the_url_on_a_plain_ray_has_all_of_its_address(address: str, url: str):
    one, two = (JobHandle(Connection(address, address), "run-1", "run-1") for _ in range(2))
    assert one.url == url
    assert (one, hash(one)) == (two, hash(two)), "a handle is a value"
