"""How busy this node's GPUs are by the vendor's tool, while Ray does not say it: before it is up, or without amdsmi."""

import json
import shutil
import subprocess
import time
from contextlib import suppress
from typing import Any, Callable, Mapping, NamedTuple, Optional, Sequence, Tuple

from cloudrl.node.background import repeat
from cloudrl.node.host_info import ask_driver
from cloudrl.protocol.report import GpuUsage

EVERY_S = 10.0
_ANSWER_S = 10.0
_MIB = 1 << 20

Gpus = Tuple[GpuUsage, ...]


def parse_nvidia_smi(text: str) -> Gpus:
    """Lines of `--query-gpu` as in `TOOLS`; what the driver does not tell is `[N/A]` or `[Not Supported]`."""
    rows = ([cell.strip() for cell in line.rsplit(",", 5)] for line in text.splitlines())
    gpus = []
    for first, *values in rows:
        index, _, name = first.partition(",")
        percent, used, total, power, temperature = map(_number, values)
        gpus.append(GpuUsage(int(index), name.strip(), percent, _whole(used), _whole(total), power, temperature))
    return tuple(gpus)


def parse_amd_smi(text: str) -> Gpus:
    """A list of GPUs, or since ROCm 7 {"gpu_data": [...]} (amdsmi_cli, amdsmi_commands.py: `metric_gpu`)."""
    value = json.loads(text)
    return tuple(
        GpuUsage(
            int(row["gpu"]),
            "",
            _value(row, "usage", "gfx_activity"),
            _whole(_value(row, "mem_usage", "used_vram")),
            _whole(_value(row, "mem_usage", "total_vram")),
            _value(row, "power", "socket_power"),
            _first(_value(row, "temperature", sensor) for sensor in ("hotspot", "edge")),
        )
        for row in (value["gpu_data"] if isinstance(value, dict) else value)
    )


def parse_rocm_smi(text: str) -> Gpus:
    """{"card0": {...}, ...} in names that change with the release (rocm_smi_lib, python_smi_tools/rocm_smi.py)."""
    cards = {key: row for key, row in json.loads(text).items() if key.startswith("card") and isinstance(row, dict)}
    return tuple(_rocm_card(int(key[len("card") :]), row) for key, row in sorted(cards.items(), key=_card_number))


def _card_number(card: Tuple[str, Any]) -> int:
    return int(card[0][len("card") :])


def _rocm_card(index: int, row: Mapping[str, Any]) -> GpuUsage:
    used, total = (_number(row.get(f"VRAM Total {what}Memory (B)")) for what in ("Used ", ""))
    names = {key.lower(): str(value) for key, value in row.items()}
    return GpuUsage(
        index,
        names.get("card series", ""),
        _number(row.get("GPU use (%)")),
        None if used is None else int(used) // _MIB,
        None if total is None else int(total) // _MIB,
        _first(_number(value) for key, value in row.items() if key.endswith("Graphics Package Power (W)")),
        _first(_number(row.get(f"Temperature (Sensor {sensor}) (C)")) for sensor in ("junction", "edge")),
    )


class Tool(NamedTuple):
    """A program that tells it."""

    command: Tuple[str, ...]
    parse: Callable[[str], Gpus]


_FIELDS = "index,name,utilization.gpu,memory.used,memory.total,power.draw,temperature.gpu"
TOOLS = (
    Tool(("nvidia-smi", f"--query-gpu={_FIELDS}", "--format=csv,noheader,nounits"), parse_nvidia_smi),
    Tool(("amd-smi", "metric", "--usage", "--mem-usage", "--power", "--temperature", "--json"), parse_amd_smi),
    Tool(
        ("rocm-smi", "--showuse", "--showmeminfo", "vram", "--showpower", "--showtemp", "--showproductname", "--json"),
        parse_rocm_smi,
    ),
)


class ToolWatch:
    """Asks the first tool that answers. One that hangs is left alone, and none is started before it has ended.

    Args:
        is_needed: whether no other part says it.
        find: where a program is; None if absent.
        clock: seconds that never run backwards.
    """

    def __init__(
        self,
        is_needed: Callable[[], bool],
        *,
        find: Callable[[str], Optional[str]] = shutil.which,
        answer_s: float = _ANSWER_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._is_needed, self._find, self._answer_s, self._clock = is_needed, find, answer_s, clock
        self._gpus: Gpus = ()
        self._seen_at = float("-inf")
        self._hanging: Optional["subprocess.Popen[bytes]"] = None

    @property
    def gpus(self) -> Gpus:
        """What it has said last, unless that is old."""
        return self._gpus if self._clock() - self._seen_at < 3 * EVERY_S else ()

    def start(self) -> None:
        """Ask until the process ends."""
        repeat(self.look, EVERY_S)

    def look(self) -> None:
        """Ask once, if somebody needs it and no tool hangs."""
        if not self._is_needed():
            self._gpus = ()
            return
        for tool in TOOLS:
            program = self._find(tool.command[0])
            text = self._ask([program, *tool.command[1:]]) if program is not None else None
            with suppress(ValueError, KeyError, TypeError, AttributeError):  # another release's answer
                gpus = tool.parse(text) if text else ()
                if gpus:
                    self._gpus, self._seen_at = gpus, self._clock()
                    return

    def _ask(self, command: Sequence[str]) -> Optional[str]:
        """What it prints; None where it cannot be started, or does not answer in time."""
        if self._hanging is not None and self._hanging.poll() is None:
            return None
        try:
            process, output = ask_driver(command, self._answer_s)
        except OSError:
            return None
        if output is None:
            self._hanging = process
        return output  # its status may have been collected with the orphans'


def _value(row: Mapping[str, Any], *path: str) -> Optional[float]:
    """A number at a path, which may stand beside its unit; None for "N/A" anywhere on the way."""
    value: Any = row
    for name in (*path, "value"):
        value = value.get(name) if isinstance(value, dict) else (value if name == "value" else None)
    return _number(value)


def _number(value: Any) -> Optional[float]:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if number >= 0 else None


def _whole(value: Optional[float]) -> Optional[int]:
    return None if value is None else int(value)


def _first(values: Any) -> Optional[float]:
    return next((value for value in values if value is not None), None)
