"""Programs that scripts call beside the training, and what does their work here."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from cloudrl.scripts.containers import container_sentence, read_container
from cloudrl.scripts.lines import Fate
from cloudrl.scripts.programs import Kind, Program
from cloudrl.scripts.sandbox import Call
from cloudrl.spec.yaml_core import load_value


class Counterpart(NamedTuple):
    """What becomes of a call."""

    fate: Fate
    why: str


_TABLE = Path(__file__).with_suffix(".yml")
_ROWS = tuple(
    (re.compile(row["call"], re.DOTALL), row["why"])
    for row in load_value(_TABLE.read_text(encoding="utf-8"), _TABLE.name)
)
_SERVER = re.compile(r"server|serve|retriev|sandbox", re.IGNORECASE)
_SILENT = frozenset({"whoami", "id", "uname", "uuidgen", "which", "true", "dirname", "nproc", "hostname", "getconf"})


def counterpart(call: Call, program: Program | None, *, same_machines: bool) -> Counterpart | None:
    """What becomes of a call that starts no training; None for one that is of no account.

    Args:
        call: The call.
        program: The Python program that it starts.
        same_machines: Whether the cluster is going to be on the script's own machines.
    """
    if program is None and call.program in _SILENT:
        return None
    if (container := read_container(call)) is not None:
        return Counterpart(*container_sentence(container, same_machines=same_machines))
    if same_machines and call.program == "module":
        why = "slurm.modules, unless pyxis runs the training: its image has an environment of its own"
        return Counterpart(Fate.TAKEN, why)
    text = " ".join((call.program if program is None else "python", *call.arguments, *call.attached.values()))
    for pattern, why in _ROWS:
        if pattern.fullmatch(text):
            return Counterpart(Fate.DROPPED, why)
    return _unknown(program)


def _unknown(program: Program | None) -> Counterpart:
    if program is None:
        return Counterpart(Fate.UNKNOWN, "cloudrl does not know this program; it is left out")
    if _SERVER.search(program.name):
        why = "a server beside the training: services of the cluster, --set 'services=[\"PORT:COMMAND\"]'"
        return Counterpart(Fate.UNKNOWN, why)
    return Counterpart(Fate.UNKNOWN, "another program than a training with overrides; it is left out")


def downloaded_model(call: Call) -> tuple[str, str | None] | None:
    """The model that a call downloads and the folder it is put into; None for another call."""
    words = list(call.arguments)
    if call.program not in ("huggingface-cli", "hf", "modelscope") or words[:1] != ["download"]:
        return None
    if _value(words, "--repo-type") == "dataset" or "--dataset" in words:
        return None
    named = _value(words, "--model") or next(
        (word for word in words[1:] if re.fullmatch(r"[\w.-]+/[\w.-]+", word)), None
    )
    folder = _value(words, "--local-dir") or _value(words, "--local_dir")
    return None if named is None else (named, folder)


def prepared_data(program: Program) -> str | None:
    """The data set that a script of verl's prepares, by the name of its file: `gsm8k` of gsm8k.py."""
    if program.kind is not Kind.DATA:
        return None
    return re.sub(
        r"_dataset$", "", program.name.rpartition("/")[2].rpartition(".")[0] or program.name.rpartition(".")[2]
    )


def data_folder(program: Program) -> str | None:
    """The folder that such a script writes to (verl, examples/data_preprocess: --local_dir, --local_save_dir)."""
    options = ("--local_save_dir", "--local_dir", "--save_dir", "--output_dir")
    return next((found for option in options if (found := _value(program.arguments, option))), None)


def _value(words: Sequence[str], option: str) -> str | None:
    for index, word in enumerate(words):
        if word.startswith(f"{option}="):
            return word.partition("=")[2]
        if word == option and index + 1 < len(words):
            return words[index + 1]
    return None
