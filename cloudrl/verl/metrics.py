r"""What verl prints on its console, as numbers.

A step is one line (verl 0.9.1, utils/logger/aggregate_logger.py: concat_dict_to_str), which Ray prefixes with
the actor in colour::

    \x1b[36m(TaskRunnerV1 pid=20460)\x1b[0m step:5 - critic/score/mean:0.115 - num_turns/min:np.int32(2) - ...

Nothing here raises, and every line takes a time in proportion to its length: a log may hold anything.
"""

import math
import re
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from cloudrl.verl.charts import LOSS, REWARD

# Digits are bounded: int() refuses more than 4,300 of them, and no step or total has as many as 18.
# "Dumped generations to DIR/1.jsonl" is printed apart from its end of line (verl 0.9.1, with rollout_data_dir), by a
# thread of its own, so that a step may follow on the same line; so it may behind tqdm's bar. Anywhere else it is text,
# such as the answer of a model.
_STEP = re.compile(r"(?:Dumped generations to .*\.jsonl|Training Progress:.*\]\s?)?step:(\d{1,18}) - (\S.*)$")
_NUMBER = re.compile(r"(?:np\.\w+\()?([+-]?(?:\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+|inf|nan)|True|False)\)?")
_LONGEST_NUMBER = 400
_TOTAL = re.compile(r"Total training steps:\s{0,20}(\d{1,18})\b")
_BAR = re.compile(r"Training Progress:.{0,300}?\|\s{0,20}\d{1,18}/(\d{1,18})\b")
# Of a function that the model has called; Ray leaves out lines that repeat, and says how many they were
_TOOL_FAILURE = re.compile(
    r"Error executing tool '|Invalid JSON in arguments for '|Unknown function '.{0,1000}Available tools:"
)
_FAILED_PROMPT = re.compile(r"\bError in _run_prompt\b")
_EXCEPTION = re.compile(r"(?:\w+\.)*[A-Z]\w*(?:Error|Exception|Timeout|Exit)(?:: .*)?")
_EXCEPTION_CHARACTERS = 200
_REPEATED = re.compile(r"\[repeated (\d{1,9})x across cluster\]")
_SEARCHED, _SEARCHED_END, _LONGEST_STEP = 4_000, 1_000, 16 << 20
"""Characters of a line in which a phrase is searched, from its start and before its end; of the line of a step."""
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_ACTOR = re.compile(r"^\s*\((?:[\w.:<>-]+ )?pid=\d+(?:, ip=[\w.:]+)?\)\s?")
_LARGEST = 1e100
"""What is greater counts as infinite: sums, means and products of the rest stay finite."""


class Metrics(Mapping[str, float]):
    """Numbers by their keys, in a tenth of the memory of a dict: the steps of a run share their keys.

    Args:
        metrics: the same as a dict.
    """

    __slots__ = ("_places", "_values")

    def __init__(self, metrics: Mapping[str, float]) -> None:
        self._places = _places_of(tuple(metrics))
        self._values = array("d", metrics.values())

    def __getitem__(self, key: str) -> float:
        return self._values[self._places[key]]

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __repr__(self) -> str:
        return repr(dict(self))


@lru_cache(maxsize=64)
def _places_of(keys: tuple[str, ...]) -> dict[str, int]:
    return {key: place for place, key in enumerate(keys)}


@dataclass(frozen=True)
class Step:
    """What verl reported after one training step; step 0 is the validation before training."""

    step: int
    metrics: Mapping[str, float]

    def __str__(self) -> str:
        """For example `step 12: reward 0.412, 2.1 s, 80 metrics`."""
        shown = [
            f"{name} {value:.3f}" for name, value in (("reward", self.reward), ("loss", self.loss)) if value is not None
        ]
        took = [f"{self.step_s:.1f} s"] if self.step_s is not None else []
        return f"step {self.step}: {', '.join([*shown, *took, f'{len(self.metrics)} metrics'])}"

    @property
    def reward(self) -> float | None:
        """Mean reward of the step's answers; None when the line has none."""
        return REWARD.value(self.metrics)

    @property
    def loss(self) -> float | None:
        """Of a fine-tuning (verl 0.9.1, trainer/sft_trainer.py); None for any other step."""
        return LOSS.value(self.metrics)

    @property
    def step_s(self) -> float | None:
        """Seconds from the end of the step before to the end of this one; None when the line has none.

        verl's `timing_s/step` contains `save_checkpoint`, and not `testing` (verl 0.9.1, trainer_base.py: fit).
        """
        seconds = self._seconds("step")
        return None if seconds is None else seconds + (self._seconds("testing") or 0.0)

    @property
    def occasional_s(self) -> float:
        """Those of `step_s` that only some steps need: validation and saving."""
        return min(self.step_s or 0.0, sum(self._seconds(part) or 0.0 for part in ("testing", "save_checkpoint")))

    def _seconds(self, part: str) -> float | None:
        seconds = self.metrics.get(f"timing_s/{part}")
        return seconds if seconds is not None and math.isfinite(seconds) and seconds >= 0 else None


def parse_step(line: str) -> Step | None:
    """The step that a line reports, or None for any other line."""
    match = _STEP.match(plain(line)) if len(line) <= _LONGEST_STEP else None
    if match is None:
        return None
    metrics = dict(filter(None, map(_metric, match[2].split(" - "))))
    return Step(int(match[1]), Metrics(metrics)) if metrics else None


def parse_total_steps(line: str) -> int | None:
    """How many steps the run has, when a line says it (verl 0.9.1, trainer/ppo/v1/trainer_base.py)."""
    text = plain(line[:_SEARCHED])
    match = _TOTAL.search(text) or _BAR.search(text)
    return int(match[1]) if match is not None and int(match[1]) > 0 else None


def known_keys(steps: Iterable[Step]) -> dict[str, None]:
    """The keys of all steps, in the order in which they came."""
    return dict.fromkeys(key for keys in dict.fromkeys(tuple(step.metrics) for step in steps) for key in keys)


def not_finite(steps: Iterable[Step]) -> dict[str, int]:
    """Metric -> the first step at which it was no finite number."""
    counts: dict[str, int] = {}
    for step in steps:
        for key, value in step.metrics.items():
            if not math.isfinite(value):
                counts.setdefault(key, step.step)
    return counts


def tool_failures(line: str) -> int:
    """How many failed calls of a tool a line reports (verl 0.9.1, agent_loop/tool_agent_loop.py: _call_tool)."""
    return _reported(_TOOL_FAILURE, line)


class FailedPrompts:
    """Prompts that got no answers or no scores since the last step (verl 0.9.1, v1/agent_loop_tq.py: _run_prompt).

    Attributes:
        count: how many.
        exception: the last line of the newest traceback behind them; "" before there is one.
    """

    def __init__(self) -> None:
        self.count, self.exception = 0, ""

    def read(self, line: str) -> None:
        """The next line of the log."""
        failed = _reported(_FAILED_PROMPT, line)
        self.count += failed
        if self.count and not failed:
            text = plain(line[:_SEARCHED]).rstrip()[:_EXCEPTION_CHARACTERS]
            self.exception = text if _EXCEPTION.fullmatch(text) else self.exception

    def passing(self, lines: Iterable[str]) -> Iterator[str]:
        """The lines of a whole log, which are read as they pass; a step begins anew."""
        for line in lines:
            if parse_step(line) is not None:
                self.count, self.exception = 0, ""
            self.read(line)
            yield line


def _reported(pattern: re.Pattern[str], line: str) -> int:
    if pattern.search(line[:_SEARCHED]) is None:
        return 0
    repeated = _REPEATED.search(without_ansi(line[-_SEARCHED_END:]))
    return int(repeated[1]) if repeated else 1


@lru_cache(maxsize=2)  # each line of a log is asked about several times in a row
def plain(line: str) -> str:
    """The line without terminal codes and without Ray's `(Actor pid=1, ip=...)` in front."""
    return _ACTOR.sub("", without_ansi(line), count=1) if "pid=" in line else without_ansi(line)


def without_ansi(line: str) -> str:
    """The line without terminal codes such as colours."""
    return _ANSI.sub("", line) if "\x1b" in line else line


def _metric(part: str) -> tuple[str, float] | None:
    key, colon, text = part.strip().rpartition(":")
    match = _NUMBER.fullmatch(text.strip()) if len(text) <= _LONGEST_NUMBER else None
    if not colon or not key or match is None:
        return None
    word = match[1]
    value = float(word == "True") if word in ("True", "False") else float(word)
    return key, math.copysign(math.inf, value) if abs(value) > _LARGEST else value
