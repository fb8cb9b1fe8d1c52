"""Stands in for NCCL's monitor: answers as NCCL's source and documentation say, on loopback.

NCCL 2.30.7, src/ras/client_support.cc (protocol, text) and docs/userguide/source/troubleshooting/ras.rst (JSON). A real
NCCL needs GPUs, and was not asked.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Mapping
from contextlib import suppress

DOCUMENTED = """\
{
  "nccl_version": "2.29.1",
  "cuda_runtime_version": 13000,
  "cuda_driver_version": 13000,
  "timestamp": "2025-12-19 13:06:53",
  "communicators_count": 1,
  "communicators": [
    {
      "hash": "0xae94423cfbb2ef4a",
      "secondary_hash": "0xb7e7187447156001:0xb8242ed28a71381e",
      "size": 2,
      "ranks_count": 1,
      "missing_ranks_count": 1,
      "ranks": [
        {
          "rank": 0,
          "host": "172.16.64.245",
          "pid": 1524344,
          "cuda_dev": 0,
          "nvml_dev": 0,
          "status": {
            "init_state": 0,
            "async_error": 0,
            "finalize_called": false,
            "destroy_flag": false,
            "abort_flag": false
          },
          "collective_counts": {
            "Broadcast": 0,
            "Reduce": 0,
            "AllGather": 0,
            "ReduceScatter": 0,
            "AllReduce": 0
          }
        }
      ],
      "missing_ranks": [
        {
          "rank": 1,
          "host": "172.16.64.245",
          "pid": 1524345,
          "cuda_dev": 1,
          "nvml_dev": 1,
          "status": {
            "unresponsive": true,
            "considered_dead": false
          }
        }
      ]
    }
  ],
  "ras": {
    "collection_time_sec": 0.000,
    "timeouts_count": 0
  }
}
"""
"""The example of NCCL's documentation."""
TEXT = """\
Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      4          8            1         32       32

Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         4         8        32        32   RUNNING  MISMATCH

Warnings
========

#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different AllReduce operation counts
  30 ranks have launched up to operation 6650
  Rank 2 has launched up to operation 6649 -- GPU 2 managed by process 483074 on node 172.16.64.210
  Rank 9 has not launched any operations -- GPU 1 managed by process 483075 on node 172.16.64.211

  Communicator ranks have different Broadcast operation counts
  30 ranks have launched up to operation 7
  2 ranks have launched up to operation 6
  Rank 0 -- GPU 0 managed by process 483072 on node 172.16.64.210
  Rank 3 -- [process information not found]

"""
"""Put together from the format strings of NCCL 2.30.7; the counts of one operation each since 2.26."""


def as_json(counts: Mapping[int, Mapping[str, int]], *, host: str = "10.0.0.1", ending: bool = False) -> str:
    """An answer with one communicator.

    Args:
        counts: rank -> operation -> how often it was launched. Its process id is 100 and the rank.
        host: of all ranks.
        ending: whether rank 0 has begun to leave.
    """
    ranks = [
        {"rank": rank, "host": host, "pid": 100 + rank, "cuda_dev": rank, "nvml_dev": rank}
        | {"status": {"init_state": 0, "finalize_called": ending and rank == 0, "abort_flag": False}}
        | {"collective_counts": dict(of_rank)}
        for rank, of_rank in counts.items()
    ]
    return json.dumps({"communicators": [{"hash": "0xa", "secondary_hash": "0xb:0xc", "ranks": ranks}]}, indent=2)


class RasServer:
    """One NCCL process; several share a port, as NCCL's do.

    Args:
        answer: to `verbose status`.
        port: 0 for a free one.
        is_stopped: whether it takes connections and never answers.
        has_json: whether it knows `set format`.
        greeting: to `client protocol`.
    """

    def __init__(
        self,
        answer: str,
        port: int = 0,
        *,
        is_stopped: bool = False,
        has_json: bool = True,
        greeting: str = "SERVER PROTOCOL 2",
    ) -> None:
        self._answer, self._is_stopped, self._has_json, self._greeting = answer, is_stopped, has_json, greeting
        self.said: list[str] = []
        self._listening = socket.socket()
        self._listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self._listening.bind(("127.0.0.1", port))
        self._listening.listen(64)
        self.port: int = self._listening.getsockname()[1]
        if not is_stopped:
            threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        """No longer listen."""
        with suppress(OSError):  # it is closed already
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            with connection, connection.makefile("rb") as lines:
                for line in lines:
                    command = line.decode().strip().lower()
                    self.said.append(command)
                    connection.sendall(self._reply(command).encode())
                    if command == "verbose status":
                        break

    def _reply(self, command: str) -> str:
        if command.startswith("client protocol "):
            return f"{self._greeting}\n"
        if command.startswith("timeout "):
            return "OK\n"
        if command.startswith("set format "):
            return "OK\n" if self._has_json else f"ERROR: Unknown command {command}\n"
        return self._answer if command == "verbose status" else f"ERROR: Unknown command {command}\n"
