"""The stand-in cluster of `cloudrl.testing` on real sockets, and with checkpoints on its nodes' disks.

It can go away and come back on the same ports.
"""

from __future__ import annotations

import json
import shutil
import socket
import threading
import zlib
from collections.abc import Callable
from pathlib import Path

from fake_http import Server
from quiet_ports import free_ports
from spread_checkpoint import spread

from cloudrl import testing
from cloudrl.protocol.exchange import Response
from cloudrl.protocol.failures import ApiError, ErrorCode
from cloudrl.protocol.routes import UPGRADE
from cloudrl.protocol.stops import Stop
from cloudrl.protocol.wire import to_json
from cloudrl.saves.archive import FOLDER, scan_archive
from cloudrl.saves.scan import scan
from cloudrl.saves.wholeness import Inspector
from cloudrl.testing_answers import Call, as_json, respond
from cloudrl.transport import Connection

TOKEN = "right-token"


class FakeCluster(testing.FakeCluster):
    """Ray at `url`, an agent at `agent_url`; both want `token` unless it is None or the agent has its own."""

    def __init__(
        self, token: str | None = TOKEN, nodes: int = 2, gpus: int = 1, *, agent_token: str | None = None
    ) -> None:
        super().__init__(nodes=nodes, gpus_per_node=gpus, token=token, agent_token=agent_token)
        self.chunk_bytes = 7
        self.disks: dict[int, Path] = {}
        """The checkpoint folder of each node; one that has none does not answer for it."""
        self.bad_bytes: dict[str, int] = {}
        """Path below a node's folder -> a byte of the file that the disk cannot read."""
        self.archive_problems: dict[int, str] = {}
        """Why a node cannot keep its logs."""
        self.stops: list[Stop] = []
        """What waits for a debugger; a relay leads to its port on this machine."""
        self.archives_asked: list[tuple[int, bool]] = []
        """Which rank, and whether it was asked for what is its own alone."""
        self._servers: list[Server] = []
        self._ports = free_ports(2)
        self.up()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._ports[0]}"

    @property
    def agent_url(self) -> str:
        return f"http://127.0.0.1:{self._ports[1]}"

    def connection(self) -> Connection:
        cluster = self.status["facts"]
        return Connection(cluster["name"], self.url, self.token, self.agent_url, self.agent_token, cluster["id"])

    def finish_jobs(
        self, log: str, status: str = "SUCCEEDED", message: str = "done", *, on_end: Callable[[], object] = int
    ) -> None:
        """From now on every submitted job has written `log` when somebody looks, and has ended."""

        def finish(submission_id: str) -> None:
            self.write(submission_id, log.encode())
            self.end(submission_id, status, message)
            on_end()

        self.on_submit = finish

    def up(self) -> None:
        """Listen, on the ports of last time."""
        self.is_up = True
        self._servers = [Server(port, answer) for port, answer in zip(self._ports, (self.ray, self.agent), strict=True)]
        for server in self._servers:
            threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()

    def down(self) -> None:
        """Stop listening and cut what is open."""
        self.is_up = False
        for server in self._servers:
            server.close()
        self._servers.clear()

    def __enter__(self) -> FakeCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.down()

    # -- checkpoints --------------------------------------------------------------------------------------------

    def hold_run(self, run: Path, folder: Path, *, driver: int = 0) -> None:
        """Lay a run out over two nodes whose disks are in `folder`; see `spread`."""
        self.disks = {rank: folder / f"disk-{rank}" for rank in range(2)}
        spread(run, list(self.disks.values()), driver=driver)

    def agent_inventory(self, _call: Call, rank: str) -> Response:
        disk = self._disk(rank)
        names = {"root": "checkpoints", "folder": str(disk), "identity": f"boot:{rank}:1"}
        location = {**names, "markers": [], "marker": "", "runs": scan(disk, inspector=Inspector())}
        return as_json({"rank": int(rank), "locations": [location]})

    def agent_checkpoint_file(self, call: Call, rank: str, root: str, path: str) -> Response:
        """Ranges and sums; values are sent as they are, as by an agent that cannot cast."""
        file = self._disk(rank) / path
        if not file.is_file():
            raise ApiError(ErrorCode.NOT_FOUND, f"there is no {path}")
        whole = file.read_bytes()
        span = call.headers.get("Range", f"bytes=0-{len(whole) - 1}").removeprefix("bytes=")
        first, last = map(int, span.split("-"))
        piece = whole[first : last + 1]
        self._read(path, [(first, len(piece))])
        if "crc32" in call.query:
            return as_json({"size_bytes": len(piece), "crc32": zlib.crc32(piece, int(call.query["crc32"]))})
        return respond(206, piece)

    def agent_checkpoint_ranges(self, call: Call, rank: str, root: str, path: str) -> Response:
        whole, ranges = (self._disk(rank) / path).read_bytes(), json.loads(call.body)["ranges"]
        self._read(path, ranges)
        return respond(200, b"".join(whole[offset : offset + length] for offset, length in ranges))

    def agent_remove_checkpoint(self, _call: Call, rank: str, root: str, path: str) -> Response:
        shutil.rmtree(self._disk(rank) / path)
        return as_json({"removed": path})

    def agent_archive(self, call: Call, rank: str) -> Response:
        run = call.query.get("run", self.status["facts"]["id"])
        problem, own = self.archive_problems.get(int(rank), ""), int(rank) if "own" in call.query else None
        self.archives_asked.append((int(rank), own is not None))
        return as_json({"run": run, "problem": problem, "pieces": scan_archive(self._disk(rank), run, own)})

    def agent_archive_piece(self, _call: Call, rank: str, path: str) -> Response:
        file = self._disk(rank) / FOLDER / path
        if not file.exists():
            raise ApiError(ErrorCode.NOT_FOUND, "there is no such file")
        return respond(200, file.read_bytes())

    def agent_stops(self, _call: Call, rank: str) -> Response:
        return as_json({"stops": [to_json(each) for each in self.stops if each.node == int(rank)]})

    def agent_relay(self, _call: Call, rank: str, port: str) -> Response:
        """To a debugger on this machine, if a stop names it."""
        if (int(rank), int(port)) not in {(each.node, each.port) for each in self.stops}:
            raise ApiError(ErrorCode.NO_DEBUGGER, f"no debugger waits at port {port} of rank {rank}")
        return Response(101, UPGRADE, socket.create_connection(("127.0.0.1", int(port)), timeout=60))

    def _disk(self, rank: str) -> Path:
        disk = self.disks.get(int(rank))
        if disk is None:
            reason = f"rank {rank} (10.0.0.{int(rank) + 1}) does not answer: timed out"
            raise ApiError(ErrorCode.UNREACHABLE, reason)
        return disk

    def _read(self, path: str, ranges: list[tuple[int, int]]) -> None:
        """Refuse ranges with a byte that the disk cannot read."""
        bad = self.bad_bytes.get(path)
        if bad is not None and any(offset <= bad < offset + length for offset, length in ranges):
            raise ApiError(ErrorCode.UNREADABLE, "the file cannot be read: Input/output error")
