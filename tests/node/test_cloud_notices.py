"""Notices of a cloud that it takes this machine back, asked of a stand-in for its metadata service."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

import pytest
from fake_metadata import Metadata, serving
from small_server import serving as serving_bytes

from cloudrl.node import cloud_notices
from cloudrl.node.cloud_notices import CloudNotices, report, start_asking
from cloudrl.node.node_state import NodeState
from cloudrl.protocol.interruptions import SWITCH, Interruption, countdown_text, end_text
from cloudrl.protocol.report import NodeReport

AT = 1505722800.0
"""2017-09-18T08:20:00Z, two minutes before the time of the example in AWS's documentation."""


def asked_at(metadata: Metadata, address: str, *, has_gpus: bool = True, ahead_s: float = 0.0) -> CloudNotices:
    """A node that asks it at `AT`, by the cloud's clock, which a test may change.

    Args:
        ahead_s: seconds by which the node's own clock is ahead.
    """
    metadata.clock = lambda: AT
    return CloudNotices(has_gpus=has_gpus, address=address, now=lambda: metadata.clock() + ahead_s)


def _spot(metadata: Metadata) -> None:
    metadata.action = {"action": "terminate", "time": "2017-09-18T08:22:00Z"}


def _preempted(metadata: Metadata) -> None:
    metadata.preempted = "TRUE"


def _maintenance(metadata: Metadata) -> None:
    metadata.maintenance = "TERMINATE_ON_HOST_MAINTENANCE"


def _events(*events: tuple[str, list[str], str]) -> Callable[[Metadata], None]:
    def change(metadata: Metadata) -> None:
        metadata.events = [
            {"EventId": "1", "EventType": kind, "ResourceType": "VirtualMachine", "Resources": names,
             "EventStatus": "Scheduled" if at else "Started", "NotBefore": at, "EventSource": "Platform"}
            for kind, names, at in events
        ]  # fmt: skip

    return change


SOON = "Mon, 18 Sep 2017 08:20:30 GMT"


@pytest.mark.parametrize(
    ("cloud", "change", "event", "left_s"),
    [
        ("AWS", _spot, "spot", 120.0),
        ("GCP", _preempted, "spot", 30.0),
        ("GCP", _maintenance, "maintenance", 3600.0),
        ("Azure", _events(("Preempt", ["gpu_1"], SOON)), "spot", 30.0),
        ("Azure", _events(("Reboot", ["gpu_0", "GPU_1"], ""), ("Preempt", ["gpu_1"], SOON)), "spot", 30.0),
        ("Azure", _events(("Reboot", ["gpu_0", "GPU_1"], "")), "reboot", 0.0),
        ("Azure", _events(("Redeploy", ["gpu_1"], "Mon, 18 Sep 2017 08:30:00 GMT")), "redeploy", 600.0),
        ("Azure", _events(("Freeze", ["gpu_1"], SOON), ("Terminate", ["gpu_2"], SOON)), None, 0.0),
    ],
)
def test_a_notice_comes_and_goes(
    cloud: str, change: Callable[[Metadata], None], event: str | None, left_s: float
) -> None:
    metadata = Metadata(cloud)
    with serving(metadata) as address:
        notices = asked_at(metadata, address)
        assert notices.find() == cloud
        assert notices.look() is None
        change(metadata)
        expected = Interruption(cloud, event, AT + left_s) if event is not None else None
        assert notices.look() == expected
        metadata.status = 503
        assert notices.look() == expected, "silence changes nothing"
        metadata.status, metadata.action, metadata.preempted, metadata.maintenance = None, None, "FALSE", "NONE"
        metadata.events = []
        assert notices.look() is None


def test_who_says_only_that_it_is_soon_is_taken_at_its_first_word() -> None:
    metadata = Metadata("GCP")
    with serving(metadata) as address:
        notices = asked_at(metadata, address, has_gpus=False)
        notices.find()
        _maintenance(metadata)
        assert notices.look() == Interruption("GCP", "maintenance", AT + 60)
        metadata.clock = lambda: AT + 20
        assert notices.look() == Interruption("GCP", "maintenance", AT + 60)
        _preempted(metadata)
        assert notices.look() == Interruption("GCP", "spot", AT + 50)
        metadata.clock = lambda: AT + 720
        assert notices.look() is None, "the machine is still there long after"


def test_an_event_that_is_put_off_has_its_new_time() -> None:
    metadata = Metadata("Azure")
    with serving(metadata) as address:
        notices = asked_at(metadata, address)
        notices.find()
        for minute in (30, 55):
            _events(("Reboot", ["gpu_1"], f"Mon, 18 Sep 2017 08:{minute}:00 GMT"))(metadata)
            assert notices.look() == Interruption("Azure", "reboot", AT + 60 * (minute - 20))


def test_an_event_that_has_begun_long_ago_hides_no_other() -> None:
    metadata = Metadata("Azure")
    with serving(metadata) as address:
        notices = asked_at(metadata, address)
        notices.find()
        _events(("Redeploy", ["gpu_1"], ""))(metadata)
        assert notices.look() == Interruption("Azure", "redeploy", AT)
        metadata.clock = lambda: AT + 700
        assert notices.look() is None
        _events(("Redeploy", ["gpu_1"], ""), ("Terminate", ["gpu_1"], "Mon, 18 Sep 2017 08:40:00 GMT"))(metadata)
        assert notices.look() == Interruption("Azure", "terminate", AT + 1200)


@pytest.mark.parametrize("ahead_s", [-1200.0, 1200.0])
def test_a_node_whose_clock_is_off_tells_the_time_of_the_cloud(ahead_s: float) -> None:
    metadata = Metadata("AWS")
    with serving(metadata) as address:
        notices = asked_at(metadata, address, ahead_s=ahead_s)
        notices.find()
        _spot(metadata)
        assert notices.look() == Interruption("AWS", "spot", AT + 120)
        assert notices.now() == AT

        state, said = NodeState(NodeReport(0, "")), list[str]()
        report(notices, state, said.append)
        assert state.own.interruption == Interruption("AWS", "spot", AT + 120 + ahead_s), "in its report by its own"
        assert said == ["spot notice of AWS: this machine is taken back in 2 min 00 s, at 2017-09-18 08:22:00 UTC"]
        metadata.clock = lambda: AT + 0.7  # the cloud tells whole seconds
        report(notices, state, said.append)
        assert len(said) == 1


def test_a_token_of_aws_that_has_ended_is_renewed() -> None:
    metadata = Metadata("AWS")
    with serving(metadata) as address:
        notices = asked_at(metadata, address)
        notices.find()
        _spot(metadata)
        metadata.token = "another-token-of-the-same-service"
        assert notices.look() == Interruption("AWS", "spot", AT + 120)
    assert metadata.asked[-3:] == [
        "GET /latest/meta-data/spot/instance-action",
        "PUT /latest/api/token",
        "GET /latest/meta-data/spot/instance-action",
    ]


def test_what_has_another_form_is_no_cloud() -> None:
    for kind, status in (("a proxy", None), ("GCP", 500)):
        metadata = Metadata(kind)
        metadata.status = status
        with serving(metadata) as address:
            assert CloudNotices(has_gpus=True, address=address).find() == ""


def test_no_redirect_is_followed() -> None:
    first, second = Metadata("a proxy"), Metadata("GCP")
    with serving(first) as address, serving(second) as other:
        first.status, first.location = 302, other
        assert CloudNotices(has_gpus=True, address=address).find() == ""
        assert first.asked
        assert second.asked == []


def test_garbled_notices_are_none_and_end_nothing() -> None:
    metadata = Metadata("AWS")
    with serving(metadata) as address:
        notices = asked_at(metadata, address)
        notices.find()
        for action in ({"action": "terminate", "time": "soon"}, {"time": 7}, {}):
            metadata.action = action  # type: ignore[assignment]
            assert notices.look() is None


def test_a_service_that_is_silent_is_given_up_within_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cloud_notices, "_ANSWER_S", 0.05)
    waits: list[socket.socket] = []

    def keep(connection: socket.socket) -> None:
        waits.append(connection)
        connection.recv(4096)
        time.sleep(0.5)

    with serving_bytes(keep) as port:
        assert CloudNotices(has_gpus=True, address=f"http://127.0.0.1:{port}").find() == ""
    assert len(waits) == 3


def test_the_report_and_the_log_have_it() -> None:
    metadata, said = Metadata("AWS"), []  # type: ignore[var-annotated]
    state = NodeState(NodeReport(1, "10.0.0.1"))
    with serving(metadata) as address:
        notices = asked_at(metadata, address)
        notices.find()
        for action in (None, {"action": "terminate", "time": "2017-09-18T08:22:00Z"}, None):
            metadata.action = action
            report(notices, state, said.append)
            report(notices, state, said.append)
            assert (state.own.interruption is not None) == (action is not None)
    assert said == [
        "spot notice of AWS: this machine is taken back in 2 min 00 s, at 2017-09-18 08:22:00 UTC",
        "the spot notice of AWS is withdrawn",
    ]


def test_it_looks_three_times_whose_machine_it_is_and_then_never_again() -> None:
    paused: list[float] = []
    notices = CloudNotices(has_gpus=True, address="http://127.0.0.1:1")
    cloud_notices._ask(notices, NodeState(NodeReport(0, "")), paused.append, paused.append)
    assert paused == [0.0, 60.0, 600.0]


def test_it_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cloud_notices, "CloudNotices", lambda **_: pytest.fail("it asks"))
    start_asking(NodeState(NodeReport(0, "")), lambda _: None, {SWITCH: "off"}, has_gpus=True)


def test_no_proxy_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    with serving(Metadata("GCP")) as address:
        assert CloudNotices(has_gpus=True, address=address).find() == "GCP"


def test_words() -> None:
    notice = Interruption("AWS", "spot", AT + 110)
    assert countdown_text(1, notice, AT) == "node 1 is taken back in 1 min 50 s: spot notice of AWS"
    assert countdown_text(1, notice, AT + 111) == "node 1 is taken back at any moment: spot notice of AWS"
    assert end_text({1: notice}) == "AWS takes back node 1 (spot notice)"
