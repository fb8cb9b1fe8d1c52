"""The LoRA adapter that a run started from, by the commands of its jobs: the shards do not tell."""

import re
import shlex
from collections.abc import Iterable

_KEY = re.compile(r"\+{0,2}(actor_rollout_ref\.|critic\.)?model\.lora_adapter_path=(.*)", re.DOTALL)
_VERL = re.compile(r"(\S*/)?verl[./]trainer[./]\w+(\.py)?")
_OTHER_CONFIG = ("--config-name", "--config-path", "--config-dir", "-cn", "-cp", "-cd")
_NOTHING = {"", "null", "None", "~"}


def first_adapter(commands: Iterable[str]) -> str | None:
    """What `model.lora_adapter_path` was.

    Args:
        commands: Of the jobs of the run.

    Returns:
        The last such path; "" if each of them is verl's own trainer without one; None if they do not tell: there is
        none, or one is a script, or has a configuration of its own.
    """
    told = [_of(command) for command in commands]
    if path := next((each for each in reversed(told) if each), None):
        return path
    return None if not told or None in told else ""


def _of(command: str) -> str | None:
    try:
        words = shlex.split(command)
    except ValueError:
        return None
    values = [found[2].strip().strip("'\"") for word in words if (found := _KEY.fullmatch(word))]
    if values:
        return "" if values[-1] in _NOTHING else values[-1]
    is_plain = any(_VERL.fullmatch(word) for word in words) and not any(
        word.partition("=")[0] in _OTHER_CONFIG for word in words
    )
    return "" if is_plain else None
