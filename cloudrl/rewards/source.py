"""What is wrong with a reward function by its source alone: parameters, a `return` that is missing, imports.

Nothing is run, so that this holds also where the file cannot be loaded, and where nothing is isolated.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from importlib.machinery import PathFinder

from cloudrl.verl.reward_calls import MANY, ONE, RewardCall

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class SourceFault:
    """Something that is wrong for certain.

    Attributes:
        kind: `signature` or `return`.
        line: of the file, from 1.
        text: what is wrong.
        hint: what to write instead; "" if unknown.
    """

    kind: str
    line: int
    text: str
    hint: str = ""


@dataclass(frozen=True)
class Import:
    """A module that the file imports, by its first name, and where."""

    module: str
    line: int


def find_function(tree: ast.Module, name: str) -> FunctionNode | None:
    """The definition of a function at the top of a file, if nothing after it gives the name to something else."""
    found: FunctionNode | None = None
    for node in tree.body:
        if isinstance(node, FunctionNode) and node.name == name:
            found = node
        elif not isinstance(node, (*FUNCTIONS, ast.ClassDef)) and _binds(node, name):
            found = None
    return found


def _binds(node: ast.stmt, name: str) -> bool:
    """Whether a statement may give the name a value: by an assignment, an import, or a definition below a condition."""
    for each in ast.walk(node):
        if isinstance(each, ast.Name) and each.id == name and isinstance(each.ctx, ast.Store):
            return True
        if isinstance(each, ast.alias) and (each.asname or each.name) == name:
            return True
        if isinstance(each, FUNCTIONS) and each.name == name:
            return True
    return False


def faults_of(tree: ast.Module, call: RewardCall) -> tuple[SourceFault, ...]:
    """What verl would fail with, whatever the data.

    Args:
        tree: the file.
        call: how verl calls the function.
    """
    node = find_function(tree, call.function)
    if node is None or not call.is_known:
        return ()
    faults = [] if node.decorator_list else list(_signature(node, call))
    if not _returns(node):
        text = f"{node.name} has no `return` with a value, so that verl gets None"
        faults.append(SourceFault("return", node.lineno, text, "Return a number, or a dict with a number as `score`"))
    if call.manager == "remote" and isinstance(node, ast.AsyncFunctionDef):
        text = f"{node.name} is async, and verl's reward manager 'remote' takes no such function"
        faults.append(
            SourceFault("signature", node.lineno, text, "Write `def`, or leave the reward manager at `naive`")
        )
    return tuple(faults)


def _signature(node: FunctionNode, call: RewardCall) -> Iterator[SourceFault]:
    arguments, passed = node.args, call.passed
    by_name = [each.arg for each in (*arguments.args, *arguments.kwonlyargs)]
    unknown = [] if arguments.kwarg else [name for name in passed if name not in by_name]
    positional = [*arguments.posonlyargs, *arguments.args]
    first_default = len(positional) - len(arguments.defaults)
    needed = [each.arg for each in positional[:first_default]]
    needed += [
        each.arg for each, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if not default
    ]
    unfilled = [name for name in needed if name not in passed or name in {each.arg for each in arguments.posonlyargs}]
    if not unknown and not unfilled:
        return
    parts = [f"has no parameter{'s' * (len(unknown) > 1)} {_list(unknown)}"] if unknown else []
    parts += [f"needs {_list(unfilled)}"] if unfilled else []
    text = f"{node.name}({ast.unparse(arguments)}) {', and '.join(parts)}; verl passes {', '.join(passed)} by name"
    if not call.is_batch and set(MANY) & set(by_name):
        text += ". Lists are for the reward manager 'batch', which the reward loop of verl 0.9.1 does not have"
    written = ", ".join(passed if not call.keywords else (*ONE, *call.keywords))
    yield SourceFault("signature", node.lineno, text, f"def {node.name}({written}, **kwargs):")


def _list(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))


def _returns(node: FunctionNode) -> bool:
    """Whether any `return` of the function has a value, or it does not end by itself: it raises, or yields."""
    own = list(_own_nodes(node))
    if any(isinstance(each, ast.Return) and not _is_none(each.value) for each in own):
        return True
    last = node.body[-1]
    return isinstance(last, ast.Raise)


def _is_none(value: ast.expr | None) -> bool:
    return value is None or (isinstance(value, ast.Constant) and value.value is None)


def reads_row(node: FunctionNode | None) -> bool:
    """Whether a function looks at more of a row than its ground truth, or may do so unseen."""
    if node is None or node.decorator_list:
        return True
    of_row = {*_OF_ROW, node.args.kwarg.arg} if node.args.kwarg else _OF_ROW
    return not _names(node).isdisjoint(of_row)


_OF_ROW = {"data_source", "extra_info", *MANY}


def _names(node: FunctionNode) -> set[str]:
    return {each.id for statement in node.body for each in ast.walk(statement) if isinstance(each, ast.Name)}


def _own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes of a function but those of functions and classes within it."""
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            yield from _own_nodes(child)


def missing_imports(tree: ast.Module, paths: Sequence[str], beside: Collection[str]) -> tuple[Import, ...]:
    """The modules that the file imports and this Python does not have, each once, with its first line.

    An import within `try`, or below `if TYPE_CHECKING`, may fail.

    Args:
        tree: the file.
        paths: where this Python finds modules.
        beside: modules of the working directory that is sent.
    """
    found: dict[str, int] = {}
    for module, line in _imports(tree):
        found.setdefault(module, line)
    known = {*sys.stdlib_module_names, *sys.builtin_module_names, *beside}
    return tuple(
        Import(module, line)
        for module, line in found.items()
        if module not in known and PathFinder.find_spec(module, list(paths)) is None
    )


def _imports(node: ast.AST) -> Iterator[tuple[str, int]]:
    if isinstance(node, ast.Import):
        yield from ((alias.name.partition(".")[0], node.lineno) for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
        yield node.module.partition(".")[0], node.lineno
    elif isinstance(node, ast.Try):
        for part in (*node.orelse, *node.finalbody):
            yield from _imports(part)
    elif not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)):
        for child in ast.iter_child_nodes(node):
            yield from _imports(child)
