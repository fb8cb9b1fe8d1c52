"""Follows the statements of verl's checks: what a branch that cannot be decided may change is unknown afterwards."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cloudrl.verl.source.expressions import Expressions, keys_in, names_in, truth
from cloudrl.verl.source.values import UNKNOWN, Instance, NotTold, RefusedByVerl

_MAX_STEPS = 20_000
CHANGING = frozenset({"append", "add", "update", "pop", "extend", "remove", "clear", "setdefault", "insert"})
"""Methods that change what they are called on."""


class Returned(Exception):
    """How a `return` leaves the statements."""

    def __init__(self, value: Any) -> None:
        self.value = value


@dataclass(frozen=True)
class Function:
    """A function of verl, and where it was made."""

    node: ast.FunctionDef
    at: str
    scope: Mapping[str, Any]
    first: tuple[Any, ...] = ()


class Statements(Expressions):
    """Changes a scope as the statements of a function do; calls are those of `Interpreter`."""

    _steps = 0

    def _statements(self, nodes: Sequence[ast.stmt], scope: dict[str, Any]) -> None:
        for node in nodes:
            self._steps += 1
            if self._steps > _MAX_STEPS:
                raise NotTold("too many steps")
            getattr(self, f"_do_{type(node).__name__.lower()}", self._do_other)(node, scope)

    def _do_other(self, node: ast.stmt, _scope: dict[str, Any]) -> None:
        raise NotTold(type(node).__name__)

    def _do_pass(self, _node: ast.Pass, _scope: dict[str, Any]) -> None:
        return

    def _do_expr(self, node: ast.Expr, scope: dict[str, Any]) -> None:
        self.of(node.value, scope)

    def _do_functiondef(self, node: ast.FunctionDef, scope: dict[str, Any]) -> None:
        scope[node.name] = Function(node, scope["__place__"], scope)

    def _do_importfrom(self, node: ast.ImportFrom | ast.Import, scope: dict[str, Any]) -> None:
        for each in node.names:
            scope[each.asname or each.name] = UNKNOWN

    _do_import = _do_importfrom

    def _do_return(self, node: ast.Return, scope: dict[str, Any]) -> None:
        raise Returned(None if node.value is None else self.of(node.value, scope))

    def _do_assign(self, node: ast.Assign, scope: dict[str, Any]) -> None:
        value = self.of(node.value, scope)
        for target in node.targets:
            self._assign(target, value, scope)

    def _do_annassign(self, node: ast.AnnAssign, scope: dict[str, Any]) -> None:
        if node.value is not None:
            self._assign(node.target, self.of(node.value, scope), scope)

    def _do_augassign(self, node: ast.AugAssign, scope: dict[str, Any]) -> None:
        read = ast.BinOp(node.target, node.op, node.value)
        self._assign(node.target, self.of(read, scope), scope)

    def _assign(self, target: ast.expr, value: Any, scope: dict[str, Any]) -> None:
        if isinstance(target, ast.Name):
            scope[target.id] = value
        elif isinstance(target, ast.Attribute):
            owner = self.of(target.value, scope)
            if isinstance(owner, Instance):
                owner.attributes[target.attr] = value
        elif isinstance(target, ast.Subscript):
            owner, key = self.of(target.value, scope), self.of(target.slice, scope)
            if isinstance(owner, dict) and key is not UNKNOWN:
                owner[key] = value
            else:
                self._forget(target.value, scope)
        elif isinstance(target, ast.Tuple):
            values = value if isinstance(value, (list, tuple)) and len(value) == len(target.elts) else None
            for index, each in enumerate(target.elts):
                self._assign(each, UNKNOWN if values is None else values[index], scope)

    def _forget(self, node: ast.expr, scope: dict[str, Any]) -> None:
        """What an expression names has changed in a way that cannot be followed."""
        if isinstance(node, (ast.Name, ast.Attribute)):
            self._assign(node, UNKNOWN, scope)
        elif isinstance(node, ast.Subscript):
            self._forget(node.value, scope)

    def _do_if(self, node: ast.If, scope: dict[str, Any]) -> None:
        test = truth(self.of(node.test, scope))
        if test is UNKNOWN:
            self._leave_out([*node.body, *node.orelse], scope)
            return
        try:
            self._statements(node.body if test else node.orelse, scope)
        except RefusedByVerl as refusal:
            if refusal.is_new:
                refusal.names |= names_in(node.test)
                refusal.keys |= keys_in(node.test)
                refusal.choices = refusal.choices or self._choices(node.test, scope)
            raise

    def _leave_out(self, nodes: Sequence[ast.stmt], scope: dict[str, Any]) -> None:
        """What these statements may change is unknown from here on."""
        for node in (inner for each in nodes for inner in ast.walk(each)):
            if isinstance(node, (ast.Return, ast.Break, ast.Continue)):
                raise NotTold("a branch that may leave")
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            for target in targets:
                if isinstance(target, ast.expr):
                    self._forget(target, scope)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGING:
                self._forget(node.func.value, scope)

    def _do_assert(self, node: ast.Assert, scope: dict[str, Any]) -> None:
        if truth(self.of(node.test, scope)) is False:
            text = self.of(node.msg, scope) if node.msg is not None else ast.unparse(node.test)
            refusal = RefusedByVerl(str(text), names=names_in(node.test))
            refusal.choices, refusal.keys = self._choices(node.test, scope), keys_in(node.test)
            raise refusal

    def _choices(self, test: ast.expr, scope: dict[str, Any]) -> tuple[str, ...]:
        if isinstance(test, ast.Compare) and isinstance(test.ops[0], (ast.In, ast.NotIn)):
            among = self.of(test.comparators[0], scope)
            if isinstance(among, (list, tuple, set)) and all(isinstance(each, str) for each in among):
                return tuple(sorted(among))
        return ()

    def _do_raise(self, node: ast.Raise, scope: dict[str, Any]) -> None:
        text = "raises"
        if isinstance(node.exc, ast.Call) and node.exc.args:
            text = str(self.of(node.exc.args[0], scope))
        raise RefusedByVerl(text)

    def _do_for(self, node: ast.For, scope: dict[str, Any]) -> None:
        values = self.of(node.iter, scope)
        if values is UNKNOWN:
            self._leave_out(node.body, scope)
            return
        try:
            items = list(values)
        except TypeError as error:
            raise RefusedByVerl(f"TypeError: {error}", names=names_in(node.iter)) from error
        for each in items:
            self._assign(node.target, each, scope)
            self._statements(node.body, scope)

    def _do_try(self, node: ast.Try, scope: dict[str, Any]) -> None:
        try:
            self._statements(node.body, scope)
        except RefusedByVerl as refusal:
            raise NotTold("verl may handle it") from refusal

    def _do_match(self, node: ast.Match, scope: dict[str, Any]) -> None:
        subject = self.of(node.subject, scope)
        for case in node.cases:
            pattern = case.pattern
            if isinstance(pattern, ast.MatchValue) and subject is not UNKNOWN:
                if self.of(pattern.value, scope) != subject:
                    continue
            elif not (isinstance(pattern, ast.MatchAs) and pattern.pattern is None) or subject is UNKNOWN:
                raise NotTold("match")
            self._statements(case.body, scope)
            return
