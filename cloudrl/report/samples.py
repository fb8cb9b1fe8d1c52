"""Answers that verl has written down: `STEP.jsonl` in `trainer.validation_data_dir` and `trainer.rollout_data_dir`.

A line is an answer (verl 0.9.1, trainer/ppo/v1/trainer_base.py: _write_generations): input, output, gts, score, step,
and what the reward function returned. Nothing here raises: anybody may have written the file.
"""

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from cloudrl.protocol.ranks import ranks_text
from cloudrl.report.model import Sample, StepAnswers
from cloudrl.report.series import finite

READ_BYTES = 4 << 20
"""Of each file, from its start: its answers are in random order."""
STEPS = 12
PER_STEP, PER_PROMPT = 40, 8
_TEXT = 4_000
_MORE, _MORE_TEXT = 8, 200
_KNOWN = ("input", "output", "gts", "score", "step", "uid", "reward")


def parse_samples(content: bytes, step: int) -> tuple[list[Sample], StepAnswers]:
    """A choice of the answers of one file, and how many there are: of each step the same prompts, as far as they fit.

    Args:
        content: of the file, at most `READ_BYTES`; a line that was cut off is left out.
        step: by the file's name.
    """
    by_prompt: dict[str, list[Sample]] = defaultdict(list)
    for line in content.splitlines():
        if (sample := _sample(line, step)) is not None:
            by_prompt[sample.prompt_id].append(sample)
    chosen: list[Sample] = []
    shown_prompts = 0
    for prompt_id in sorted(by_prompt):
        answers = by_prompt[prompt_id][:PER_PROMPT]
        if len(chosen) + len(answers) > PER_STEP:
            break
        chosen += answers
        shown_prompts += 1
    counts = [len(answers) for answers in by_prompt.values()]
    return chosen, StepAnswers(
        step, sum(counts), len(counts), max(counts, default=0), len(chosen), shown_prompts, len(content) < READ_BYTES
    )  # fmt: skip


def answers_text(steps: Sequence[StepAnswers], written: int) -> list[str]:
    """How many answers there are, a sentence for all steps with the same numbers, and what is not in the report.

    For example `steps 10, 20: 8 answers each of 64 prompts; 40 of them, of 5 prompts, are on this page`.

    Args:
        steps: those that are in the report.
        written: at how many steps verl has written answers.
    """
    by_numbers: dict[StepAnswers, list[int]] = defaultdict(list)
    for answers in steps:
        by_numbers[answers._replace(step=0)].append(answers.step)
    some = [f"{len(steps)} of the {written:,} steps with answers are on this page"] if len(steps) < written else []
    return [*some, *(f"{ranks_text(numbers, 'step')}: {answers}" for answers, numbers in by_numbers.items())]


def choose_steps(steps: Iterable[int]) -> list[int]:
    """At most `STEPS` of them, evenly spread, the last ones among them."""
    distinct = sorted(set(steps))
    if len(distinct) <= STEPS:
        return distinct
    return sorted({distinct[round(place * (len(distinct) - 1) / (STEPS - 1))] for place in range(STEPS)})


def _sample(line: bytes, step: int) -> Sample | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(row, dict) or "output" not in row:
        return None
    more = [(str(key)[:80], _text(value, _MORE_TEXT)) for key, value in row.items() if key not in _KNOWN]
    truth, prompt = row.get("gts"), _whole_text(row.get("input"))
    return Sample(
        step=step,
        prompt=_text(prompt, _TEXT),
        answer=_text(row["output"], _TEXT),
        score=_score(row.get("score")),
        truth="" if truth is None else _text(truth, _MORE_TEXT),
        more=dict(more[:_MORE]),
        prompt_id=hashlib.sha256(prompt.encode("utf-8", "replace")).hexdigest()[:16],
    )


def _score(value: Any) -> float | None:
    try:
        return finite(float(value)) if isinstance(value, (int, float)) else None
    except OverflowError:  # JSON has integers of any length
        return None


def _text(value: Any, limit: int) -> str:
    text = _whole_text(value)
    cut = f" … ({len(text) - limit:,} more characters)" if len(text) > limit else ""
    return text[:limit].encode("utf-8", "replace").decode() + cut


def _whole_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
