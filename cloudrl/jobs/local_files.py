"""Which values of a job are paths of this machine, and what is there: inspected once, before anything is planned.

The rule, for keys under which verl reads (`cloudrl.verl.keys`):

- `./x`, `../x` and `~/x` are of this machine, and have to exist.
- `x/y` is of the working directory that is sent along, if it is in there; otherwise of this machine, if it is here.
- `owner/name` where a model is expected is a model on the Hub; a folder of that name needs `./`.
- `cloudrl://x` is a file that comes with cloudrl and is sent with the job, such as `cloudrl://tools/search.py`.
- `/x` is of the nodes, as it is in all of verl's examples.
- URLs (`hdfs://`, `pkg://`), `null` and `${...}` are left to verl.
"""

import hashlib
import re
import shlex
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from cloudrl.errors import InputError, Refusals, similar_file
from cloudrl.jobs.program_files import own_files
from cloudrl.jobs.working_dir import Entry, scan
from cloudrl.options.environment import is_remote
from cloudrl.options.job import SubmitOptions
from cloudrl.spec import Job
from cloudrl.spec.hydra import hydra_text, items, override_argument, split_key
from cloudrl.verl.keys import CRITIC_MODEL_PATH, MODEL_PATH, REWARD_MODEL_PATH, PathKind, kind_of
from cloudrl.verl.program_config import OwnFiles

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_WHOLE_MODELS = (MODEL_PATH, CRITIC_MODEL_PATH, REWARD_MODEL_PATH)
_OURS, _PACKAGE = "cloudrl://", Path(__file__).parents[1]
UNREAD = "0" * 64
"""Stands for the SHA-256 of a file that was not read yet."""
PARTS = ("train.parquet", "test.parquet")
_FOLDERS = {PathKind.MODEL, PathKind.FOLDER}
_READ = {PathKind.CODE, PathKind.TOOLS}


@dataclass(frozen=True)
class LocalFile:
    """What is at a path. Of contents only Python code and lists of tools are read."""

    path: Path
    """Absolute, by the name that the user gave."""
    resolved: Path
    is_in_working_dir: bool = False
    exists: bool = False
    is_folder: bool = False
    children: tuple[str, ...] = ()
    """Names in a folder; a folder's ends with `/`."""
    entries: tuple[Entry, ...] = ()
    """The file, or all files of a folder if one may be sent; names start with that of the file or folder."""
    beside: tuple[str, ...] | None = None
    """Names in its parent folder; None if there is no such folder."""
    modules_beside: frozenset[str] = frozenset()
    source: bytes = field(default=b"", repr=False)
    """Of what is read."""
    is_converted: bool = False
    """Whether cloudrl has made it of what the user named."""

    @property
    def size_bytes(self) -> int:
        """All its files together."""
        return sum(entry.size_bytes for entry in self.entries)


@dataclass(frozen=True)
class Conversion:
    """A data set that verl cannot read as it is, and what was made of it.

    Attributes:
        choices: what was taken for what, one sentence each.
        error: why nothing could be made of it; None where it could.
    """

    choices: tuple[str, ...] = ()
    error: InputError | None = None


@dataclass(frozen=True)
class LocalFiles:
    """Everything that planning a job needs to know of this machine's disk."""

    here: Path
    """What relative paths start from."""
    working_dir: LocalFile | None = None
    """The folder that is sent along; its entries are named by their paths below it."""
    working_dir_is_remote: bool = False
    """The working directory is a URL: its content is unknown here, and nothing can be added to it."""
    verl_fork: str | None = None
    """The release of the verl in the working directory; "" if it has no version file, None if there is no verl."""
    program: OwnFiles = field(default=OwnFiles(), repr=False)
    """What the working directory has of the program that the job runs."""
    found: Mapping[str, LocalFile] = field(default_factory=dict, repr=False)
    """By the text that the user gave: what is in the working directory, or else seen from `here`."""
    digests: Mapping[Path, str] = field(default_factory=dict, repr=False)
    """SHA-256 of what has been read."""
    conversions: Mapping[str, Conversion] = field(default_factory=dict, repr=False)
    """By the name of a data set; in `found`, one that was converted is a folder with `PARTS`."""

    def at(self, text: str) -> LocalFile:
        """What is at a path of job or options; for any other, such as one of the cluster, nothing exists."""
        return self.found.get(text) or LocalFile(self.here / text, self.here / text)

    def digest(self, path: Path) -> str:
        """SHA-256 of a file, `UNREAD` until it was read."""
        return self.digests.get(path, UNREAD)

    def name_inside(self, file: LocalFile) -> str | None:
        """The path below the working directory of a file or folder that is sent completely with it."""
        if self.working_dir is None or not file.resolved.is_relative_to(self.working_dir.resolved):
            return None
        name = file.resolved.relative_to(self.working_dir.resolved).as_posix()
        travelling = {entry.name for entry in self.working_dir.entries}
        wanted = {name + entry.name.removeprefix(file.path.name) for entry in file.entries}
        return name if wanted and wanted <= travelling else None

    def is_in_root(self, file: LocalFile) -> bool:
        """Whether a file is sent in the root of the working directory, where Python finds modules beside it."""
        return "/" not in (self.name_inside(file) or "/")


_ENDINGS = {
    PathKind.DATA: (".parquet", ".jsonl", ".json", ".csv"), PathKind.CODE: (".py",), PathKind.TOOLS: (".yaml", ".yml"),
}  # fmt: skip
"""Of the files that are suggested in place of a folder."""


@dataclass(frozen=True)
class LocalPath:
    """One path of this machine, in one override; `key` is written with its prefix."""

    key: str
    kind: PathKind
    text: str
    """As the user wrote it."""
    file: LocalFile

    def __str__(self) -> str:
        return f"{self.key}={self.text}"


def inspect_files(job: Job, options: SubmitOptions, *, here: Path | None = None) -> LocalFiles:
    """Look at the working directory and at every path that job or options name.

    Args:
        job: The recipe.
        options: What the user asks for.
        here: What relative paths start from; None is the current directory.

    Raises:
        InputError: The working directory is not a folder, or cannot be listed.
    """
    here, source = here or Path.cwd(), options.working_dir_source
    is_url = is_remote(source or "")
    excludes = options.runtime_env.get("excludes") or ()
    folder = _inspect_working_dir(Path(source), excludes) if source and not is_url else None
    kinds: dict[str, set[PathKind]] = defaultdict(set)
    for text, kind in _paths(job, options):
        kinds[text].add(kind)
    files = {text: inspect_path(here, text, asked) for text, asked in kinds.items()}
    if folder is not None:
        inside = {text: inspect_path(folder.path, text, kinds[text]) for text in kinds if not is_marked(text)}
        files |= {text: replace(file, is_in_working_dir=True) for text, file in inside.items() if file.exists}
    return LocalFiles(
        here=here,
        working_dir=folder,
        working_dir_is_remote=is_url,
        verl_fork=_verl_of(folder),
        program=own_files(job.entrypoint, folder.entries) if folder is not None else OwnFiles(),
        found=files,
    )


def inspect_path(base: Path, text: str, kinds: Set[PathKind]) -> LocalFile:
    """Look at one path, as far as something of these kinds is asked for there.

    Raises:
        InputError: What may be sent cannot be read.
    """
    path = base / text
    try:
        path = _PACKAGE / text.removeprefix(_OURS) if text.startswith(_OURS) else base / Path(text).expanduser()
        resolved = path.resolve()
        # `.`, `..` and `~` have no name of their own; any other is kept, also that of a link
        named = resolved if path.name in ("", "..") or text in (".", "~") else path.absolute()
        beside = tuple(sorted(entry.name for entry in path.parent.iterdir())) if path.parent.is_dir() else None
        file = LocalFile(named, resolved, exists=path.exists(), is_folder=resolved.is_dir(), beside=beside)
        if file.is_folder:
            entries = _entries(named) if kinds & _FOLDERS else ()
            return replace(file, children=_children(resolved), entries=entries)
        if not file.exists:
            return file
        info = resolved.stat()
    except (OSError, RuntimeError, ValueError):
        # a name that no file can have, a loop of links, or a folder that is closed to us
        return LocalFile(path, path)
    file = replace(file, entries=(Entry(named.name, named, info.st_size, info.st_mode),))
    return _read(file) if kinds & _READ else file


def find_local_paths(
    overrides: Mapping[str, str],
    files: LocalFiles,
    *,
    nodes_are_here: bool = False,
    refused: Refusals | None = None,
) -> tuple[tuple[LocalPath, ...], tuple[str, ...]]:
    """The paths of this machine in a job's overrides, and what the user should know of the others.

    Args:
        overrides: As Hydra text.
        files: What is at them.
        nodes_are_here: Whether the nodes have this machine's disk, so that an absolute path is the same for both.
        refused: Receives the errors of all paths that are wrong; None raises the first.

    Raises:
        InputError: A path of this machine does not exist, or is a folder where a file is read, or the reverse.
    """
    paths: list[LocalPath] = []
    notes: list[str] = []
    errors = Refusals() if refused is None else refused
    missing = set[str]()
    for key, value in overrides.items():
        kind = kind_of(split_key(key)[1])
        if kind is None or key.startswith("~"):
            continue
        for text in items(value):
            if is_of_this_machine(text, kind, files):
                path = LocalPath(key, kind, text, files.at(text))
                if not path.file.exists and text in missing:
                    continue  # of `--data` both kinds of rows have one name
                missing.add(text)
                with errors.collect():
                    _check(path)
                    paths.append(path)
            else:
                notes += _notes(key, text, kind, files.at(text), nodes_are_here)
    if refused is None and errors:
        raise errors[0]
    return tuple(paths), tuple(dict.fromkeys(notes))


def is_of_this_machine(text: str, kind: PathKind, files: LocalFiles) -> bool:
    """The rule at the head of this file; what was converted is here, whatever it was made of."""
    if is_marked(text) or files.at(text).is_converted:
        return True
    if not text or text == "null" or "${" in text or is_remote(text) or text.startswith(("/", "~")):
        return False
    file = files.at(text)
    if file.is_in_working_dir:
        return True
    if kind is PathKind.MODEL:
        return not HUB_ID.fullmatch(text) and (file.exists or text.count("/") > 1)
    return file.exists or not files.working_dir_is_remote


def missing_path(what: str, file: LocalFile) -> InputError:
    """The error for a path that does not exist, with the nearest name in its folder."""
    meant, look = similar_file(file.path.name, file.beside or ()), f"ls {shlex.quote(str(file.path.parent))}"
    if file.beside is None:
        meant = f", nor does its folder {file.path.parent}"
        look = "A path of this machine begins in the current folder, or with ~/"
    return InputError(
        f"{what}: {file.path} does not exist{meant}",
        hint=f"{look}\nA path on the nodes is written absolute, a file of --working-dir by its name in there",
    )


def _check(path: LocalPath) -> None:
    file, wants_folder = path.file, path.kind in (PathKind.MODEL, PathKind.FOLDER)
    if not file.exists:
        raise missing_path(str(path), file)
    if wants_folder and not file.is_folder:
        raise InputError(f"{path} is a file, and verl reads a {path.kind.value} there")
    if file.is_folder and not wants_folder:
        name = next((child for child in file.children if child.endswith(_ENDINGS.get(path.kind, ()))), None)
        example = override_argument(path.key, f"{path.text.rstrip('/')}/{name}")
        raise InputError(
            f"{path} is a folder, and verl reads a {path.kind.value} there",
            hint=f"For example: {example}" if name else None,
        )
    if path.key.lstrip("+") in _WHOLE_MODELS and "config.json" not in file.children:
        raise InputError(f"{path} has no config.json, so it is not a Hugging Face model folder")


def _notes(key: str, text: str, kind: PathKind, file: LocalFile, nodes_are_here: bool) -> Iterator[str]:
    if text.startswith("/") and not nodes_are_here and file.exists:
        yield (
            f"{key}={text} is a path on the nodes; to send what this machine has there, give it relative to this folder"
        )
    if kind is PathKind.MODEL and HUB_ID.fullmatch(text) and file.is_folder:
        yield f"{key}={text} is a model on the Hub; the folder of that name here needs ./{text}"


def digests_of(entries: Iterable[Entry]) -> dict[Path, str]:
    """Read what is going to be sent, for the SHA-256 of each file.

    Raises:
        InputError: One cannot be read.
    """
    return {entry.path: _sha256(entry) for entry in entries if not entry.is_folder}


def is_marked(text: str) -> bool:
    """Whether a path says itself that it is of this machine."""
    return text in (".", "..", "~") or text.startswith(("./", "../", "~/", _OURS))


def split_reward(text: str) -> tuple[str, str | None]:
    """`FILE.py:function` in two; the colon of `pkg://` does not count."""
    path, colon, function = text.rpartition(":")
    if not colon or not function.isidentifier() or (is_remote(text) and text.count(":") == 1):
        return text, None
    return path, function


def data_names(job: Job, options: SubmitOptions) -> tuple[str, ...]:
    """The data sets by which the user replaces those of the cluster: of `--data`, or files that the recipe names."""
    return options.data or tuple(job.data if any(map(is_marked, job.data)) else ())


def part_names(name: str) -> tuple[str, str]:
    """The training and the validation file of a folder; a `./` stays."""
    train, test = (f"{name.rstrip('/')}/{part}" for part in PARTS)
    return train, test


def _paths(job: Job, options: SubmitOptions) -> Iterator[tuple[str, PathKind]]:
    """Every text that may be a path of this machine."""
    for name in data_names(job, options):
        yield name, PathKind.DATA
        yield from ((part, PathKind.DATA) for part in part_names(name))
    written = {**job.overrides, **{key: hydra_text(value) for key, value in options.overrides.items()}}
    for key, value in written.items():
        kind = kind_of(split_key(key)[1])
        yield from ((text, kind) for text in items(value) if kind is not None)
    if options.reward is not None:
        yield split_reward(options.reward)[0], PathKind.CODE
    if options.model is not None:
        yield options.model, PathKind.MODEL


def _entries(folder: Path) -> tuple[Entry, ...]:
    entries = scan(folder, what=str(folder))
    below = (replace(entry, name=f"{folder.name}/{entry.name}") for entry in entries if not entry.is_folder)
    return tuple(sorted(below, key=lambda entry: entry.name))


def _read(file: LocalFile) -> LocalFile:
    folder = file.path.parent
    modules = {path.stem for path in folder.glob("*.py")} | {path.parent.name for path in folder.glob("*/*.py")}
    try:
        return replace(file, modules_beside=frozenset(modules), source=file.path.read_bytes())
    except OSError as failure:
        raise InputError(f"{file.path} cannot be read: {failure}") from failure


def _inspect_working_dir(folder: Path, excludes: Sequence[str]) -> LocalFile:
    entries, resolved = scan(folder, excludes), folder.resolve()
    return LocalFile(folder, resolved, exists=True, is_folder=True, children=_children(resolved), entries=entries)


def _children(folder: Path) -> tuple[str, ...]:
    return tuple(sorted(path.name + "/" * path.is_dir() for path in folder.iterdir()))


def _verl_of(folder: LocalFile | None) -> str | None:
    if folder is None or "verl/__init__.py" not in {entry.name for entry in folder.entries}:
        return None
    with suppress(OSError, UnicodeDecodeError):  # where verl's own __init__ reads it
        return (folder.path / "verl" / "version" / "version").read_text(encoding="utf-8").strip()
    return ""


def _sha256(entry: Entry) -> str:
    digest = hashlib.sha256()
    try:
        with entry.path.open("rb") as file:
            while chunk := file.read(2**20):
                digest.update(chunk)
    except (OSError, ValueError) as failure:
        raise InputError(f"{entry.path} cannot be read: {failure}") from failure
    return digest.hexdigest()
