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
from typing import Any

from cloudrl.verl.source.expressions import PLAIN, method_of
from cloudrl.verl.source.shapes import Shape, Source
from cloudrl.verl.source.statements import CHANGING, Function, Returned, Statements
from cloudrl.verl.source.values import UNKNOWN, Instance, NotTold, RefusedByVerl, Section

_MAX_LOOPS = 1000
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
_HYDRAS_OWN = frozenset({"_convert_", "_partial_", "_recursive_", "_args_"})


@functools.lru_cache(maxsize=512)
def _parsed(text: str) -> ast.FunctionDef:
    node = ast.parse(text).body[0]
    if not isinstance(node, ast.FunctionDef):
        raise NotTold(text[:40])
    return node


class Interpreter(Statements):
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
            return self._run(Function(_parsed(text), f"{file}: {name}", scope), arguments, {})
        except NotTold:
            return UNKNOWN

    def method(self, instance: Instance, name: str, *arguments: Any) -> Any:
        """As `run`, for a method of an instance."""
        found = self._method(instance, name)
        try:
            return UNKNOWN if found is None else self._run(found, arguments, {})
        except NotTold:
            return UNKNOWN

    def _method(self, instance: Instance, name: str, after: str = "") -> Function | None:
        """The nearest method of that name, or the nearest above the class `after`."""
        lineage = [instance.shape.name, *instance.shape.bases]
        for each in lineage[lineage.index(after) + 1 :] if after else lineage:
            shape = self._source.shapes.get(each)
            if shape is not None and name in shape.methods:
                node = _parsed(shape.methods[name])
                is_static = any(ast.unparse(mark) == "staticmethod" for mark in node.decorator_list)
                at = f"{shape.at}: {each.rpartition('.')[2]}.{name}"
                scope = {**self._source.constants.get(shape.at, {}), "__class__": each, "self": instance}
                return Function(node, at, scope, () if is_static else (instance,))
        return None

    def _run(self, function: Function, arguments: Sequence[Any], named: Mapping[str, Any]) -> Any:
        scope, parameters = {**function.scope, "__place__": function.at}, function.node.args
        names = [each.arg for each in (*parameters.posonlyargs, *parameters.args)]
        for name, node in zip(reversed(names), reversed(parameters.defaults), strict=False):
            scope[name] = self.of(node, scope)
        scope.update(zip(names, (*function.first, *arguments), strict=False))
        scope.update(named)
        try:
            self._statements(function.node.body, scope)
        except Returned as result:
            return result.value
        except RefusedByVerl as refusal:
            refusal.at = refusal.at or function.at
            refusal.is_new = False
            raise
        return None

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
        if isinstance(function, Function):
            return self._run(function, arguments, named)
        if (
            function is UNKNOWN
            or not callable(function)
            or any(each is UNKNOWN for each in (*arguments, *named.values()))
        ):
            if isinstance(node.func, ast.Attribute) and node.func.attr in CHANGING:
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
