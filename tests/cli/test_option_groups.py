"""Options that several commands share."""

from __future__ import annotations

import inspect
from typing import Annotated

import typer

from cloudrl.cli._option_groups import with_options


def size(cores: Annotated[int, typer.Option(help="CPUs.")] = 1, disk: str | None = None) -> dict[str, object]:
    return {"cores": cores, "disk": disk}


@with_options(sized=size)
def build(name: Annotated[str, typer.Argument()], *, sized: dict[str, object], loud: bool = False) -> None:
    """Build it."""
    typer.echo(f"{name} {sorted(sized.items())} {loud}")


def typed(*words: str) -> tuple[int, str]:
    from typer.testing import CliRunner

    app = typer.Typer(rich_markup_mode=None)
    app.command()(build)
    done = CliRunner().invoke(app, list(words))
    return done.exit_code, done.output


def test_the_block_stands_where_its_argument_does() -> None:
    assert list(inspect.signature(build).parameters) == ["name", "cores", "disk", "loud"]


def test_its_values_come_as_one_argument() -> None:
    assert typed("a", "--cores", "4", "--loud") == (0, "a [('cores', 4), ('disk', None)] True\n")
    assert typed("a")[1] == "a [('cores', 1), ('disk', None)] False\n"


def test_help_has_all_of_them() -> None:
    code, text = typed("--help")
    assert code == 0
    assert "Build it." in text
    assert "CPUs." in text
    assert "--loud" in text


def test_a_wrong_value_is_refused_as_ever() -> None:
    code, text = typed("a", "--cores", "many")
    assert code == 2
    assert "--cores" in text
