"""The names of verl's files.

Sources: verl 0.9.1, trainer/ppo/v1/trainer_base.py and utils/checkpoint/fsdp_checkpoint_manager.py.

::

    RUN/latest_checkpointed_iteration.txt        on the driver's node
    RUN/global_step_10/data.pt                   on the driver's node
    RUN/global_step_10/actor/model_world_size_2_rank_0.pt, optim_..., extra_state_...
    RUN/global_step_10/actor/huggingface/...     on the node of training rank 0

verl's SFT trainer has no roles: what is in `actor/` is in `global_step_10` itself, with a `data_0.pt` for each data
parallel rank. A run may be at any depth below the folder of checkpoints; "." is that folder itself.
"""

from __future__ import annotations

import re
from collections.abc import Collection

OF_STEP = "global_step_"
"""Begins the name of a step's folder."""
STEP = re.compile(rf"{OF_STEP}(0|[1-9][0-9]{{0,17}})")
TRACKER = "latest_checkpointed_iteration.txt"
ROLES = frozenset({"actor", "critic"})
"""Whatever else is in a folder of such a name, it is a role's."""
HUGGINGFACE = "huggingface/"
"""The folder of the model's config and tokenizer, beside the shards of a role."""
CONFIG = f"{HUGGINGFACE}config.json"
"""What a model takes beside the shards of a role."""
LORA_META = "lora_train_meta.json"
"""Beside the shards of rank 0's node: rank and alpha of a LoRA adapter."""
FSDP_CONFIG = "fsdp_config.json"
"""Beside the shards of rank 0's node: `FSDP_version` and `world_size`."""
DATA = "data.pt"
"""The state of the data loader. A save writes it after all shards; then come the tracker and, in an asynchronous mode
before that, the queue of prompts in flight (`transfer_queue/`)."""
DATA_OF_SFT = "data_0.pt"
"""The same of verl's SFT trainer."""
OF_LOADER = re.compile(r"data(_[0-9]{1,9})?\.pt")
"""That, and those of each rank that verl's SFT trainer writes."""
KINDS = ("model", "optim", "extra_state")
"""Of a rank's shards."""
SHARD = re.compile(rf"({'|'.join(KINDS)})_world_size_([0-9]{{1,9}})_rank_([0-9]{{1,9}})\.pt")
RECORD = re.compile(r"cloudrl_save_world_size_([0-9]{1,9})_rank_([0-9]{1,9})\.json")
"""Ours: see `cloudrl.saves.records`."""
WITHDRAWN = re.compile(r"cloudrl_withdrawn_world_size_([0-9]{1,9})_rank_([0-9]{1,9})")
"""Ours: the record of a rank's save was removed, since the files of that rank have changed."""
INDEX = "model.safetensors.index.json"
"""Which file of a Hugging Face model has which tensor, where there are several."""

RESUME_MODE, RESUME_FROM = "trainer.resume_mode", "trainer.resume_from_path"
"""Keys of verl's configuration that say which step a run goes on from (verl 0.9.1, trainer/config/ppo_trainer.yaml)."""
VALIDATE_FIRST = "trainer.val_before_train"
"""Likewise: verl's default is True, so that each resume validates before it trains."""

OURS = ".cloudrl"
"""The folder of what the agents keep beside the runs."""

_SMALL_BYTES = 64 << 20
"""Tokenizers of 33 MB are in use (google/gemma-3)."""
_LONGEST_ID = 150
"""With what stands before and after it in names of files, 200 at most."""


def find_data(files: Collection[str]) -> str | None:
    """The name of the state of the data loader among the files of a step."""
    return next((name for name in (DATA, DATA_OF_SFT) if name in files), None)


def is_small(path: str, size_bytes: int) -> bool:
    """Whether a file of no rank is one that goes with a model, such as a tokenizer, and no weights."""
    return size_bytes <= _SMALL_BYTES and not path.endswith(".safetensors")


def is_ours(name: str) -> bool:
    """Whether an agent wrote this file beside the shards: a record of a save, or that it was removed."""
    return bool(RECORD.fullmatch(name) or WITHDRAWN.fullmatch(name))


def on_one_line(name: str) -> str:
    """A name for a message: anybody may have put ends of lines and codes that steer a terminal into it."""
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in name)


def of_run(run: str) -> str:
    """How a sentence about a run begins: `demo: `; nothing for a folder that is the run itself."""
    return "" if run == "." else f"{on_one_line(run)}: "


def file_name(name: str) -> str:
    """The id of a run or a job as a part of a path: one that `cloudrl.saves.archive` reads again."""
    safe = "".join(c if (c.isascii() and c.isalnum()) or c in "-_" else "_" for c in name)[:_LONGEST_ID]
    return f"_{safe[1:]}" if safe.startswith("-") else safe


def step_folder(run: str, step: int) -> str:
    """The folder of a step below the folder of checkpoints."""
    return f"{OF_STEP}{step}" if run == "." else f"{run}/{OF_STEP}{step}"


def shard_file(kind: str, world_size: int | None, rank: int) -> str:
    """The name of a rank's file of one of `KINDS`."""
    return f"{kind}_world_size_{world_size}_rank_{rank}.pt"


def record_file(world_size: int, rank: int) -> str:
    """The name of the record of a rank's save."""
    return f"cloudrl_save_world_size_{world_size}_rank_{rank}.json"


def withdrawn_file(world_size: int, rank: int) -> str:
    """The name of what says that the record of a rank's save was removed."""
    return f"cloudrl_withdrawn_world_size_{world_size}_rank_{rank}"


def is_step_path(folder: str, attempt: str, *paths: str) -> bool:
    """Whether a folder, `RUN/global_step_10`, is that of a step, and paths are below it; an attempt is a plain name."""
    parts = [folder.split("/"), *(path.split("/") for path in paths)]
    is_plain = not any(part in ("", ".", "..") or "\0" in part for words in parts for part in words)
    is_name = "/" not in attempt and "\0" not in attempt and attempt not in (".", "..")
    is_below = all(path.startswith(f"{folder}/") for path in paths)
    return is_plain and is_below and is_name and STEP.fullmatch(parts[0][-1]) is not None
