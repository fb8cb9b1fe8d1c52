"""The agent of a stand-in cluster: its status, logs, secrets and the checkpoints on its nodes' disks."""

from __future__ import annotations

import json
import shutil
import zlib
from typing import TYPE_CHECKING, Any

from fake_http import Handler

from cloudrl.saves.scan import scan

if TYPE_CHECKING:
    from pathlib import Path

    from fake_cluster import FakeCluster


def agent_status() -> dict[str, Any]:
    """What a ready cluster's agent says."""
    return {
        "cluster": {
            "name": "lab",
            "id": "id-1",
            "provider": "local",
            "nodes": 2,
            "gpus_per_node": 1,
            "cpus_per_node": 4,
            "device": "cpu",
        },
        "phase": "ready",
        "detail": "",
        "started_at": 1.0,
        "ready_at": 2.0,
        "failure": None,
        "ray": {"version": "2.60.0", "dashboard_port": 8265, "session_name": "session_x"},
        "verl_version": "0.9.1",
        "rollouts": ["vllm"],
        "checkpoint_dir": "/vol/checkpoints",
        "data": {"addition": {"train": "/vol/data/train.parquet", "test": "/vol/data/test.parquet"}},
        "models": {"tiny-adder": "/vol/models/tiny-adder"},
        "nodes": [{"rank": 0, "ip": "10.0.0.1"}, {"rank": 1, "ip": "10.0.0.2"}],
    }


class Agent(Handler):
    routes = (
        ("GET", "/v1/status", "agent_status"),
        ("POST", "/v1/transfers", "transfer_elsewhere"),
        ("GET", "/v1/jobs/([^/]+)/log", "job_log"),
        ("PUT", "/v1/jobs/([^/]+)/secrets", "take_secrets"),
        ("GET", "/v1/nodes/([0-9]+)/inventory", "inventory"),
        ("GET", "/v1/nodes/([0-9]+)/checkpoints/(.+)", "checkpoint_file"),
        ("POST", "/v1/nodes/([0-9]+)/checkpoints/(.+)", "checkpoint_ranges"),
        ("DELETE", "/v1/nodes/([0-9]+)/checkpoints/(.+)", "remove_checkpoint"),
    )

    def token(self, cluster: FakeCluster) -> str | None:
        return cluster.agent_token

    def refuse_token(self, given: str | None) -> None:
        self.json({"error": "wrong or missing token", "code": "unauthorized"}, 401)

    def agent_status(self) -> None:
        self.json(self.server.cluster.status)

    def transfer_elsewhere(self, _body: bytes) -> None:
        self.json({"noted": True})

    def take_secrets(self, submission_id: str, body: bytes) -> None:
        self.server.cluster.secrets[submission_id] = json.loads(body)
        self.json({"name": f"secrets/{submission_id}/0"})

    def disk(self, rank: str) -> Path | None:
        disk = self.server.cluster.disks.get(int(rank))
        if disk is None:
            self.json(
                {
                    "error": f"rank {rank} (10.0.0.{int(rank) + 1}) does not answer: timed out",
                    "code": "unreachable",
                },
                504,
            )
        return disk

    def inventory(self, rank: str) -> None:
        disk = self.disk(rank)
        if disk is not None:
            place = {
                "root": "checkpoints",
                "folder": str(disk),
                "identity": f"boot:{rank}:1",
                "markers": [],
                "marker": "",
            }
            self.json({"rank": int(rank), "locations": [{**place, "runs": scan(disk)}]})

    def checkpoint_file(self, rank: str, path: str) -> None:
        """Ranges and sums; values are sent as they are, as by an agent that cannot cast."""
        disk = self.disk(rank)
        if disk is None:
            return
        whole = (disk / path).read_bytes()
        first, last = map(
            int, self.headers.get("Range", f"bytes=0-{len(whole) - 1}").removeprefix("bytes=").split("-")
        )
        piece = whole[first : last + 1]
        if self.unreadable(path, [(first, len(piece))]):
            return
        if "crc32" in self.query:
            self.json({"size_bytes": len(piece), "crc32": zlib.crc32(piece, int(self.query["crc32"]))})
        else:
            self.send(206, piece, "application/octet-stream")

    def checkpoint_ranges(self, rank: str, path: str, body: bytes) -> None:
        disk = self.disk(rank)
        if disk is not None:
            whole, ranges = (disk / path).read_bytes(), json.loads(body)["ranges"]
            if not self.unreadable(path, ranges):
                pieces = [whole[offset : offset + length] for offset, length in ranges]
                self.send(200, b"".join(pieces), "application/octet-stream")

    def unreadable(self, path: str, ranges: list[tuple[int, int]]) -> bool:
        """Whether a byte is asked for that the disk cannot read; then this is said."""
        bad = self.server.cluster.bad_bytes.get(path)
        if bad is None or not any(offset <= bad < offset + length for offset, length in ranges):
            return False
        self.json({"error": "the file cannot be read: Input/output error", "code": "unreadable"}, 422)
        return True

    def remove_checkpoint(self, rank: str, path: str) -> None:
        disk = self.disk(rank)
        if disk is not None:
            shutil.rmtree(disk / path)
            self.json({"removed": path})

    def job_log(self, submission_id: str) -> None:
        cluster = self.server.cluster
        if submission_id not in cluster.jobs or cluster.jobs[submission_id].node_ip == "10.0.0.2":
            self.json({"error": "no such log", "code": "not_found"}, 404)
            return
        log, offset = bytes(cluster.jobs[submission_id].log), int(self.query.get("offset", 0))
        piece = log[offset : offset + 7]
        if cluster.cuts and len(piece) > cluster.cuts[0]:
            self.send_response(200)
            self.send_header("Content-Length", str(len(piece)))
            self.send_header("X-Cloudrl-Size", str(len(log)))
            self.end_headers()
            self.wfile.write(piece[: cluster.cuts.pop(0)])
            self.cut()
            return
        self.send(200, piece, "application/octet-stream", {"X-Cloudrl-Size": str(len(log))})
