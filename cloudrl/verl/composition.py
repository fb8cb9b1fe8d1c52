"""verl's configuration as Hydra composes it from verl's own files, on a machine that has no verl.

The files are in `trainer_config/RELEASE`: those of the release's wheel (verl on PyPI, Apache-2.0, verl/trainer/config)
that `verl.trainer.main_ppo` reads. A test compares them with the installed verl.

Hydra (1.3) has no public way to compose that leaves its one global state alone, and a program that uses cloudrl may be
one of Hydra's own; so its loader is used, and only this module and `base_config.py` do.
"""

from __future__ import annotations

import functools
import pickle
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from cloudrl.protocol.secret_names import is_secret_override
from cloudrl.verl import composed_cache
from cloudrl.verl.base_config import base as _base
from cloudrl.verl.base_config import first_line as _first_line
from cloudrl.verl.base_config import plain as _plain
from cloudrl.verl.key_hints import Known, beside, engine_problem, fork_problem, remedy
from cloudrl.verl.keys import MODEL_ENGINE
from cloudrl.verl.override_parsing import GRAMMAR, Problem, parse
from cloudrl.verl.release_files import CONFIG_NAME, folder_of

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override
    from omegaconf import DictConfig

_ENGINES = MODEL_ENGINE
NOT_A_SECTION = ": verl has a section here, not a single value"
_NO_PLUG_IN = re.compile(r"Could not find '(?P<group>hydra/\w+)/(?P<name>[\w-]+)'")
_NO_SECTION = re.compile(r"node `(?P<section>[\w.]+)` is not a container")


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
def compose(
    release: str,
    overrides: tuple[str, ...],
    config_name: str = CONFIG_NAME,
    *,
    files: Path | None = None,
    owner: str = "",
) -> Composed:
    """Compose a configuration as the driver of a job is going to.

    Args:
        release: of verl, one that `is_known`.
        overrides: words of the command, such as `data.train_batch_size=512`.
        config_name: as `--config-name` gives it.
        files: a folder with other YAML files than those of the release (`program_config.py`).
        owner: whose keys they are, for messages; "" for those of the release.
    """
    folder = files or folder_of(release)
    if folder is None:
        return Composed(None, untold=f"the files of verl {release} are not here")
    if untold := _outside(config_name, overrides):
        return Composed(None, untold=untold)
    key = composed_cache.key_of(folder, config_name, overrides)
    run = composed_cache.run_of(overrides)
    if (kept := composed_cache.read(key, run)) is not None:
        return Composed(kept["values"], (), kept["lookalikes"], kept["base"])
    composed = _composed(folder, _Owner(release, owner or _of_release(release)), overrides, config_name)
    if composed.values is not None and not any("${now" in override for override in overrides):
        kept = {"values": composed.values, "lookalikes": composed.lookalikes, "base": composed.base}
        composed_cache.keep(key, kept, run)
    return composed


def _of_release(release: str) -> str:
    return f"verl {release}"


class _Owner(NamedTuple):
    """Whose keys they are: the release of verl, and how messages call it."""

    release: str
    name: str


def _composed(folder: Path, owner: _Owner, overrides: tuple[str, ...], config_name: str) -> Composed:
    parsed, problems = parse(overrides)
    there = sorted(path.stem for path in folder.glob("*.yaml"))
    if not (folder / f"{config_name.removesuffix('.yaml')}.yaml").exists():
        kind = "sft" if "sft" in config_name else "ppo"
        like = [name for name in there if name.startswith(kind)] or there
        hint = f"It has: {', '.join(like)}" if like else ""
        return Composed(None, (Problem(f"{owner.name} has no configuration {config_name!r}", hint), *problems))
    groups = tuple(str(each.input_line) for each in parsed if _is_group(folder, each))
    with_hydra = any(each.key_or_group.startswith("hydra") for each in parsed)
    base, refused = _base(folder, config_name, groups, with_hydra) if with_hydra else _base(folder, config_name, groups)
    if refused:
        return Composed(None, (*problems, _no_files(groups, config_name, refused)))
    config: DictConfig = pickle.loads(base)  # noqa: S301  our own, a moment old; composing from files takes a second
    unknown: list[Override] = []
    lookalikes = _lookalikes(config, parsed)
    for each in parsed:
        found = None if _is_group(folder, each) else _apply(config, each, owner.name)
        if found is not None:
            problems.append(found)
            if not found.hint and not each.is_delete():
                unknown.append(each)
    if unknown:  # what was refused may have changed a part of the configuration
        known = _known(folder, owner, pickle.loads(base), parsed, is_ppo=config_name.startswith("ppo"))  # noqa: S301
        problems = _with_remedies(problems, unknown, known)
    if problems:
        return Composed(None, tuple(problems))
    return replace(_resolved(config, overrides, lookalikes), base=_plain(folder, config_name, groups))


def _no_files(groups: Sequence[str], config_name: str, refused: str) -> Problem:
    """Why files cannot be put together; those of Hydra's plug-ins are not in its own package."""
    if (found := _NO_PLUG_IN.search(refused)) is None:
        return Problem(f"{' '.join(groups) or config_name}: {refused}", GRAMMAR if groups else "")
    text = f"{found['group']}={found['name']}: Hydra has it only with a plug-in, which verl does not install"
    return Problem(text, "verl runs once, and needs no launcher or sweeper of Hydra's: leave it out")


def _lookalikes(config: DictConfig, parsed: Sequence[Override]) -> dict[str, str]:
    """Keys that are added and look like one that there is, with that one."""
    keys = tuple(_leaves(config))
    added = (str(each.key_or_group) for each in parsed if each.is_add() or each.is_force_add())
    return {key: similar for key in added if (similar := beside(key, keys, 0.85)) is not None}


def _known(folder: Path, owner: _Owner, config: DictConfig, parsed: Sequence[Override], *, is_ppo: bool) -> Known:
    defaults = {key: _default(config, key) for key in _leaves(config)}
    return Known(
        release=owner.release,
        defaults=defaults,
        job_sets={str(each.key_or_group) for each in parsed if not each.is_delete()},
        is_free=lambda key: _is_free(config, key),
        is_built=lambda key: _is_built(config, key),
        engine_with=lambda key: _engine_with(folder, key) if is_ppo else None,
        is_own=owner.name != _of_release(owner.release),
    )


def _with_remedies(problems: Sequence[Problem], unknown: Sequence[Override], known: Known) -> list[Problem]:
    """The same problems with hints for keys that verl does not have, and a word on forks if there are several."""
    by_key = {str(each.key_or_group): each for each in unknown}
    told, strange = list[Problem](), list[str]()
    of_engine = engine_problem(list(by_key), known)
    if of_engine is not None:
        text, hint, keys = of_engine
        told, problems = [Problem(text, hint)], [problem for problem in problems if problem.key not in keys]
    for problem in problems:
        override = by_key.get(problem.key)
        if override is None or problem.hint:
            told.append(problem)
            continue
        found = remedy(problem.key, str(override.input_line).partition("=")[2], override.value(), known)
        told.append(Problem(f"{problem.text}{found.text}", found.hint, problem.key))
        if not found.is_known:
            strange.append(problem.key)
    fork = None if known.is_own else fork_problem(strange, known.release)
    return told if fork is None else [*told, Problem(*fork)]


def _outside(config_name: str, overrides: Sequence[str]) -> str:
    """Why files that are not here decide; "" where they do not."""
    if config_name.startswith("_generated_"):
        return f"{config_name} is one of verl's generated files"
    if any(override.startswith("hydra.searchpath") for override in overrides):
        return "hydra.searchpath leads to files of your own"
    return ""


def _is_group(folder: Path, override: Override) -> bool:
    """Whether it chooses one of several files, such as `model_engine=megatron`; Hydra has some of its own."""
    group = str(override.key_or_group)
    return (group in _groups(folder) and not isinstance(override.value(), dict)) or group.startswith("hydra/")


@functools.lru_cache(maxsize=8)
def _groups(folder: Path) -> frozenset[str]:
    return frozenset(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_dir())


def _apply(config: DictConfig, override: Override, owner: str) -> Problem | None:
    """Change the configuration by one override, or say why Hydra would not."""
    from hydra._internal.config_loader_impl import ConfigLoaderImpl
    from hydra.errors import HydraException
    from hydra.types import RunMode
    from omegaconf import OmegaConf
    from omegaconf.errors import ConfigAttributeError, ConfigKeyError

    try:
        ConfigLoaderImpl.validate_sweep_overrides_legal([override], RunMode.RUN, from_shell=False)
        ConfigLoaderImpl._apply_overrides_to_config([override], config)  # noqa: SLF001  see the module
    except (HydraException, TypeError) as error:
        key, text = override.key_or_group, str(override.input_line)
        value = text.partition("=")[2]
        if override.is_sweep_override():
            return _several_runs(str(key), value, _node(config, str(key)))
        if override.is_add() and "already at" in str(error):
            said, hint = f": {owner} has this key, which takes no +", shlex.quote(f"{key}={value}")
        elif override.is_delete():
            said, hint = f": {owner} has no such key to leave out", ""
        elif isinstance(override.value(), list) and OmegaConf.is_dict(_node(config, str(key))):
            said, hint = f"={value}{NOT_A_SECTION}", f"~{key}"
        elif isinstance(error.__cause__, (ConfigAttributeError, ConfigKeyError)):
            said, hint = f": {owner} has no such key", ""
        else:
            said, hint = f": {_first_line(error)}", GRAMMAR
        return Problem(f"{key}{said}", hint, key)
    return None


def _several_runs(key: str, value: str, default: object) -> Problem:
    instead = f"[{value}]"
    if isinstance(default, (int, float)):  # a comma for a point, or the first run
        has_point = isinstance(default, float) and value.count(",") == 1
        instead = value.replace(",", ".") if has_point else value.partition(",")[0]
    return Problem(f"{key}: Hydra takes the value for several runs", shlex.quote(f"{key}={instead}"), key)


def _node(config: DictConfig, key: str) -> Any:
    """The value of a dotted key; None without such a key, and where the key refers to one that does not exist."""
    from omegaconf import OmegaConf

    return OmegaConf.select(config, key, default=None, throw_on_resolution_failure=False)


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


def _is_built(config: DictConfig, key: str) -> bool:
    """Whether verl makes an object of the nearest section above a key that there is, which takes no other names."""
    from omegaconf import OmegaConf

    while "." in key:
        key = key.rpartition(".")[0]
        above = _node(config, key)
        if above is not None:
            return OmegaConf.is_dict(above) and "_target_" in above
    return False


def _default(config: DictConfig, key: str) -> Any:
    """The default of a key as it stands in the file, so that what an interpolation leads to does not count."""
    node: Any = config
    *above, last = key.split(".")
    for name in above:
        node = node._get_node(name)  # noqa: SLF001
    value = node._get_node(last)  # noqa: SLF001
    is_branch = hasattr(value, "keys") or (hasattr(value, "append") and not isinstance(value, str))
    return ({} if hasattr(value, "keys") else []) if is_branch else value._value()  # noqa: SLF001


def _engine_with(folder: Path, key: str) -> str | None:
    """The engine of verl whose configuration has a key."""
    engines = sorted(path.stem for path in (folder / _ENGINES).glob("*.yaml"))
    return next((engine for engine in engines if key in _keys_with(folder, engine)), None)


def has_engine(release: str, engine: str) -> bool:
    """Whether a release has an engine of that name."""
    folder = folder_of(release)
    return folder is not None and (folder / _ENGINES / f"{engine}.yaml").exists()


def keys_of_engine(release: str, engine: str) -> frozenset[str]:
    """The dotted keys of the configuration with an engine; empty if it cannot be composed."""
    folder = folder_of(release)
    return frozenset() if folder is None else _keys_with(folder, engine)


def keys_in(files: Path, config_name: str) -> frozenset[str]:
    """The dotted keys of a configuration without overrides; empty if it cannot be composed."""
    base, refused = _base(files, config_name, ())
    return frozenset() if refused else frozenset(_leaves(pickle.loads(base)))  # noqa: S301  our own


@functools.lru_cache(maxsize=16)
def _keys_with(folder: Path, engine: str) -> frozenset[str]:
    base, refused = _base(folder, CONFIG_NAME, (f"{_ENGINES}={engine}",))
    return frozenset() if refused else frozenset(_leaves(pickle.loads(base)))  # noqa: S301  our own


def _resolved(config: DictConfig, overrides: Sequence[str], lookalikes: Mapping[str, str]) -> Composed:
    from hydra.core.utils import setup_globals
    from omegaconf import OmegaConf
    from omegaconf.errors import InterpolationKeyError, OmegaConfBaseException

    if any("oc.env" in override for override in overrides):
        return Composed(None, (), lookalikes, untold="it takes values from the environment of the nodes")
    setup_globals()  # `${now:...}`
    OmegaConf.set_struct(config, value=False)
    config.pop("hydra", None)
    try:
        values = OmegaConf.to_container(config, resolve=True)
    except InterpolationKeyError as error:
        key = str(error.full_key)
        words = "it names a key that does not exist" if is_secret_override(key) else _first_line(error)
        return Composed(None, (Problem(f"{key}: {words}"),), lookalikes)
    except OmegaConfBaseException as error:
        if (found := _NO_SECTION.search(str(error))) is not None:  # others refer into it
            section = found["section"]
            value = _node(config, section)
            text = f"{section}={'null' if value is None else value}{NOT_A_SECTION}"
            return Composed(None, (Problem(text, f"~{section}", section),), lookalikes)
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
