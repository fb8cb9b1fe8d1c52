"""Paused tasks of a cluster, asked from the agents of its nodes, and sessions with them."""

import socket
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from debug.debugged import Typist
from fake_local import FakeLocal
from small_server import serving

from cloudrl.errors import ConnectionFailed, InputError, Interrupted
from cloudrl.protocol.exchange import Response
from cloudrl.protocol.failures import ApiError, ErrorCode
from cloudrl.protocol.stops import PDB, Stop
from cloudrl.sdk.callbacks import Notice, Update
from cloudrl.sdk.debugging import PausedTasks, waiting
from cloudrl.sdk.find import look

pytestmark = pytest.mark.io

STOP = Stop("1", 0, 7, 1, actor="WorkerDict", rank=1, method="update_actor", file="/v/dp_actor.py", line=4, job="a")


@pytest.fixture
def pdb() -> Iterator[int]:
    """A debugger that knows one prompt, and hangs up at anything that is typed."""

    def answer(connection: socket.socket) -> None:
        connection.sendall(b"> /job/main.py(3)train()\r\n(Pdb) ")
        connection.recv(100)

    with serving(answer) as port:
        yield port


def test_tasks_are_listed_by_job_and_rank(lab: FakeLocal) -> None:
    ids = ["a-none", "a-0", "a-1", "b-0"]
    stops = [
        replace(STOP, id="b-0", job="b", rank=0), replace(STOP, id="a-1", node=1),
        replace(STOP, id="a-none", rank=None), replace(STOP, id="a-0", rank=0, node=1),
    ]  # fmt: skip
    lab.cluster.stops = stops
    tasks = PausedTasks("lab")
    assert [each.id for each in tasks.stops()] == ids
    assert tasks.choose(2).id == "a-0"
    with pytest.raises(InputError, match="no paused task 5: there are 4"):
        tasks.choose(5)
    lab.cluster.stops = []
    with pytest.raises(InputError, match="no paused task 0: nothing is paused"):
        tasks.choose(0)


def refuse(code: ErrorCode) -> Any:
    def answer(*_: Any, **__: Any) -> Response:
        raise ApiError(code, "it does not answer")

    return answer


def test_a_node_that_does_not_answer_is_said(lab: FakeLocal) -> None:
    lab.cluster.stops = [STOP]
    answers = lab.cluster.agent_stops
    lab.cluster.agent_stops = lambda call, rank: (answers if rank == "0" else refuse(ErrorCode.UNREACHABLE))(call, rank)  # type: ignore[method-assign]
    told: list[Update] = []
    assert PausedTasks("lab").stops(told.append) == (STOP,)
    [notice] = told
    assert isinstance(notice, Notice)
    assert notice.text.startswith("rank 1 does not say what waits there")
    lab.cluster.agent_stops = refuse(ErrorCode.UNREACHABLE)  # type: ignore[method-assign]
    with pytest.raises(ConnectionFailed, match="does not answer"):
        PausedTasks("lab").stops()


def test_the_next_one_is_that_behind_it_in_the_list_and_that_nobody_debugs(lab: FakeLocal) -> None:
    first, second, third = stops = [replace(STOP, id=str(rank), rank=rank, pid=rank) for rank in range(3)]
    tasks = PausedTasks("lab")
    lab.cluster.stops = stops
    assert tasks.after(first) == second
    assert tasks.after(third) == first
    lab.cluster.stops = [first, replace(second, attached=True), third]
    assert tasks.after(first) == third
    lab.cluster.stops = [replace(first, id="9")]
    assert tasks.after(first) is None
    assert tasks.after(first, also_own=True) == replace(first, id="9")


def test_one_after_the_other(lab: FakeLocal, pdb: int) -> None:
    lab.cluster.stops = [replace(STOP, id=str(rank), rank=rank, pid=rank, debugger=PDB, port=pdb) for rank in range(2)]
    tasks, typist = PausedTasks("lab"), Typist(["np", "q"])
    had = tasks.debug(tasks.choose(1), typist.console())
    assert [each.rank for each in had] == [0, 1]
    lab.cluster.stops.append(replace(STOP, id="7", pid=7))
    assert [each.pid for each in tasks.others(had)] == [7]
    assert [line for line in typist.shown if "h for help" in line] == [
        f"WorkerDict rank {rank} on node 0, in update_actor (dp_actor.py:4): breakpoint; h for help" for rank in (0, 1)
    ]
    assert typist.prompts == ["(Pdb) "] * 2


def test_ctrl_c_ends_the_wait_for_the_next_one(lab: FakeLocal, pdb: int) -> None:
    lab.cluster.stops = [replace(STOP, debugger=PDB, port=pdb)]

    def interrupted(_seconds: float) -> None:
        raise KeyboardInterrupt

    tasks, typist = PausedTasks("lab", sleep=interrupted), Typist(["np"])
    with pytest.raises(Interrupted, match="the job goes on"):
        tasks.debug(tasks.choose(1), typist.console())
    assert typist.shown[-1].startswith("nothing else is paused")


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("waits", "closed; the task still waits for a debugger"),
        ("over", "closed; the task went on by itself, or its process has ended"),
        ("gone", "closed, and cluster lab does not answer: where it still runs, the task goes on by itself"),
    ],
)
def test_a_lost_connection_says_what_became_of_the_task(lab: FakeLocal, pdb: int, what: str, said: str) -> None:
    lab.cluster.stops = [replace(STOP, debugger=PDB, port=pdb)]

    def type_something() -> str:
        if what == "gone":
            lab.cluster.agent_stops = refuse(ErrorCode.UNREACHABLE)  # type: ignore[method-assign]
        elif what == "over":
            lab.cluster.stops = []
        return "p 1"

    tasks = PausedTasks("lab")
    with pytest.raises(ConnectionFailed) as lost:
        tasks.debug(tasks.choose(1), Typist([type_something]).console())
    assert lost.value.message.endswith(said)
    assert "\n" not in lost.value.message


def test_one_that_somebody_debugs_is_refused(lab: FakeLocal) -> None:
    lab.cluster.stops = [replace(STOP, attached=True)]
    tasks = PausedTasks("lab")
    with pytest.raises(InputError, match="somebody debugs it already"):
        tasks.debug(tasks.choose(1), Typist([]).console())


def test_one_that_goes_on_meanwhile_is_refused(lab: FakeLocal) -> None:
    lab.cluster.stops = [STOP]
    tasks = PausedTasks("lab")
    stop = tasks.choose(1)
    lab.cluster.stops = []
    with pytest.raises(InputError, match="no debugger waits at port 1"):
        tasks.debug(stop, Typist([]).console())


def test_what_waits_for_minutes_is_a_warning(lab: FakeLocal) -> None:
    [status] = look("lab")
    status = replace(status, price_per_hour=12.0)
    assert waiting(status) is None
    lab.cluster.stops = [replace(STOP, since=1000.0), replace(STOP, id="2", since=900.0, attached=True)]
    notice = waiting(status, now=lambda: 1300.0)
    assert notice is not None
    assert notice.text == (
        "a task has waited for a debugger for 5 min 00 s (WorkerDict rank 1 on node 0, in update_actor "
        "(dp_actor.py:4): breakpoint), and the cluster costs $12.00/h"
    )
    assert waiting(status, now=lambda: 1100.0) is None
    assert waiting(replace(status, dashboard_url=None), now=lambda: 1300.0) is None
