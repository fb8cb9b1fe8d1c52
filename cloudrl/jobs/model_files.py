"""Where this machine has the config.json of a job's models: a folder of the user's, or the Hugging Face cache."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from cloudrl.foreign import Malformed, parse_object, read_file
from cloudrl.jobs.local_files import HUB_ID, LocalFiles
from cloudrl.options.job import SubmitOptions
from cloudrl.spec import Job
from cloudrl.verl.keys import CRITIC_MODEL_PATH, FINE_TUNED, FINE_TUNED_BEFORE, MODEL_PATH, REWARD_MODEL_PATH
from cloudrl.verl.model_config import ModelConfig

_CONFIG, _LIMIT_BYTES = "config.json", 1 << 20
_KEYS = (MODEL_PATH, FINE_TUNED, FINE_TUNED_BEFORE, CRITIC_MODEL_PATH, REWARD_MODEL_PATH)


def find_model_configs(
    job: Job, options: SubmitOptions, files: LocalFiles, *, environment: Mapping[str, str] | None = None
) -> dict[str, ModelConfig]:
    """The models that a job names and whose config.json is here.

    Args:
        job: the recipe.
        options: what is asked for beyond it.
        files: what this machine has of them.
        environment: in which `HF_HOME` and `HF_HUB_CACHE` say where the cache is; None for this process's.

    Returns:
        By the name as the job has it.
    """
    env = os.environ if environment is None else environment
    found = {}
    for name in dict.fromkeys(_names(job, options)):
        for path, source in _places(name, files, env):
            if (config := _read(name, path, source)) is not None:
                found[name] = config
                break
    return found


def model_folders(
    job: Job, options: SubmitOptions, files: LocalFiles, *, environment: Mapping[str, str] | None = None
) -> list[Path]:
    """The folders of this machine in which the job's first model may be; arguments as those of `find_model_configs`."""
    env = os.environ if environment is None else environment
    name = next(_names(job, options), "")
    return [path.parent for path, _ in _places(name, files, env)] if name else []


def _names(job: Job, options: SubmitOptions) -> Iterator[str]:
    values = job.with_overrides(options.overrides).values
    named = (options.model, values.get(MODEL_PATH), job.model, *(values.get(key) for key in _KEYS))
    yield from (name for name in named if name)


def _places(name: str, files: LocalFiles, env: Mapping[str, str]) -> Iterator[tuple[Path, str]]:
    """Paths of a config.json, and what messages call them."""
    file = files.at(name)
    if file.is_folder or (file.path / _CONFIG).is_file():
        yield file.path / _CONFIG, f"{name}/{_CONFIG}"
    if HUB_ID.fullmatch(name):
        folder = _cache(env) / f"models--{name.replace('/', '--')}"
        yield from ((path, "the Hugging Face cache") for path in _snapshots(folder))


def _cache(env: Mapping[str, str]) -> Path:
    """huggingface_hub 1.x, constants.py: HF_HUB_CACHE."""
    home = env.get("HF_HOME") or Path(env.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    return Path(env.get("HF_HUB_CACHE") or Path(home, "hub")).expanduser()


def _snapshots(folder: Path) -> Iterator[Path]:
    """The config.json of what `main` is, then of any other revision."""
    try:
        revision = read_file(folder / "refs" / "main", 200).decode("ascii", "replace").strip()
        yield folder / "snapshots" / Path(revision).name / _CONFIG
    except (OSError, Malformed):
        pass
    try:
        yield from (each / _CONFIG for each in sorted((folder / "snapshots").iterdir()))
    except OSError:
        return


def _read(name: str, path: Path, source: str) -> ModelConfig | None:
    try:
        return ModelConfig(name, parse_object(read_file(path, _LIMIT_BYTES)), source)
    except (OSError, Malformed):
        return None
