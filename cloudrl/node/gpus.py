"""How busy the GPUs of all nodes are, and how full Ray's object stores, as Ray reports it."""

import dataclasses
import time
from contextlib import suppress
from typing import Any, Callable, Dict, Iterable, Iterator, Mapping, Optional, Tuple

from cloudrl.node.background import repeat
from cloudrl.node.ray import Dashboard
from cloudrl.node.usage import EVERY_S
from cloudrl.protocol.report import GpuUsage, NodeReport, Usage

_SILENT_S = 30.0
"""After which the nodes are to look by themselves."""
_IDLE_S = 60.0
"""So long has a GPU to be idle before Ray is asked for its jobs; between two phases of a step it is for seconds."""


class GpuWatch:
    """Asks Ray's dashboard now and then, on rank 0: one answer has all nodes.

    Args:
        ray: the dashboard of this cluster.
        tell: gets the addresses of nodes whose GPUs Ray knows, whenever that changes.
        now: seconds since the epoch.

    Attributes:
        working_since: when the oldest job that runs was started; None without one, and while no GPU is idle.
    """

    def __init__(
        self, ray: Dashboard, tell: Callable[[Tuple[str, ...]], object], *, now: Callable[[], float] = time.time
    ) -> None:
        self.working_since: Optional[float] = None
        self._ray, self._tell, self._now = ray, tell, now
        self._told: Tuple[str, ...] = ()
        self._seen_at = 0.0
        self._usage: Mapping[str, Usage] = {}
        self._stores: Mapping[str, Tuple[int, int]] = {}
        self._idle_since: Dict[Tuple[str, int], float] = {}

    def start(self) -> None:
        """Ask until the process ends."""

        def look() -> None:
            with suppress(KeyError, TypeError, ValueError, AttributeError):  # another Ray's answer
                self.look()

        repeat(look, EVERY_S)

    def look(self) -> None:
        """Ask once. While Ray does not answer, its last answer stays, with its time."""
        summary, now = self._ray.summary(), round(self._now(), 3)
        gpus_by_ip, self._stores = dict(gpus_of(summary)), stores_of(summary)
        if gpus_by_ip or now - self._seen_at > _SILENT_S:
            self._seen_at = now
            if self._told != tuple(gpus_by_ip):
                self._told = tuple(gpus_by_ip)
                self._tell(self._told)
        if not gpus_by_ip:
            return
        self._idle_since = {
            (ip, gpu.index): self._idle_since.get((ip, gpu.index), now)
            for ip, gpus in gpus_by_ip.items()
            for gpu in gpus
            if gpu.utilization_percent == 0
        }
        is_idle = any(now - since >= _IDLE_S for since in self._idle_since.values())
        if not is_idle:
            self.working_since = None
        elif (jobs := self._ray.jobs()) is not None:  # else the last answer stays
            self.working_since = _oldest_start(jobs)
        self._usage = {ip: Usage(now, gpus=tuple(self._with_idle(ip, gpus))) for ip, gpus in gpus_by_ip.items()}

    def added_to(self, report: NodeReport) -> NodeReport:
        """The report of a node with its GPUs and store. Nodes on one machine have one address, and the same GPUs."""
        report = self._with_store(report)
        seen = self._usage.get(report.ip)
        if seen is None or (report.usage is not None and report.usage.gpus):  # as the vendor's tool says there
            return report
        usage = dataclasses.replace(report.usage or seen, sampled_at=seen.sampled_at, gpus=seen.gpus)
        return dataclasses.replace(report, usage=usage)

    def _with_store(self, report: NodeReport) -> NodeReport:
        store = self._stores.get(report.ip)
        if store is None or report.usage is None:
            return report
        used, total = store
        usage = dataclasses.replace(report.usage, store_used_bytes=used, store_total_bytes=total)
        return dataclasses.replace(report, usage=usage)

    def _with_idle(self, ip: str, gpus: Iterable[GpuUsage]) -> Iterator[GpuUsage]:
        return (dataclasses.replace(gpu, idle_since=self._idle_since.get((ip, gpu.index))) for gpu in gpus)


def gpus_of(summary: Iterable[Any]) -> Iterator[Tuple[str, Tuple[GpuUsage, ...]]]:
    """Address -> GPUs of the living nodes that have some.

    Ray 2.60: dashboard/modules/reporter/gpu_providers.py has the fields, which the dashboard writes in camel case. It
    counts memory in MiB, says -1 where the driver does not tell the utilization, and needs the package amdsmi for AMD.
    """
    for node in summary:
        if node.get("raylet", {}).get("state") == "ALIVE" and node.get("gpus"):
            yield str(node["ip"]), tuple(map(_gpu, node["gpus"]))


def stores_of(summary: Iterable[Any]) -> Dict[str, Tuple[int, int]]:
    """Address -> used and all bytes of the object store of the living nodes.

    Ray 2.60: dashboard/modules/node/datacenter.py, `get_node_info`, which subtracts what is used from the store's size:
    objects that Ray keeps in files for lack of room are used, too, so that less than nothing may be available. Nodes on
    one machine have one address and a store each: the fullest counts.
    """
    found: Dict[str, Tuple[int, int]] = {}
    for node in summary:
        raylet = node.get("raylet", {})
        used, free = (raylet.get(f"objectStore{each}Memory") for each in ("Used", "Available"))
        are_numbers = isinstance(used, (int, float)) and isinstance(free, (int, float))
        if raylet.get("state") == "ALIVE" and are_numbers and used + free > 0:
            store = (int(used), int(used + free))
            found[str(node["ip"])] = max(store, found.get(str(node["ip"]), store), key=lambda each: each[0] / each[1])
    return found


def _gpu(row: Mapping[str, Any]) -> GpuUsage:
    power_mw, used, total = (_number(row.get(key)) for key in ("powerMw", "memoryUsed", "memoryTotal"))
    return GpuUsage(
        index=int(row["index"]),
        name=str(row.get("name", "")),
        utilization_percent=_number(row.get("utilizationGpu")),
        memory_used_mib=None if used is None else int(used),
        memory_total_mib=None if total is None else int(total),
        power_w=None if power_mw is None else power_mw / 1000,
        temperature_c=_number(row.get("temperatureC")),
    )


def _number(value: Any) -> Optional[float]:
    return float(value) if isinstance(value, (int, float)) and value >= 0 else None


def _oldest_start(jobs: Iterable[Any]) -> Optional[float]:
    started = [job.get("start_time") for job in jobs if job.get("status") == "RUNNING"]
    return min((started_ms / 1000 for started_ms in started if isinstance(started_ms, (int, float))), default=None)
