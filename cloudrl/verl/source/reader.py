"""Reads a release of verl by its syntax trees: a wheel, a checkout, or the site-packages of an image.

Nothing of it is imported or run, so neither torch nor ray is needed, and a fork's code can do nothing here.
"""

from __future__ import annotations

import ast
import re
import shlex
import zipfile
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from cloudrl.errors import InputError
from cloudrl.verl.source.programs import program_in
from cloudrl.verl.source.shapes import Field, Shape, Source

_TARGET = re.compile(r"^\s*_target_:\s*([\w.]+)\s*(?:#.*)?$", re.MULTILINE)
_CHECKS = ("__post_init__", "validate", "_check_mutually_exclusive", "_resolve_teacher_models", "check_configured",
           "validate_and_prepare_for_distillation", "_validate_topk_logprobs", "per_replica_world_size",
           "world_size")  # fmt: skip
"""Methods that are kept: those that verl's dataclasses check values in, and what these call."""
_DRIVER = {
    "utils/config.py": ("validate_config", "_validate_router_replay_config"),
    "trainer/ppo/utils.py": ("need_reference_policy", "need_critic"),
    "workers/rollout/vllm_rollout/utils.py": ("get_vllm_max_lora_rank",),
}
_SCALARS = {"int", "float", "bool", "str"}
_CONTAINERS = {"list": "list", "List": "list", "tuple": "list", "Tuple": "list", "dict": "dict", "Dict": "dict",
               "Mapping": "dict", "set": "list"}  # fmt: skip
_CONFIG = re.compile(r"config|cfg", re.IGNORECASE)
_OF_OTHERS = ("self.", "AutoMapping.", "Dispatch.", "Execute.", "torch.", "atexit.")
_MAX_FILES, _MAX_BYTES = 20_000, 4_000_000


def read_files(place: Path) -> dict[str, str]:
    """The Python and YAML files of verl's package by their path in it.

    Args:
        place: a wheel, a folder that holds `verl/`, or that folder itself.

    Raises:
        InputError: There is no verl.
    """
    if not place.exists():
        raise InputError(f"{place} does not exist", hint=f"ls {shlex.quote(str(place.parent))}")
    files = dict(_of_wheel(place) if place.is_file() else _of_folder(place))
    if "trainer/main_ppo.py" not in files:
        raise InputError(
            f"{place} has no verl: there is no verl/trainer/main_ppo.py",
            hint="Name a wheel, a checkout of verl, or the site-packages that hold it",
        )
    return files


def _of_folder(place: Path) -> Iterator[tuple[str, str]]:
    folder = next((each for each in (place / "verl", place) if (each / "trainer").is_dir()), place / "verl")
    for count, path in enumerate(sorted(folder.rglob("*"))):
        if count > _MAX_FILES:
            break
        if (path.suffix in (".py", ".yaml") or path.name == "version") and path.is_file():
            yield path.relative_to(folder).as_posix(), path.read_text(encoding="utf-8", errors="replace")


def _of_wheel(place: Path) -> Iterator[tuple[str, str]]:
    try:
        with zipfile.ZipFile(place) as wheel:
            for entry in wheel.infolist()[:_MAX_FILES]:
                name = entry.filename
                is_ours = name.startswith("verl/") and name.endswith((".py", ".yaml", "/version"))
                if is_ours and entry.file_size <= _MAX_BYTES:
                    yield name.removeprefix("verl/"), wheel.read(entry).decode("utf-8", "replace")
    except (OSError, zipfile.BadZipFile) as error:
        raise InputError(f"{place} cannot be read as a wheel: {error}") from error


def read_source(files: Mapping[str, str]) -> Source:
    """What `shapes.py` keeps of a release, from its files."""
    package = _Package(files)
    used = {target for path, text in files.items() if path.startswith("trainer/config/")
            for target in _TARGET.findall(text)}  # fmt: skip
    targets = {each: found for each in sorted(used) if (found := package.resolve(each)) is not None}
    shapes: dict[str, Shape] = {}
    waiting = list(targets.values())
    waiting += [found for each in ("DisaggregationConfig", "RolloutCorrectionConfig", "ServerConfig")
                if (found := package.find(each)) is not None]  # fmt: skip
    while waiting:
        name = waiting.pop()
        if name in shapes or (shape := package.shape(name)) is None:
            continue
        shapes[name] = shape
        waiting += [*shape.bases, *(each.type for each in shape.fields.values() if "." in each.type)]
    cited = {shape.at for shape in shapes.values()} | {file for file, _ in package.functions().values()}
    return Source(
        version=files.get("version/version", "").strip(),
        shapes=shapes,
        targets={each: name for each, name in targets.items() if name in shapes},
        functions=package.functions(),
        names=package.names,
        constants={file: values for file in sorted(cited) if (values := package.constants(file))},
        reads=package.reads(),
        programs=package.programs(),
    )


class _Package:
    """verl's modules, parsed when they are asked for."""

    def __init__(self, files: Mapping[str, str]) -> None:
        self.files = files
        self._trees: dict[str, ast.Module] = {}

    def tree(self, path: str) -> ast.Module:
        if path not in self._trees:
            try:
                self._trees[path] = ast.parse(self.files[path])
            except SyntaxError:
                self._trees[path] = ast.Module([], [])
        return self._trees[path]

    def path_of(self, module: str) -> str | None:
        """`verl.workers.config` -> `workers/config/__init__.py`."""
        inner = module.removeprefix("verl").removeprefix(".").replace(".", "/")
        options = (f"{inner}.py", f"{inner}/__init__.py".removeprefix("/"))
        return next((each for each in options if each in self.files), None)

    def resolve(self, name: str, depth: int = 0) -> str | None:
        """The module and name that define a class, through whatever re-exports it."""
        module, _, last = name.rpartition(".")
        path = self.path_of(module) if module.split(".")[0] == "verl" else None
        if path is None or depth > 6:
            return None
        nodes = self.tree(path).body
        if any(isinstance(node, ast.ClassDef) and node.name == last for node in nodes):
            return name
        for node in nodes:
            if not isinstance(node, ast.ImportFrom):
                continue
            source = self._absolute(node, path)
            for alias in node.names:
                if alias.name == "*" or (alias.asname or alias.name) == last:
                    wanted = last if alias.name == "*" else alias.name
                    if found := self.resolve(f"{source}.{wanted}", depth + 1):
                        return found
        return None

    @staticmethod
    def _absolute(node: ast.ImportFrom, path: str) -> str:
        if not node.level:
            return node.module or ""
        package = ["verl", *path.split("/")[:-1]]
        above = package[: len(package) - node.level + 1]
        return ".".join([*above, *([node.module] if node.module else [])])

    def find(self, class_name: str) -> str | None:
        """A class of verl's configuration by its last name."""
        for path in sorted(self.files):
            if re.match(r"(workers|trainer)/config/\w+\.py$", path):
                module = f"verl.{path.removesuffix('.py').replace('/', '.')}"
                if any(isinstance(node, ast.ClassDef) and node.name == class_name for node in self.tree(path).body):
                    return f"{module}.{class_name}"
        return None

    def shape(self, name: str) -> Shape | None:
        module, _, last = name.rpartition(".")
        path = self.path_of(module)
        if path is None:
            return None
        node = next(each for each in self.tree(path).body if isinstance(each, ast.ClassDef) and each.name == last)
        bases = [found for each in node.bases if (found := self.resolve(f"{module}.{ast.unparse(each)}"))]
        inherited = [shape for each in bases if (shape := self.shape(each)) is not None]
        is_dataclass = any("dataclass" in ast.unparse(each) for each in node.decorator_list)
        if not is_dataclass and not inherited:
            return None
        fields: dict[str, Field] = {}
        for shape in reversed(inherited):
            fields.update(shape.fields)
        for item in node.body:
            if not (is_dataclass and isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)):
                continue
            if (made := self._field(item, module)) is not None:
                fields[item.target.id] = made
        methods = {item.name: ast.unparse(_bare(item)) for item in node.body
                   if isinstance(item, ast.FunctionDef) and item.name in _CHECKS}  # fmt: skip
        above = tuple(dict.fromkeys(each for shape in inherited for each in (shape.name, *shape.bases)))
        return Shape(name, path, above, fields, methods)

    def _field(self, item: ast.AnnAssign, module: str) -> Field | None:
        text = ast.unparse(item.annotation)
        if text.startswith(("ClassVar", "typing.ClassVar")):
            return None
        kind, optional = self._kind(item.annotation, module)
        if item.value is None:
            return Field(kind, optional, is_required=True)
        if ast.unparse(item.value) in ("MISSING", "omegaconf.MISSING"):
            return Field(kind, optional, "???")
        try:
            default = ast.literal_eval(item.value)
        except ValueError:
            return Field(kind, optional, is_made=True)
        default = list(default) if isinstance(default, tuple) else default
        return Field(kind, optional or default is None, default)

    def _kind(self, node: ast.expr, module: str) -> tuple[str, bool]:  # noqa: PLR0911  a form a line
        """The type of an annotation as `Field` has it, and whether None belongs to it."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node = ast.parse(node.value, mode="eval").body
        if isinstance(node, ast.Constant) and node.value is None:
            return "None", True
        if isinstance(node, ast.BinOp):
            return self._union([node.left, node.right], module)
        if isinstance(node, ast.Subscript):
            outer = ast.unparse(node.value).rpartition(".")[2]
            inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            if outer == "Optional":
                return self._kind(inner[0], module)[0], True
            if outer == "Union":
                return self._union(inner, module)
            if outer == "Literal":
                kinds = {type(ast.literal_eval(each)).__name__ for each in inner}
                return (kinds.pop() if len(kinds) == 1 else "any"), False
            return _CONTAINERS.get(outer, "any"), False
        name = ast.unparse(node)
        last = name.rpartition(".")[2]
        if last in _SCALARS:
            return last, False
        if last in _CONTAINERS:
            return _CONTAINERS[last], False
        return self.resolve(f"{module}.{name}") or "any", False

    def _union(self, parts: list[ast.expr], module: str) -> tuple[str, bool]:
        kinds = [self._kind(each, module) for each in parts]
        plain = {kind for kind, _ in kinds if kind != "None"}
        return (plain.pop() if len(plain) == 1 else "any"), any(optional for _, optional in kinds)

    def functions(self) -> dict[str, tuple[str, str]]:
        found = {}
        for path, names in _DRIVER.items():
            for node in self.tree(path).body if path in self.files else ():
                if isinstance(node, ast.FunctionDef) and node.name in names:
                    found[node.name] = (path, ast.unparse(_bare(node)))
        return found

    @cached_property
    def names(self) -> dict[str, tuple[str, ...]]:
        """All that is registered by a decorator or a call `register...(NAME)`, and a few lists of names."""
        found: dict[str, set[str]] = {}
        for path in sorted(self.files):
            if not path.endswith(".py") or "register" not in self.files[path]:
                continue
            for node in ast.walk(self.tree(path)):
                calls = getattr(node, "decorator_list", [])
                if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
                    calls = [node.value]
                for call in calls:
                    if isinstance(call, ast.Call):
                        for registry, name in self._registered(call, path):
                            found.setdefault(registry, set()).add(name)
        found["loggers"] = set(self._literal("utils/tracking.py", "supported_backend"))
        found["rollouts"] = {"/".join(each) for each in self._literal("workers/rollout/base.py", "_ROLLOUT_REGISTRY")}
        for width in ("HALF_LIST", "FLOAT_LIST", "BFLOAT_LIST"):
            found.setdefault("dtypes", set()).update(
                each for each in self._literal("utils/torch_dtypes.py", width) if isinstance(each, str)
            )
        return {registry: tuple(sorted(names)) for registry, names in sorted(found.items()) if names}

    def _registered(self, call: ast.Call, path: str) -> Iterator[tuple[str, str]]:
        registry = ast.unparse(call.func)
        if "register" not in registry.rpartition(".")[2] or registry.startswith(_OF_OTHERS):
            return
        registry = self._original(registry, path)
        if registry == "register":  # which means another thing in each package
            registry = f"register@{path.rpartition('/')[0]}"
        options = {each.arg: each.value for each in call.keywords}
        if {"dispatch_mode", "platform"} & options.keys():
            return
        if "backend" in options:
            model = options.get("model_type")
            registry += f"/{model.value!s}" if isinstance(model, ast.Constant) else ""
        for value in (*call.args[:1], *([options["backend"]] if "backend" in options else ())):
            for name in self._texts(value, path):
                yield registry, name

    def _original(self, name: str, path: str) -> str:
        """The name of a function before an import gave it another one."""
        for node in self.tree(path).body:
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    if alias.asname == name and (source := self._absolute(node, path)).startswith("verl."):
                        folder = source.removeprefix("verl.").replace(".", "/").rpartition("/")[0]
                        return f"register@{folder}" if alias.name == "register" else alias.name
        return name

    def _texts(self, node: ast.AST, path: str) -> Iterator[str]:
        """Text in an expression: literal, in a list or a call, or of an enumeration's member."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            members = self._enumeration(node.value.id, path)
            if node.attr in members:
                yield members[node.attr]
        elif isinstance(node, (ast.List, ast.Tuple)):
            for each in node.elts:
                yield from self._texts(each, path)
        elif isinstance(node, ast.Call):
            for keyword in node.keywords:
                yield from self._texts(keyword.value, path)

    def _enumeration(self, name: str, path: str) -> dict[str, str]:
        for node in self.tree(path).body:
            if isinstance(node, ast.ClassDef) and node.name == name:
                return {
                    item.targets[0].id: item.value.value
                    for item in node.body
                    if isinstance(item, ast.Assign) and isinstance(item.targets[0], ast.Name)
                    and isinstance(item.value, ast.Constant) and isinstance(item.value.value, str)
                }  # fmt: skip
        return {}

    def programs(self) -> dict[str, str]:
        """Modules that `python -m` runs, with the configuration that `hydra.main` gives them; "" without one."""
        found = {}
        for path in sorted(self.files):
            is_run = "__main__" in self.files[path] or path.endswith("__main__.py")
            if path.endswith(".py") and is_run and (program := program_in(self.files[path], path)) is not None:
                inner = path.removesuffix(".py").removesuffix("/__main__").replace("/", ".")
                found[f"verl.{inner}"] = program.config
        return found

    def constants(self, path: str) -> dict[str, Any]:
        """Names that a module gives a literal value."""
        found = {}
        for node in self.tree(path).body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                value = _literal_or_none(node.value)
                if value is not None and isinstance(value, str | int | float | list | tuple):
                    found[node.targets[0].id] = list(value) if isinstance(value, tuple) else value
        return found

    def reads(self) -> frozenset[str]:
        """Names of keys that any module reads: attributes and `get` of what is called a configuration."""
        found: set[str] = set()
        for path in self.files:
            if not path.endswith(".py"):
                continue
            for node in ast.walk(self.tree(path)):
                if isinstance(node, ast.Attribute) and _CONFIG.search(ast.unparse(node.value)):
                    found.add(node.attr)
                elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
                    found.add(str(node.slice.value))
                elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                    if node.func.attr in ("get", "pop", "select") and node.args:
                        found.update(str(each.value) for each in node.args if isinstance(each, ast.Constant))
                elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "hasattr"):
                    found.update(str(each.value) for each in node.args[1:2] if isinstance(each, ast.Constant))
        words = {part for each in found for part in each.split(".")}
        return frozenset(each for each in words if each.isidentifier() and len(each) < 60)

    def _literal(self, path: str, name: str) -> list[Any]:
        """Members of a list, or keys of a dictionary, that a file assigns to a name."""
        for node in ast.walk(self.tree(path)) if path in self.files else ():
            if isinstance(node, ast.Assign | ast.AnnAssign):
                target = node.targets[0] if isinstance(node, ast.Assign) else node.target
                if isinstance(target, ast.Name) and target.id == name:
                    value = node.value
                    parts = value.keys if isinstance(value, ast.Dict) else getattr(value, "elts", [])
                    return [literal for each in parts if (literal := _literal_or_none(each)) is not None]
        return []


def _literal_or_none(node: ast.expr | None) -> Any:
    try:
        return ast.literal_eval(node) if node is not None else None
    except ValueError:
        return None


def _bare(node: ast.FunctionDef) -> ast.FunctionDef:
    """A function without its documentation and annotations of types."""
    body = node.body[1:] if ast.get_docstring(node) is not None and len(node.body) > 1 else node.body
    made = ast.FunctionDef(
        name=node.name, args=node.args, body=body, decorator_list=[], returns=None, lineno=node.lineno, col_offset=0
    )
    made.decorator_list = [each for each in node.decorator_list if ast.unparse(each) in ("property", "staticmethod")]
    if hasattr(node, "type_params"):
        setattr(made, "type_params", [])  # noqa: B010  of Python 3.12
    return made
