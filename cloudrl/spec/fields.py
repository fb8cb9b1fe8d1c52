"""Types of fields that several models share. Each check raises `SpecError` with the value in its message."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Annotated, Any

from pydantic import PlainValidator

from cloudrl.errors import SpecError
from cloudrl.spec.base import FrozenDict

_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DATA_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?")
_HUB_MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?")


def text(value: object) -> str:
    """A string without NUL, which neither a command line nor an environment can hold."""
    if not isinstance(value, str):
        raise SpecError(f"{value!r} is not text")
    if "\0" in value:
        raise SpecError(f"{value!r} holds a NUL character")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise SpecError(f"{value!r} holds a lone surrogate, which cannot be written as UTF-8") from None
    return value


def absolute_path(value: object) -> str:
    """An absolute POSIX path without `..`, in its shortest spelling."""
    path = PurePosixPath(one_line(value))
    if not path.is_absolute():
        raise SpecError(f"{value!r} is not an absolute path", hint=f"For example '/{path}'")
    if ".." in path.parts:
        raise SpecError(f"{value!r} has '..' in it", hint="Write the folder itself")
    # PurePosixPath keeps exactly two leading slashes, as POSIX allows; we mean one.
    return "/" + str(path).lstrip("/")


def mount_path(value: object) -> str:
    """An absolute path that dstack's short form `/host:/container` can hold."""
    path = absolute_path(value)
    if ":" in path:
        raise SpecError(f"{value!r} has a colon in it, which separates host and container in a volume")
    return path


def one_line(value: object) -> str:
    """Text that is not empty and holds no control character such as a line break."""
    checked = text(value)
    if not checked.strip():
        raise SpecError(f"{value!r} is empty")
    if any(not character.isprintable() for character in checked):
        raise SpecError(f"{value!r} holds a line break or a control character")
    return checked


def command(value: object) -> str:
    """A shell command: any text that is not empty."""
    checked = text(value).strip()
    if not checked:
        raise SpecError("a command is empty")
    return checked


def env_name(value: object) -> str:
    """The name of an environment variable."""
    if not isinstance(value, str) or not _ENV_NAME.fullmatch(value):
        raise SpecError(f"{value!r} is not a variable name", hint="Letters, digits and _, no digit first")
    return value


def data_name(value: object) -> str:
    """The name of a data set: `gsm8k`, or `owner/name` on the Hugging Face Hub."""
    if not isinstance(value, str) or not _DATA_NAME.fullmatch(value):
        raise SpecError(f"{value!r} is not the name of a data set", hint="For example 'gsm8k'")
    return value


def model_name(value: object) -> str:
    """A model: `Qwen/Qwen2.5-7B-Instruct` on the Hub, an absolute folder, or `tiny-qwen2`."""
    if isinstance(value, str) and value.startswith("/"):
        return absolute_path(value)
    if not isinstance(value, str) or not _HUB_MODEL.fullmatch(value):
        raise SpecError(
            f"{value!r} is neither a model on the Hugging Face Hub nor an absolute path",
            hint="For example 'Qwen/Qwen2.5-7B-Instruct'",
        )
    return value


def _each(check: Callable[[object], str]) -> Callable[[object], tuple[str, ...]]:
    def checked(value: object) -> tuple[str, ...]:
        if isinstance(value, str):
            raise SpecError(f"{value!r} is one text where a list is expected; write [{value!r}]")
        if not isinstance(value, Sequence):
            raise SpecError(f"{value!r} is not a list")
        return tuple(check(item) for item in value)

    return checked


def _each_once(check: Callable[[object], str]) -> Callable[[object], tuple[str, ...]]:
    def checked(value: object) -> tuple[str, ...]:
        items = _each(check)(value)
        for index, item in enumerate(items):
            if item in items[:index]:
                raise SpecError(f"{item!r} stands twice")
        return items

    return checked


def _environment(value: object) -> FrozenDict[str]:
    if not isinstance(value, Mapping):
        raise SpecError(
            f"{value!r} is not a mapping of names to values", hint="For example {'NCCL_DEBUG': 'INFO'}"
        )
    return FrozenDict({env_name(name): _env_value(name, item) for name, item in value.items()})


def _env_value(name: str, value: object) -> str:
    if isinstance(value, bool):
        raise SpecError(
            f"{name} is {value!r}, which could mean several texts", hint=f"Write {name}: '1' or '0'"
        )
    if isinstance(value, (int, float)):
        return str(value)
    if value is None:
        raise SpecError(f"{name} has no value", hint="Secrets are given when a job is submitted: --env NAME")
    return text(value)


def optional(check: Callable[[Any], str]) -> Callable[[object], str | None]:
    """`check`, or None for None."""

    def checked(value: object) -> str | None:
        return None if value is None else check(value)

    return checked


# Sequence and Mapping rather than tuple and dict: what is written is a list or dict, what is kept is frozen.
Commands = Annotated[Sequence[str], PlainValidator(_each(command))]
Words = Annotated[Sequence[str], PlainValidator(_each(one_line))]
DataNames = Annotated[Sequence[str], PlainValidator(_each_once(data_name))]
ModelNames = Annotated[Sequence[str], PlainValidator(_each_once(model_name))]
Environment = Annotated[Mapping[str, str], PlainValidator(_environment)]
