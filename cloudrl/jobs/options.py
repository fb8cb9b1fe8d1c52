"""What the user asks for when a job is submitted, and its variables and Ray's runtime environment as they are read."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict

from cloudrl.errors import InputError, SpecError
from cloudrl.foreign import Malformed, read_file
from cloudrl.spec.fields import environment
from cloudrl.spec.quoting import masked, quoted
from cloudrl.spec.yaml_core import load_yaml_1_1

_REMOTE = re.compile(r"[a-z0-9]+://", re.IGNORECASE)
_READ_BY_RAY = ("pip", "uv", "conda", "container", "image_uri", "config")
"""Fields of a runtime environment that Ray's own client checks, and whose files it reads."""


@dataclass(frozen=True)
class SubmitOptions:
    """None leaves the choice to cloudrl."""

    overrides: Mapping[str, Any] = field(default_factory=dict)
    """In verl's keys; they win over recipe and cluster."""
    name: str | None = None
    """The run's name; the same name again continues from the newest step that its ranks can load. None makes one of
    recipe and time, so that no run continues another by accident."""
    steps: int | None = None
    """Total training steps of the run."""
    model: str | None = None
    """A model on the Hub, one that the cluster has prepared, a folder of this machine (`./my-model`), or an absolute
    one on the nodes."""
    data: tuple[str, ...] = ()
    """Data sets that the cluster has prepared, parquet files, and folders with train.parquet and test.parquet."""
    reward: str | None = None
    """A Python file, and after a colon the function in it."""
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Variables; they win over those of `runtime_env` and recipe. Secrets among them reach the job through the agents,
    where the cluster has them and its Ray is 2.43 or later."""
    runtime_env: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Fields of Ray's runtime environment, as `load_runtime_env` reads them."""
    working_dir: str | None = None
    """A folder to send along, or a URL; wins over the one of `runtime_env`. The job starts in it, and a verl in it
    takes the place of the nodes'."""
    submission_id: str | None = None
    """Ray's id of the job, which makes a repeated call harmless; None makes one of name and time."""
    debug: str | None = None
    """Which debugger `breakpoint()` waits for, "debugpy" or "pdb", Ray's legacy one; `cloudrl debug` is its client.
    With None, `breakpoint()` does nothing in a job."""
    post_mortem: bool = False
    """Whether a task that fails waits for the debugger, too; without `debug` for debugpy."""
    unchecked: bool = False
    """Send the job also where its configuration cannot work by what is known of verl; the reasons become notes."""

    @property
    def working_dir_source(self) -> str | None:
        """The working directory, wherever it was asked for."""
        return self.working_dir or self.runtime_env.get("working_dir")


class JobKeywords(TypedDict, total=False):
    """What can be asked for beyond a recipe and its overrides, as keyword arguments; see `SubmitOptions`."""

    name: str | None
    steps: int | None
    model: str | None
    data: str | Sequence[str]
    reward: str | None
    env: Mapping[str, str]
    runtime_env: Mapping[str, Any]
    working_dir: str | None
    submission_id: str | None
    debug: str | None
    post_mortem: bool
    unchecked: bool


def submit_options(overrides: Mapping[str, Any] | None, keywords: JobKeywords) -> SubmitOptions:
    """The same for the planning of a job.

    Raises:
        InputError: `runtime_env` is none.
    """
    data = keywords.get("data", ())
    checked: dict[str, Any] = {
        "overrides": overrides or {},
        "data": (data,) if isinstance(data, str) else tuple(data),
        "runtime_env": checked_runtime_env(keywords.get("runtime_env", {}), "runtime_env"),
    }
    return SubmitOptions(**{**keywords, **checked})


def parse_env(items: Iterable[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Read `K=V`, and `K` alone, which takes its value from `environ`.

    Raises:
        InputError: A name is no variable name, or a `K` alone is not in `environ`.
    """
    values = {}
    for item in items:
        name, equals, value = item.partition("=")
        if not equals and name not in environ:
            raise InputError(
                f"--env: this shell has no variable {quoted(name)}",
                hint=f"export {masked(name)}=..., or --env {masked(name)}=...",
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
        InputError: There is no such file, it is no mapping in YAML, or a field is not what it should be.
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
