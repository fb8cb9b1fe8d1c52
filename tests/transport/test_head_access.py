"""The way to a head while its tunnel is broken."""

import socket
from pathlib import Path

import pytest

from cloudrl.errors import ConnectionFailed
from cloudrl.protocol.backoff import Backoff
from cloudrl.protocol.exchange import Request, Response
from cloudrl.testing import FakeCluster
from cloudrl.transport import head_access
from cloudrl.transport.head_access import HeadAccess
from cloudrl.transport.tunnel_daemon import TunnelState


class Broken(FakeCluster):
    """A cluster behind a tunnel that leads nowhere for some requests."""

    def __init__(self, resets: int) -> None:
        super().__init__()
        self.resets = resets

    def send(self, request: Request) -> Response:
        self.resets -= 1
        if self.resets >= 0:
            raise ConnectionResetError(104, "Connection reset by peer")
        return super().send(request)


def to(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, *, is_kept_open: bool) -> HeadAccess:
    monkeypatch.setattr(head_access, "_BROKEN", Backoff(first_s=0, give_up_s=5))
    monkeypatch.setattr(HeadAccess, "is_kept_open", is_kept_open)
    access = HeadAccess("lab", cluster.status["facts"]["id"], Path("unused"), (8265, 8266))
    access.connection = cluster.connection()
    return access


def test_a_tunnel_that_is_being_opened_again_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a restart elsewhere, while ssh has not seen yet that the old machine is gone."""
    assert to(Broken(3), monkeypatch, is_kept_open=True).status().facts.name == "lab"


def test_one_of_our_own_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who watches a cluster that comes up looks again in a second."""
    with pytest.raises(ConnectionFailed, match="Connection reset by peer"):
        to(Broken(1), monkeypatch, is_kept_open=False).status()


def test_the_status_of_another_cluster_is_not_taken_for_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its head may have been given the machine that ours had."""
    cluster = Broken(0)
    access = to(cluster, monkeypatch, is_kept_open=True)
    cluster.status["facts"].update(id="run-2", name="other")
    with pytest.raises(ConnectionFailed, match=r"the tunnel to 'lab' leads to another cluster, 'other' \(run-2\)"):
        access.status()


@pytest.mark.io
def test_who_listens_at_the_ports_of_a_tunnel_that_has_broken_gets_no_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head_access, "REOPEN_S", 0.1)
    access = HeadAccess("lab", "id", tmp_path, (8265, 8266))
    folder = head_access.daemon_folder(tmp_path)
    folder.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        state = TunnelState(1, "id", {8265: port, 8266: port})
        monkeypatch.setattr(head_access.tunnel_daemon, "read_state", lambda _folder: state)
        with pytest.raises(ConnectionFailed, match="the tunnel to 'lab' has broken, and is not open again yet"):
            access.open(1.0)
