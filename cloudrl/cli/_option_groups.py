"""Options that several commands share, declared once: as the parameters of a function."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def with_options(**blocks: Callable[..., Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorator: the command gets each argument that is named here from a block of options.

    The parameters of the block stand in the command's help where that argument stands in its signature; what the
    block makes of their values is the argument. Blocks and command must not share a name of a parameter.
    """
    return lambda command: _Command(command, blocks)


class _Command:
    """What Typer takes for a function with all of the parameters (typer/utils.py: get_params_from_function).

    They are looked at when the command is typed, not when it is imported: `cloudrl --help` needs none of them.
    """

    def __init__(self, command: Callable[..., None], blocks: dict[str, Callable[..., Any]]) -> None:
        functools.update_wrapper(self, command)
        self.__annotations__ = {}
        self._command, self._blocks = command, blocks

    def __call__(self, **given: Any) -> None:
        made = {
            name: block(**{key: given.pop(key) for key in inspect.signature(block).parameters})
            for name, block in self._blocks.items()
        }
        self._command(**given, **made)

    @functools.cached_property
    def __signature__(self) -> inspect.Signature:
        signature = inspect.signature(self._command, eval_str=True)
        parameters = [
            parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for name, own in signature.parameters.items()
            for parameter in (self._of_block(name) if name in self._blocks else [own])
        ]
        return signature.replace(parameters=parameters)

    def _of_block(self, name: str) -> list[inspect.Parameter]:
        return list(inspect.signature(self._blocks[name], eval_str=True).parameters.values())
