"""Answers that verl has written down: `STEP.jsonl` in `trainer.validation_data_dir` and `trainer.rollout_data_dir`.

A line is an answer (verl 0.9.1, trainer/ppo/v1/trainer_base.py: _write_generations): input, output, gts, score, step,
and what the reward function returned. Nothing here raises: anybody may have written the file.
"""

import hashlib
import json
from collections.abc import Iterable
from typing import Any

from cloudrl.report.model import Sample
from cloudrl.report.series import finite

READ_BYTES = 4 << 20
"""Of each file, from its start: its answers are in random order."""
STEPS = 12
PER_STEP = 40
_TEXT = 4_000
_MORE, _MORE_TEXT = 8, 200
_KNOWN = ("input", "output", "gts", "score", "step", "uid", "reward")


def parse_samples(content: bytes, step: int) -> list[Sample]:
    """A choice of the answers of one file: by prompt, so that of each step it is the same prompts.

    Args:
        content: of the file, at most `READ_BYTES`; a line that was cut off is left out.
        step: by the file's name.
    """
    samples = [sample for line in content.splitlines() if (sample := _sample(line, step)) is not None]
    return sorted(samples, key=lambda sample: hashlib.sha256(sample.prompt.encode("utf-8", "replace")).digest())[
        :PER_STEP
    ]


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
    truth = row.get("gts")
    return Sample(
        step=step,
        prompt=_text(row.get("input"), _TEXT),
        answer=_text(row["output"], _TEXT),
        score=_score(row.get("score")),
        truth="" if truth is None else _text(truth, _MORE_TEXT),
        more=dict(more[:_MORE]),
    )


def _score(value: Any) -> float | None:
    try:
        return finite(float(value)) if isinstance(value, (int, float)) else None
    except OverflowError:  # JSON has integers of any length
        return None


def _text(value: Any, limit: int) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    cut = f" … ({len(text) - limit:,} more characters)" if len(text) > limit else ""
    return text[:limit].encode("utf-8", "replace").decode() + cut
