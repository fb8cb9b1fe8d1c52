"""Asks the metadata service of this machine's cloud whether the machine is about to be taken back.

It is asked at its link-local address, over plain HTTP as the clouds have it, by no proxy and without redirects. What
answers in another form than the cloud's is not taken for that cloud.

AWS: EC2 User Guide, "Spot Instance interruption notices" (2 minutes; every 5 seconds) and "Use IMDSv2".
GCP: Compute Engine, "Create and use Spot VMs" (`preempted`, 30 seconds) and "Handle GPU host maintenance events"
(`maintenance-event`, an hour with GPUs, else a minute).
Azure: "Scheduled Events for Linux VMs", api-version 2020-07-01 (Preempt 30 seconds, others 10 to 15 minutes; the first
call takes up to 2 minutes). Events are never approved: that would shorten the time.
"""

from __future__ import annotations

import contextlib
import http.client
import re
import threading
import time
from calendar import timegm
from email.utils import parsedate_to_datetime
from typing import Callable, Dict, Mapping, Optional, Protocol, Sequence, Tuple

from cloudrl.foreign import NOT_AS_EXPECTED, as_list, checked_time, parse_object, text_of
from cloudrl.node.node_state import NodeState
from cloudrl.protocol.exchange import Request, Response, send
from cloudrl.protocol.interruptions import SWITCH, Interruption
from cloudrl.units import duration_text

ADDRESS = "http://169.254.169.254"
EVERY_S = 5.0
_LOOKS_AFTER_S = (0.0, 60.0, 600.0)
"""Seconds before each try to find out whose machine this is; after the last one it is left alone."""
_ANSWER_S, _FIRST_EVENTS_S = 1.0, 125.0
_MAX_BYTES = 64 << 10
_TOKEN_S = 21600
_SPOT_S = 30.0
_MAINTENANCE_S = {True: 3600.0, False: 60.0}
"""GCP's time before maintenance ends a machine, by whether it has GPUs."""
_STALE_S = 600.0
"""After its time a notice of a machine that is still there says nothing."""
_CLOCKS_DIFFER_S = 2.0
_TOKEN = re.compile(r"[\x21-\x7e]{16,512}")
_INSTANCE = re.compile(r"i-[0-9a-f]{8,32}")
_EVENTS = {"Preempt": "spot", "Reboot": "reboot", "Redeploy": "redeploy", "Terminate": "terminate"}
"""Azure's; `Freeze` pauses the machine for seconds."""
_FAILURES = (OSError, http.client.HTTPException, *NOT_AS_EXPECTED)

Ask = Callable[[str, str, Mapping[str, str], float], Tuple[int, Mapping[str, str], str]]
"""Method, path, headers and seconds -> status, headers and text."""


class Cloud(Protocol):
    """A cloud whose machine this may be."""

    name: str

    def is_here(self) -> bool:
        """Whether its metadata service answers, in its own form."""

    def notices(self) -> Sequence[Interruption]:
        """What it says now; none while the machine stays.

        Raises:
            OSError, http.client.HTTPException, ValueError: it does not answer as it should.
        """


class CloudNotices:
    """Finds out whose machine this is, and asks that cloud.

    Args:
        has_gpus: whether the machine has GPUs.
        address: where the metadata service answers.
        now: seconds since the epoch.

    Attributes:
        ahead_s: by how much the node's clock is ahead of the cloud's.
    """

    def __init__(self, *, has_gpus: bool, address: str = ADDRESS, now: Callable[[], float] = time.time) -> None:
        self._node_now = now
        self.ahead_s = 0.0

        def ask(
            method: str, path: str, headers: Mapping[str, str], timeout_s: float
        ) -> Tuple[int, Mapping[str, str], str]:
            request = Request(method, address + path, headers, timeout_s=timeout_s, connect_timeout_s=_ANSWER_S)
            with send(request) as answer:
                headers = _lower(answer)
                self.ahead_s = _ahead_s(headers.get("date", ""), now(), self.ahead_s)
                return answer.status, headers, answer.content(_MAX_BYTES).decode("utf-8", "replace").strip()

        self._clouds: Sequence[Cloud] = (_Aws(ask), _Gcp(ask, self.now, has_gpus=has_gpus), _Azure(ask, self.now))
        self._cloud: Optional[Cloud] = None
        self._notices: Sequence[Interruption] = ()

    def now(self) -> float:
        """Seconds since the epoch by the cloud's clock, whose times are compared with it."""
        return self._node_now() - self.ahead_s

    def find(self) -> str:
        """The name of the cloud whose machine this is; "" if none of those that give notices answers."""
        self._cloud = next((cloud for cloud in self._clouds if _is_here(cloud)), None)
        return self._cloud.name if self._cloud is not None else ""

    def look(self) -> Optional[Interruption]:
        """The notice as it is now; the one before while the cloud does not answer, None long after its time.

        Of several, that of a spot machine, which has the least time, and else the one whose time comes first.
        """
        with contextlib.suppress(*_FAILURES):
            self._notices = self._cloud.notices() if self._cloud is not None else ()
        new = [notice for notice in self._notices if self.now() < notice.ends_at + _STALE_S]
        return min(new, key=lambda notice: (notice.event != "spot", notice.ends_at), default=None)


def start_asking(state: NodeState, say: Callable[[str], object], env: Mapping[str, str], *, has_gpus: bool) -> None:
    """Keep this node's report up to date, in a thread of its own that ends where no cloud answers.

    Args:
        state: of the node.
        say: prints a line.
        env: of the node, in which it may be switched off.
        has_gpus: whether the machine has GPUs.
    """
    if env.get(SWITCH) != "off":
        notices = CloudNotices(has_gpus=has_gpus)
        threading.Thread(target=lambda: _ask(notices, state, say), daemon=True).start()


def _ask(
    notices: CloudNotices,
    state: NodeState,
    say: Callable[[str], object],
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    for pause_s in _LOOKS_AFTER_S:
        sleep(pause_s)
        if cloud := notices.find():
            say(f"a machine of {cloud}, which is asked for notices that it takes the machine back")
            break
    else:
        return
    while True:
        report(notices, state, say)
        sleep(EVERY_S)


def report(notices: CloudNotices, state: NodeState, say: Callable[[str], object]) -> None:
    """Look once, and tell what has changed."""
    before, notice = state.own.interruption, notices.look()
    here = notice.moved(notices.ahead_s, before) if notice is not None else None
    if here == before:
        return
    state.update(interruption=here)
    if notice is not None:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(notice.ends_at))
        left = duration_text(notice.ends_at - notices.now())
        say(f"{notice.name}: this machine is taken back in {left}, at {when} UTC")
    elif before is not None:
        is_over = notices.now() + notices.ahead_s >= before.ends_at
        say(f"the {before.name} {'has passed, and the machine is still there' if is_over else 'is withdrawn'}")


class _Aws:
    """IMDSv2. A container on a bridged network gets no token where the limit of hops is 1."""

    name = "AWS"

    def __init__(self, ask: Ask) -> None:
        self._ask, self._token = ask, ""

    def is_here(self) -> bool:
        self._token = self._new_token()
        status, _, text = self._get("instance-id")
        return status == http.client.OK and _INSTANCE.fullmatch(text) is not None

    def notices(self) -> Sequence[Interruption]:
        status, _, text = self._get("spot/instance-action")
        if status == http.client.UNAUTHORIZED:
            self._token = self._new_token()
            status, _, text = self._get("spot/instance-action")
        if status == http.client.NOT_FOUND:
            return ()
        if status != http.client.OK:
            raise ValueError(f"it answers with {status}")
        ends_at = timegm(time.strptime(text_of(parse_object(text), "time"), "%Y-%m-%dT%H:%M:%SZ"))
        return (Interruption(self.name, "spot", checked_time(float(ends_at))),)

    def _get(self, name: str) -> Tuple[int, Mapping[str, str], str]:
        return self._ask("GET", f"/latest/meta-data/{name}", {"X-aws-ec2-metadata-token": self._token}, _ANSWER_S)

    def _new_token(self) -> str:
        headers = {"X-aws-ec2-metadata-token-ttl-seconds": f"{_TOKEN_S}"}
        status, _, text = self._ask("PUT", "/latest/api/token", headers, _ANSWER_S)
        if status != http.client.OK or not _TOKEN.fullmatch(text):
            raise ValueError("it gives no token")
        return text


class _Gcp:
    """It says only that the machine ends soon, so the time is counted from when that was seen first."""

    name = "GCP"

    def __init__(self, ask: Ask, now: Callable[[], float], *, has_gpus: bool) -> None:
        self._ask, self._now = ask, now
        self._lasts_s = {"spot": _SPOT_S, "maintenance": _MAINTENANCE_S[has_gpus]}
        self._ends_at: Dict[str, float] = {}

    def is_here(self) -> bool:
        return self._get("preempted") in ("TRUE", "FALSE")

    def notices(self) -> Sequence[Interruption]:
        said = {
            "spot": self._get("preempted") == "TRUE",
            "maintenance": self._get("maintenance-event") == "TERMINATE_ON_HOST_MAINTENANCE",
        }
        self._ends_at = {
            event: self._ends_at.get(event, self._now() + self._lasts_s[event]) for event in said if said[event]
        }
        return [Interruption(self.name, event, ends_at) for event, ends_at in self._ends_at.items()]

    def _get(self, name: str) -> str:
        path, headers = f"/computeMetadata/v1/instance/{name}", {"Metadata-Flavor": "Google"}
        status, answered, text = self._ask("GET", path, headers, _ANSWER_S)
        if status != http.client.OK or answered.get("metadata-flavor") != "Google":
            raise ValueError("it is not GCP's")
        return text


class _Azure:
    name = "Azure"

    def __init__(self, ask: Ask, now: Callable[[], float]) -> None:
        self._ask, self._now, self._vm, self._timeout_s = ask, now, "", _FIRST_EVENTS_S
        self._begun: Dict[str, float] = {}

    def is_here(self) -> bool:
        compute = parse_object(self._get("/metadata/instance/compute?api-version=2021-02-01", _ANSWER_S))
        self._vm = text_of(compute, "name")
        return bool(self._vm) and text_of(compute, "azEnvironment").startswith("Azure")

    def notices(self) -> Sequence[Interruption]:
        text = self._get("/metadata/scheduledevents?api-version=2020-07-01", self._timeout_s)
        self._timeout_s = EVERY_S
        found, begun = [], {}
        for event in as_list(parse_object(text).get("Events"), "Events"):
            kind = _EVENTS.get(text_of(event, "EventType"))
            names = [str(name).casefold() for name in as_list(event.get("Resources"), "Resources")]
            if kind is not None and self._vm.casefold() in names:  # others are of machines of the same set
                begins_at = _begins_at(text_of(event, "NotBefore"))
                if begins_at is None:
                    name = text_of(event, "EventId")
                    begins_at = begun[name] = self._begun.get(name, self._now())
                found.append(Interruption(self.name, kind, begins_at))
        self._begun = begun
        return found

    def _get(self, path: str, timeout_s: float) -> str:
        status, _, text = self._ask("GET", path, {"Metadata": "true"}, timeout_s)
        if status != http.client.OK:
            raise ValueError(f"it answers with {status}")
        return text


def _begins_at(text: str) -> Optional[float]:
    """The time before which an event of Azure does not begin; None once it has begun."""
    return checked_time(parsedate_to_datetime(text).timestamp()) if text else None


def _ahead_s(date: str, now: float, before: float) -> float:
    """Seconds by which the node's clock is ahead of an answer's `Date`, which has whole seconds; else as before."""
    with contextlib.suppress(*NOT_AS_EXPECTED):
        ahead_s = now - parsedate_to_datetime(date).timestamp()
        return ahead_s if abs(ahead_s) > _CLOCKS_DIFFER_S else 0.0
    return before


def _is_here(cloud: Cloud) -> bool:
    try:
        return cloud.is_here()
    except _FAILURES:
        return False


def _lower(answer: Response) -> Mapping[str, str]:
    return {name.lower(): value for name, value in answer.headers.items()}
