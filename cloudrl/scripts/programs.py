"""Which program a call starts: one that trains, one for which cloudrl has a counterpart, or another."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from cloudrl.scripts.sandbox import Call
from cloudrl.spec.job import MAIN

_PYTHON = re.compile(r"python(3(\.\d+)?)?")
_LAUNCHERS = ("torchrun", "accelerate", "deepspeed")
_LAUNCHER_MODULES = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch")
_OVERRIDE = re.compile(r"(\+\+?|~)?[A-Za-z_][\w/]*(\.[\w-]+)*(@[\w.]*)?=", re.DOTALL)
_DOTTED = re.compile(r"(\+\+?|~)?[A-Za-z_]\w*(\.[\w-]+)+=", re.DOTALL)
_TRAINS = re.compile(r"(^|\.)(main_\w+|\w*trainer\w*|\w*_main|train\w*|run_\w+)$")
_VALUE_OPTIONS = frozenset({"-W", "-X", "--check-hash-based-pycs"})
_HYDRA_VALUES = ("--config-name", "-cn", "--config-path", "-cp", "--config-dir", "-cd", "--package", "-p")


class Kind(Enum):
    """What becomes of a call."""

    TRAINING = "training"
    """A program of verl, or with a configuration of Hydra's, that a job can run."""
    DATA = "data"
    MERGE = "merge"
    CODE = "code"
    """Python code of the script's own: `-c`, or from standard input."""
    OTHER = "other"


@dataclass(frozen=True)
class Program:
    """A Python program as a call starts it.

    Attributes:
        kind: What it is.
        entrypoint: The words before its own arguments.
        name: The module or file.
        arguments: Its own arguments.
    """

    kind: Kind
    entrypoint: tuple[str, ...]
    name: str
    arguments: tuple[str, ...] = ()

    @property
    def is_main(self) -> bool:
        """Whether it is verl's trainer."""
        return self.name == MAIN


def read_program(call: Call) -> Program | None:
    """The Python program that a call starts, by itself or through a launcher such as torchrun; None for another."""
    if not _PYTHON.fullmatch(call.program) and call.program not in _LAUNCHERS:
        return None
    words, at = call.arguments, 0
    while at < len(words):
        word = words[at]
        if word == "-m" and at + 1 < len(words):
            if words[at + 1] not in _LAUNCHER_MODULES:
                return _program(call, at + 2, words[at + 1])
            at += 2
        elif word in ("-c", "-") or (word.startswith("-c") and _PYTHON.fullmatch(call.program)):
            return Program(Kind.CODE, (call.program, word), "-c", tuple(words[at + 1 :]))
        elif word.endswith(".py"):
            return _program(call, at + 1, word)
        else:
            at += 2 if word in _VALUE_OPTIONS else 1
    if "stdin" in call.attached:
        return Program(Kind.CODE, (call.program,), "-", (call.attached["stdin"],))
    return None


def is_training(call: Call) -> bool:
    """Whether a call starts a training."""
    program = read_program(call)
    return program is not None and program.kind is Kind.TRAINING


def _program(call: Call, at: int, name: str) -> Program:
    words = tuple(word for word in call.arguments[:at] if word not in ("-u", "-B", "-O"))  # buffers, bytecode
    first = "python3" if call.program == "python" or call.program.startswith("python3.") else call.program
    return Program(_kind(name, call.arguments[at:]), (first, *words), name, call.arguments[at:])


def _kind(name: str, arguments: Sequence[str]) -> Kind:
    if "model_merger" in name:
        return Kind.MERGE
    if "data_preprocess" in name or "data_process" in name:
        return Kind.DATA
    dotted = sum(bool(_DOTTED.match(word)) for word in arguments)
    of_verl = name.startswith(("verl.", "recipe.", "verl/", "recipe/"))
    if name == MAIN or dotted >= 2 or (of_verl and (dotted or _TRAINS.search(name.removesuffix(".py")))):
        return Kind.TRAINING
    return Kind.OTHER


def is_override(word: str) -> bool:
    """Whether an argument has the form of an override of Hydra's, such as `trainer.nnodes=2`."""
    return _OVERRIDE.match(word) is not None or re.fullmatch(r"~[\w.@/]+", word) is not None


def is_dotted_override(word: str) -> bool:
    """The same with a dot in its key, which no argument of another program has by chance."""
    return _DOTTED.match(word) is not None


def split_arguments(arguments: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Options of Hydra's with their values, overrides, and words that are neither."""
    options, overrides, others = list[str](), list[str](), list[str]()
    words = list(arguments)
    while words:
        word = words.pop(0)
        if word in _HYDRA_VALUES and words:
            options += [f"{word}={words.pop(0)}" if word.startswith("--") else word]
            if not word.startswith("--"):
                options.append(words.pop(0))
        elif word.startswith("-"):
            options.append(word)
        elif is_override(word):
            overrides.append(word)
        else:
            others.append(word)
    return tuple(options), tuple(overrides), tuple(others)
