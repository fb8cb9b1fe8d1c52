"""A file of the user's, taken over: recipes, a cluster, what became of each line, and what to type next."""

import posixpath
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cloudrl.errors import InputError, SpecError
from cloudrl.foreign import Malformed, read_file
from cloudrl.protocol.secret_names import is_secret
from cloudrl.scripts.containers import starts_pyxis
from cloudrl.scripts.dstack_file import DstackTask
from cloudrl.scripts.lines import Fate, Line
from cloudrl.scripts.observe import observe
from cloudrl.scripts.on_slurm import checkpoint_options
from cloudrl.scripts.programs import is_training
from cloudrl.scripts.project import Project, read_project
from cloudrl.scripts.sandbox import Call, Play, Recording, run
from cloudrl.scripts.sbatch import Slurm, read_sbatch, read_srun, slurm_variables
from cloudrl.scripts.sky_file import SkyTask
from cloudrl.scripts.slurm_gpus import counted_gpus
from cloudrl.scripts.taken import Source, Taken, lost_fields
from cloudrl.scripts.takeover import take_over
from cloudrl.scripts.task_file import TaskFile, kind_of_file
from cloudrl.scripts.wants import Want
from cloudrl.spec import Cluster
from cloudrl.spec.yaml_core import dump_mapping, load_value, load_yaml_1_1

_LIMIT_BYTES = 4 << 20
_YAML = (".yml", ".yaml")
_NAME = re.compile(r"[^A-Za-z0-9._-]+")
_SUFFIXES = re.compile(r"(\.dstack|\.sky|\.slurm|\.sbatch|\.sh|\.bash|\.ya?ml)+$")


@dataclass(frozen=True)
class Imported:
    """What a file has become.

    Attributes:
        shown: The file, as messages call it.
        trainings: A recipe for each.
        cluster: The cluster that they need, as fields of a file.
        lines: What became of each line.
        recipes: Name of a file -> its text, in the order of `trainings`.
        cluster_file: Likewise, of the cluster.
    """

    shown: str
    trainings: tuple[Taken, ...]
    cluster: Mapping[str, Any]
    lines: tuple[Line, ...]
    recipes: Mapping[str, str] = field(default_factory=dict, repr=False)
    cluster_file: tuple[str, str] = ("", "")

    @property
    def problems(self) -> tuple[Line, ...]:
        """What does not do what its author means, and what was not understood."""
        return tuple(line for line in self.lines if line.fate in (Fate.WRONG, Fate.UNKNOWN))

    @property
    def files(self) -> dict[str, str]:
        """All files with their texts; none for a script that says nothing of a training or its cluster."""
        name, text = self.cluster_file
        if not self.trainings and not set(self.cluster) - {"name", "nodes"}:
            return {}
        more = {
            f"{each.job.name}.runtime-env.yml": dump_mapping(dict(each.runtime_env))
            for each in self.trainings
            if each.runtime_env
        }
        return {**self.recipes, name: text, **more}

    def options(self, taken: Taken, folder: str = "") -> list[str]:
        """What `check` and `submit` need beside the recipe, with the files in a folder."""
        words = ["--working-dir", taken.working_dir] if taken.working_dir else []
        words += (
            ["--runtime-env", posixpath.join(folder, f"{taken.job.name}.runtime-env.yml")] if taken.runtime_env else []
        )
        return words

    def commands(self, folder: str = ".") -> tuple[str, ...]:
        """What to type next, with the files in a folder."""
        commands, inside = list[str](), "" if folder == "." else folder
        file = ["-f", posixpath.join(inside, self.cluster_file[0])]
        for name, taken in zip(self.recipes, self.trainings, strict=True):
            recipe, options = posixpath.join(folder, name), self.options(taken, inside)
            commands.append(shlex.join(["cloudrl", "check", recipe, *file, *options]))
            if "slurm" in self.cluster and not options:
                commands.append(
                    shlex.join(["cloudrl", "slurm", "script", recipe, *file, *checkpoint_options(self.cluster)])
                )
        for name, taken in zip(self.recipes, self.trainings, strict=True):
            secrets = [word for secret in taken.secrets for word in ("--env", secret)]
            recipe, options = posixpath.join(folder, name), self.options(taken, inside)
            commands.append(shlex.join(["cloudrl", "submit", recipe, *options, *secrets]))
        return tuple(commands)


def is_importable(path: Path) -> bool:
    """Whether a file is a script, or YAML of dstack or SkyPilot, and no recipe."""
    if not path.is_file():
        return False
    if path.suffix not in _YAML:
        return True
    try:
        values = load_yaml_1_1(read_file(path, _LIMIT_BYTES).decode(), str(path))
    except (OSError, Malformed, UnicodeDecodeError, SpecError):
        return False
    return isinstance(values, dict) and kind_of_file(values) is not None


def import_file(
    path: Path,
    arguments: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    *,
    here: Path,
    home: Path,
    isolated: bool = True,
    play_once: Callable[..., Recording] = run,
) -> Imported:
    """Take over a script, or a task of dstack or SkyPilot.

    Args:
        path: The file.
        arguments: For the script.
        env: Variables that it wants.
        here: The current folder.
        home: The user's home folder.
        isolated: Whether to refuse to run it without isolation.
        play_once: Runs a script; see `cloudrl.scripts.sandbox.run`.

    Raises:
        Wanted: The script stops without a variable or an argument.
        InputError: The file cannot be read, or is nothing that can be taken over.
        NotIsolated: The kernel gives no isolation, and it was asked for.
    """
    shown, env = _shown(path, here), dict(env or {})
    content = _read(path, shown)
    task = _task(content, path, shown)
    wants = [Want(name, path.name) for name in (task.wanted if task is not None else ()) if name not in env]
    script = content if task is None else task.script.encode()
    text = script.decode(errors="replace")
    slurm = read_sbatch(text)
    project = read_project(path.absolute(), here, home=home)
    cwd = str(here if here.is_relative_to(project.root) else path.absolute().parent)
    working_dir = _working_dir(task, here, project)
    cwd = working_dir or cwd
    mounted = {place: _absolute(source, here) for place, source in (task.mounted if task else {}).items()}
    cluster = {**slurm.cluster, **(task.cluster if task is not None else {})}
    play = Play(
        script=str(path.absolute()), content=script, arguments=tuple(arguments), cwd=cwd, project=project,
        env={**slurm_variables(slurm, cwd), **(task.env if task is not None else {}), **env},
        gpus=counted_gpus(slurm.options)[1] or _count(cluster.get("gpu")) or 8, nodes=int(cluster.get("nodes", 2)),
    )  # fmt: skip
    observed = observe(play, isolated=isolated, shown=shown, wants=wants, play_once=play_once)
    name = _name(path)
    if not slurm.is_used and (asked := _of_srun(observed.recording.calls)).is_used:
        slurm, cluster = asked, {**asked.cluster, **cluster}
    lines = (*slurm.lines, *(task.lines if task is not None else ()))
    same = bool(slurm.options) or starts_pyxis(observed.recording.calls)
    source = Source(
        name, path.name, here, text, cluster, lines, slurm.container, working_dir, mounted, same_machines=same
    )
    trainings, fields, said = take_over(observed, source)
    secrets = {key: value for key, value in env.items() if is_secret(key)}
    fields = _checked_cluster(fields, shown)
    recipes = {f"{each.job.name}.yml": recipe_text(each, path.name, secrets) for each in trainings}
    head = f"# The cluster of {path.name}, taken over by `cloudrl import`.\n"
    return Imported(shown, trainings, fields, said, recipes, (f"{name}.cluster.yml", head + dump_mapping(dict(fields))))


def _of_srun(calls: Sequence[Call]) -> Slurm:
    """What the srun asks for that starts the training."""
    trainings = {(call.file, call.line) for call in calls if is_training(call) and "srun" in call.via}
    before = [call for call in calls if call.program == "srun" and (call.file, call.line) in trainings]
    return read_srun(before[0].arguments, before[0].line) if before else Slurm()


def recipe_text(taken: Taken, shown: str, secrets: Mapping[str, str]) -> str:
    """A recipe's file, which `cloudrl.recipes.load` reads as that job.

    Raises:
        InputError: A value of the script is one of the secrets that were given for it.
    """
    head = [f"# Taken over from {shown} by `cloudrl import`. The cluster gives nodes, GPUs, folders and names."]
    text = dump_mapping(dict(taken.fields))
    if taken.lost:
        head.append("# Overrides that stand in the script and never reach verl; add those that are meant:")
        head += [f"#   {key}: {value}" for key, value in lost_fields(taken).items()]
    for name, value in secrets.items():
        if value and value in text:
            raise InputError(
                f"the value of {name} stands in the arguments of the training, and would stand in a file",
                hint=f"Leave it out of the arguments; pass it when you submit: --env {name}",
            )
    return "\n".join(head) + "\n" + text


def _absolute(path: str, here: Path) -> str:
    return posixpath.normpath(posixpath.join(here, posixpath.expanduser(path)))


def _working_dir(task: TaskFile | None, here: Path, project: Project) -> str | None:
    """The folder that a task sends, if it is of the project: where its commands start."""
    folder = _absolute(task.working_dir, here) if task is not None and task.working_dir else None
    return folder if folder is not None and folder in project.folders else None


def _shown(path: Path, here: Path) -> str:
    relative = posixpath.relpath(path.absolute(), here)
    return str(path) if relative.startswith("..") else relative


def _read(path: Path, shown: str) -> bytes:
    try:
        content = read_file(path, _LIMIT_BYTES)
    except Malformed as error:
        raise InputError(f"{shown}: {error}") from None
    except OSError as error:
        raise InputError(f"{shown} cannot be read: {error.strerror}", hint=f"ls {path.parent}") from None
    if b"\0" in content:
        raise InputError(f"{shown} is not a text file")
    return content.replace(b"\r\n", b"\n")


def _task(content: bytes, path: Path, shown: str) -> TaskFile | None:
    if path.suffix not in _YAML:
        return None
    values = load_yaml_1_1(content.decode(errors="replace"), shown)
    kind = kind_of_file(values) if isinstance(values, dict) else None
    if kind is None:
        raise InputError(
            f"{shown} is neither a script nor a task of dstack or SkyPilot",
            hint="A task of dstack has `type: task` and `commands`, one of SkyPilot has `run`",
        )
    return (DstackTask if kind == "dstack" else SkyTask)(values).read()


def _name(path: Path) -> str:
    stem = _NAME.sub("-", _SUFFIXES.sub("", path.name)).strip("-._")[:80]
    return stem or "job"


def _count(gpu: Any) -> int | None:
    match = re.search(r"(?:^|:)(\d+)$", str(gpu or ""))
    return int(match[1]) if match else None


def _checked_cluster(fields: Mapping[str, Any], shown: str) -> dict[str, Any]:
    """The fields as a file holds them.

    Raises:
        InputError: A cluster cannot have them.
    """
    try:
        Cluster.load(load_value(dump_mapping(dict(fields)), shown))
    except SpecError as error:
        raise InputError(f"{shown}: its cluster cannot be taken over: {error.message}", hint=error.hint) from None
    return dict(fields)
