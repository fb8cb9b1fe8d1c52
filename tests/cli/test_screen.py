import io

import pytest
from rich.console import Console
from rich.text import Text
from terminal_page import Page

from cloudrl.cli._screen import Screen


class Shown:
    """A screen, and what a person sees of it."""

    def __init__(self, **options: object) -> None:
        self.file = io.StringIO()
        self.console = Console(
            file=self.file, force_terminal=True, width=20, height=4, legacy_windows=False, highlight=False, **options
        )
        self.screen = Screen(self.console)
        self.page = Page(20, 4)

    def show(self, *lines: str | Text) -> str:
        """Draw them; returns what was sent."""
        return self._sent(lambda: self.screen.show(lambda _width, _height: [Text.assemble(line) for line in lines]))

    def close(self) -> str:
        return self._sent(self.screen.close)

    def _sent(self, act: object) -> str:
        before = len(self.file.getvalue())
        act()
        sent = self.file.getvalue()[before:]
        self.page.write(sent)
        return sent


@pytest.fixture
def shown() -> Shown:
    return Shown()


def test_it_has_a_page_of_its_own(shown: Shown):
    assert not shown.screen.is_open
    shown.show("one", "two")

    assert shown.screen.is_open
    assert (shown.page.is_screen, shown.page.has_cursor) == (True, False)
    assert (shown.page.screen, shown.page.lines) == (["one", "two", "", ""], [""])


def test_only_what_has_changed_is_sent(shown: Shown):
    shown.show("one", "two", "three")

    assert shown.show("one", "2", "three") == "\x1b[2;1H\x1b[K2"
    assert shown.show("one", "2") == "\x1b[3;1H\x1b[K"
    assert shown.show("one", "2") == ""
    assert shown.page.screen == ["one", "2", "", ""]


def test_another_size_draws_all_of_it_anew(shown: Shown):
    sizes = []

    def draw(width: int, height: int) -> list[Text]:
        sizes.append((width, height))
        return [Text("x" * width)]

    shown.screen.show(draw)
    shown.console.size = (30, 6)
    shown.screen.show(draw)

    assert sizes == [(19, 4), (29, 6)]
    page = Page(30, 6)
    page.write(shown.file.getvalue())
    assert page.screen[0] == "x" * 29


def test_the_end_leaves_what_was_shown_last(shown: Shown):
    shown.show("one", "two")
    shown.close()

    assert (shown.page.is_screen, shown.page.has_cursor) == (False, True)
    assert shown.page.lines == ["one", "two", ""]
    assert shown.close() == ""


def test_ctrl_c_while_it_opens_leaves_nothing(shown: Shown):
    class Interrupting(io.StringIO):
        def flush(self) -> None:
            if "\x1b[?1049h" in self.getvalue() and not shown.is_interrupted:
                shown.is_interrupted = True
                raise KeyboardInterrupt

    shown.console.file, shown.is_interrupted = Interrupting(), False
    with pytest.raises(KeyboardInterrupt):
        shown.screen.show(lambda _width, _height: [Text("one")])
    shown.screen.close()

    shown.page.write(shown.console.file.getvalue())
    assert (shown.page.is_screen, shown.page.has_cursor) == (False, True)


@pytest.mark.parametrize(("options", "has_colour"), [({"color_system": "standard"}, True), ({"no_color": True}, False)])
def test_colours_only_where_they_are_wanted(options: dict[str, object], has_colour: bool):
    assert ("\x1b[32m" in Shown(**options).show(Text("ready", "green"))) == has_colour
