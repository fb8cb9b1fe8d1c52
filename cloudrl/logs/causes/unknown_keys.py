"""What to write in place of a key that Hydra has refused: the hint that `cloudrl check` gives for the same job."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from cloudrl.protocol.secret_names import is_secret_override

SIGNATURE = "unknown-key"
_REFUSED = re.compile(r"Could not override '(?P<key>[\w.-]{1,200})'")
_APPEND = re.compile(r"To append to your config use \+(?P<word>(?P<key>[\w.-]{1,200})=\S{0,200})")
"""hydra 1.3, _internal/config_loader_impl.py: _apply_overrides_to_config, whose two lines stand together."""


def remedy_of(lines: Sequence[str], job: Mapping[str, Any]) -> str | None:
    """The hint for the key that is refused; None if nothing here knows the release, the key or anything like it.

    Args:
        lines: that the driver printed about it.
        job: Ray's record of the job: its `entrypoint`, and in `metadata` the release of verl.
    """
    text = "\n".join(lines)
    refused, append = _REFUSED.search(text), _APPEND.search(text)
    metadata = job.get("metadata")
    release = metadata.get("cloudrl_verl") if isinstance(metadata, Mapping) else None
    if refused is None or append is None or append["key"] != refused["key"] or not isinstance(release, str):
        return None
    key = refused["key"]
    if is_secret_override(key):
        return None
    hint = _hint(key, append["word"], release, str(job.get("entrypoint") or ""))
    return f"In place of {key}, with verl {release}: {hint}" if hint else None


def _hint(key: str, word: str, release: str, entrypoint: str) -> str:
    """What `check` suggests for a key, beside all that the job sets."""
    from cloudrl.verl.command import Command, UnknownConfig, read_command  # Hydra takes a second to import
    from cloudrl.verl.composition import compose, is_known
    from cloudrl.verl.release_files import CONFIG_NAME

    if not is_known(release):
        return ""
    try:
        command = read_command(shlex.split(entrypoint))
    except (UnknownConfig, ValueError):  # a program of the user's; a quotation that was cut
        command = Command(CONFIG_NAME, (), is_usual=False)
    if not command.is_read:
        command = command._replace(config_name=CONFIG_NAME)
    for words in (command.words, (word,)):
        problems = compose(release, words, command.config_name).problems
        if (found := next((problem for problem in problems if problem.key == key), None)) is not None:
            first = found.hint.partition("\n")[0]
            return "" if f"+{key}" in first and "if your own code" in first else first
    return ""
