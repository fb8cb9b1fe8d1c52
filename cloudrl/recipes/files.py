"""Recipes and algorithms by their name, and what the user declares in files: jobs, clusters, fleets, volumes.

Algorithms are overlays: another advantage estimator or policy loss for any recipe. One YAML file each in `algorithms/`,
for what verl 0.9.1 offers (trainer/ppo/core_algos.py: AdvantageEstimator, POLICY_LOSS_REGISTRY) and a recipe can switch
to. Not here: `grpo_vectorized` and `rloo_vectorized`, the same numbers by other code; `gdpo`, which needs a reward of
several parts; `tir_optimal_token_baseline`, for several turns; `dro`, for which verl names no coefficient;
`bypass_mode`, which belongs to verl's rollout correction.
"""

import json
import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import PlainValidator

from cloudrl.errors import SpecError, did_you_mean, similar_file
from cloudrl.foreign import Malformed, read_file
from cloudrl.spec import Job
from cloudrl.spec.base import FrozenDict, Spec, assigned
from cloudrl.spec.fields import Words, text
from cloudrl.spec.hydra import hydra_text, split_key
from cloudrl.spec.job import Overrides, merge_overrides
from cloudrl.spec.quoting import kind_of
from cloudrl.spec.yaml_core import dump_mapping, load_value
from cloudrl.verl.keys import ANSWERS
from cloudrl.verl.keys import kind_of as path_kind
from cloudrl.verl.releases import RELEASE

S = TypeVar("S", bound=Spec)

_FOLDER = Path(__file__).parent
_LIMIT_BYTES = 32 << 20
_SUFFIXES = (".yml", ".yaml")
_RELATIVE = ("./", "../")
_SCRIPTS = (".sh", ".bash", ".slurm", ".sbatch")
"""Of files that `check` and `submit` also take, and that no recipe is named after."""
_ALGORITHMS = Path(__file__).parent / "algorithms"

MAKES_AN_ALGORITHM = re.compile(
    r"algorithm\.(adv_estimator|norm_adv_by_std_in_grpo|use_kl_in_reward|filter_groups(\..+)?)"
    r"|actor_rollout_ref\.actor\.(policy_loss(\..+)?|loss_agg_mode|loss_scale_factor|clip_ratio(_low|_high|_c)?"
    r"|tau_pos|tau_neg|use_kl_loss|calculate_sum_pi_squared)"
    r"|critic\.enable"
)
"""Keys that say which algorithm it is. An overlay replaces them as a whole: what it does not set goes back to
verl's default. Coefficients and rates stay as the recipe has them."""

_NAME = re.compile(r"^name: .*\n", re.MULTILINE)
_OF_A_CRITIC = re.compile(r"critic(\..+)?|trainer\.critic_warmup")


def names() -> list[str]:
    """The recipes that come with cloudrl, in alphabetical order."""
    return sorted(path.stem for path in _FOLDER.glob("*.yml"))


def load(name_or_path: str | os.PathLike[str]) -> Job:
    """Load a recipe by its name, or a job of the user's own by the path of its `.yml` file.

    A value is a path when it ends in `.yml` or `.yaml` or holds a `/`. A job without `name` is called
    after its file. With `extends: NAME`, or a path from that file, it has all that the other recipe says and that
    it does not say itself; of `overrides` and `env` each key by itself, and `~key` takes one out.

    Raises:
        SpecError: No recipe of that name, no such file, not YAML, or fields that are not those of a job.
    """
    path = path_of(name_or_path)
    shown = os.fspath(name_or_path)
    return _declared(Job, _recipe_fields(path, shown), shown)


def _recipe_fields(path: Path, shown: str, chain: tuple[Path, ...] = ()) -> dict[str, Any]:
    """The fields of a job's file over those of the recipe that it extends.

    A recipe of ours that names no release of verl is for the default one.

    Args:
        path: The file.
        shown: What messages call it.
        chain: The files that extend it, the first one first.
    """
    fields = read_mapping(path, shown)
    own = {"name": path.stem, **_seen_from_here(fields, path.parent)}
    base = own.pop("extends", None)
    if base is None:
        return {"verl": RELEASE.verl, **own} if path.parent == _FOLDER else own
    chain = (*chain, path.resolve())
    base_path, base_shown = _base(base, path, shown)
    if base_path.resolve() in chain:
        circle = " -> ".join(each.name for each in (*chain[chain.index(base_path.resolve()) :], base_path))
        raise SpecError(f"{shown}: extends: {base_shown} is a circle: {circle}", hint="Take extends out of one of them")
    inherited = _recipe_fields(base_path, base_shown, chain)
    _declared(Job, inherited, base_shown)  # what is wrong there is not reported as of this file
    return {**inherited, **own, **_merged_mappings(inherited, own, shown)}


def _base(base: object, path: Path, shown: str) -> tuple[Path, str]:
    """The file of the recipe that is extended, and what messages call it; a path starts from the file that says it."""
    if not isinstance(base, str):
        raise SpecError(f"{shown}: extends is {kind_of(base)}, not the name of a recipe", hint="extends: grpo-tiny")
    is_path = "/" in base or base.endswith(_SUFFIXES)
    asked = os.fspath(path.parent / Path(base).expanduser()) if is_path else base
    try:
        return path_of(asked), asked
    except SpecError as error:
        raise SpecError(f"{shown}: extends: {error.message}", hint=error.hint) from None


def _merged_mappings(inherited: Mapping[str, Any], own: Mapping[str, Any], shown: str) -> dict[str, Any]:
    """The fields that are mappings, of which a file that extends another adds to the other's."""
    merged: dict[str, Any] = {}
    for field, merge in (("overrides", merge_overrides), ("env", lambda old, new: {**old, **new})):
        old, new = inherited.get(field, {}), own.get(field, {})
        if not isinstance(new, Mapping):
            continue  # which is reported as any wrong value is
        try:
            merged[field] = merge(old, new)
        except SpecError as error:
            raise SpecError(f"{shown}: {error.message}", hint=error.hint) from None
    return merged


def _seen_from_here(fields: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The fields with paths that start with `./` or `../` as this process means them: they start from the file."""

    def moved(value: Any) -> Any:
        if isinstance(value, list):
            return [moved(item) for item in value]
        if not isinstance(value, str) or not value.startswith(_RELATIVE):
            return value
        path = os.path.relpath(folder / value)
        return path if path.startswith("../") else f"./{path}"

    overrides = fields.get("overrides")
    changed = dict(fields)
    if "data" in fields:
        changed["data"] = moved(fields["data"])
    if isinstance(overrides, Mapping):
        is_path = {key: isinstance(key, str) and path_kind(split_key(key)[1]) is not None for key in overrides}
        changed["overrides"] = {key: moved(value) if is_path[key] else value for key, value in overrides.items()}
    return changed


def load_spec(kind: type[S], path: str | os.PathLike[str]) -> S:
    """What a YAML file declares: `load_spec(Cluster, "cluster.yml")`. Its fields are those of the kind.

    Raises:
        SpecError: No such file, not YAML, or fields that the model does not have.
    """
    shown = os.fspath(path)
    return _declared(kind, read_mapping(_existing(shown), shown), shown)


def merge_fields(
    options: Mapping[str, Any], path: str | os.PathLike[str] | None = None, assignments: Sequence[str] = ()
) -> dict[str, Any]:
    """Fields of something declared: those of a YAML file, `options` over them, and then what is assigned.

    Args:
        options: Field -> value.
        path: The file.
        assignments: `gpu=H100:8`, `dstack.backends=[aws]`: dotted paths, and values in YAML.

    Raises:
        SpecError: No such file, not YAML, no assignment, or one of a field that `options` has already.
    """
    for assignment in assignments:
        field = assignment.partition("=")[0]
        inner: Any = options
        for name in field.split("."):
            inner = inner.get(name) if isinstance(inner, Mapping) else None
        if inner is not None:
            raise SpecError(f"--set {field}: {field} is set twice", hint=f"Leave out --set {field}=...")
    declared = read_mapping(_existing(os.fspath(path)), os.fspath(path)) if path is not None else {}
    return assigned({**declared, **options}, assignments)


def read_mapping(path: Path, shown: str) -> dict[str, Any]:
    """The one mapping in a YAML file.

    Args:
        path: The file.
        shown: What messages call it, as the user typed it.

    Raises:
        SpecError: Not readable, not YAML (with the line), or no mapping.
    """
    try:
        values = load_value(read_file(path, _LIMIT_BYTES).decode(), shown)
    except Malformed as error:
        raise SpecError(f"{shown}: {error}") from None
    except UnicodeDecodeError as error:
        raise SpecError(f"{shown}: not a text file in UTF-8 (byte {error.start})") from None
    except OSError as error:
        raise SpecError(f"{shown}: cannot be read: {error.strerror}") from None
    if not isinstance(values, dict):
        raise SpecError(f"{shown}: expected `field: value` lines, found {kind_of(values)}")
    return values


def _declared(kind: type[S], values: dict[str, Any], shown: str) -> S:
    try:
        return kind.load(values)
    except SpecError as error:
        raise SpecError(f"{shown}: {error.message}", hint=error.hint) from None


def path_of(name_or_path: str | os.PathLike[str]) -> Path:
    """The file of a recipe, or the file itself where a path is given.

    Raises:
        SpecError: No recipe of that name, or no such file.
    """
    asked = os.fspath(name_or_path)
    if os.sep in asked or asked.endswith((*_SUFFIXES, *_SCRIPTS)) or not isinstance(name_or_path, str):
        return _existing(asked)
    if asked not in names():
        if Path(asked).is_dir():
            raise SpecError(f"{asked} is a folder, not a recipe", hint=f"ls {shlex.quote(asked)}")
        known_names = ", ".join(names())
        raise SpecError(
            f"there is no recipe {asked!r}{did_you_mean(asked, names())}",
            hint=f"Recipes: {known_names}. A file of your own is given by its path: ./{asked or 'job'}.yml",
        )
    return _FOLDER / f"{asked}.yml"


def _existing(asked: str) -> Path:
    path = Path(asked).expanduser()
    if path.is_dir():
        raise SpecError(f"{asked} is a folder, not a file", hint=f"ls {shlex.quote(asked)}")
    if not path.is_file():
        siblings = [other.name for other in path.parent.glob("*.y*ml")] if path.parent.is_dir() else []
        raise SpecError(f"there is no file {asked}{similar_file(path.name, siblings)}", hint=f"ls {path.parent}")
    return path


class Algorithm(Spec):
    """What makes a recipe train by this algorithm, in verl's own keys."""

    name: Annotated[str, PlainValidator(text)]
    summary: Annotated[str, PlainValidator(text)]
    source: Annotated[str, PlainValidator(text)]
    verl: Annotated[str, PlainValidator(text)] = RELEASE.verl
    """The release whose keys these are."""
    critic: bool = False
    """Whether it trains a critic. Without one, a recipe's keys for it are dropped."""
    answers: int | None = None
    """How many answers a prompt, where it compares them and the recipe has one; None where one is enough."""
    overrides: Overrides = FrozenDict()
    defaults: Overrides = FrozenDict()
    """Overrides for keys of which the recipe says nothing."""
    without: Words = ()
    """Keys of a recipe that do not go with it."""

    def apply(self, job: Job) -> Job:
        """The job, by this algorithm."""
        overrides = {key: value for key, value in job.overrides.items() if not self._drops(split_key(key)[1])}
        present = {split_key(key)[1] for key in overrides}
        defaults = {key: value for key, value in self.defaults.items() if split_key(key)[1] not in present}
        return job.replace(overrides=overrides).with_overrides({**self.overrides, **self._group(job), **defaults})

    def _drops(self, key: str) -> bool:
        without_critic = not self.critic and _OF_A_CRITIC.fullmatch(key)
        return bool(MAKES_AN_ALGORITHM.fullmatch(key) or without_critic) or key in self.without

    def _group(self, job: Job) -> dict[str, Any]:
        alone = job.override(ANSWERS) in (None, "1")
        return {ANSWERS: self.answers} if self.answers is not None and alone else {}


def algorithms() -> list[str]:
    """The algorithms that a recipe can be switched to, in alphabetical order."""
    return sorted(path.stem for path in _ALGORITHMS.glob("*.yml"))


def algorithm(name: str) -> Algorithm:
    """An algorithm by its name.

    Raises:
        SpecError: no algorithm has that name.
    """
    if name not in algorithms():
        raise SpecError(
            f"there is no algorithm {name!r}{did_you_mean(name, algorithms())}",
            hint=f"Algorithms: {', '.join(algorithms())}",
        )
    return Algorithm.load(_fields(name))


def _fields(name: str) -> dict[str, Any]:
    return read_mapping(_ALGORITHMS / f"{name}.yml", name)


def with_algorithm(job: Job, name: str) -> Job:
    """The same job by another algorithm; its name, summary and source say so.

    Raises:
        SpecError: there is no algorithm of that name, or the job is written for another verl than its keys.
    """
    chosen = algorithm(name)
    if job.verl is not None and job.verl.split(".")[:2] != chosen.verl.split(".")[:2]:
        raise SpecError(
            f"algorithm {name!r} is written for verl {chosen.verl}, and recipe {job.name!r} for {job.verl}",
            hint=f"Give the overrides yourself; those for verl {chosen.verl}: cloudrl recipes show NAME "
            f"--algorithm {name}",
        )
    named = job.name if job.name.split("-")[0] == name else f"{job.name[:60]}-{name}"
    source = "; ".join(part for part in (job.source, f"{name}: {chosen.source}") if part)
    summary = f"{chosen.summary}; the rest as in {job.name}"
    return chosen.apply(job).replace(name=named, summary=summary, source=source)


def render_recipe(name_or_path: str | os.PathLike[str], algorithm: str | None = None) -> str:
    """A recipe's file with its comments; by another algorithm, a file that `load` reads as that job.

    Raises:
        SpecError: there is no such recipe or algorithm, or they do not go together.
    """
    path, shown = path_of(name_or_path), os.fspath(name_or_path)
    job = load(name_or_path)
    if algorithm is None and "extends" in read_mapping(path, shown):
        return _extended_text(path, shown)
    if algorithm is None:
        written, release = path.read_text(encoding="utf-8"), f'verl: "{job.verl}"\n'
        return written if "\nverl: " in written or job.verl is None else _NAME.sub(rf"\g<0>{release}", written, count=1)
    job = with_algorithm(job, algorithm)
    recipe, overlay = _recipe_fields(path, shown), _fields(algorithm)
    # A job holds Hydra's text; the values that it was made of stand in the two files.
    groups = (recipe.get("overrides", {}), overlay.get("overrides", {}), overlay.get("defaults", {}))
    values = [value for group in groups for value in group.values()] + [overlay.get("answers")]
    by_text = {hydra_text(value): value for value in values}
    head = f"# {shown} by the algorithm {algorithm}: {overlay['summary']}\n"
    overrides = {key: by_text[text] for key, text in job.overrides.items()}
    about = {"name": job.name, "summary": job.summary, "source": job.source}
    return head + dump_mapping({**recipe, **about, "overrides": overrides})


def _extended_text(path: Path, shown: str) -> str:
    """A recipe whole, with the file behind each override; `load` reads it as the same job."""
    fields = _recipe_fields(path, shown)
    origin = {split_key(key)[1]: name for name, file in reversed(_chain(path, shown)) for key in _keys_of(file, name)}
    overrides = fields.pop("overrides", {})
    lines = [_override_line(key, value) for key, value in overrides.items()]
    width = max(map(len, lines), default=0)
    noted = (f"{line:<{width}}  # {origin[split_key(key)[1]]}" for line, key in zip(lines, overrides, strict=True))
    return dump_mapping(fields) + "overrides:\n" + "\n".join(noted) + "\n"


def _override_line(key: str, value: Any) -> str:
    """One line, also for a list or a mapping, for which JSON is YAML."""
    if isinstance(value, (list, dict)):
        return f"  {key}: {json.dumps(value, ensure_ascii=False)}"
    return f"  {dump_mapping({key: value}).rstrip()}"


def _chain(path: Path, shown: str) -> list[tuple[str, Path]]:
    """The file, the one that it extends, and so on, with what messages call each."""
    files = [(shown, path)]
    while (base := read_mapping(path, shown).get("extends")) is not None:
        path, shown = _base(base, path, shown)
        files.append((shown, path))
    return files


def _keys_of(path: Path, shown: str) -> Iterable[str]:
    overrides: Mapping[str, Any] = read_mapping(path, shown).get("overrides") or {}
    return overrides
