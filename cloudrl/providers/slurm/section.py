"""The section `slurm` of a cluster: sbatch's own options, passed on as they are, and the few words that are ours."""

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import PlainValidator

from cloudrl.errors import SpecError
from cloudrl.spec.base import Spec
from cloudrl.spec.fields import Commands, Words, absolute_path, one_line, optional
from cloudrl.spec.quoting import quoted
from cloudrl.spec.sizes import duration_with_unit
from cloudrl.spec.volume import Mount, mount_list
from cloudrl.verl.async_modes import ALL_ALIKE_HINT, NOT_KEPT_APART

ENGINES = ("docker", "podman")
"""Values of `container` with which a program of the node keeps a container for the agent, and may build its image."""
_OPTION = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_OF_TWO_KINDS = ("hetjob", "packjob", "het-group", "pack-group")
"""Words of Slurm's heterogeneous jobs, whose components have options of their own (Slurm 22.05, sbatch and srun)."""
_RENDERED = ("nodes", "ntasks", "ntasks-per-node", "job-name", "wrap")


def set_hint(field: str, value: str) -> str:
    """How to set a field of the section, on the command line and in a file.

    Args:
        field: its name.
        value: as YAML.
    """
    return f"--set {shlex.quote(f'slurm.{field}={value}')}\nIn a file: slurm: {{{field}: {value}}}"


class SlurmSection(Spec):
    """What of the section is ours; sbatch itself judges the rest, which `read_slurm` keeps as it is."""

    login: Annotated[str | None, PlainValidator(optional(one_line))] = None
    """Where Slurm's commands are, `user@host` or a name in `~/.ssh/config`; None is this machine."""
    container: Literal["bare", "docker", "podman", "apptainer", "pyxis"] | None = None
    """What the nodes run the agent in; None is `bare` for a cluster with neither GPUs nor an image."""
    image: Annotated[str | None, PlainValidator(optional(absolute_path))] = None
    """A file with the image, for apptainer (.sif) and pyxis (.sqsh), in place of that of the cluster."""
    dockerfile: Annotated[str | None, PlainValidator(optional(absolute_path))] = None
    """The image is built from it on every node that does not have it yet; docker and podman."""
    container_options: Words = ()
    """Further words for `docker run`, `podman run` or `apptainer exec`."""
    volumes: Annotated[Sequence[str | Mount] | None, PlainValidator(optional(mount_list))] = None
    """`/host:/container`, in place of those of the cluster."""
    modules: Words = ()
    """Environment modules that are loaded on every node."""
    node_setup: Commands = ()
    """Shell commands on every node, outside its container, before anything else."""
    python: Annotated[str, PlainValidator(one_line)] = "python3"
    """Runs the agent, with Ray and verl: of the nodes, or of the container."""
    run_dir: Annotated[str | None, PlainValidator(optional(absolute_path))] = None
    """Keys, logs and state of jobs, shared by all nodes; None is `~/.cloudrl/slurm`."""
    tmp_dir: Annotated[str, PlainValidator(absolute_path)] = "/tmp"  # noqa: S108
    """Of each node alone: keys, and without docker and podman what Ray writes."""
    join_timeout: Annotated[str, PlainValidator(duration_with_unit)] = "30m"
    """All nodes have an agent by then, with their images pulled or built."""


def read_slurm(section: Mapping[str, Any]) -> tuple[SlurmSection, dict[str, str | None]]:
    """Our words, and sbatch's long options with their values; None for one that takes none.

    Raises:
        SpecError: a word of ours is wrong, or an option cannot stand in a line of its own.
    """
    fields = SlurmSection.model_fields
    own = SlurmSection.load({name: value for name, value in section.items() if name in fields})
    options = {}
    for name, value in section.items():
        if name not in fields:
            written, text = _option(name, value)
            options[written] = text
    return own, options


def _option(name: str, value: Any) -> tuple[str, str | None]:
    if name in _RENDERED:
        raise SpecError(f"slurm.{name}: cloudrl writes --{name} itself", hint=f"Leave it out of slurm: {{{name}: ...}}")
    if name in _OF_TWO_KINDS:
        raise SpecError(f"slurm.{name}: {NOT_KEPT_APART}", hint=ALL_ALIKE_HINT)
    if name == "gpus":  # srun would ask for all of them on each node (Slurm, stepmgr.c: _copy_job_tres_to_step)
        raise SpecError("slurm.gpus counts the GPUs of all nodes together", hint=set_hint("gpus-per-node", "8"))
    if not _OPTION.fullmatch(name):
        near = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
        meant = f"; did you mean {near!r}?" if _OPTION.fullmatch(near) else ""
        raise SpecError(
            f"slurm.{name}: {name!r} is not the name of an option of sbatch{meant}",
            hint="Long options as sbatch spells them: {partition: gpu, mem-per-cpu: 4G}",
        )
    if value is False:
        return (name[3:] if name.startswith("no-") else f"no-{name}"), None
    if value is True:
        return name, None
    values = value if isinstance(value, (list, tuple)) else [value]
    return name, ",".join(_text(name, part) for part in values)


def _text(name: str, value: Any) -> str:
    if value is None or isinstance(value, (bool, Mapping)):
        raise SpecError(
            f"slurm.{name}: {quoted(value)} is not a value of an option", hint="A text, a number or a list of them"
        )
    try:
        return one_line(value if isinstance(value, str) else str(value))
    except SpecError as error:
        raise SpecError(f"slurm.{name}: {error.message}", hint=error.hint) from None
