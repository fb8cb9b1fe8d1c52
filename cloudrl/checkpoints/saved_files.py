"""The files of one role of one step, for a merge and a check: which there are, and the content of the small ones."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cloudrl.saves.inventory import Checkpoint
from cloudrl.saves.names import is_small, on_one_line
from cloudrl.saves.places import FileCopy
from cloudrl.shards.model_files import WEIGHTS
from cloudrl.shards.source import ShardSource
from cloudrl.units import size_text

OpenFile = Callable[[FileCopy], ShardSource]
_ARE_WEIGHTS = re.compile(
    r"((pytorch_|adapter_)?model|consolidated)([-.]\d+(-of-\d+)?)?\.(safetensors|bin|pt|pth)(\.index\.json)?"
)
"""What transformers, peft and Meta name them: what a merge replaces."""


@dataclass(frozen=True)
class SavedFiles:
    """The files of a checkpoint, and what is said of the model that its run began with.

    Attributes:
        checkpoint: What to merge or to verify.
        open_file: Gives the bytes of one of its files, wherever that is stored.
        base: The model that the run was trained from, as the user names it: see `read_base`.
        first_adapter: See `MergeInputs`.
    """

    checkpoint: Checkpoint
    open_file: OpenFile
    base: str | None = None
    first_adapter: str | None = None

    def open_below(self, folder: str, suffix: str) -> dict[str, ShardSource]:
        """Files of this kind in a folder, and not in one below it."""
        files = self.checkpoint.files
        names = {path: path[len(folder) :] for path in files if path.startswith(folder) and path.endswith(suffix)}
        return {name: self.open_file(files[path][0]) for path, name in names.items() if "/" not in name}

    def read_small(self, folder: str) -> dict[str, bytes]:
        """Config, tokenizer and the like, by their path below the folder."""
        small = {
            name.removeprefix(folder): copies[0]
            for name, copies in self.checkpoint.files.items()
            if name.startswith(folder) and is_small(name, copies[0].size_bytes)
        }
        return {name: self.read(file) for name, file in small.items()}

    def read(self, file: FileCopy) -> bytes:
        """The whole content of a file."""
        return self.open_file(file).read(0, file.size_bytes)

    def read_json(self, name: str) -> Mapping[str, Any]:
        """A JSON object of the role's folder; nothing if it is missing, or has another form."""
        copies = self.checkpoint.files.get(name)
        if copies is None or not is_small(name, copies[0].size_bytes):
            return {}
        try:
            content = json.loads(self.read(copies[0]))
        except (ValueError, RecursionError):
            return {}
        return content if isinstance(content, dict) else {}

    def warnings(self, folder: str) -> tuple[str, ...]:
        """What to tell of the files themselves: a save that may not have ended, files that a merge leaves out."""
        return (*self._unfinished(), *self._odd(folder))

    def _unfinished(self) -> Iterator[str]:
        name = self.checkpoint.name
        for gap in self.checkpoint.unfinished:
            yield f"{name}: {gap} is missing; if a job saves it now, or was cut off, files may not fit together"

    def _odd(self, folder: str) -> Iterator[str]:
        checkpoint = self.checkpoint
        for path, copies in checkpoint.files.items():
            below, name = path.removeprefix(folder), on_one_line(path)
            if not path.startswith(folder) or _ARE_WEIGHTS.fullmatch(below):
                continue
            if path.endswith(WEIGHTS):
                if not (checkpoint.weights and path.endswith(".safetensors") and "/" not in below):
                    yield f"{name} was left out, since its name ends like that of weights: copy it if needed"
            elif text := checkpoint.damaged.get(path):
                yield f"{name} {text}, and is in the model as it is: put that of the base model in its place"
            elif not is_small(path, copies[0].size_bytes):
                size = size_text(copies[0].size_bytes)
                yield f"{name} was left out, since {size} are too much beside a model: copy it if it is needed"
