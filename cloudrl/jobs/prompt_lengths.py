"""How long the prompts of a job's data are, where the parquet file is on this machine."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from cloudrl.jobs.local_files import PARTS, LocalFiles, data_names
from cloudrl.jobs.model_files import model_folders
from cloudrl.options.job import SubmitOptions
from cloudrl.spec import Job
from cloudrl.spec.hydra import items
from cloudrl.verl.command import is_fine_tuning
from cloudrl.verl.keys import TRAIN_FILES

_ROWS = 500
"""So many prompts of a file are read."""
_CHARACTERS = 4
"""Of a token, about."""
_TEMPLATE_TOKENS = 10
"""What a chat template adds to a message, about."""
_PROMPT, _MESSAGES = ("data.prompt_key", "prompt"), ("data.messages_key", "messages")
"""The key that names a column, and the name that verl has for it: of prompts; of whole conversations."""


@dataclass(frozen=True)
class PromptLengths:
    """Of the prompts of a file, or of the conversations that a fine-tuning learns.

    Attributes:
        mean: in tokens.
        source: what was counted and how, for messages.
        name: the file, as the user calls it.
        tokens: of each prompt, without a chat template; empty if they were only estimated.
    """

    mean: float
    source: str
    name: str = ""
    tokens: tuple[int, ...] = ()


def find_prompt_lengths(
    job: Job, options: SubmitOptions, files: LocalFiles, *, models: Mapping[str, str] = MappingProxyType({})
) -> PromptLengths | None:
    """The prompts, or conversations, of the first training file that is here; None without one, and without pyarrow.

    With the model's `tokenizer.json` and the package tokenizers they are counted, else four characters are a token.

    Args:
        job: the recipe.
        options: what is asked for beyond it.
        files: what is at the paths that both name.
        models: models of the cluster whose folders are on this machine.
    """
    values = job.with_overrides(options.overrides).values
    is_tuned = is_fine_tuning(job.entrypoint)
    column, usual = _MESSAGES if is_tuned else _PROMPT
    key = values.get(column, usual)
    for name, path in training_files(values, data_names(job, options), files):
        if texts := _prompts(path, key):
            model = options.model or job.model or ""
            folders = [Path(models[model])] if model in models else model_folders(job, options, files)
            count, how, is_exact = _counter(folders)
            counts = [sum(map(count, prompt)) for prompt in texts]
            mean = statistics.fmean(
                tokens + _TEMPLATE_TOKENS * len(prompt) for tokens, prompt in zip(counts, texts, strict=True)
            )
            source = f"{'conversations' if is_tuned else 'prompts'} of {name} have {mean:.0f} tokens in the mean, {how}"
            return PromptLengths(mean, source, name, tuple(map(int, counts)) if is_exact else ())
    return None


def training_files(values: Mapping[str, str], names: tuple[str, ...], files: LocalFiles) -> Iterator[tuple[str, Path]]:
    """Training files of this machine in parquet, by the name that the user has for each."""
    for name in (*names, *items(values.get(TRAIN_FILES, ""))):
        file = files.at(name)
        if file.is_folder and PARTS[0] in file.children:
            yield name, file.path / PARTS[0]
        elif file.exists and name.endswith(".parquet"):
            yield name, file.path


def _prompts(path: Path, key: str) -> list[list[str]]:
    """The texts of the first prompts: of each message, or of the prompt itself."""
    try:
        import pyarrow as pa
        from pyarrow.parquet import ParquetFile
    except ImportError:
        return []
    try:
        batch = next(ParquetFile(path).iter_batches(batch_size=_ROWS, columns=[key]), None)
        return [texts for value in (batch.column(0).to_pylist() if batch else ()) if (texts := _texts(value))]
    except (OSError, KeyError, IndexError, pa.ArrowException):  # which the check of the data reports
        return []


def _texts(prompt: Any) -> list[str]:
    if isinstance(prompt, str):
        return [prompt]
    messages = prompt if isinstance(prompt, list) else []
    return [each["content"] for each in messages if isinstance(each, dict) and isinstance(each.get("content"), str)]


def _counter(folders: list[Path]) -> tuple[Callable[[str], float], str, bool]:
    """What counts the tokens of a text, how, in words, and whether it is the model's own tokenizer."""
    about = f"at {_CHARACTERS} characters a token"
    path = next((each / "tokenizer.json" for each in folders if (each / "tokenizer.json").is_file()), None)
    if path is None:
        return lambda text: len(text) / _CHARACTERS, about, False
    try:
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(path))
    except Exception:  # noqa: BLE001  the package raises nothing more particular for a file that it cannot read
        return lambda text: len(text) / _CHARACTERS, about, False
    return lambda text: len(tokenizer.encode(text).ids), "by the model's tokenizer", True
