"""A script's arguments as the overrides of a recipe: the same values, and what depends on the cluster left to it."""

import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cloudrl.errors import SpecError
from cloudrl.protocol.data_sets import BUILT_IN
from cloudrl.protocol.secret_names import is_secret_override, mask_by_form
from cloudrl.scripts.lines import Fate
from cloudrl.scripts.sandbox import HOME
from cloudrl.spec.hydra import hydra_text, override_key, split_key
from cloudrl.verl import keys
from cloudrl.verl.loggers import SECRETS_OF

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_DATA = re.compile(rf"{HOME}/data/(?P<name>[\w-]+)/(?P<part>train|test)\.parquet")
"""Where verl's examples have their data, and where the agents put it (`AgentOptions.data_dir`)."""
_MODELS = (keys.MODEL_PATH, keys.CRITIC_MODEL_PATH, keys.REWARD_MODEL_PATH)
_OUTPUTS = (keys.ROLLOUT_DIR, keys.VALIDATION_DIR, "hydra.run.dir", "hydra.sweep.dir")
_SPLITS = ("train.parquet", "test.parquet")
_SHELL = re.compile(r"\$\(|`")


@dataclass(frozen=True)
class Finding:
    """What became of one override: its key, and the sentence for it; whether `check` says the same of the recipe."""

    fate: Fate
    key: str
    value: str
    why: str
    is_checked: bool = False


@dataclass(frozen=True)
class Overrides:
    """What a recipe gets of a training's arguments.

    Attributes:
        values: Key with its prefix -> value, as YAML can hold it.
        words: Overrides that YAML cannot hold, as they were; part of the entry point.
        fields: Fields of the recipe that they became: nodes, gpu, data, model.
        cluster: Fields of the cluster likewise.
        secrets: Variables that the loggers ask for.
        uses_project: Whether a value is a file of the project that only its working directory brings.
        findings: What was not taken as it stood.
    """

    values: Mapping[str, Any] = field(default_factory=dict, repr=False)
    words: tuple[str, ...] = ()
    fields: Mapping[str, Any] = field(default_factory=dict)
    cluster: Mapping[str, Any] = field(default_factory=dict)
    secrets: tuple[str, ...] = ()
    uses_project: bool = False
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True)
class Files:
    """How paths of the sandbox are those of this machine.

    Attributes:
        root: The project.
        cwd: The current folder of the call.
        here: What relative paths of a recipe start from.
        exists: Whether a path was there.
        working_dir: The folder that is sent as a whole; None to send single files.
        data: Folders that the script prepares with verl's own scripts -> data set.
        models: Folders that it downloads a model into -> its name on the Hub.
        mounted: Absolute paths of the nodes -> absolute paths of this machine that are sent there.
    """

    root: str
    cwd: str
    here: str
    exists: Callable[[str], bool]
    working_dir: str | None = None
    data: Mapping[str, str] = field(default_factory=dict)
    models: Mapping[str, str] = field(default_factory=dict)
    mounted: Mapping[str, str] = field(default_factory=dict)

    def path(self, text: str) -> str:
        """The absolute path of a text, on this machine if it is sent from here."""
        path = posixpath.normpath(posixpath.join(self.cwd, text))
        for place, source in self.mounted.items():
            if path == place or path.startswith(f"{place}/"):
                return posixpath.normpath(source + path.removeprefix(place))
        return path

    def place(self, text: str) -> str | None:
        """The absolute path of a project's file; None for any other text."""
        if not text or "://" in text or text.startswith(("~", "$")) or text in (".", ".."):
            return None
        path = self.path(text)
        return path if path.startswith(f"{self.root}/") and self.exists(path) else None

    def written(self, path: str, *, single: bool) -> str:
        """As a recipe names it: in the working directory, or a file here that is sent alone."""
        if self.working_dir is not None and path.startswith(f"{self.working_dir}/"):
            return posixpath.relpath(path, self.working_dir)
        relative = posixpath.relpath(path, self.here)
        return relative if relative.startswith("../") or not single else f"./{relative}"


def take_overrides(words: Sequence[str], files: Files, *, is_main: bool) -> Overrides:
    """Make a recipe's overrides of a command's words.

    Args:
        words: `key=value` as Hydra gets them.
        files: The project.
        is_main: Whether verl's trainer gets them; another program's cluster is what it says itself.
    """
    taken = Overrides()
    parsed = {word: _parse(word) for word in words}
    for word in words:
        key, value, refused = parsed[word]
        taken = _unreadable(taken, word, refused) if key is None else _take(taken, key, value, files)
    taken = _take_data(taken, files)
    if is_main:
        taken = replace(taken, fields={"nodes": 1, "gpu": "8", **taken.fields})  # verl's own defaults
    return replace(taken, fields=dict(taken.fields))


def _parse(word: str) -> tuple[str | None, Any, str]:
    """Key and Python value of an override, as Hydra reads it; no key, and maybe why, where a recipe cannot hold it."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    text, _, _ = word.partition("=")
    parser = OverridesParser.create()
    try:
        if override_key(text).startswith("~"):  # YAML has no key without a value
            return None, None, ""
        parsed = parser.parse_override(word)
        if parsed.is_sweep_override():
            return None, None, "Hydra takes the value for several runs"
    except (HydraException, SpecError):
        return None, None, "Hydra cannot read it"
    try:
        value = _plain(parsed.value())
        again = parser.parse_override(f"{text}={hydra_text(value)}") if "=" in word else parsed
        same = _plain(again.value()) == value and type(_plain(again.value())) is type(value)
    except (HydraException, ValueError):  # a SpecError is one
        same = False
    return (text, value, "") if same else (None, None, "")


def _plain(value: Any) -> Any:
    from hydra.core.override_parser.types import QuotedString

    if isinstance(value, QuotedString):
        return value.text
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {_plain(key): _plain(each) for key, each in value.items()}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise ValueError(f"{type(value).__name__} is no value of YAML")


def _unreadable(taken: Overrides, word: str, refused: str) -> Overrides:
    key, _, value = word.partition("=")
    why = refused or "it stands in the entry point, because a recipe cannot hold it"
    taken = replace(taken, words=(*taken.words, word))
    return _finding(taken, Fate.WRONG if refused else Fate.TAKEN, key, value, why, is_checked=bool(refused))


def _take(taken: Overrides, key: str, value: Any, files: Files) -> Overrides:
    bare = split_key(key)[1]
    text = str(value)
    if (is_secret_override(bare) and value not in (None, "", False, True)) or mask_by_form(text) != text:
        return _finding(taken, Fate.DROPPED, key, "***", "a secret: no file of cloudrl holds it; pass it as a variable")
    if isinstance(value, str) and _SHELL.search(value):
        why = "text of a shell, which verl would take as it is"
        taken = _finding(taken, Fate.WRONG, key, value, why, is_checked=True)
    if bare in (keys.NODES, keys.GPUS) and type(value) is int and value > 0:
        name, written = ("nodes", value) if bare == keys.NODES else ("gpu", str(value))
        taken = replace(taken, fields={**taken.fields, name: written})
        return _finding(taken, Fate.TAKEN, key, value, f"{name}: {written}; the cluster gives it to the job")
    if bare == keys.LOCAL_DIR and isinstance(value, str):
        return _checkpoints(taken, key, value, files)
    if bare in _OUTPUTS and isinstance(value, str) and not _is_of_nodes(value, files):
        return _finding(taken, Fate.DROPPED, key, value, "a folder of this machine; on the nodes: /checkpoints/NAME")
    if bare == keys.SAVE_FREQ and type(value) is int and value < 1:
        taken = _finding(taken, Fate.TAKEN, key, value, "as it is: the run can be neither resumed nor merged")
    if bare == keys.LOGGER:
        names = value if isinstance(value, list) else [value]
        secrets = [SECRETS_OF[name][0] for name in names if name in SECRETS_OF]
        taken = replace(taken, secrets=tuple(dict.fromkeys((*taken.secrets, *secrets))))
    if bare in _MODELS and isinstance(value, str) and (hub := files.models.get(files.path(value))):
        taken, value = _finding(taken, Fate.TAKEN, key, value, f"{hub}: that is what the script downloads there"), hub
    if bare == keys.MODEL_PATH and isinstance(value, str) and HUB_ID.fullmatch(value) and files.place(value) is None:
        taken = replace(taken, fields={**taken.fields, "model": value})
    return _with_paths(taken, key, bare, value, files)


def _checkpoints(taken: Overrides, key: str, value: str, files: Files) -> Overrides:
    """Keep a folder that nodes can have as a disk; drop one that would be lost with the container."""
    if not _is_of_nodes(value, files) or "//" in value:
        why = "the cluster's folder of checkpoints takes its place, with a folder for each run"
        return _finding(taken, Fate.DROPPED, key, value, why)
    top = "/" + "/".join(value.strip("/").split("/")[:-1] or [value.strip("/")])
    return _with(replace(taken, cluster={**taken.cluster, "checkpoints": top}), key, value)


def _is_of_nodes(path: str, files: Files) -> bool:
    """Whether nodes can have a folder on a disk of theirs; not one of the project, of a home, or of a container."""
    return path.startswith("/") and not path.startswith((f"{files.root}/", f"{HOME}/", "/tmp/"))  # noqa: S108


def _with_paths(taken: Overrides, key: str, bare: str, value: Any, files: Files) -> Overrides:
    texts = value if isinstance(value, list) else [value]
    kind, changed, found = keys.kind_of(bare), list[Any](), False
    for text in texts:
        path = files.place(text) if isinstance(text, str) and ("/" in text or "." in text) else None
        changed.append(text if path is None else files.written(path, single=kind is not None))
        found = found or path is not None
        if path is None and isinstance(text, str) and text.startswith(f"{files.root}/"):
            why = "a path of this machine, and there is no such file; name one of the nodes"
            taken = _finding(taken, Fate.UNKNOWN, key, text, why, is_checked=True)
        elif path is None and isinstance(text, str) and kind is not None and _is_lost(text, kind):
            why = "a relative path, and no such file is here; the nodes need an absolute one"
            if text.removeprefix("./").startswith("recipe/"):
                why = "recipe/ is verl-recipe in a checkout of verl: import the script in there"
            taken = _finding(taken, Fate.UNKNOWN, key, text, why, is_checked=True)
    if not found:
        return _with(taken, key, value)
    written = changed if isinstance(value, list) else changed[0]
    how = "with --working-dir" if files.working_dir is not None else "alone, at each submit"
    taken = replace(taken, uses_project=taken.uses_project or kind is None)
    if written != value:
        taken = _finding(taken, Fate.TAKEN, key, value, f"{written}: it is sent {how}")
    return _with(taken, key, written)


def _is_lost(text: str, kind: keys.PathKind) -> bool:
    is_hub = kind is keys.PathKind.MODEL and HUB_ID.fullmatch(text)
    return not text.startswith(("/", "~")) and "://" not in text and not is_hub and text not in ("", "null")


def _take_data(taken: Overrides, files: Files) -> Overrides:
    """Data where verl's own examples have it, or where the script has prepared it, is what the cluster prepares."""
    found = {key: taken.values.get(key) for key in (keys.TRAIN_FILES, keys.VAL_FILES)}
    names = {key: _names(value, files) for key, value in found.items()}
    train, val = names[keys.TRAIN_FILES], names[keys.VAL_FILES]
    if train is None or val is None or [n for n, p in train if p == "train"] != [n for n, p in val if p == "test"]:
        return taken
    if any(name not in BUILT_IN for name, _ in train) or len(train) != len(val) or {p for _, p in train} != {"train"}:
        return taken
    data = [name for name, _ in train]
    values = {key: value for key, value in taken.values.items() if key not in found}
    findings = tuple(each for each in taken.findings if each.key not in found)
    taken = replace(taken, values=values, fields={**taken.fields, "data": data}, findings=findings)
    for key, value in found.items():
        taken = _finding(taken, Fate.TAKEN, key, value, f"data: [{', '.join(data)}]; the cluster prepares it there")
    return taken


def _names(value: Any, files: Files) -> list[tuple[str, str]] | None:
    """Data set and split of each of the files; None if one is of no data set."""
    texts = value if isinstance(value, list) else [value]
    found = list[tuple[str, str]]()
    for text in texts:
        if not isinstance(text, str) or not text:
            return None
        path = files.path(text)
        folder, name = posixpath.split(path)
        if match := _DATA.fullmatch(path):
            found.append((match["name"], match["part"]))
        elif folder in files.data and name in _SPLITS:
            found.append((files.data[folder], name.removesuffix(".parquet")))
        elif _is_missing(path, text, files) and posixpath.basename(folder) in BUILT_IN and name in _SPLITS:
            found.append((posixpath.basename(folder), name.removesuffix(".parquet")))
        else:
            return None
    return found


def _is_missing(path: str, text: str, files: Files) -> bool:
    """Whether a path is relative, or of the project, and not there: the author's own copy of a data set."""
    return not files.exists(path) and (not text.startswith(("/", "~")) or path.startswith(f"{files.root}/"))


def _with(taken: Overrides, key: str, value: Any) -> Overrides:
    """With one override; a later one of the same bare key takes its place, as it does for Hydra."""
    bare = split_key(key)[1]
    others = {each: old for each, old in taken.values.items() if split_key(each)[1] != bare}
    return replace(taken, values={**others, key: value})


def _finding(taken: Overrides, fate: Fate, key: str, value: Any, why: str, *, is_checked: bool = False) -> Overrides:
    return replace(taken, findings=(*taken.findings, Finding(fate, key, _shown(key, value), why, is_checked)))


def _shown(key: str, value: Any) -> str:
    text = mask_by_form(f"{key}={value}")
    return text if len(text) <= 80 else f"{text[:77]}..."
