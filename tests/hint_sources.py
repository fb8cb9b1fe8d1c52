"""Every text in the source that may be shown as a hint, found by reading the source.

A hint is what is passed for a parameter named `hint`, `next_command` or `remedy`, by name or by position, and what a
name or a function with `hint` in its own name holds or returns. Names, constants of other modules, joined lists and
calls of functions of cloudrl are followed to the texts that they stand for.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from functools import cache
from itertools import islice, product
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

UNKNOWN = "X"
"""Stands for a value in a hint that is made where it runs."""
_PARAMETERS = ("hint", "next_command", "remedy")
_NAMED = re.compile(r"hint|next_command|Finding\(|Notice\(|Problem\(|Fault\(|RunWarning\(", re.IGNORECASE)
"""In a file that passes none of these on, there is no hint."""
_ENDED_WORD = re.compile(rf"(?<=[a-z]){UNKNOWN}+(?=\n|$)")
"""A value at the end of a word begins a line or a sentence of its own."""
_IMPORT_VERL = frozenset({"verl_cpu", "tools"})
"""Folders whose modules cannot be imported without verl; they raise no error of ours."""
_MOST = 32
"""Combinations of a hint's parts that are looked at."""
_DEEPEST = 4
_HINT_NAME = re.compile(r"_hints?$|^hints?$|^_?[A-Z_]*HINT$")


class _Place(NamedTuple):
    """Where an expression is: what its names may mean."""

    module: ModuleType
    function: ast.FunctionDef | None
    depth: int = 0


def hints(folder: Path) -> Iterator[tuple[str, str]]:
    """`file:line` and text of each hint below the folder of the package, each once."""
    seen = set[tuple[str, str]]()
    for path in sorted(folder.rglob("*.py")):
        if _IMPORT_VERL & {*path.relative_to(folder).parts}:
            continue
        source = path.read_text()
        if not _NAMED.search(source):
            continue
        module, tree = _module(path, folder.parent), ast.parse(source)
        for place, node in _expressions(tree, module):
            for text in islice(_texts(node, place), _MOST):
                found = (f"{path.relative_to(folder.parent)}:{node.lineno}", _ENDED_WORD.sub("", text))
                if text.strip(f"{UNKNOWN}\n") and found not in seen:
                    seen.add(found)
                    yield found


def _module(path: Path, root: Path) -> ModuleType:
    return importlib.import_module(".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"))


def _expressions(tree: ast.AST, module: ModuleType) -> Iterator[tuple[_Place, ast.expr]]:
    for function, node in _with_functions(tree, None):
        place = _Place(module, function)
        if isinstance(node, ast.Call):
            yield from ((place, each) for each in _hint_arguments(node, place))
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            is_hint = any(isinstance(each, ast.Name) and _HINT_NAME.search(each.id) for each in targets)
            if is_hint and node.value is not None:
                yield place, node.value
        elif isinstance(node, ast.Return) and node.value is not None and _is_of_hint(function):
            yield place, node.value


def _is_of_hint(function: ast.FunctionDef | None) -> bool:
    return function is not None and _HINT_NAME.search(function.name) is not None


def _with_functions(
    node: ast.AST, function: ast.FunctionDef | None
) -> Iterator[tuple[ast.FunctionDef | None, ast.AST]]:
    for child in ast.iter_child_nodes(node):
        yield function, child
        yield from _with_functions(child, child if isinstance(child, ast.FunctionDef) else function)


def _hint_arguments(call: ast.Call, place: _Place) -> Iterator[ast.expr]:
    yield from (each.value for each in call.keywords if each.arg in _PARAMETERS)
    if (callee := _value_of(call.func, place)) is not None and call.args:
        names = _parameters(callee)
        yield from (value for name, value in zip(names, call.args) if name in _PARAMETERS)  # noqa: B905
        if callee is _shown():
            yield call.args[0]


@cache
def _shown() -> Callable[[str], None]:
    from cloudrl.cli import _output

    return _output.hint


@cache
def _parameters(callee: Callable[..., Any]) -> tuple[str, ...]:
    try:
        return tuple(inspect.signature(callee).parameters)
    except (TypeError, ValueError):
        return ()


def _value_of(node: ast.expr, place: _Place) -> Any:
    """What a name or an attribute of a module means; None for what is known only where it runs."""
    if isinstance(node, ast.Name):
        value = getattr(place.module, node.id, None)
    elif isinstance(node, ast.Attribute) and (owner := _value_of(node.value, place)) is not None:
        value = getattr(owner, node.attr, None) if isinstance(owner, (ModuleType, type)) else None
    else:
        value = None
    try:
        hash(value)
    except TypeError:
        return None
    return value


def _texts(node: ast.expr, place: _Place) -> Iterator[str]:
    """Each text that an expression may be, with `UNKNOWN` for each value that is made where it runs."""
    if isinstance(node, ast.Constant):
        yield from [node.value] if isinstance(node.value, str) else []
    elif isinstance(node, ast.JoinedStr):
        yield from map("".join, islice(product(*(_part(part, place) for part in node.values)), _MOST))
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        yield from map("".join, product(_some(node.left, place), _some(node.right, place)))
    elif isinstance(node, (ast.Name, ast.Attribute)):
        yield from _named(node, place)
    elif isinstance(node, ast.Call):
        yield from _called(node, place)
    else:
        for inner in _alternatives(node):
            yield from _texts(inner, place)


def _alternatives(node: ast.expr) -> list[ast.expr]:
    """The expressions of which this one is one."""
    if isinstance(node, ast.IfExp):
        return [node.body, node.orelse]
    if isinstance(node, (ast.BoolOp, ast.Dict)):
        return [*node.values]
    if isinstance(node, ast.BinOp):  # repeated or not at all
        return [node.left]
    if isinstance(node, ast.Starred):
        return [node.value]
    return [node.elt] if isinstance(node, (ast.GeneratorExp, ast.ListComp)) else []


def _some(node: ast.expr, place: _Place) -> list[str]:
    return [*islice(_texts(node, place), _MOST)] or [UNKNOWN]


def _part(part: ast.expr, place: _Place) -> list[str]:
    if isinstance(part, ast.FormattedValue):
        return _some(part.value, place) if part.format_spec is None else [UNKNOWN]
    return _some(part, place)


def _named(node: ast.Name | ast.Attribute, place: _Place) -> Iterator[str]:
    if place.function is not None and isinstance(node, ast.Name) and place.depth < _DEEPEST:
        values = [value for value in _assigned(place.function, node.id) if value is not node]
        inner = place._replace(depth=place.depth + 1)
        for value in values:
            yield from _texts(value, inner)
        if values or node.id in (each.arg for each in place.function.args.args):
            return
    if isinstance(value := _value_of(node, place), str):
        yield value


def _assigned(function: ast.FunctionDef, name: str) -> Iterator[ast.expr]:
    for node in ast.walk(function):
        if isinstance(node, (ast.Assign, ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (value for target in targets for value in _bound(target, node.value, name))


def _bound(target: ast.expr, value: ast.expr, name: str) -> Iterator[ast.expr]:
    """What an assignment gives to a name, which may be one of a tuple."""
    if isinstance(target, ast.Name) and target.id == name:
        yield value
    elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        for inner, part in zip(target.elts, value.elts, strict=True):
            yield from _bound(inner, part, name)


def _called(node: ast.Call, place: _Place) -> Iterator[str]:
    if isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Constant) and node.func.attr == "join":
        yield from _joined(str(node.func.value.value), node.args[0], place)
    elif isinstance(node.func, ast.Attribute) and node.func.attr == "format":
        yield from (re.sub(r"\{\w*\}", UNKNOWN, text) for text in _texts(node.func.value, place))
    elif isinstance(node.func, ast.Attribute) and node.func.attr in ("strip", "rstrip"):
        yield from map(str.rstrip, _texts(node.func.value, place))
    elif isinstance(node.func, ast.Name) and node.func.id in ("str", "filter"):
        yield from _texts(node.args[-1], place)
    elif place.depth < _DEEPEST and _is_ours(function := _value_of(node.func, place)):
        yield from _returned(function, place.depth + 1)


def _is_ours(function: object) -> bool:
    """Whether its texts may be parts of a hint; those of `units` are values."""
    return inspect.isfunction(function) and re.match(r"cloudrl\.(?!units)", function.__module__) is not None


def _joined(between: str, node: ast.expr, place: _Place) -> Iterator[str]:
    if isinstance(node, ast.Call) and node.args:
        node = node.args[-1]
    if isinstance(node, (ast.Tuple, ast.List)):
        yield from map(between.join, islice(product(*(_some(each, place) for each in node.elts)), _MOST))
    else:
        yield from _texts(node, place)


def _returned(function: Callable[..., Any], depth: int) -> Iterator[str]:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, SyntaxError):
        return
    [top] = tree.body
    module = importlib.import_module(function.__module__)
    if isinstance(top, ast.FunctionDef) and top.returns is not None and "str" in ast.unparse(top.returns):
        for node in ast.walk(top):
            if isinstance(node, ast.Return) and node.value is not None:
                yield from _texts(node.value, _Place(module, top, depth))
