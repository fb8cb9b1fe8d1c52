"""The configuration as verl prints it, once, before it trains.

verl 0.9.1, trainer/main_ppo.py: `pprint(OmegaConf.to_container(config, resolve=True))`. Ray prefixes each of its lines.
"""

import ast
from collections.abc import Iterator
from typing import Any

from cloudrl.verl.metrics import plain

_FIRST = "{'actor_rollout_ref': "
_MOST_LINES = 20_000


class ConfigReader:
    """Reads a log line by line; `config` is what verl has printed, flat, None as long as it has not.

    Lines of other processes may stand between those of the configuration: then it cannot be read, and stays None.
    """

    def __init__(self) -> None:
        self.config: dict[str, str] | None = None
        self._lines: list[str] = []

    def read(self, line: str) -> None:
        """Take the next line of the log."""
        if self.config is not None or (not self._lines and _FIRST not in line):
            return
        text = plain(line)
        if not self._lines and not text.startswith(_FIRST):
            return
        self._lines.append(text)
        if text.rstrip().endswith("}"):
            self._parse()
        if len(self._lines) > _MOST_LINES:
            self._lines = []

    def _parse(self) -> None:
        text = "\n".join(self._lines)
        if text.count("{") > text.count("}"):  # a brace within a text costs the configuration, and nothing else
            return
        self._lines = []
        try:
            value = ast.literal_eval(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return
        if isinstance(value, dict):
            self.config = dict(_flat("", value))


def _flat(prefix: str, value: dict[Any, Any]) -> Iterator[tuple[str, str]]:
    for key, item in value.items():
        if isinstance(item, dict) and item:
            yield from _flat(f"{prefix}{key}.", item)
        else:
            yield f"{prefix}{key}", item if isinstance(item, str) else repr(item)
