"""Options of the command line for keys of the section `slurm`. Standard library only: `cloudrl --help` imports it."""

from typing import Annotated, TypedDict

from cloudrl.options.declaration import Option


class SectionOptions(TypedDict, total=False):
    """Keys of `SlurmSection`."""

    login: Annotated[str, Option("Slurm login node, with --on slurm.", "USER@HOST")]
