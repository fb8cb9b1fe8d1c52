"""Lines as a process has printed them: without the prefixes of Ray, vLLM, torchrun, Slurm and loggers.

Prefixes nest: `(vLLMHttpServer pid=42) (EngineCore_DP0 pid=77) ERROR 10-12 11:00:00 [core.py:396] ValueError: no`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from cloudrl.verl.metrics import without_ansi

_LONGEST, _END = 2000, 500
_CUT = " ... "
_MOST_PREFIXES = 8

_DATE = r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?"
_LEVEL = "DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL"
_SOURCE = r"[\w./-]{1,160}:\d{1,6}"
_ACTOR = r"[^()\s]{1,80}(?:\([^()\n]{0,80}\))?(?: \w{1,20}=\w{1,20})?|<[^<>\n]{1,120}>"
_PREFIXES = {
    "Ray 2.60, _private/worker.py: print_worker_logs; vLLM marks the processes of an engine alike": (
        rf" {{0,8}}\((?:(?P<name>{_ACTOR}) )?pid=(?P<pid>\d{{1,10}})(?:, ip=(?P<ip>[\w.:]{{1,45}}))?\s?\) ?"
    ),
    "Ray's own processes": (
        r" {0,8}\((?P<daemon>raylet|gcs_server|autoscaler|scheduler|log_monitor)(?:[ ,][^()\n]{0,60})?\) ?"
    ),
    "torch's hook for exceptions, torchrun --tee": r"\[(?:rank ?|default)(?P<rank>\d{1,6})\]:? ?",
    "mpirun --tag-output": r"\[\d{1,6},(?P<mpi>\d{1,6})\]<std(?:out|err)>: ?",
    "srun --label": r"(?P<task>\d{1,5}): ",
    "docker compose": r"[a-z0-9][\w.-]{0,60}-\d{1,3} {1,20}\| ",
    "journald": r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \S{1,60} [\w./@-]{1,60}\[\d{1,10}\]: ",
    "kubectl logs --prefix": r"\[pod/[\w.-]{1,120}(?:/[\w.-]{1,80})?\] ",
    "groups of exceptions (Python 3.11), boxes of rich": r" {0,16}[|│] ",
    "Ray's logs in C++, SGLang with its ranks, hydra": (
        rf"\[{_DATE}(?: (?P<ray>[A-Z]) \d{{1,10}} \d{{1,10}}|(?: [A-Z]{{2}}\d{{1,4}}){{0,6}})\]"
        rf"(?:\[[\w.]{{1,80}}\])?(?:\[(?P<hydra>{_LEVEL})\])?(?: -)? ?"
    ),
    "TensorFlow": rf"{_DATE}: (?P<tensorflow>[IWEF]) {_SOURCE}\] ?",
    "a date": rf"{_DATE}(?: ?[-|])?\s{{1,4}}",
    "vLLM": rf"(?P<vllm>{_LEVEL}) \d\d-\d\d \d\d:\d\d:\d\d (?:\[[^\]\n]{{1,120}}\]|{_SOURCE}\]) ?",
    "Python's logging, loguru, uvicorn, pip": (
        rf"(?P<python>{_LEVEL})"
        rf"(?::(?:(?:{_DATE}|[\w.]{{1,80}}):(?=\S))?| {{1,8}}[|-]|(?= {{1,4}}\[?{_SOURCE})) {{0,8}}"
    ),
    "a level in brackets: DeepSpeed, transformers": rf"\[(?P<bracket>{_LEVEL})(?:\|[^\]\n]{{1,120}})?\]:? ?",
    "transformers' place": r"(?:[\w.]{1,80}:\d{1,6} )?>> ",
    "loguru's place": r"[\w.]{1,80}:[\w<>]{1,80}:\d{1,6} - ",
    "a logger before its level": rf"[\w.]{{1,80}} - (?P<dashed>{_LEVEL}) - ",
    "wandb": r"wandb: (?:(?P<wandb>ERROR|WARNING) )?",
    "where Python's logging was called": (
        r"\[(?:[\w./-]{1,120}\.py|[\w.]{1,80}):\d{1,6}(?::\w{1,80})?(?:, rank=\d{1,6})?\] ?"
    ),
    "where Ray's was": r"(?P<file>[\w./-]{1,120}\.(?:py|cc|h)):\d{1,6}(?::| --) ?",
    "glog, as torch writes it": (
        rf"\[?(?P<glog>[IWEF])\d{{0,4}} (?:\d\d:\d\d:\d\d\.\d{{1,9}} )?(?:\d{{1,10}} )?{_SOURCE}\] ?"
    ),
}
_PREFIX = re.compile("|".join(_PREFIXES.values()))
_PROGRAM = re.compile(
    r"(?!.{0,200}(?:: error: .{0,160}(?:Exited with exit code|: Killed|CANCELLED AT)|failed with exit status))"
    r"(?:(?:srun|sbatch|salloc|slurmstepd|slurmd): (?:error|fatal): "
    r"|(?:[a-z][\w./-]{0,60}: ){0,2}(?:[Ee]rror|ERROR|[Ff]atal(?: error)?|FATAL): (?=\S)"
    r"|(?:\S{0,60}docker ?: )?Error response from daemon: "
    r"|[^\s:]{1,200}:\d{1,10}:\d{1,10} \[-?\d{1,4}\] .{0,200}NCCL WARN )"
)
"""What programs say of their own errors, without a logger: Slurm's, Docker, those that keep to GNU's form
(`NAME: error: ...`), and NCCL, whose warnings stand above what fails. Slurm also reports as errors how the job's own
processes ended."""
_ABORTS = "Check failed: "
"""Begins what a check in compiled code says before it ends its process (Ray's RAY_CHECK, glog, absl)."""
_LEVELS = ("ray", "hydra", "tensorflow", "vllm", "python", "bracket", "dashed", "wandb", "glog")
_ABORTING = ("tensorflow", "glog")
"""Loggers of compiled code, whose level F ends the process; Ray's has it as C, and Python's goes on."""
_REPEATED = re.compile(r"\s*\[repeated \d{1,9}x across cluster\](?: \(Ray dedup.{0,400})?$")
"""Ray leaves out lines that several processes print, and says so behind the first (Ray 2.60, _private/ray_logging)."""
_NO_FAILURE = re.compile(
    r"\s*\{?'\w+': |Running entrypoint for job |Error executing job with overrides: |server_args=ServerArgs\("
    r"|(?:\S{1,300}\.py:\d{1,6}: )?\w{0,40}Warning: "
    r"|[^\s:]{1,200}:\d{1,10}:\d{1,10} \[-?\d{1,4}\] NCCL (?:INFO|TRACE) "
    r"|(?:'|HTTP Error \d{3}).{0,1800} thrown while requesting [A-Z]{3,7} http"
    r"|\[(?:prompt|response|ground_truth)\] "
    r"|(?:Ignor(?:e|ed|ing)|Skip(?:s|ped|ping)?|Retrying|Falling back|Will (?:retry|try again)) "
    r"|(?:[Ww]arning|WARNING|Note): "
)
"""Names of settings, not failures. Ray prints the command, Hydra the overrides, verl and SGLang all settings; Python's
warnings tell, for example, which engines verl does without. NCCL says what it tries (nccl, debug.cc), the Hub's client
that it tries again (huggingface_hub 1.x, utils/_http.py: http_backoff), SGLang which models it does without (0.4,
srt/models/registry.py), and verl what a model has written (verl 0.9.1, workers/reward_manager/naive.py). What does not
succeed in the end raises an exception of its own."""
_OF_OTHERS = ("worker.py", "W")
"""Where and how the driver logs what Ray tells it of others, such as that a worker has died."""


class Printed(NamedTuple):
    """One line.

    Attributes:
        text: without its prefixes, with its indentation.
        by: the processes and ranks that its prefixes name, outermost first; "" where none does.
        level: "" where its prefixes name none; else D, I, W, E, C or F (fatal: its process ends).
        name, pid, ip: of the outermost process.
    """

    text: str
    by: str = ""
    level: str = ""
    name: str = ""
    pid: int | None = None
    ip: str | None = None

    @property
    def is_quiet(self) -> bool:
        """Whether it says by its level or its form that it reports no failure."""
        return self.level in ("D", "I", "W") or _NO_FAILURE.match(self.text) is not None

    @property
    def is_error(self) -> bool:
        """Whether it says by its level or its form that something has failed."""
        return self.level in ("E", "C", "F") or self.is_fatal or _PROGRAM.match(self.text) is not None

    @property
    def is_fatal(self) -> bool:
        """Whether it is among the last words of its process."""
        return self.level == "F" or self.text.lstrip().startswith(_ABORTS)


def shortened(line: str) -> str:
    """The start and the end of a line that is longer than any message."""
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - _END - len(_CUT)]}{_CUT}{line[-_END:]}"


def read_line(line: str) -> Printed:
    """Take off the prefixes of a line, each of which is at least a character long, and Ray's note at its end."""
    text, by, level, file, by_ray = without_ansi(shortened(line)), list[str](), "", "", False
    name, pid, ip = "", None, None
    for _ in range(_MOST_PREFIXES):
        if (prefix := _PREFIX.match(text)) is None:
            break
        text = text[prefix.end() :]
        is_own, by_ray = by_ray and bool(prefix["daemon"]), bool(prefix["ray"])
        said = _level(prefix)
        level = said or level
        file = prefix["file"] or file
        if prefix["pid"] and pid is None:
            name, pid, ip = prefix["name"] or "", int(prefix["pid"]), prefix["ip"]
        names_process = (
            prefix["pid"] or prefix["rank"] or prefix["mpi"] or prefix["task"] or (prefix["daemon"] and not name)
        )
        if names_process:  # a level before it is that of whoever has passed the line on, but in Ray's own logs
            by, level = [*by, prefix[0].strip(" :")], level if is_own else said
        name = name or prefix["daemon"] or ""
    text = _REPEATED.sub("", text) if "[repeated" in text else text
    return Printed(text.rstrip(), " ".join(by), "" if (file, level) == _OF_OTHERS else level, name, pid, ip)


def _level(prefix: re.Match[str]) -> str:
    """The letter of the level that a prefix names, F only where its process ends by it; "" if it names none."""
    key = next((key for key in _LEVELS if prefix[key]), None)
    letter = prefix[key][0] if key is not None else ""
    if key == "ray":
        return "F" if letter == "C" else letter
    return "C" if letter == "F" and key not in _ABORTING else letter


@dataclass(frozen=True)
class Stream:
    """What one process has printed into a log, in its order.

    Attributes:
        lines: never empty.
        places: of each line, its index in the log.
    """

    lines: tuple[Printed, ...]
    places: tuple[int, ...]

    @property
    def first(self) -> Printed:
        """By which the process is known."""
        return self.lines[0]

    @property
    def is_own(self) -> bool:
        """Whether the process is that of the log itself, or one of its ranks, and none that Ray has marked."""
        return self.first.pid is None and not self.first.name

    @cached_property
    def texts(self) -> tuple[str, ...]:
        """Of all lines, without those that report no failure."""
        return tuple("" if line.is_quiet else line.text for line in self.lines)


def read_streams(lines: Sequence[str]) -> tuple[Stream, ...]:
    """The lines of a log by the processes that have printed them; the process that came first is the first one."""
    by_process: dict[str, list[tuple[int, Printed]]] = {}
    for place, line in enumerate(lines):
        printed = read_line(line)
        by_process.setdefault(printed.by, []).append((place, printed))
    return tuple(
        Stream(tuple(line for _, line in placed), tuple(place for place, _ in placed)) for placed in by_process.values()
    )
