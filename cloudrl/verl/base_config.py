"""A release's configuration without overrides, but for those that choose files: what `composition.py` starts from.

Composing it takes Hydra half a second. A release has it composed beside its files; with other files chosen it is kept
in the user's cache. Hydra's loader is used as in `composition.py`, and for the same reason.
"""

from __future__ import annotations

import functools
import json
import pickle
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cloudrl.foreign import parse_object, read_file
from cloudrl.verl import composed_cache
from cloudrl.verl.release_files import CONFIG_NAME

_COMPOSED = "composed.json"


@functools.lru_cache(maxsize=8)
def base(folder: Path, config_name: str, groups: tuple[str, ...], with_hydra: bool = False) -> tuple[bytes, str]:
    """The configuration, pickled, and why Hydra cannot compose it; one of the two is empty.

    Args:
        folder: the release's files.
        config_name: as `--config-name` gives it.
        groups: overrides that choose files.
        with_hydra: whether Hydra's own part belongs to it.
    """
    from hydra._internal.config_loader_impl import ConfigLoaderImpl
    from hydra._internal.utils import create_config_search_path
    from hydra.errors import HydraException
    from hydra.types import RunMode
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    key = None if with_hydra else composed_cache.key_of(folder, f"{config_name} without overrides", groups)
    kept = _shipped(folder) if (config_name, groups, with_hydra) == (CONFIG_NAME, (), False) else None
    if kept is None:
        kept = composed_cache.read(key)
    if kept is not None:
        config = OmegaConf.create(dict(kept))
        OmegaConf.set_struct(config, value=True)
        return pickle.dumps(config), ""
    loader = ConfigLoaderImpl(create_config_search_path(str(folder)))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of defaults without _self_, which a run shows, too
            config = loader.load_configuration(config_name, [*groups], run_mode=RunMode.RUN, from_shell=False)
    except TypeError:  # Hydra 1.3, _internal/defaults_list.py: names of files are taken for text
        return b"", "the name of a file chooses a group"
    except (HydraException, OmegaConfBaseException, YAMLError, ValueError, RecursionError) as error:
        return b"", first_line(error) or type(error).__name__
    if not with_hydra:
        OmegaConf.set_struct(config, value=False)
        del config["hydra"]
        OmegaConf.set_struct(config, value=True)
    composed_cache.keep(key, OmegaConf.to_container(config, resolve=False))
    return pickle.dumps(config), ""


@functools.lru_cache(maxsize=8)
def plain(folder: Path, config_name: str, groups: tuple[str, ...]) -> Mapping[str, Any]:
    """The same as containers of Python, without Hydra's own part; references stay text."""
    from omegaconf import OmegaConf

    config = pickle.loads(base(folder, config_name, groups)[0])  # noqa: S301  our own, a moment old
    values = OmegaConf.to_container(config, resolve=False)
    return {str(key): value for key, value in values.items() if key != "hydra"} if isinstance(values, dict) else {}


def write_composed(folder: Path) -> None:
    """Compose a release's configuration once, for all calls to come."""
    if base(folder, CONFIG_NAME, ())[0]:
        text = json.dumps(plain(folder, CONFIG_NAME, ()), indent=0)
        (folder / _COMPOSED).write_text(text, encoding="utf-8")


def _shipped(folder: Path) -> Mapping[str, Any] | None:
    """What `write_composed` has written."""
    try:
        return parse_object(read_file(folder / _COMPOSED))
    except FileNotFoundError:
        return None


def first_line(error: Exception) -> str:
    """What an error says, as half a sentence."""
    return next(iter(str(error).strip().splitlines()), "").strip().rstrip(".")
