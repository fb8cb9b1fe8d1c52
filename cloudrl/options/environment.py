"""The variables of a job and Ray's runtime environment, as options and keywords give them."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from cloudrl.errors import InputError, SpecError
from cloudrl.foreign import Malformed, read_file
from cloudrl.spec.fields import environment
from cloudrl.spec.quoting import masked, quoted
from cloudrl.spec.yaml_core import load_yaml_1_1

_REMOTE = re.compile(r"[a-z0-9]+://", re.IGNORECASE)
_READ_BY_RAY = ("pip", "uv", "conda", "container", "image_uri", "config")
"""Fields of a runtime environment that Ray's own client checks, and whose files it reads."""


def parse_env(items: Iterable[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Read `K=V`, and `K` alone, which takes its value from `environ`.

    Raises:
        InputError: A name is not a variable name, or a `K` alone is not in `environ`.
    """
    values = {}
    for item in items:
        name, equals, value = item.partition("=")
        if not equals and name not in environ:
            raise InputError(
                f"--env: this shell has no variable {quoted(name)}",
                hint=f"export {masked(name)}=...\nOr give its value: --env {masked(name)}=...",
            )
        values[name] = value if equals else environ[name]
    return checked_env(values, "--env")


def checked_env(values: Any, where: str) -> dict[str, str]:
    """Variables whose names and values a process can have; numbers become text.

    Raises:
        InputError: With `where` in front of what is wrong.
    """
    try:
        return dict(environment(values))
    except SpecError as failure:
        raise InputError(f"{where}: {failure.message}", hint=failure.hint) from None


def load_runtime_env(path: Path) -> dict[str, Any]:
    """Read a file as `ray job submit --runtime-env` takes it.

    Raises:
        InputError: There is no such file, it is not a mapping in YAML, or a field is not what it should be.
    """
    where = f"--runtime-env {path}"
    try:
        values = load_yaml_1_1(read_file(path).decode(), where)
    except UnicodeDecodeError as failure:
        raise InputError(f"{where}: not a text file in UTF-8 (byte {failure.start})") from None
    except (OSError, Malformed) as failure:
        raise InputError(f"{where}: {getattr(failure, 'strerror', None) or failure}") from None
    except SpecError as failure:
        raise InputError(f"{failure.message}, so it is not YAML", hint=failure.hint) from None
    return checked_runtime_env({} if values is None else values, where)


def checked_runtime_env(values: Any, where: str) -> dict[str, Any]:
    """A runtime environment whose `working_dir`, `excludes`, `env_vars` and `py_modules` are what they should be.

    Other fields are passed on to Ray, after Ray's own check where it has one on the client's side.

    Raises:
        InputError: With `where` in front of what is wrong.
    """
    if not isinstance(values, Mapping) or not all(isinstance(key, str) for key in values):
        raise InputError(f"{where}: expected fields such as working_dir, excludes and env_vars")
    values = dict(values)
    if values.get("env_vars") is not None:
        values["env_vars"] = checked_env(values["env_vars"], f"{where}: env_vars")
    if not _is_texts(values.get("excludes") or []):
        raise InputError(f"{where}: excludes {quoted(values['excludes'])} is not a list of patterns")
    if not isinstance(values.get("working_dir") or "", str):
        raise InputError(f"{where}: working_dir {quoted(values['working_dir'])} is not a path")
    modules = values.get("py_modules") or []
    if not _is_texts(modules) or not all(is_remote(module) for module in modules):
        raise InputError(
            f"{where}: py_modules {quoted(modules)} are not all URLs, and cloudrl uploads only working_dir",
            hint="Put the modules under --working-dir",
        )
    return _checked_by_ray(values, where) if any(key in values for key in _READ_BY_RAY) else values


def is_remote(place: str) -> bool:
    """Whether this is a URL that the cluster fetches by itself, such as `s3://` or `gcs://`."""
    return _REMOTE.match(place) is not None


def _checked_by_ray(values: dict[str, Any], where: str) -> dict[str, Any]:
    from ray.runtime_env import RuntimeEnv

    try:
        return dict(RuntimeEnv(**values).to_dict())
    except (TypeError, ValueError, OSError) as failure:
        raise InputError(f"{where}: Ray refuses it: {failure}") from failure


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)
