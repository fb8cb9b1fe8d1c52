"""Computes the expressions of verl's checks over known values. It runs no code: what it does not know is `UNKNOWN`."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

from cloudrl.verl.source.values import UNKNOWN, Instance, RefusedByVerl, Section

_OPERATORS: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.BitOr: operator.or_, ast.BitAnd: operator.and_,
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge, ast.Is: operator.is_, ast.IsNot: operator.is_not,
    ast.In: lambda value, among: value in among, ast.NotIn: lambda value, among: value not in among,
}  # fmt: skip
_METHODS: Mapping[type, frozenset[str]] = {
    str: frozenset({"lower", "upper", "strip", "split", "startswith", "endswith", "rpartition", "partition"}),
    dict: frozenset({"get", "keys", "values", "items", "pop"}),
    list: frozenset({"append", "index", "count"}),
    set: frozenset({"add"}),
}
"""Methods of plain values that are called as they are."""
PLAIN = (bool, int, float, str, list, dict, tuple, set, type(None))
_FAULTS = (TypeError, ValueError, ZeroDivisionError, KeyError, IndexError, AttributeError, OverflowError)
_MANY = (list, tuple, set, dict, str)
_MAX_REPEATS = 1000


def names_in(node: ast.AST) -> frozenset[str]:
    """Names of attributes, keys and variables in an expression."""
    found = {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)}
    found |= {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
    return frozenset(found | {each.value for each in ast.walk(node)
                              if isinstance(each, ast.Constant) and isinstance(each.value, str)})  # fmt: skip


def keys_in(node: ast.AST) -> frozenset[str]:
    """Keys of the configuration that an expression reads, such as `trainer.nnodes`."""
    texts = (ast.unparse(each) for each in ast.walk(node) if isinstance(each, ast.Attribute))
    return frozenset(each.removeprefix("config.") for each in texts if each.startswith("config."))


def truth(value: Any) -> Any:
    """True, False or `UNKNOWN`."""
    if value is UNKNOWN:
        return UNKNOWN
    return True if isinstance(value, Instance) else bool(value)


class Expressions:
    """The value of an expression in a scope; statements and calls are those of `Interpreter`."""

    def call(self, node: ast.Call, scope: dict[str, Any]) -> Any:
        """The result of a call."""
        raise NotImplementedError

    def attribute(self, value: Any, name: str) -> Any:
        """An attribute of a known value."""
        raise NotImplementedError

    def of(self, node: ast.expr, scope: dict[str, Any]) -> Any:
        """Raises: RefusedByVerl: Python would raise here, whatever is unknown."""
        try:
            return getattr(self, f"_{type(node).__name__.lower()}", self._other)(node, scope)
        except _FAULTS as error:
            refusal = RefusedByVerl(f"{type(error).__name__}: {error}", names=names_in(node))
            refusal.keys = keys_in(node)
            raise refusal from error

    def _other(self, _node: ast.expr, _scope: dict[str, Any]) -> Any:
        return UNKNOWN

    def _constant(self, node: ast.Constant, _scope: dict[str, Any]) -> Any:
        return node.value

    def _name(self, node: ast.Name, scope: dict[str, Any]) -> Any:
        return scope.get(node.id, UNKNOWN)

    def _attribute(self, node: ast.Attribute, scope: dict[str, Any]) -> Any:
        value = self.of(node.value, scope)
        return UNKNOWN if value is UNKNOWN else self.attribute(value, node.attr)

    def _call(self, node: ast.Call, scope: dict[str, Any]) -> Any:
        return self.call(node, scope)

    def _subscript(self, node: ast.Subscript, scope: dict[str, Any]) -> Any:
        value, key = self.of(node.value, scope), self.of(node.slice, scope)
        if value is UNKNOWN or key is UNKNOWN or isinstance(node.slice, ast.Slice):
            return UNKNOWN
        if isinstance(value, Section):
            return value.read(key)
        return self.attribute(value, key) if isinstance(value, Instance) else value[key]

    def _joinedstr(self, node: ast.JoinedStr, scope: dict[str, Any]) -> Any:
        parts = []
        for each in node.values:
            if isinstance(each, ast.FormattedValue):
                try:
                    value = self.of(each.value, scope)
                except RefusedByVerl:
                    value = UNKNOWN
                parts.append(repr(value) if each.conversion == ord("r") else str(value))
            else:
                parts.append(str(each.value) if isinstance(each, ast.Constant) else "")
        return "".join(parts)

    def _many(self, nodes: list[ast.expr], scope: dict[str, Any]) -> list[Any]:
        return [self.of(each, scope) for each in nodes]

    def _list(self, node: ast.List, scope: dict[str, Any]) -> Any:
        return self._many(node.elts, scope)

    def _tuple(self, node: ast.Tuple, scope: dict[str, Any]) -> Any:
        return tuple(self._many(node.elts, scope))

    def _set(self, node: ast.Set, scope: dict[str, Any]) -> Any:
        return set(self._many(node.elts, scope))

    def _dict(self, node: ast.Dict, scope: dict[str, Any]) -> Any:
        if any(each is None for each in node.keys):
            return UNKNOWN
        return dict(
            zip(self._many([each for each in node.keys if each], scope), self._many(node.values, scope), strict=True)
        )

    def _ifexp(self, node: ast.IfExp, scope: dict[str, Any]) -> Any:
        test = truth(self.of(node.test, scope))
        return UNKNOWN if test is UNKNOWN else self.of(node.body if test else node.orelse, scope)

    def _unaryop(self, node: ast.UnaryOp, scope: dict[str, Any]) -> Any:
        value = self.of(node.operand, scope)
        if value is UNKNOWN:
            return UNKNOWN
        if isinstance(node.op, ast.Not):
            return not truth(value)
        return -value if isinstance(node.op, ast.USub) else +value if isinstance(node.op, ast.UAdd) else UNKNOWN

    def _boolop(self, node: ast.BoolOp, scope: dict[str, Any]) -> Any:
        """An unknown part hides whether the next is looked at, so that this may not refuse."""
        ends, unsure, value = isinstance(node.op, ast.Or), False, None
        for each in node.values:
            try:
                value = self.of(each, scope)
            except RefusedByVerl:
                if not unsure:
                    raise
                return UNKNOWN
            is_true = truth(value)
            if is_true is UNKNOWN:
                unsure = True
            elif is_true is ends:
                return UNKNOWN if unsure and ends and not isinstance(value, bool) else value
        return UNKNOWN if unsure else value

    def _compare(self, node: ast.Compare, scope: dict[str, Any]) -> Any:
        left, unsure = self.of(node.left, scope), False
        for sign, each in zip(node.ops, node.comparators, strict=True):
            right = self.of(each, scope)
            result = self._operate(type(sign), left, right)
            if result is UNKNOWN:
                unsure = True
            elif not result:
                return False
            left = right
        return UNKNOWN if unsure else True

    def _binop(self, node: ast.BinOp, scope: dict[str, Any]) -> Any:
        return self._operate(type(node.op), self.of(node.left, scope), self.of(node.right, scope))

    @staticmethod
    def _operate(sign: type, left: Any, right: Any) -> Any:
        if left is UNKNOWN or right is UNKNOWN or sign not in _OPERATORS:
            return UNKNOWN
        is_text = sign is ast.Mult and any(isinstance(each, (str, list, tuple)) for each in (left, right))
        if is_text and any(isinstance(each, int) and each > _MAX_REPEATS for each in (left, right)):
            return UNKNOWN
        among = right if sign in (ast.In, ast.NotIn) else ()
        if isinstance(among, (list, tuple, set)) and any(each is UNKNOWN for each in among):
            return UNKNOWN
        return _OPERATORS[sign](left, right)

    def _generatorexp(self, node: ast.GeneratorExp | ast.ListComp, scope: dict[str, Any]) -> Any:
        [loop, *more] = node.generators
        values = self.of(loop.iter, scope)
        if (
            values is UNKNOWN
            or more
            or not isinstance(loop.target, ast.Name)
            or not isinstance(values, (list, tuple, set, dict, str))
        ):
            return UNKNOWN
        found = []
        for each in values:
            inner = {**scope, loop.target.id: each}
            kept = [truth(self.of(test, inner)) for test in loop.ifs]
            if UNKNOWN in kept:
                return UNKNOWN
            if all(kept):
                found.append(self.of(node.elt, inner))
        return found

    def _listcomp(self, node: ast.ListComp, scope: dict[str, Any]) -> Any:
        return self._generatorexp(node, scope)


def method_of(value: Any, name: str) -> Any:
    """A method of a plain value, if it is one of those that are called; Python's own error if it has none."""
    known = next((names for kind, names in _METHODS.items() if type(value) is kind), frozenset[str]())
    if name in known:
        return getattr(value, name)
    if isinstance(value, PLAIN) and not hasattr(value, name):
        raise AttributeError(f"{type(value).__name__!r} object has no attribute {name!r}")
    return UNKNOWN
