"""A cluster as Slurm gives it: what its nodes run the agent in, and where they keep things."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from cloudrl.errors import SpecError
from cloudrl.providers.slurm.section import ENGINES, SlurmSection, read_slurm, set_hint
from cloudrl.render.agent_options import HONOURED, honoured_for_image, image_release
from cloudrl.render.hub_cache import home_of, hub_cache
from cloudrl.spec import Cluster
from cloudrl.spec.volume import Volume
from cloudrl.verl.releases import Release

if TYPE_CHECKING:
    from typing_extensions import Self

_COUNTS_CPUS = ("cpus-per-task", "cpus-per-gpu", "exclusive")


@dataclass(frozen=True)
class SlurmCluster:
    """A cluster whose section `slurm` has been read, once.

    Attributes:
        own: what of the section is ours.
        given: the long options of sbatch in it, with their values; None for one that takes none.
    """

    cluster: Cluster
    own: SlurmSection
    given: Mapping[str, str | None]

    @classmethod
    def read(cls, cluster: Cluster) -> Self:
        """Raises: SpecError: the section is wrong."""
        return cls(cluster, *read_slurm(cluster.slurm))

    @cached_property
    def back_end(self) -> str:
        """What its nodes run the agent in.

        Raises:
            SpecError: the section does not say, or says what does not go together.
        """
        own, image = self.own, self.own.image or self.cluster.image
        if own.container is None and (self.cluster.device == "gpu" or image is not None):
            raise SpecError(
                f"slurm.container is not set: how do nodes run {image or 'an image'}?",
                hint=f"{set_hint('container', 'docker')}\nOr podman, apptainer, pyxis, or bare: a Python of the nodes",
            )
        back_end = own.container or "bare"
        if own.dockerfile is not None and back_end not in ENGINES:
            raise SpecError(f"slurm.dockerfile: {back_end} builds no image", hint=set_hint("container", "docker"))
        if own.image is not None and back_end not in ("apptainer", "pyxis"):
            raise SpecError(f"slurm.image: {back_end} runs no file", hint=set_hint("container", "apptainer"))
        if own.container_options and back_end in ("bare", "pyxis"):
            raise SpecError(
                f"slurm.container_options: {back_end} takes none",
                hint="Name options of sbatch in the section: --set slurm.partition=gpu",
            )
        if own.modules and back_end == "pyxis":
            raise SpecError("slurm.modules: with pyxis all of a node runs in the container, which has none")
        return back_end

    @cached_property
    def release(self) -> Release | None:
        """The release of verl whose image the nodes run; None where the user names another image, or a Python.

        Raises:
            SpecError: no image is known for what the cluster asks for.
        """
        is_known = self.back_end != "bare" and self.own.dockerfile is None and self.own.image is None
        return image_release(self.cluster) if is_known else None

    @cached_property
    def volumes(self) -> tuple[Volume, ...]:
        """Folders that all nodes share.

        Raises:
            SpecError: the checkpoints are on no volume, or it is a network volume.
        """
        cluster, own = self.cluster, self.own
        if own.volumes is None and not {"volumes", "checkpoints"} & set(cluster.explicit_fields()):
            raise SpecError(
                "no folder for checkpoints is given, and on Slurm it has to be one that all nodes share",
                hint=set_hint("volumes", f"['/shared/you/checkpoints:{cluster.checkpoints}']"),
            )
        volumes: list[Volume] = []
        for mount in cluster.mounts if own.volumes is None else own.volumes:
            if not isinstance(mount, Volume):
                hint = set_hint("volumes", "[/shared:/path]")
                raise SpecError(f"volume {mount}: Slurm has no network volumes", hint=hint)
            volumes.append(mount)
        self._refuse_home_of_root(volumes)
        return tuple(volumes)

    def _refuse_home_of_root(self, volumes: list[Volume]) -> None:
        """Raises: SpecError: a volume is in root's home, and the user in the container is another one."""
        inside = [mount for mount in volumes if PurePosixPath(mount.path).is_relative_to("/root")]
        if not inside or self.runs_as_root or self.back_end == "bare":
            return
        user = f"user {self.cluster.user}" if self.back_end in ENGINES else "you"
        moved = ", ".join(f"'{mount.instance_path}:/hub'" if mount == inside[0] else f"'{mount}'" for mount in volumes)
        raise SpecError(
            f"volume {inside[0]}: programs in {self.back_end} run as {user}, who cannot use the home of root",
            hint=f"{set_hint('volumes', f'[{moved}]')}\nTo keep models there: --env HF_HOME=/hub",
        )

    @property
    def runs_as_root(self) -> bool:
        """Whether the user in the container is root, or is shown as root."""
        if self.back_end in ENGINES:
            return home_of(self.cluster) == "/root"
        if self.back_end == "pyxis":
            return "container-remap-root" in self.given
        return self.back_end == "apptainer" and bool({"--fakeroot", "-f"} & set(self.own.container_options))

    @cached_property
    def environment(self) -> Mapping[str, str]:
        """Variables of the agents, and of jobs: those of the user, and in a container the place of the Hub's cache.

        Raises:
            SpecError: as `volumes`.
        """
        cache = {} if self.back_end == "bare" else hub_cache(self.cluster, self.volumes)
        return {**cache, **self.cluster.env}

    @cached_property
    def checkpoint_folder(self) -> str:
        """Where jobs save, as they see it: in the container, or on the shared file system without one.

        Raises:
            SpecError: no volume holds it.
        """
        outside = self.on_host(self.cluster.checkpoints)
        if outside is not None:
            return outside if self.back_end == "bare" else str(PurePosixPath(self.cluster.checkpoints))
        raise SpecError(
            f"checkpoints {self.cluster.checkpoints!r} is on none of the volumes in section slurm",
            hint=set_hint("volumes", f"['/shared/checkpoints:{self.cluster.checkpoints}']"),
        )

    def on_host(self, path: str) -> str | None:
        """Where the nodes themselves have a folder that is on a volume; None if it is on none.

        Raises:
            SpecError: as `volumes`.
        """
        inside = PurePosixPath(path)
        for mount in self.volumes:
            if mount.holds(str(inside)):
                return str(PurePosixPath(mount.instance_path) / inside.relative_to(mount.path))
        return None

    @property
    def data_folder(self) -> str:
        """Where prepared data are: beside the checkpoints, which all nodes share, so that a new start finds them."""
        return f"{self.checkpoint_folder}/.cloudrl/data"

    @property
    def counts_cpus(self) -> bool:
        """Whether the section says how many CPUs a node gives."""
        return any(name in self.given for name in _COUNTS_CPUS)

    @property
    def sizes_memory(self) -> bool:
        """Whether the section says how much memory a node gives."""
        return any(name.startswith("mem") for name in self.given)

    @property
    def honoured(self) -> tuple[str, ...]:
        """Fields that have an effect: some only with some back ends, or unless the section says the same."""
        has_effect = {
            "checkpoints": True,
            "slurm": True,
            "image": self.back_end != "bare" and self.own.image is None,
            "user": self.back_end in ENGINES,
            "shm_size": self.back_end in ENGINES,
            "working_dir": self.back_end in (*ENGINES, "apptainer"),
            "volumes": self.own.volumes is None,
            "cpu": not self.counts_cpus,
            "memory": not self.sizes_memory,
        }
        own = (name for name, counts in has_effect.items() if counts)
        return (*HONOURED, *honoured_for_image(self.cluster, self.release), *own)
