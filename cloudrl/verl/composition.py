"""verl's configuration as Hydra composes it from verl's own files, on a machine that has no verl.

The files are in `trainer_config/RELEASE`: those of the release's wheel (verl on PyPI, Apache-2.0, verl/trainer/config)
that `verl.trainer.main_ppo` reads. A test compares them with the installed verl.

Hydra (1.3) has no public way to compose that leaves its one global state alone, and a program that uses cloudrl may be
one of Hydra's own; so its loader is used, and this is the only module that does.
"""

from __future__ import annotations

import difflib
import functools
import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloudrl.protocol.secret_names import is_secret_override
from cloudrl.verl.release_files import CONFIG_NAME, folder_of

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override
    from omegaconf import DictConfig

_GRAMMAR = "What Hydra reads: https://hydra.cc/docs/advanced/override_grammar/basic"
_ENGINES = "model_engine"
"""The group that decides which keys actor and critic have."""


@dataclass(frozen=True)
class Problem:
    """Why Hydra refuses an override.

    Attributes:
        text: both sides of it, in a sentence.
        hint: what to write in its place; "" if unknown.
    """

    text: str
    hint: str = ""


@dataclass(frozen=True)
class Composed:
    """What Hydra makes of overrides.

    Attributes:
        values: the whole configuration, nested; None where there is a problem, or this machine cannot tell.
        problems: all that Hydra refuses, in the order of the overrides.
        lookalikes: keys that were added and look like one that verl has, with that one.
        base: the configuration without overrides other than those that choose files, nothing resolved.
        untold: why this machine cannot tell the values, in half a sentence; "" where it can.
    """

    values: Mapping[str, Any] | None
    problems: tuple[Problem, ...] = ()
    lookalikes: Mapping[str, str] = field(default_factory=dict)
    base: Mapping[str, Any] = field(default_factory=dict)
    untold: str = ""


def is_known(release: str | None) -> bool:
    """Whether the files of a release are here."""
    return folder_of(release) is not None


@functools.lru_cache(maxsize=16)
def compose(release: str, overrides: tuple[str, ...], config_name: str = CONFIG_NAME) -> Composed:
    """Compose a configuration as the driver of a job is going to.

    Args:
        release: of verl, one that `is_known`.
        overrides: words of the command, such as `data.train_batch_size=512`.
        config_name: as `--config-name` gives it.
    """
    folder = folder_of(release)
    if folder is None:
        return Composed(None, untold=f"the files of verl {release} are not here")
    if untold := _outside(config_name, overrides):
        return Composed(None, untold=untold)
    there = sorted(path.stem for path in folder.glob("*.yaml"))
    if config_name.removesuffix(".yaml") not in there:
        hint = f"It has: {', '.join(name for name in there if name.startswith('ppo'))}"
        return Composed(None, (Problem(f"verl {release} has no configuration {config_name!r}", hint),))
    parsed, problems = _parsed(overrides)
    groups = tuple(str(each.input_line) for each in parsed if _is_group(folder, each))
    base, problem = _base(folder, config_name, groups)
    if problem is not None:
        return Composed(None, (*problems, problem))
    config: DictConfig = pickle.loads(base)  # noqa: S301  our own, a moment old; composing from files takes a second
    keys, lookalikes = tuple(_leaves(config)), dict[str, str]()
    for each in parsed:
        if _is_group(folder, each):
            continue
        if (each.is_add() or each.is_force_add()) and (similar := _beside(each.key_or_group, keys, 0.85)):
            lookalikes[each.key_or_group] = similar
        if (found := _apply(config, each, release)) is not None:
            # what was refused may have changed a part of the configuration
            hint = found.hint or _likely_key(folder, pickle.loads(base), each, keys)  # noqa: S301
            problems.append(replace(found, hint=hint))
    if problems:
        return Composed(None, tuple(problems))
    return replace(_resolved(config, overrides, lookalikes), base=_plain(folder, config_name, groups))


def _outside(config_name: str, overrides: Sequence[str]) -> str:
    """Why files that are not here decide; "" where they do not."""
    if config_name.startswith("_generated_"):
        return f"{config_name} is one of verl's generated files"
    if any(override.startswith("hydra.searchpath") for override in overrides):
        return "hydra.searchpath leads to files of your own"
    return ""


def _parsed(overrides: Sequence[str]) -> tuple[list[Override], list[Problem]]:
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    parser, parsed, problems = OverridesParser.create(), list[Any](), list[Problem]()
    for text in overrides:
        try:
            parsed.append(parser.parse_override(text))
        except HydraException as error:
            key = text.partition("=")[0]
            words = "its value is not in Hydra's grammar" if is_secret_override(key) else _first_line(error)
            problems.append(Problem(f"{key}: {words}", _GRAMMAR))
    return parsed, problems


def _is_group(folder: Path, override: Override) -> bool:
    """Whether it chooses one of several files, such as `model_engine=megatron`; Hydra has some of its own."""
    group = str(override.key_or_group)
    return (group in _groups(folder) and not isinstance(override.value(), dict)) or group.startswith("hydra/")


@functools.lru_cache(maxsize=8)
def _groups(folder: Path) -> frozenset[str]:
    return frozenset(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_dir())


@functools.lru_cache(maxsize=8)
def _base(folder: Path, config_name: str, groups: tuple[str, ...]) -> tuple[bytes, Problem | None]:
    """The configuration without any other override, pickled."""
    from hydra._internal.config_loader_impl import ConfigLoaderImpl
    from hydra._internal.utils import create_config_search_path
    from hydra.errors import HydraException
    from hydra.types import RunMode

    loader = ConfigLoaderImpl(create_config_search_path(str(folder)))
    try:
        config = loader.load_configuration(config_name, [*groups], run_mode=RunMode.RUN, from_shell=False)
    except (HydraException, ValueError) as error:
        return b"", Problem(f"{' '.join(groups)}: {_first_line(error)}", _GRAMMAR)
    return pickle.dumps(config), None


@functools.lru_cache(maxsize=8)
def _plain(folder: Path, config_name: str, groups: tuple[str, ...]) -> Mapping[str, Any]:
    """The same as containers of Python; references stay text."""
    from omegaconf import OmegaConf

    config = pickle.loads(_base(folder, config_name, groups)[0])  # noqa: S301  as above
    values = OmegaConf.to_container(config, resolve=False)
    return {str(key): value for key, value in values.items() if key != "hydra"} if isinstance(values, dict) else {}


def _apply(config: DictConfig, override: Override, release: str) -> Problem | None:
    """Change the configuration by one override, or say why Hydra would not."""
    from hydra._internal.config_loader_impl import ConfigLoaderImpl
    from hydra.errors import HydraException
    from hydra.types import RunMode
    from omegaconf.errors import ConfigAttributeError, ConfigKeyError

    try:
        ConfigLoaderImpl.validate_sweep_overrides_legal([override], RunMode.RUN, from_shell=False)
        ConfigLoaderImpl._apply_overrides_to_config([override], config)  # noqa: SLF001  see the module
    except (HydraException, TypeError) as error:
        key, text = override.key_or_group, str(override.input_line)
        if override.is_sweep_override():
            return Problem(f"{key}: Hydra takes the value for several runs", f"{key}=[{text.partition('=')[2]}]")
        if not isinstance(error.__cause__, (ConfigAttributeError, ConfigKeyError)):
            return Problem(f"{key}: {_first_line(error)}", _GRAMMAR)
        return Problem(f"{key}: verl {release} has no such key")
    return None


def _likely_key(folder: Path, config: DictConfig, override: Override, keys: Sequence[str]) -> str:
    """What to write in place of an override whose key there is not: the nearest key that there is."""
    key, text = str(override.key_or_group), str(override.input_line)
    if _is_free(config, key):  # such as the arguments of an engine
        return f"+{text}"
    parent, _, name = key.rpartition(".")
    same_name = [each for each in keys if each.rpartition(".")[2] == name]
    above = f"{parent.rpartition('.')[0]}."
    nearest = _beside(key, keys, 0.75) or next((each for each in same_name if each.startswith(above)), None)
    if nearest is None and (engine := _engine_with(folder, key)) is not None:
        return f"The {engine} engine has it: {_ENGINES}={engine}"
    section = f"{key.partition('.')[0]}." if parent else "actor_rollout_ref."
    nearest = nearest or next((each for each in same_name if each.startswith(section)), None)
    if nearest is None and len(alike := difflib.get_close_matches(key, same_name, 2, 0.8)) == 1:
        [nearest] = alike
    return f"{nearest}={text.partition('=')[2]}" if nearest else f"If your own code reads it: +{text}"


def _is_free(config: DictConfig, key: str) -> bool:
    """Whether the nearest section above a key that there is has no keys of its own."""
    from omegaconf import OmegaConf

    while "." in key:
        key = key.rpartition(".")[0]
        try:
            above = OmegaConf.select(config, key, default="")
        except Exception:  # noqa: BLE001  of whatever an interpolation there leads to
            return False
        if above != "":
            return above is None or above == {}
    return False


def _beside(key: str, keys: Sequence[str], cutoff: float) -> str | None:
    """The key beside it that is written most alike, at least so much."""
    parent, _, name = key.rpartition(".")
    names = [each.rpartition(".")[2] for each in keys if each.rpartition(".")[0] == parent]
    alike = difflib.get_close_matches(name, [each for each in names if each != "_target_"], 1, cutoff)
    return None if not alike or name in names else f"{parent}.{alike[0]}" if parent else alike[0]


def _engine_with(folder: Path, key: str) -> str | None:
    """The engine of verl whose configuration has a key."""
    for engine in sorted(path.stem for path in (folder / _ENGINES).glob("*.yaml")):
        base, problem = _base(folder, CONFIG_NAME, (f"{_ENGINES}={engine}",))
        if problem is None and key in set(_leaves(pickle.loads(base))):  # noqa: S301  as above
            return engine
    return None


def _resolved(config: DictConfig, overrides: Sequence[str], lookalikes: Mapping[str, str]) -> Composed:
    from hydra.core.utils import setup_globals
    from omegaconf import OmegaConf
    from omegaconf.errors import InterpolationKeyError, OmegaConfBaseException

    if any("oc.env" in override for override in overrides):
        return Composed(None, (), lookalikes, untold="it takes values from the environment of the nodes")
    setup_globals()  # `${now:...}`
    OmegaConf.set_struct(config, value=False)
    del config["hydra"]
    try:
        values = OmegaConf.to_container(config, resolve=True)
    except InterpolationKeyError as error:
        key = str(error.full_key)
        words = "it names a key that does not exist" if is_secret_override(key) else _first_line(error)
        return Composed(None, (Problem(f"{key}: {words}"),), lookalikes)
    except OmegaConfBaseException as error:
        if "is not a container" in str(error):  # a single value where others refer into a section
            return Composed(None, (Problem(f"{error.full_key}: {_first_line(error)}"),), lookalikes)
        return Composed(None, (), lookalikes, untold=f"{error.full_key} is known to the nodes alone")
    return Composed(values, (), lookalikes) if isinstance(values, dict) else Composed(None)


def _leaves(config: DictConfig, prefix: str = "") -> Iterator[str]:
    """The dotted names of all values but Hydra's own; a section that is empty or elsewhere counts as one."""
    from omegaconf import DictConfig as Branch

    for key in config:
        if prefix or key != "hydra":
            value = config._get_node(key)  # noqa: SLF001  what an interpolation leads to is not a key of its own
            is_section = isinstance(value, Branch) and not value._is_none() and not value._is_interpolation()  # noqa: SLF001
            if is_section and len(value):
                yield from _leaves(value, f"{prefix}{key}.")
            else:
                yield f"{prefix}{key}"


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0].strip().rstrip(".")
