"""The configuration as verl prints it, once, before it trains.

verl 0.9.1, trainer/main_ppo.py: `pprint(OmegaConf.to_container(config, resolve=True))`. Ray prefixes each of its lines.
"""

import ast
from collections.abc import Iterator
from typing import Any

from cloudrl.verl.metrics import plain

_FIRST = "{'actor_rollout_ref': "
_MOST_LINES, _MOST_CHARACTERS = 20_000, 1 << 20


class ConfigReader:
    """Reads a log line by line; `config` is what verl has printed, flat, None as long as it has not.

    Lines of other processes may stand between those of the configuration: then it cannot be read, and stays None.
    """

    def __init__(self) -> None:
        self.config: dict[str, str] | None = None
        self._forget()

    def read(self, line: str) -> None:
        """Take the next line of the log."""
        if self.config is not None or (not self._lines and _FIRST not in line):
            return
        text = plain(line[: _MOST_CHARACTERS + 1])
        if not self._lines and not text.startswith(_FIRST):
            return
        self._lines.append(text)
        self._characters += len(text)
        self._open_braces += text.count("{") - text.count("}")
        if len(self._lines) > _MOST_LINES or self._characters > _MOST_CHARACTERS:
            self._forget()
        elif self._open_braces <= 0 and text.rstrip().endswith("}"):
            self._parse()  # a brace within a text costs the configuration, and nothing else

    def _forget(self) -> None:
        self._lines, self._characters, self._open_braces = list[str](), 0, 0

    def _parse(self) -> None:
        text = "\n".join(self._lines)
        self._forget()
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
