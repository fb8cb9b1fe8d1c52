"""A cluster as a script for sbatch: pure until it is priced, by one question to Slurm."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field, replace

from cloudrl.errors import CapacityError, CloudrlError, ConnectionFailed, InputError
from cloudrl.protocol.folders import secrets_folder
from cloudrl.protocol.progress import Notice
from cloudrl.providers.model import Plan, Price
from cloudrl.providers.planned import planned_facts
from cloudrl.providers.slurm.cluster import SlurmCluster
from cloudrl.providers.slurm.login import CommandFailed, Login
from cloudrl.providers.slurm.queue import SlurmJob
from cloudrl.providers.slurm.run_folder import shell_word
from cloudrl.providers.slurm.script import COMMENT, cpus_per_node, to_slurm
from cloudrl.spec import Cluster

_NO_NODES = "Requested node configuration is not available"
"""sbatch says so if the cluster has none; `--test-only` also where they are down (Slurm, slurmctld/job_scheduler.c)."""
_TOO_MANY = "Node count specification invalid"


@dataclass(frozen=True, kw_only=True)
class SlurmPlan(Plan):
    """A cluster as the script that is sent.

    Attributes:
        on_slurm: the cluster with its section.
        login: where Slurm's commands are.
        run_dir: what all jobs of the user share there, as the shell reads it.
        script: for the standard input of sbatch.
        secrets: name -> value, for those that this shell has; the others are in a file there already.
    """

    on_slurm: SlurmCluster = field(repr=False)
    login: Login
    run_dir: str
    script: str = field(repr=False)
    secrets: dict[str, str] = field(default_factory=dict, repr=False, compare=False)

    place = "on Slurm"

    @property
    def honoured(self) -> tuple[str, ...]:
        """See `Plan`: what nodes run the agent in decides some, and the section takes the place of others."""
        return self.on_slurm.honoured

    @property
    def secrets_folder(self) -> str:
        """Where `up` leaves secrets for the cluster, as the shell reads it."""
        return f"{self.run_dir}/secrets/{self.name}"

    def may_be(self, job: SlurmJob) -> bool:
        """Whether a job in the queue may be this cluster, by its name and comment."""
        comment = self.on_slurm.given.get("comment")
        return job.name == self.name and (
            job.comment.startswith(COMMENT) if comment is None else job.comment == comment
        )

    def render(self) -> str:
        """The script as it is sent, the agent's file in it."""
        return self.script

    def priced(self) -> SlurmPlan:
        """The same, judged by sbatch, with when Slurm would start it. Nothing is queued.

        Raises:
            InputError: sbatch refuses an option of the section, or a secret is nowhere.
            ConnectionFailed: the login node or Slurm does not answer.
        """
        self._check_clusters()
        self._check_secrets()
        try:
            answer = _first_line(self.login.shell("sbatch --test-only 2>&1", self.script.encode()))
        except CommandFailed as error:
            if _NO_NODES not in error.message:
                raise self.refused(error) from error
            answer = "no such nodes are up now; the job waits for them if the cluster may get some"
        notice = Notice(f"Slurm: {answer}")
        return replace(self, price=Price(self.cluster.price_per_hour, notices=(notice,)))

    def refused(self, error: CommandFailed) -> CloudrlError:
        """What sbatch has said, as an error of the user, or that there are no such nodes however long one waits.

        Where it had no answer, that is what it says: the job may be queued all the same.
        """
        text = error.message.partition(": ")[2] or error.message
        if "timed out" in text:
            return ConnectionFailed(f"Slurm on {self.login} has not answered sbatch: {text}")
        kind = CapacityError if _NO_NODES in text or _TOO_MANY in text else InputError
        hint = error.hint or "Name options of sbatch in section slurm: --set slurm.partition=gpu"
        return kind(f"Slurm refuses cluster {self.name!r}: {text}", hint=hint)

    def _check_clusters(self) -> None:
        """Raises: InputError: the job would be where the commands that follow it do not look."""
        options = self.on_slurm.given
        if "clusters" in options:
            raise InputError(
                "slurm.clusters: sbatch would find that cluster, and the commands that follow the job would not",
                hint=f"export SLURM_CLUSTERS={options['clusters']}, for a login node in ~/.bashrc there",
            )

    def _check_secrets(self) -> None:
        """Raises: InputError: one is neither in this shell nor in a file there."""
        for name in self.cluster.secrets:
            if name in self.secrets:
                continue
            try:
                self.login.shell(f"test -s {self.secrets_folder}/{name} || test -s {self.run_dir}/secrets/{name}")
            except CommandFailed:
                raise InputError(
                    f"secret {name} is neither set in this shell nor in {self.run_dir}/secrets on {self.login}",
                    hint=f"export {name}=...",
                ) from None


def make_plan(cluster: Cluster) -> SlurmPlan:
    """The script of a cluster.

    Raises:
        SpecError: it cannot be had on Slurm.
    """
    on_slurm = SlurmCluster.read(cluster)
    facts = planned_facts(
        cluster,
        "slurm",
        checkpoint_dir=on_slurm.checkpoint_folder,
        data_dir=on_slurm.data_folder,
        secrets_dir=secrets_folder("UID", "RUN-ID"),
        release=on_slurm.release,
    )
    return SlurmPlan(
        cluster=cluster,
        facts=replace(facts, cpus_per_node=cpus_per_node(on_slurm), shared_checkpoints=True, disks_stay=True),
        on_slurm=on_slurm,
        login=Login(on_slurm.own.login or ""),
        run_dir=shell_word(on_slurm.own.run_dir),
        script=to_slurm(cluster),
        secrets={name: os.environ[name] for name in cluster.secrets if os.environ.get(name)},
    )


def _first_line(answer: str) -> str:
    """`Job 12 to start at ...` as people read it."""
    line = next((splitline for splitline in answer.splitlines() if "to start at" in splitline), answer.strip())
    match = re.search(r"to start at (\S+) using (\d+) processors on nodes (\S+) in partition (\S+)", line)
    if match is None:
        return line.removeprefix("sbatch: ")
    return f"expected to start at {match[1]} on {match[3]}, partition {match[4]}"
