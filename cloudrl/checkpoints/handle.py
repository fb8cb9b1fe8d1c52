"""One checkpoint with the verbs for it, and all of them as a sequence: what `ray.checkpoints()` returns."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypedDict, overload

from cloudrl.checkpoints.formats import Format, format_of
from cloudrl.checkpoints.hints import complete, completed_hints
from cloudrl.checkpoints.merge import Merged, merge
from cloudrl.checkpoints.pull import Pulled, pull
from cloudrl.checkpoints.reshard import Resharded, reshard
from cloudrl.checkpoints.saved_files import SavedFiles
from cloudrl.checkpoints.sources import CheckpointSource
from cloudrl.errors import CheckpointError
from cloudrl.options.merge import MergeOptions
from cloudrl.saves.copies import count_copies
from cloudrl.saves.inventory import LATEST, Checkpoint, Inventory, SaveVersion
from cloudrl.saves.names import CONFIG, LORA_META, of_run
from cloudrl.shards.merge import MERGE
from cloudrl.shards.progress import OnProgress, silent
from cloudrl.shards.report import Finding, Report
from cloudrl.verl.first_adapter import first_adapter


class _Named(TypedDict):
    step: int
    run: str | None
    role: str


OnCopied = Callable[[SaveVersion], object]
"""Told which save it was of each actor that was merged or pulled."""


@dataclass(frozen=True)
class CheckpointHandle:
    """One role of one step of a run; `info` lists its files and their nodes."""

    info: Checkpoint
    source: CheckpointSource
    inventory: Inventory
    on_copied: OnCopied

    @property
    def run(self) -> str:
        """The run that saved it."""
        return self.info.run

    @property
    def step(self) -> int:
        """The training step."""
        return self.info.step

    @property
    def role(self) -> str:
        """`actor` or `critic`."""
        return self.info.role

    @property
    def format(self) -> Format[Any]:
        """The form of its weights."""
        return format_of(self.info)

    @property
    def complete(self) -> bool:
        """Whether all ranks are there, and their files whole as far as some KB of each tell."""
        return self.info.complete

    @property
    def copies(self) -> int:
        """How many nodes have every file of it, each on a disk of its own; 1 also for a folder that nodes share."""
        files = (*self.info.files.values(), *self.info.step_files.values())
        disks = {copy.location for copies in files for copy in copies}
        return count_copies([self.info]) if len(disks) > 1 else 1

    def __str__(self) -> str:
        return f"{self.source.name}: {self.info.name}"

    def merge(
        self,
        path: str | os.PathLike[str],
        *,
        dtype: str | None = None,
        lora: str = MERGE,
        base: str | None = None,
        sync: bool = False,
        on_progress: OnProgress = silent,
    ) -> Merged:
        """Make a Hugging Face model of it, on this machine; shards stay where they are.

        Args:
            path: A folder that does not exist.
            dtype: `bf16`, `fp16`, `fp32`, or `keep`; without it `bf16`, and `keep` for an adapter.
            lora: What becomes of a LoRA adapter: `merge` takes it into the model, `adapter` gives it alone, for peft.
            base: The model that the run was trained from, a folder or a name on the Hub: config and tokenizer for
                Megatron's distributed format, which has none.
            sync: Wait until the disk has it, so that a power failure right afterwards cannot cost it.
            on_progress: Called with bytes.

        Raises:
            InputError: The folder exists, `dtype` or `lora` is unknown, or `base` is not a model or not needed.
            CheckpointError: It is incomplete, damaged, mixed, of a kind that cannot be merged, or a node stays silent;
                or the folder cannot be written.
        """
        with self._completed_hints():
            save = SavedFiles(self.info, self.source.open, base, self.first_adapter())
            merged = merge(save, Path(path), MergeOptions(dtype, lora, base, sync), on_progress=on_progress)
        if self.role == "actor":
            self.on_copied(self.info.version)
        return merged

    def first_adapter(self) -> str | None:
        """The LoRA adapter that the run started from: see `MergeInputs`; not asked for if there is no LoRA."""
        return first_adapter(self.source.commands(self.run)) if LORA_META in self.info.files else None

    def verify(self, *, on_progress: OnProgress = silent) -> Report:
        """Check it as far as a machine can tell; what is wrong is in the report, not an exception.

        Raises:
            CheckpointError: A node stays silent.
        """
        with self._completed_hints():
            report = self.format.verify(SavedFiles(self.info, self.source.open), on_progress)
        return replace(report, findings=(*report.findings, *self._incomplete(report)))

    def hint(self, text: str) -> str:
        """A hint whose commands name this step, and where it is."""
        return complete(text, self.source.options, **self._named())

    def _completed_hints(self) -> AbstractContextManager[None]:
        return completed_hints(self.source.options, **self._named())

    def _named(self) -> _Named:
        runs = {checkpoint.run for checkpoint in self.inventory.checkpoints if checkpoint.step == self.step}
        return {"step": self.step, "run": self.run if len(runs) > 1 else None, "role": self.role}

    def _incomplete(self, report: Report) -> Iterator[Finding]:
        """What the list says of files that a check of the tensors does not need, such as a tokenizer."""
        reported = {finding.file for finding in report.findings}
        for name, text in self.info.damaged.items():
            copies = self.info.files.get(name) or self.info.step_files[name]
            if copies[0].label not in reported:
                yield Finding(f"{copies[0].label} {text}", file=copies[0].label)
        if self.info.lacks_config:
            yield Finding(f"{CONFIG} is not there; a merge needs it, a resume does not")

    def pull(self, path: str | os.PathLike[str], *, on_progress: OnProgress = silent) -> Pulled:
        """Copy the whole step as it is, other roles too, so that a job can go on from it elsewhere.

        Raises:
            CheckpointError: A role is incomplete, there is no room, or a file cannot be read.
        """
        roles = self._roles()
        with self._completed_hints():
            self._refuse_incomplete(roles)
            pulled = pull(roles, self.source, Path(path), on_progress=on_progress)
        for role in roles:
            if role.role == "actor":
                self.on_copied(role.version)
        return pulled

    def reshard(
        self,
        path: str | os.PathLike[str],
        world_size: int,
        *,
        torch: str | None = None,
        on_progress: OnProgress = silent,
    ) -> Resharded:
        """Make a step that another number of ranks can resume from, of all roles; the shards stay where they are.

        Args:
            path: A folder that becomes a run: `path/global_step_N` and the tracker that names it.
            world_size: Ranks (GPUs of all nodes) that are going to resume from it.
            torch: The version of the torch that will, `2.11`; needed for what FSDP1 saved on one GPU alone.
            on_progress: Called with bytes.

        Raises:
            InputError: The step exists there, so many ranks are not possible, or `torch` is needed or not known.
            CheckpointError: A role is incomplete, damaged, or of a kind that cannot be cut anew, or there is no room.
        """
        with self._completed_hints():
            roles = self._roles()
            self._refuse_incomplete(roles)
            chosen = {role.role: role for role in sorted(roles, key=lambda role: role.modified_at) if role.complete}
            chosen[self.role] = self.info
            return reshard(
                list(chosen.values()), self.source, Path(path), world_size, torch=torch, on_progress=on_progress
            )

    def _roles(self) -> list[Checkpoint]:
        """All roles of the step; one may be there twice, of two world sizes."""
        return [
            checkpoint
            for checkpoint in self.inventory.checkpoints
            if (checkpoint.run, checkpoint.step) == (self.run, self.step)
        ]

    def _refuse_incomplete(self, roles: Sequence[Checkpoint]) -> None:
        """A job would go on from what is pulled. Remains of another world size do no harm beside a complete role."""
        complete = {role.role for role in roles if role.complete and (role.role != self.role or role == self.info)}
        partial = [role for role in roles if not role.complete and role.role not in complete]
        lacking = [
            f"{checkpoint.role}: {', '.join(checkpoint.missing)}" for checkpoint in partial if checkpoint.missing
        ]
        damaged = [
            f"{checkpoint.role}: {', '.join(checkpoint.damage_phrases)}"
            for checkpoint in partial
            if checkpoint.damage_phrases
        ]
        if partial:
            gaps = [f"{kind}: {'; '.join(them)}" for kind, them in (("missing", lacking), ("damaged", damaged)) if them]
            raise CheckpointError(
                f"{of_run(self.run)}step {self.step} is incomplete, and no job could go on from it; {'; '.join(gaps)}",
                hint="Is a job saving it? Wait for it, or take another step: cloudrl checkpoints list",
            )


class Checkpoints(Sequence[CheckpointHandle]):
    """All checkpoints of a cluster or a folder, as they were when they were asked for.

    Attributes:
        notes: What a user should know: silent nodes, trackers that differ.
    """

    def __init__(self, source: CheckpointSource, *, on_copied: OnCopied = lambda _: None) -> None:
        self.source, self._on_copied = source, on_copied
        self.inventory = source.inventory()
        self.notes = self.inventory.notes

    def latest(self, *, run: str | None = None, role: str = "actor") -> CheckpointHandle:
        """The newest complete one.

        Raises:
            CheckpointError: It does not exist.
        """
        return self.select(LATEST, run=run, role=role)

    def select(self, step: int | str, *, run: str | None = None, role: str = "actor") -> CheckpointHandle:
        """One by its step, or `latest`.

        Raises:
            CheckpointError: It does not exist.
            InputError: Several runs have this step.
        """
        with completed_hints(self.source.options, run=run, role=role):
            return self._handle(self.inventory.select(step, run=run, role=role))

    def _handle(self, checkpoint: Checkpoint) -> CheckpointHandle:
        return CheckpointHandle(checkpoint, self.source, self.inventory, self._on_copied)

    @overload
    def __getitem__(self, index: int) -> CheckpointHandle: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[CheckpointHandle, ...]: ...

    def __getitem__(self, index: int | slice) -> CheckpointHandle | tuple[CheckpointHandle, ...]:
        if isinstance(index, slice):
            return tuple(map(self._handle, self.inventory.checkpoints[index]))
        return self._handle(self.inventory.checkpoints[index])

    def __len__(self) -> int:
        return len(self.inventory.checkpoints)
