"""What a program's own source says of its configuration: the arguments of `hydra.main` (Hydra 1.3, main.py)."""

from __future__ import annotations

import ast
import posixpath
import re
from typing import NamedTuple

_IS_MAIN = re.compile(r"(\w+\.)?main")
_UNSPECIFIED = ast.Constant(None)


class HydraProgram(NamedTuple):
    """A program that can be run.

    Attributes:
        folder: its YAML files, relative to what the program's own path is relative to; None if Hydra has no folder.
        name: the configuration that Hydra composes by default; None if its source names none.
        takes_overrides: whether Hydra reads its arguments.
        computes: the argument of `hydra.main` that is no literal, so that only a run tells it; "" if all are.
    """

    folder: str | None
    name: str | None
    takes_overrides: bool = True
    computes: str = ""

    @property
    def config(self) -> str:
        """Both as one path; "" if it has no configuration."""
        return f"{self.folder}/{self.name}" if self.folder is not None and self.name else ""


def program_in(text: str, path: str) -> HydraProgram | None:
    """The program in a file; None if the file has none.

    Args:
        text: of the file.
        path: of the file, with `/`.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return None
    for node in ast.walk(tree):
        for decorator in getattr(node, "decorator_list", ()):
            if isinstance(decorator, ast.Call) and _is_hydra(decorator.func, tree):
                return _hydra_program(decorator, path)
    is_run = path.endswith("__main__.py") or any(_is_run(node) for node in tree.body)
    return HydraProgram(None, None, takes_overrides=False) if is_run else None


def _hydra_program(decorator: ast.Call, path: str) -> HydraProgram:
    given: dict[str | None, ast.expr] = dict(zip(("config_path", "config_name"), decorator.args, strict=False))
    given |= {each.arg: each.value for each in decorator.keywords}
    computed = [name or "arguments" for name, value in given.items() if not isinstance(value, ast.Constant)]
    name, folder = _text(given.get("config_name")), _text(given.get("config_path"))
    if "config_path" not in given and _is_before_1_2(given.get("version_base", _UNSPECIFIED)):
        folder = "."
    return HydraProgram(None if folder is None else folder_at(path, folder), name, computes=", ".join(computed))


def _is_before_1_2(version_base: ast.expr) -> bool:
    """Whether Hydra's defaults are those of 1.1, where a program's own folder has its YAML (Hydra 1.3, main.py)."""
    number = _text(version_base)
    return version_base is _UNSPECIFIED or (number is not None and number.split(".")[:2] < ["1", "2"])


def folder_at(path: str, config_path: str) -> str:
    """Where Hydra looks for a relative `config_path`: from the folder of the program (_internal/utils.py)."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), config_path))


def _is_hydra(function: ast.expr, tree: ast.Module) -> bool:
    """Whether a decorator is `hydra.main`, or `main` that was imported from there."""
    name = ast.unparse(function)
    if name == "hydra.main":
        return True
    return _IS_MAIN.fullmatch(name) is not None and any(
        isinstance(node, ast.ImportFrom) and node.module == "hydra" and name in {each.asname or each.name
                                                                                for each in node.names}
        for node in tree.body
    )  # fmt: skip


def _is_run(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)


def _text(node: ast.expr | None) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None
