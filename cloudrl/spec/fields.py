"""Types of fields that several models share. Each check raises `SpecError` with the value in its message.

Of variables of an environment the message has the names alone: any of them may be a secret.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Annotated, Any, TypeVar

from pydantic import Field, PlainValidator

from cloudrl.errors import SpecError
from cloudrl.protocol.secret_names import command_with_secret
from cloudrl.spec.base import FrozenDict
from cloudrl.spec.own_variables import refuse_own_variable
from cloudrl.spec.quoting import is_text, kind_of, quoted

T = TypeVar("T")

_WORD = r"[A-Za-z0-9][A-Za-z0-9._-]*"


def text(value: object) -> str:
    """A string without NUL, which neither a command line nor an environment can hold."""
    if not isinstance(value, str):
        raise SpecError(f"{quoted(value)} is not text")
    return _writable(value, "the text")


def _writable(value: str, shown: str) -> str:
    if "\0" in value:
        raise SpecError(f"{shown} holds a NUL character")
    if not is_text(value):
        raise SpecError(f"{shown} holds a lone surrogate, which cannot be written as UTF-8")
    return value


def absolute_path(value: object) -> str:
    """An absolute POSIX path without `..`, in its shortest spelling."""
    path = PurePosixPath(one_line(value))
    if not path.is_absolute():
        raise SpecError(f"{quoted(value)} is not an absolute path", hint=f"For example '/{path}'")
    if ".." in path.parts:
        raise SpecError(f"{quoted(value)} has '..' in it", hint="Write the folder itself")
    # PurePosixPath keeps exactly two leading slashes, as POSIX allows; we mean one.
    return "/" + str(path).lstrip("/")


def mount_path(value: object) -> str:
    """An absolute path that dstack's short form `/host:/container` can hold."""
    path = absolute_path(value)
    if ":" in path:
        raise SpecError(f"{quoted(value)} has a colon in it, which separates host and container in a volume")
    return path


def one_line(value: object) -> str:
    """Text that is not empty and holds no control character such as a line break."""
    checked = text(value)
    if not checked.strip():
        raise SpecError(f"{quoted(value)} is empty")
    if any(not character.isprintable() for character in checked):
        raise SpecError(f"{quoted(value)} holds a line break or a control character")
    return checked


def plain_text(value: object) -> str:
    """Text in one line; a number is taken as its text. What it means is for the provider's own models to judge."""
    return str(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else one_line(value)


def command(value: object) -> str:
    """A shell command: any text that is not empty, without the values of secrets."""
    checked = text(value).strip()
    if not checked:
        raise SpecError("a command is empty")
    if command_with_secret(checked):  # it stands in files, and in the lists of processes that all users see
        raise SpecError(
            "a command holds a password or a token",
            hint="Give the secret as a variable (--secret NAME) and let the command read it: $NAME",
        )
    return checked


def matching(pattern: str, what: str, hint: str) -> Callable[[object], str]:
    """A check for a text of one form; `what` says in the message what the value should be."""

    def checked(value: object) -> str:
        if not isinstance(value, str) or not re.fullmatch(pattern, value):
            is_number = isinstance(value, (int, float)) and re.fullmatch(pattern, str(value))
            meant = f"; did you mean '{value}', in quotes?" if is_number else ""
            raise SpecError(f"{quoted(value)} is not {what}{meant}", hint=hint)
        return value

    return checked


env_name = matching(r"[A-Za-z_][A-Za-z0-9_]*", "a variable name", "Letters, digits and _, no digit first")
data_name = matching(f"{_WORD}(/{_WORD})?", "the name of a data set", "For example 'gsm8k'")


def data_name_or_file(value: object) -> str:
    """A data set of a cluster, or a file or folder of this machine: `./questions.jsonl`."""
    if isinstance(value, str) and value.startswith(("./", "../", "~/")):
        return one_line(value)
    return data_name(value)


def model_name(value: object) -> str:
    """A model: `Qwen/Qwen2.5-7B-Instruct` on the Hub, an absolute folder, or one that nodes make: `tiny-adder`."""
    if isinstance(value, str) and value.startswith("/"):
        return absolute_path(value)
    if not isinstance(value, str) or not re.fullmatch(f"{_WORD}(/{_WORD})?", value):
        raise SpecError(
            f"{quoted(value)} is neither a model on the Hugging Face Hub nor an absolute path",
            hint="For example 'Qwen/Qwen2.5-7B-Instruct'",
        )
    return value


def list_of(check: Callable[[object], T]) -> Callable[[object], tuple[T, ...]]:
    """A check for a list whose items pass `check`."""

    def checked(value: object) -> tuple[T, ...]:
        if isinstance(value, str):
            raise SpecError(f"{quoted(value)} is one text where a list is expected; write [{quoted(value)}]")
        if not isinstance(value, Sequence):
            raise SpecError(f"{quoted(value)} is not a list")
        return tuple(check(item) for item in value)

    return checked


def unique_list_of(
    check: Callable[[object], T],
    by: Callable[[T], object] = lambda item: item,
    message: str = "{!r} stands twice",
    hint: str | None = None,
) -> Callable[[object], tuple[T, ...]]:
    """The same for a list in which no two items have the same `by`, which the message can show."""

    def checked(value: object) -> tuple[T, ...]:
        items = list_of(check)(value)
        keys = list(map(by, items))
        for index, key in enumerate(keys):
            if key in keys[:index]:
                raise SpecError(message.format(key), hint=hint)
        return items

    return checked


def environment(value: object) -> FrozenDict[str]:
    """Variables whose names and values a process can have; numbers become text."""
    if not isinstance(value, Mapping):
        example = "For example {'NCCL_DEBUG': 'INFO'}"
        raise SpecError(f"this is {kind_of(value)}, not a mapping of names to values", hint=example)
    for name in value:
        refuse_own_variable(env_name(name))
    return FrozenDict({name: _env_value(name, item) for name, item in value.items()})


def _env_value(name: str, value: object) -> str:
    if isinstance(value, bool):
        raise SpecError(f"{name} is {value!r}, which could mean several texts", hint=f"Write {name}: '1' or '0'")
    if isinstance(value, (int, float)):
        return str(value)
    if value is None:
        raise SpecError(f"{name} has no value", hint="Secrets are given when a job is submitted: --env NAME")
    if not isinstance(value, str):  # of a variable nothing is quoted: it may be a secret whatever its name is
        raise SpecError(f"{name} is {kind_of(value)}, not text", hint=f"Write {name}: '...', in quotes")
    return _writable(value, f"the value of {name}")


def optional(check: Callable[[Any], T]) -> Callable[[object], T | None]:
    """`check`, or None for None."""

    def checked(value: object) -> T | None:
        return None if value is None else check(value)

    return checked


release = matching(r"[0-9]+\.[0-9]+(\.[0-9]+)?([a-z0-9.]+)?", "a release of verl", "For example '0.9.1'")


def spelled(parse: Callable[[object], object]) -> PlainValidator:
    """Check with `parse`, if there is a value, and keep its text in the usual spelling."""
    return PlainValidator(optional(lambda value: str(parse(value))))


def _section(value: object) -> FrozenDict[Any]:
    if not isinstance(value, Mapping):
        raise SpecError(f"{quoted(value)} is not a mapping", hint="For example {'backends': ['aws', 'gcp']}")
    return frozen(value)  # type: ignore[no-any-return]


def frozen(value: object) -> Any:
    """What YAML can hold, frozen all the way down."""
    if isinstance(value, Mapping):
        return FrozenDict({text(key): frozen(item) for key, item in value.items()})
    if isinstance(value, (list, tuple)):
        return tuple(frozen(item) for item in value)
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if not isinstance(value, str):
        raise SpecError(
            f"{quoted(value)} is nothing that YAML can hold", hint="Write text, a number, a list or a mapping"
        )
    return text(value)


Positive = Annotated[int, Field(ge=1)]
Dollars = Annotated[float, Field(gt=0, allow_inf_nan=False)]
PlainText = Annotated[str | None, PlainValidator(optional(plain_text))]
# Sequence and Mapping rather than tuple and dict: what is written is a list or dict, what is kept is frozen.
Commands = Annotated[Sequence[str], PlainValidator(list_of(command))]
Words = Annotated[Sequence[str], PlainValidator(list_of(one_line))]
DataNamesOrFiles = Annotated[Sequence[str], PlainValidator(unique_list_of(data_name_or_file))]
ModelNames = Annotated[Sequence[str], PlainValidator(unique_list_of(model_name))]
Environment = Annotated[Mapping[str, str], PlainValidator(environment)]
Section = Annotated[Mapping[str, Any], PlainValidator(_section)]
"""A plain mapping that is passed through as it is, frozen all the way down. The provider's own models check it."""
