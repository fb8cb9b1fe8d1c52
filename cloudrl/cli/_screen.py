"""A screen that redraws itself, on another page of the terminal, and sends only the lines that have changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text


class Screen:
    """What a function draws for a width and a height. Opened by the first `show`.

    A signal that ends the process raises SystemExit (`cloudrl.cli.main`), so that it can be closed.

    Args:
        console: of the terminal; None for standard error's.
    """

    def __init__(self, console: Console | None = None) -> None:
        if console is None:
            from rich.console import Console

            console = Console(stderr=True, highlight=False)
        self._console = console
        self._shown: list[str] = []
        self._size: Any = None
        self._draw: Callable[[int, int], Sequence[Text]] | None = None

    @property
    def is_open(self) -> bool:
        """Whether something is shown."""
        return self._draw is not None

    def show(self, draw: Callable[[int, int], Sequence[Text]]) -> None:
        """Show what it draws in place of what was there."""
        is_open, self._draw = self.is_open, draw  # first, so that `close` undoes whatever is interrupted
        if not is_open:
            self._console.set_alt_screen(True)
            self._console.show_cursor(False)
        size = self._console.size
        changes = ""
        if size != self._size:
            self._size, self._shown, changes = size, [], "\x1b[2J"
        lines = [self._encode(line) for line in draw(size.width - 1, size.height)]  # the last column would wrap
        blank = [""] * (len(self._shown) - len(lines))
        for row, line in enumerate([*lines, *blank]):
            if row >= len(self._shown) or self._shown[row] != line:
                changes += f"\x1b[{row + 1};1H\x1b[K{line}"
        self._shown = lines
        self._console.file.write(changes)
        self._console.file.flush()

    def close(self) -> None:
        """Go back to the page from before, and leave there what was shown last."""
        if self._draw is None:
            return
        draw, size = self._draw, self._console.size
        self._draw = self._size = None
        self._console.set_alt_screen(False)
        self._console.show_cursor(True)
        for line in draw(size.width - 1, size.height):
            self._console.print(line, no_wrap=True, overflow="crop")

    def _encode(self, line: Text) -> str:
        with self._console.capture() as captured:
            self._console.print(line, end="", no_wrap=True, overflow="crop")
        return captured.get()
