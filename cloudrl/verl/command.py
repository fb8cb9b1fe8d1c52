"""The command that starts verl's trainer, as Python and Hydra read it."""

from collections.abc import Sequence
from typing import NamedTuple

from cloudrl.verl.keys import MAIN
from cloudrl.verl.release_files import CONFIG_NAME

_NAMES = ("--config-name", "-cn")
_USUAL = (("python", "-m"), ("python3", "-m"))


class UnknownConfig(Exception):
    """Which configuration verl would have is not known here; the text is why."""


class Command(NamedTuple):
    """The configuration that the driver composes, and overrides that are part of the entry point."""

    config_name: str
    words: tuple[str, ...]
    is_usual: bool
    """Whether it is the nodes' own Python that runs it, with nothing set for it."""


def read_command(entrypoint: Sequence[str]) -> Command:
    """The configuration that an entry point composes.

    Raises:
        UnknownConfig: It runs another program, or has an option by which Hydra does something else.
    """
    if MAIN not in entrypoint:
        raise UnknownConfig(f"the job runs another program than {MAIN}")
    at, name = entrypoint.index(MAIN), CONFIG_NAME
    words = list(entrypoint[at + 1 :])
    overrides = []
    while words:
        word = words.pop(0)
        option, equals, value = word.partition("=")
        if option in _NAMES and (equals or words):
            name = value if equals else words.pop(0)
        elif word.startswith("-"):
            raise UnknownConfig(f"the entry point has option {option}")
        else:
            overrides.append(word)
    return Command(name, tuple(overrides), tuple(entrypoint[:at]) in _USUAL)
