"""Checks of the user's Python files before anything is sent: a typo would show minutes later."""

import ast
from collections.abc import Iterator
from pathlib import Path

from cloudrl.errors import InputError, did_you_mean
from cloudrl.jobs.local_files import LocalFile

_NEVER_BESIDE = frozenset({"verl", "torch", "ray", "transformers", "cloudrl"})
"""Packages of the image: a checkout of one that lies beside the file is not what it imports on the nodes."""


def check_code(file: LocalFile, name: str | None, *, option: str, is_in_root: bool = False) -> None:
    """Refuse a file that verl could not load on the nodes.

    verl executes the file by its path (verl 0.9.1, utils/import_utils.py: load_module): its folder is not on
    `sys.path`, and a relative import has no package to start from. On the nodes the working directory is on it.

    Args:
        file: The file.
        name: What has to be defined in it; None when verl asks for nothing.
        option: The option or override, for the message.
        is_in_root: Whether it lies in the root of the working directory that is sent along.

    Raises:
        InputError: It is no Python, does not define `name`, or imports a file that does not come along.
    """
    tree = _parsed(file, option)
    if name is not None:
        _check_defined(tree, name, file.path, option)
    if not is_in_root:
        _check_imports(tree, file, option)


def _parsed(file: LocalFile, option: str) -> ast.Module:
    try:
        return ast.parse(file.source, filename=str(file.path))
    except SyntaxError as failure:
        where = f"line {failure.lineno}: {failure.msg}"
        raise InputError(f"{option}: {file.path} is not Python: {where}") from failure
    except ValueError as failure:
        raise InputError(f"{option}: {file.path} cannot be read: {failure}") from failure


def _check_defined(tree: ast.Module, name: str, path: Path, option: str) -> None:
    defined = list(dict.fromkeys(_defined(tree.body)))
    if name in defined or "*" in defined:
        return
    functions = [node.name for node in tree.body if isinstance(node, _FUNCTIONS)]
    has = ", ".join(functions) or "none"
    raise InputError(
        f"{option}: {path.name} defines no {name!r}{did_you_mean(name, defined)} (its functions: {has})",
        hint=f"Name the function for verl to call: {path.name}:{functions[0]}" if functions else None,
    )


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def _defined(body: list[ast.stmt]) -> Iterator[str]:
    """Names that a module has after its top level ran, as far as reading can tell."""
    for node in body:
        if isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
            yield node.name
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from ((each.asname or each.name).split(".")[0] for each in node.names)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name))
        else:
            for inner in ("body", "orelse", "finalbody"):
                yield from _defined(getattr(node, inner, []))
            for handler in getattr(node, "handlers", []):
                yield from _defined(handler.body)


def _check_imports(tree: ast.Module, file: LocalFile, option: str) -> None:
    path, beside = file.path, file.modules_beside
    for module, dots in _imported(tree):
        top = module.split(".")[0]
        if dots or (top in beside - _NEVER_BESIDE - {path.stem}):
            written = f"{'.' * dots}{module}"
            raise InputError(
                f"{option}: {path.name} imports {written!r}, which lies beside it and is not sent with it",
                hint=f"--working-dir {path.parent} sends the folder; then name the file in it: {path.name}"
                if not dots
                else f"verl loads a single file: write `import {top or 'module'}`, and --working-dir {path.parent}",
            )


def _imported(tree: ast.Module) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((each.name, 0) for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or "", node.level
