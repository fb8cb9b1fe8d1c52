"""Follows the checks of verl's own dataclasses over a configuration, as far as this machine can know.

verl checks values where it builds dataclasses, minutes after the GPUs are rented. Their `__post_init__` and the
driver's `validate_config` are kept as text with each release (`shapes.py`). Here they are followed statement by
statement: nothing is imported or executed, what is unknown stays unknown, and a branch that depends on it is left out.
So what is refused here is refused by verl with the same words.
"""

from __future__ import annotations

import ast
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cloudrl.verl.source.expressions import PLAIN, Expressions, keys_in, method_of, names_in, truth
from cloudrl.verl.source.shapes import Shape, Source
from cloudrl.verl.source.values import UNKNOWN, Instance, NotTold, RefusedByVerl, Section

_MAX_STEPS, _MAX_LOOPS = 20_000, 1000
_SILENT = ("print", "warnings.warn", "logger.warning", "logger.info", "logger.warning_once", "logger.debug")
_TYPES: Mapping[str, type] = {
    each.__name__: each for each in (int, float, bool, str, list, dict, tuple, set)
}  # fmt: skip


def _range(*limits: int) -> range:
    """A range that is short enough to go through.

    Raises:
        NotTold: It is not.
    """
    if len(made := range(*limits)) > _MAX_LOOPS:
        raise NotTold("a long loop")
    return made


_BUILT_IN: Mapping[str, Callable[..., Any]] = {
    "len": len, "sum": sum, "min": min, "max": max, "abs": abs, "sorted": sorted, "all": all, "any": any,
    "range": _range, "math.isfinite": math.isfinite, **_TYPES,
}  # fmt: skip
_CHANGING = frozenset({"append", "add", "update", "pop", "extend", "remove", "clear", "setdefault", "insert"})
"""Methods that change what they are called on."""
_HYDRAS_OWN = frozenset({"_convert_", "_partial_", "_recursive_", "_args_"})


class _Returned(Exception):  # how a `return` leaves the statements
    def __init__(self, value: Any) -> None:
        self.value = value


@dataclass(frozen=True)
class _Function:
    """A function of verl, and where it was made."""

    node: ast.FunctionDef
    at: str
    scope: Mapping[str, Any]
    first: tuple[Any, ...] = ()


@functools.lru_cache(maxsize=512)
def _parsed(text: str) -> ast.FunctionDef:
    node = ast.parse(text).body[0]
    if not isinstance(node, ast.FunctionDef):
        raise NotTold(text[:40])
    return node


class Interpreter(Expressions):
    """Builds verl's dataclasses of one release, and follows its functions."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._steps = 0
        self._by_last_name = {name.rpartition(".")[2]: shape for name, shape in source.shapes.items()}

    def build(self, values: Any, path: str = "") -> Any:
        """What `hydra.utils.instantiate` makes of a part of the configuration.

        Raises:
            RefusedByVerl: verl raises while it is made.
        """
        if isinstance(values, Section):
            return self.build(values.values, values.path)
        if isinstance(values, (list, tuple)):
            return [self.build(each, path) for each in values]
        if not isinstance(values, Mapping):
            return values
        target = values.get("_target_")
        if _HYDRAS_OWN & values.keys() or any(not isinstance(key, str) for key in values):
            return UNKNOWN
        arguments = {key: self._argument(value, f"{path}.{key}") for key, value in values.items() if key != "_target_"}
        if target is None:
            return arguments
        shape = self._source.shape(target)
        return UNKNOWN if shape is None else self._made(shape, arguments, path)

    def _argument(self, value: Any, path: str) -> Any:
        if value == "???":
            raise RefusedByVerl(f"{path} is not set", names=frozenset({path.rpartition(".")[2]}))
        return self.build(value, path)

    def _made(self, shape: Shape, arguments: Mapping[str, Any], path: str) -> Instance:
        """An instance, after its `__post_init__`."""
        place = f"{shape.at}: {shape.name.rpartition('.')[2]}"
        if unknown := [key for key in arguments if key not in shape.fields]:
            raise RefusedByVerl(f"{path}.{unknown[0]}: {place} has no such field", place, frozenset(unknown[:1]))
        made = Instance(shape)
        for name, field in shape.fields.items():
            if name in arguments:
                made.attributes[name] = arguments[name]
            elif field.is_required:
                raise RefusedByVerl(f"{path}.{name} is not set", place, frozenset({name}))
            else:
                made.attributes[name] = self._default(field.type, field.default, field.is_made)
        if (method := self._method(made, "__post_init__")) is not None:
            try:
                self._run(method, (), {})
            except RefusedByVerl as refusal:
                refusal.path = refusal.path or path
                raise
        return made

    def _default(self, kind: str, default: Any, is_made: bool) -> Any:
        if not is_made:
            return list(default) if isinstance(default, list) else default
        if (shape := self._source.shapes.get(kind)) is None:
            return {} if kind == "dict" else UNKNOWN
        try:
            return self._made(shape, {}, "")
        except RefusedByVerl:  # such as a field without a default, in a base that is only for its children
            return UNKNOWN

    def run(self, name: str, *arguments: Any) -> Any:
        """The result of one of the driver's functions; `UNKNOWN` where it cannot be followed.

        Raises:
            RefusedByVerl: It raises.
        """
        if name not in self._source.functions:
            return UNKNOWN
        file, text = self._source.functions[name]
        try:
            scope = dict(self._source.constants.get(file, {}))
            return self._run(_Function(_parsed(text), f"{file}: {name}", scope), arguments, {})
        except NotTold:
            return UNKNOWN

    def method(self, instance: Instance, name: str, *arguments: Any) -> Any:
        """As `run`, for a method of an instance."""
        found = self._method(instance, name)
        try:
            return UNKNOWN if found is None else self._run(found, arguments, {})
        except NotTold:
            return UNKNOWN

    def _method(self, instance: Instance, name: str, after: str = "") -> _Function | None:
        """The nearest method of that name, or the nearest above the class `after`."""
        lineage = [instance.shape.name, *instance.shape.bases]
        for each in lineage[lineage.index(after) + 1 :] if after else lineage:
            shape = self._source.shapes.get(each)
            if shape is not None and name in shape.methods:
                node = _parsed(shape.methods[name])
                is_static = any(ast.unparse(mark) == "staticmethod" for mark in node.decorator_list)
                at = f"{shape.at}: {each.rpartition('.')[2]}.{name}"
                scope = {**self._source.constants.get(shape.at, {}), "__class__": each, "self": instance}
                return _Function(node, at, scope, () if is_static else (instance,))
        return None

    def _run(self, function: _Function, arguments: Sequence[Any], named: Mapping[str, Any]) -> Any:
        scope, parameters = {**function.scope, "__place__": function.at}, function.node.args
        names = [each.arg for each in (*parameters.posonlyargs, *parameters.args)]
        for name, node in zip(reversed(names), reversed(parameters.defaults), strict=False):
            scope[name] = self.of(node, scope)
        scope.update(zip(names, (*function.first, *arguments), strict=False))
        scope.update(named)
        try:
            self._statements(function.node.body, scope)
        except _Returned as result:
            return result.value
        except RefusedByVerl as refusal:
            refusal.at = refusal.at or function.at
            refusal.is_new = False
            raise
        return None

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
        scope[node.name] = _Function(node, scope["__place__"], scope)

    def _do_importfrom(self, node: ast.ImportFrom | ast.Import, scope: dict[str, Any]) -> None:
        for each in node.names:
            scope[each.asname or each.name] = UNKNOWN

    _do_import = _do_importfrom

    def _do_return(self, node: ast.Return, scope: dict[str, Any]) -> None:
        raise _Returned(None if node.value is None else self.of(node.value, scope))

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
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _CHANGING:
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

    def attribute(self, value: Any, name: str) -> Any:
        """A field, a key, a property or a method."""
        if isinstance(value, Section):
            return getattr(value, name) if name == "get" else value.read(name)
        if not isinstance(value, Instance):
            return method_of(value, name) if isinstance(value, PLAIN) else UNKNOWN
        if name in value.attributes:
            return value.attributes[name]
        if (method := self._method(value, name)) is None:
            return functools.partial(_get, value) if name == "get" else UNKNOWN
        if any(ast.unparse(mark) == "property" for mark in method.node.decorator_list):
            return self._run(method, (), {})
        return method

    def call(self, node: ast.Call, scope: dict[str, Any]) -> Any:
        """The result of a call; `UNKNOWN` for what is neither verl's nor a plain function."""
        name = ast.unparse(node.func)
        if name in _SILENT:
            return None
        if name == "isinstance":
            return self._is_instance(self.of(node.args[0], scope), node.args[1])
        if isinstance(node.func, ast.Attribute) and ast.unparse(node.func.value) == "super()":
            method = self._method(scope["self"], node.func.attr, scope.get("__class__", ""))
            # a base without that method is verl's own mistake; it is never built then
            return None if method is None else self._run(method, self._many(node.args, scope), {})
        arguments, named = self._many(node.args, scope), dict[str, Any]()
        for each in node.keywords:
            value = self.of(each.value, scope)
            if each.arg is None:
                if not isinstance(value, Mapping):
                    return UNKNOWN
                named.update(value)
            else:
                named[each.arg] = value
        return self._called(name, node, scope, arguments, named)

    def _called(  # noqa: PLR0911  a kind of call a line
        self, name: str, node: ast.Call, scope: dict[str, Any], arguments: list[Any], named: dict[str, Any]
    ) -> Any:
        if name in ("getattr", "hasattr"):
            return _get(arguments[0], *arguments[1:]) if name == "getattr" else UNKNOWN
        if name == "object.__setattr__" and arguments[0] is None:
            raise RefusedByVerl(f"AttributeError: 'NoneType' object has no attribute {arguments[1]!r}")
        if name == "object.__setattr__" and isinstance(arguments[0], Instance):
            arguments[0].attributes[arguments[1]] = arguments[2]
            return None
        if name == "omega_conf_to_dataclass":
            is_made = isinstance(arguments[0], Instance)
            return arguments[0] if is_made else UNKNOWN if named or len(arguments) > 1 else self.build(arguments[0])
        if name in self._source.functions and scope.get(name, UNKNOWN) is UNKNOWN:
            return self.run(name, *arguments)
        if name in self._by_last_name and not arguments:
            return self._made(self._by_last_name[name], named, name)
        function = _BUILT_IN.get(name) or self.of(node.func, scope)
        if isinstance(function, _Function):
            return self._run(function, arguments, named)
        if (
            function is UNKNOWN
            or not callable(function)
            or any(each is UNKNOWN for each in (*arguments, *named.values()))
        ):
            if isinstance(node.func, ast.Attribute) and node.func.attr in _CHANGING:
                self._forget(node.func.value, scope)
            return UNKNOWN
        return function(*arguments, **named)

    def _is_instance(self, value: Any, node: ast.expr) -> Any:
        if value is UNKNOWN:
            return UNKNOWN
        parts = [node.left, node.right] if isinstance(node, ast.BinOp) else getattr(node, "elts", [node])
        for part in parts:
            if isinstance(part, ast.BinOp):
                if self._is_instance(value, part):
                    return True
                continue
            name = ast.unparse(part).rpartition(".")[2]
            if isinstance(value, Instance):
                if name in self._source.lineage[value.shape.name]:
                    return True
            elif isinstance(value, Section):
                if name == "DictConfig":
                    return True
            elif name in _TYPES and isinstance(value, _TYPES[name]):
                return True
        return False


def _get(value: Any, name: str, default: Any = None) -> Any:
    """`getattr` with a default, and `get` of an instance."""
    if isinstance(value, Instance):
        return value.attributes.get(name, default)
    if isinstance(value, Section):
        return value.get(name, default)
    return default if isinstance(value, PLAIN) and not hasattr(value, name) else UNKNOWN
