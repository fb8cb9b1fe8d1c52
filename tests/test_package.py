"""The public names of `cloudrl`, and that importing it costs nothing."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import cloudrl
import cloudrl.jobs
import cloudrl.logs.causes
import cloudrl.sdk

PUBLIC = [name for name in cloudrl.__all__ if name != "__version__"]


def _typed(package: ModuleType = cloudrl) -> dict[str, str]:
    """name -> home, as type checkers read it: the imports under TYPE_CHECKING."""
    tree = ast.parse(Path(str(package.__file__)).read_text())
    [guarded] = [node for node in tree.body if isinstance(node, ast.If)]
    imports = [node for node in guarded.body if isinstance(node, ast.ImportFrom)]
    assert len(imports) == len(guarded.body)
    assert all(alias.asname == alias.name for node in imports for alias in node.names), "`import X as X` re-exports"
    return {alias.name: str(node.module) for node in imports for alias in node.names}


def test_the_lazy_names_are_the_typed_names() -> None:
    for name, home in _typed().items():
        assert getattr(cloudrl, name) is getattr(import_module(home), name)
    assert cloudrl.__all__ == sorted([*_typed(), "__version__"])
    assert dir(cloudrl) == cloudrl.__all__


@pytest.mark.parametrize("package", [cloudrl.jobs, cloudrl.logs.causes, cloudrl.sdk])
def test_lazy_packages_have_what_type_checkers_read(package: ModuleType) -> None:
    typed = _typed(package)
    assert typed
    for name, home in typed.items():
        assert package.__getattr__(name) is getattr(import_module(home), name)
    with pytest.raises(AttributeError, match=f"module '{package.__name__}' has no attribute 'Clutser'"):
        package.__getattr__("Clutser")


@pytest.mark.parametrize("name", PUBLIC)
def test_every_name_is_there_and_has_a_docstring(name: str) -> None:
    assert inspect.getdoc(getattr(cloudrl, name))


def test_all_errors_are_public() -> None:
    from cloudrl import errors

    tree = {name for name, each in vars(errors).items() if inspect.isclass(each) and issubclass(each, Exception)}
    assert tree <= set(cloudrl.__all__)


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(AttributeError, match="module 'cloudrl' has no attribute 'Clutser'"):
        _ = cloudrl.Clutser  # type: ignore[attr-defined]


def test_the_version_is_that_of_the_project(repository: Path) -> None:
    import tomllib

    assert tomllib.loads((repository / "pyproject.toml").read_text())["project"]["version"] == cloudrl.__version__


def test_it_is_typed() -> None:
    assert Path(str(cloudrl.__file__)).with_name("py.typed").is_file()


LOADED = "print([m for m in sys.modules if '.' not in m and m not in sys.stdlib_module_names])"
OURS = {"cloudrl", "__main__", "_distutils_hack"}


def _loaded(run_python: Callable[[str], str], module: str) -> set[str]:
    """What is not of the standard library after an import."""
    names = ast.literal_eval(run_python(f"import sys; import {module}; {LOADED}"))
    return {name for name in names if not name.startswith("__editable__")}


def test_importing_it_imports_nothing_else(run_python: Callable[[str], str]) -> None:
    code = "import sys; import cloudrl; print([m for m in sys.modules if m.startswith('cloudrl')])"
    assert run_python(code).strip() == "['cloudrl']"
    assert _loaded(run_python, "cloudrl") <= OURS


@pytest.mark.parametrize(
    "module",
    [
        "cloudrl.errors",
        "cloudrl.node.run",
        "cloudrl.node.subcommands",
        "cloudrl.data.addition",
        "cloudrl.verl_cpu.tiny_model",
    ],
)
def test_what_must_be_standard_library_only(module: str, run_python: Callable[[str], str]) -> None:
    """The node agent imports these under whatever Python an image has."""
    assert _loaded(run_python, module) <= OURS


@pytest.mark.io
def test_the_sdk_imports_no_heavy_package(run_python: Callable[[str], str]) -> None:
    heavy = [
        "dstack", "ray", "torch", "verl", "transformers", "datasets", "pyarrow", "numpy", "huggingface_hub", "typer",
    ]  # fmt: skip
    code = f"import sys, cloudrl; cloudrl.Cluster; cloudrl.connect; print([m for m in {heavy} if m in sys.modules])"
    assert run_python(code).strip() == "[]"
