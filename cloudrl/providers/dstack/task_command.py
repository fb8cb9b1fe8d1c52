"""The node agent in a run: whether it is there, and what it was told."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from cloudrl.errors import InputError
from cloudrl.protocol.options import AgentOptions
from cloudrl.render.agent import AGENT_FILE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cloudrl.providers.dstack.runs import RunState


def agent_options(run: RunState) -> AgentOptions | None:
    """What a run's nodes were told; None where it is no task with the node agent in it."""
    commands = getattr(run.answer.run_spec.configuration, "commands", None) or []
    for command in commands:
        if AGENT_FILE not in command:
            continue
        words = shlex.split(command)
        at = next((n for n, word in enumerate(words) if word.endswith(AGENT_FILE)), None)
        if at is not None and words[at + 1 : at + 2] == ["run"]:
            return _read(words[at + 2 :])
    return None


def _read(words: Sequence[str]) -> AgentOptions:
    try:
        return AgentOptions.recognized(words)
    except InputError:  # its agents will say so
        return AgentOptions()
