"""The command that starts a program of verl's, as Python and Hydra read it."""

import re
import shlex
from collections.abc import Sequence
from typing import NamedTuple

from cloudrl.protocol.folders import ON_HEAD
from cloudrl.spec.hydra import parse_overrides, words_with_values
from cloudrl.verl.keys import FINE_TUNED, FINE_TUNED_BEFORE, MAIN, MODEL_PATH
from cloudrl.verl.release_files import CONFIG_NAME

_NAMES = ("--config-name", "-cn")
_PATHS, _FOLDERS = ("--config-path", "-cp"), ("--config-dir", "-cd")
_OWN_FOLDER = ("config", "./config", "config/")
"""As in scripts until verl 0.8: Hydra counts from the folder of main_ppo, which has it (verl, trainer/config)."""
_USUAL = (("python", "-m"), ("python3", "-m"), ("python3", "-m", ON_HEAD))
_TORCHRUN_OPTION = re.compile(r"--(nproc|nnodes)(?:[-_]per[-_]node)?[= ](\S+)")
"""`auto`, `gpu` and a range of nodes are no numbers (torch 2.11, distributed/run.py)."""
SFT_CONFIG, SFT_CONFIG_BEFORE = "sft_trainer_engine", "sft_trainer"
_CONFIGS = {
    MAIN: CONFIG_NAME,
    "verl.trainer.sft_trainer": SFT_CONFIG,
    "verl.trainer.sft_trainer_ray": SFT_CONFIG,
    "verl.trainer.fsdp_sft_trainer": SFT_CONFIG_BEFORE,
}
"""Programs whose source was read for rules -> configuration (hydra.main in verl 0.9.1, trainer/main_ppo.py,
sft_trainer.py, sft_trainer_ray.py, and in verl 0.7.0, trainer/fsdp_sft_trainer.py). What other programs compose,
`source.json` and their own source say."""
_LAUNCHERS = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch")


class UnknownConfig(Exception):
    """Which configuration verl would have is not known here; the text is why."""


class Command(NamedTuple):
    """The configuration that the driver composes, and overrides that are part of the entry point."""

    config_name: str
    """As `--config-name` gives it, or as the program has it; "" if only its source says."""
    words: tuple[str, ...]
    is_usual: bool
    """Whether it is the nodes' own Python that runs it, with nothing set for it."""
    program: str = MAIN
    """The module, or the file."""
    config_path: str = ""
    """The folder of `--config-path`, which takes the place of the program's own."""
    config_dir: str = ""
    """The folder of `--config-dir`, in which Hydra looks, too."""

    @property
    def is_read(self) -> bool:
        """Whether there are rules that were read in the program's source."""
        return self.program in _CONFIGS


def is_fine_tuning(entrypoint: Sequence[str]) -> bool:
    """Whether an entry point starts verl's supervised fine-tuning, whose keys are others than those of `main_ppo`."""
    return _config_of(entrypoint) in (SFT_CONFIG, SFT_CONFIG_BEFORE)


def model_key(entrypoint: Sequence[str]) -> str:
    """The key by which a program gets its model; of a program that was not read, that of `main_ppo`."""
    keys = {SFT_CONFIG: FINE_TUNED, SFT_CONFIG_BEFORE: FINE_TUNED_BEFORE}
    return keys.get(_config_of(entrypoint) or "", MODEL_PATH)


def _config_of(entrypoint: Sequence[str]) -> str | None:
    return _CONFIGS.get(_program(entrypoint) or "")


def _program(entrypoint: Sequence[str]) -> str | None:
    return next((word for word in entrypoint if word in _CONFIGS), None) or next(
        (
            word
            for before, word in zip(("", *entrypoint), entrypoint, strict=False)
            if word.endswith(".py") or (before == "-m" and word not in _LAUNCHERS)
        ),
        None,
    )


def processes(entrypoint: Sequence[str]) -> int | None:
    """How many processes `torchrun` starts on all nodes together; None if the command does not tell."""
    if entrypoint[:1] != ("torchrun",):
        return None
    options = " ".join(entrypoint[: entrypoint.index("-m")] if "-m" in entrypoint else ())
    given = {"nnodes": "1", **dict(_TORCHRUN_OPTION.findall(options))}
    each, nodes = given.get("nproc", ""), given["nnodes"]
    return int(each) * int(nodes) if each.isdigit() and nodes.isdigit() else None


def overrides_of(entrypoint: str) -> dict[str, str]:
    """Bare key -> value of the overrides in the command of a job; empty if it is no command to a shell."""
    try:
        words = shlex.split(entrypoint)
    except ValueError:
        return {}
    return parse_overrides(words_with_values(words))


def read_command(entrypoint: Sequence[str]) -> Command:
    """The configuration that an entry point composes.

    Raises:
        UnknownConfig: It runs no program in Python, or has an option by which Hydra does something else.
    """
    program = _program(entrypoint)
    if program is None:
        raise UnknownConfig(f"the job runs another program than {MAIN}")
    at, name = entrypoint.index(program), _CONFIGS.get(program, "")
    words, overrides = list(entrypoint[at + 1 :]), list[str]()
    folders = {_PATHS: "", _FOLDERS: ""}
    while words:
        word = words.pop(0)
        option, equals, value = word.partition("=")
        kind = next((each for each in (_NAMES, *folders) if option in each), None)
        if kind is not None and (equals or words):
            value = value if equals else words.pop(0)
            if kind is _NAMES:
                name = value
            elif value not in _OWN_FOLDER or kind is _FOLDERS:
                folders[kind] = value
        elif word.startswith("-"):
            raise UnknownConfig(f"the entry point has option {option}")
        else:
            overrides.append(word)
    before = tuple(entrypoint[:at])
    is_file = program.endswith(".py")
    is_usual = before in ((each[:1] for each in _USUAL) if is_file else _USUAL)
    is_usual = is_usual or (before[:1] == ("torchrun",) and (is_file or before[-1] == "-m"))
    return Command(name, tuple(overrides), is_usual, program, folders[_PATHS], folders[_FOLDERS])
