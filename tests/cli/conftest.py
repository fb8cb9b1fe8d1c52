"""Commands as they are typed, in a folder and a home of their own."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from cloudrl.cli.main import main

if TYPE_CHECKING:
    from pathlib import Path


class Typed(NamedTuple):
    """What a command did."""

    code: int
    out: str
    err: str


Run = Callable[..., Typed]


@pytest.fixture
def run(home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Type a command."""

    def typed(*words: str) -> Typed:
        monkeypatch.setattr(sys, "argv", ["cloudrl", *words])
        code: Any = 0
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
        output = capsys.readouterr()
        assert "Traceback" not in output.err
        return Typed(code, output.out, output.err)

    return typed
