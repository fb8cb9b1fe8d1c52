"""Which checkpoints there are, and where each file of them is."""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Tuple

from cloudrl.errors import CheckpointError, ConnectionFailed, InputError
from cloudrl.protocol.ranks import missing_ranks, ranks_text, spans
from cloudrl.protocol.routes import CHECKPOINTS
from cloudrl.saves.megatron_layout import (
    DIST_FILE,
    Weights,
    find_weights,
    is_megatron,
    missing_files,
    missing_parts,
    named_parts,
)
from cloudrl.saves.names import (
    CONFIG,
    KINDS,
    SHARD,
    WITHDRAWN,
    find_data,
    is_ours,
    on_one_line,
    shard_file,
    withdrawn_file,
)
from cloudrl.saves.places import FileCopy, Location
from cloudrl.saves.records import SaveRecord
from cloudrl.saves.wholeness import describe
from cloudrl.units import duration_text

LIST_CHECKPOINTS = "cloudrl checkpoints list"

LATEST = "latest"
_MOST_SHOWN = 3
CLOCKS_S = 60.0
"""How far the clocks of two nodes may be apart."""


SaveVersion = Tuple[str, int, float]
"""Of one save: its run, its step, and when the last of its files changed."""


@dataclass(frozen=True)
class Checkpoint:
    """One role of one step of a run, wherever its files are.

    Attributes:
        run: The run's folder below the folder of checkpoints, "." for that itself.
        world_size: How many ranks saved it; None for Megatron's, which do not say it in their names.
        files: Name below the role's folder -> its copies, the newest first.
        records: Training rank -> what the agent recorded when the save had finished.
        finished: Whether verl's tracker or its `data.pt` says that all ranks had returned from saving.
        resumes: Whether the newest tracker names it: where verl by itself would go on, on the node of that tracker.
        tracked: Whether the tracker of any node names it.
        step_files: Files of the step that belong to no role: `data.pt`, the state of the data loader.
        tracker_at: When the newest tracker of the run was written, Unix seconds; None without one.
        is_link: Whether the step's folder is a link, on this machine.
        parts: Megatron's `.metadata` below the role's folder -> the `.distcp` files that it names, beside it.
        kept: Why its step stays for good, `every 100`; "" for one that may go.
    """

    run: str
    step: int
    role: str
    world_size: int | None
    files: Mapping[str, tuple[FileCopy, ...]] = field(repr=False)
    records: Mapping[int, SaveRecord] = field(repr=False, default_factory=dict)
    finished: bool = True
    resumes: bool = False
    tracked: bool = False
    step_files: Mapping[str, tuple[FileCopy, ...]] = field(repr=False, default_factory=dict)
    tracker_at: float | None = None
    is_link: bool = False
    parts: Mapping[str, tuple[str, ...]] = field(repr=False, default_factory=dict)
    kept: str = ""

    @cached_property
    def is_megatron(self) -> bool:
        """Whether Megatron wrote it."""
        return is_megatron(self.files)

    @property
    def weights(self) -> Weights | None:
        """Folder with the weights of a save that FSDP did not shard; None if sharded, or without weights."""
        return None if self.world_size is not None else find_weights(self.files)

    @property
    def is_sharded(self) -> bool:
        """Whether it is what FSDP saves: shards, or what is left of such a save."""
        return not self.is_megatron and self.weights is None

    def shards(self, kind: str) -> dict[int, FileCopy]:
        """Training rank -> its file of one of `KINDS`."""
        by_name = {}
        for name, copies in self.files.items():
            match = SHARD.fullmatch(name)
            if match and match[1] == kind and not self._is_spare(name):
                by_name[int(match[3])] = copies[0]
        return dict(sorted(by_name.items()))

    @property
    def ranks(self) -> tuple[int, ...]:
        """Training ranks whose weights are here."""
        return tuple(self.shards("model"))

    @property
    def locations(self) -> dict[Location, tuple[int, ...]]:
        """Location -> the training ranks whose weights are read from there; none for a whole model."""
        ranks_at: dict[Location, set[int]] = defaultdict(set)
        for rank, file in self.shards("model").items():
            ranks_at[file.location].add(rank)
        if self.weights is not None:
            for name, copies in self.files.items():
                if name.startswith(self.weights.folder):
                    writer = DIST_FILE.fullmatch(name[len(self.weights.folder) :])
                    ranks_at[copies[0].location] |= {int(writer[1])} if writer else set()
        return {location: tuple(sorted(ranks)) for location, ranks in ranks_at.items()}

    @cached_property
    def missing(self) -> tuple[str, ...]:
        """What is not there, one phrase each; nothing for a complete checkpoint."""
        if self.is_sharded:
            gaps = [*self._missing_ranks(), *self._partial_kinds()]
            if self.world_size is None:  # config and tokenizer alone
                gaps.append("the weights")
            if self.lacks_config:
                gaps.append(CONFIG)
        else:
            gaps = [*missing_files(self.files), *missing_parts(self.files, self.parts)]
        return (*gaps, *self.unfinished)

    @property
    def lacks_config(self) -> bool:
        """Whether shards of FSDP are without the config of their model."""
        return self.is_sharded and CONFIG not in self.files

    @property
    def unfinished(self) -> tuple[str, ...]:
        """What says that its saving has ended, as far as it is not there: a job may be at it, or was cut off."""
        ended = [] if self.finished else ["the end of its saving"]
        return (*ended, *self._saved_again(), *self._withdrawn_records())

    @cached_property
    def complete(self) -> bool:
        """Whether all ranks are there and what a model takes beside them, and all of it is whole as far as is known."""
        return not self.missing and not self.damaged

    @cached_property
    def damaged(self) -> Mapping[str, str]:
        """Name of a file that is not whole -> what is wrong: `is cut: 13 of 26 MB`."""
        return {
            name: text
            for name, copies in (*self.step_files.items(), *self.files.items())
            if not self._is_spare(name) and (text := self._damage(name, copies[0]))
        }

    @property
    def shortfall(self) -> str:
        """Why it is not complete, for a message: `lacks rank 2; model_... is empty`; "" if it is."""
        lacks = [f"lacks {', '.join(self.missing)}"] if self.missing else []
        return "; ".join((*lacks, *self.damage_phrases))

    @property
    def damage_phrases(self) -> tuple[str, ...]:
        """What is damaged, for a message: the first files and how many more; nothing while it may still be saved."""
        if not self.finished:
            return ()
        phrases = [f"{on_one_line(name)} {text}" for name, text in self.damaged.items()]
        more = len(phrases) - _MOST_SHOWN
        return (*phrases[:_MOST_SHOWN], *([f"{more} more files are damaged"] if more > 0 else []))

    @property
    def size_bytes(self) -> int:
        """Of all files, each counted once."""
        return sum(copies[0].size_bytes for copies in self.files.values())

    @property
    def modified_at(self) -> float:
        """When the last of its files changed, Unix seconds; not counting what the agents write later."""
        dates = (copies[0].modified_at for name, copies in self.files.items() if not is_ours(name))
        return max(dates, default=0.0)

    @property
    def version(self) -> SaveVersion:
        """Run, step and time of the last change: another one once the step has been saved again."""
        return self.run, self.step, self.modified_at

    @property
    def name(self) -> str:
        """For messages: `demo, step 16, actor`, and `step 16, actor` in a folder that is the run itself."""
        run = "" if self.run == "." else f"{self.run}, "
        return on_one_line(f"{run}step {self.step}, {self.role}")

    def _damage(self, name: str, file: FileCopy) -> str:
        shard, part = SHARD.fullmatch(name), DIST_FILE.fullmatch(name.rpartition("/")[2])
        if part and not file.size_bytes and name not in named_parts(self.parts):
            return ""  # its rank had nothing to write
        record = self.records.get(int(shard[3])) if shard else None
        recorded = record.files.get(name) if record else None
        usual = self._usual_bytes(shard[1]) if shard and recorded is None and file.damage else None
        return describe(file.damage, file.size_bytes, recorded.size_bytes if recorded else None, usual)

    def _usual_bytes(self, kind: str) -> int:
        """Of the whole files of other ranks."""
        return max((file.size_bytes for file in self.shards(kind).values() if not file.damage), default=0)

    def _is_spare(self, name: str) -> bool:
        """Whether it is the file of a rank that this world size has not."""
        shard = SHARD.fullmatch(name)
        return shard is not None and int(shard[3]) >= (self.world_size or 0)

    def _withdrawn_records(self) -> Iterator[str]:
        """Ranks whose record was removed since their files changed, and which have no end since."""
        marks = (match for name in self.files if (match := WITHDRAWN.fullmatch(name)))
        ranks = sorted({int(mark[2]) for mark in marks if int(mark[1]) == self.world_size} - set(self.records))
        ranks = [rank for rank in ranks if rank < (self.world_size or 0) and not self._is_saved_since(rank)]
        if ranks:
            several = "s" * (len(ranks) > 1)
            yield f"the record of rank{several} {spans(ranks)}, whose files changed after they were saved"

    def _is_saved_since(self, rank: int) -> bool:
        """Whether a rank was saved anew, to the end, after its record was removed: no agent has looked since."""
        data, mark = find_data(self.step_files), self.files[withdrawn_file(self.world_size or 0, rank)][0]
        kinds = [saved[rank].modified_at for kind in KINDS if rank in (saved := self.shards(kind))]
        if data is None or not kinds or min(kinds) - mark.modified_at <= CLOCKS_S:
            return False
        return self.step_files[data][0].modified_at >= max(kinds) - CLOCKS_S

    def _saved_again(self) -> Iterator[str]:
        """Shards of a later attempt: a save writes `data.pt` last (verl 0.9.1, trainer/ppo/v1/trainer_base.py)."""
        data = find_data(self.step_files)
        if data is None:
            return
        ended = self.step_files[data][0].modified_at
        shards = ((copies[0].modified_at, name) for name, copies in self.files.items() if SHARD.fullmatch(name))
        newest, name = max(shards, default=(ended, ""))
        if newest - ended > CLOCKS_S:
            yield (
                f"the end of a later save ({name} is {duration_text(newest - ended)} newer than {data}, "
                "which is written last)"
            )

    def _missing_ranks(self) -> Iterator[str]:
        if gone := missing_ranks(self.ranks, self.world_size or 0):
            yield gone

    def _partial_kinds(self) -> Iterator[str]:
        """A kind that some ranks have saved and others have not; verl can be told to leave one out."""
        for kind, label in (("optim", "optimizer"), ("extra_state", "extra state")):
            saved = self.shards(kind)
            gone = [rank for rank in self.ranks if rank not in saved and (saved or self._is_recorded(kind, rank))]
            if gone:
                yield f"{label} of {ranks_text(gone)}"

    def _is_recorded(self, kind: str, rank: int) -> bool:
        record = self.records.get(rank)
        return record is not None and shard_file(kind, record.world_size, rank) in record.files


@dataclass(frozen=True)
class Inventory:
    """All that was found, runs in order and steps ascending, and what a user should know of it.

    Attributes:
        silent: Of the notes those on nodes that have not answered.
        is_step: Whether the user has named one step by its folder.
        is_role: Whether the user has named one role of a step by its folder.
    """

    checkpoints: tuple[Checkpoint, ...]
    notes: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()
    is_step: bool = False
    is_role: bool = False

    def select(self, step: int | str = LATEST, *, run: str | None = None, role: str = "actor") -> Checkpoint:
        """One of them.

        Args:
            step: Its number; `latest` is the newest complete one, or the one whose folder the user has named.
            run: Its run, needed where several have the step.
            role: `actor` or `critic`; of no account where the user has named the folder of one.

        Raises:
            CheckpointError: It does not exist.
            InputError: There are several.
            ConnectionFailed: The latest is asked for, and a node is silent that may have a later one.
        """
        if step == LATEST:
            self.refuse_silent("it may have a later step than the others", "Try again when it answers, or name a step")
        fitting = [
            checkpoint
            for checkpoint in self.checkpoints
            if (self.is_role or checkpoint.role == role) and run in (None, checkpoint.run)
        ]
        if not fitting:
            run_names = ", ".join(sorted({checkpoint.run for checkpoint in self.checkpoints})) or "none"
            asked = f" of run {run!r}" if run is not None else ""
            raise CheckpointError(
                f"there is no checkpoint of the {role}{asked}; runs: {run_names}", hint=LIST_CHECKPOINTS
            )
        if step == LATEST and self.is_step:
            return max(fitting, key=lambda candidate: (candidate.complete, candidate.modified_at))
        if step == LATEST:
            return _latest(fitting)
        chosen = [checkpoint for checkpoint in fitting if str(checkpoint.step) == str(step)]
        if not chosen:
            steps = ", ".join(str(checkpoint.step) for checkpoint in fitting)
            raise CheckpointError(f"there is no step {step} of the {role}; its steps: {steps}", hint=LIST_CHECKPOINTS)
        runs = sorted({checkpoint.run for checkpoint in chosen})
        if len(runs) > 1:
            raise InputError(f"several runs have step {step}: {', '.join(runs)}", hint=f"Choose one: --name {runs[0]}")
        return max(chosen, key=lambda candidate: (candidate.complete, candidate.modified_at))

    def saved_steps(self, run: str) -> dict[int, list[Checkpoint]]:
        """Step of a run -> its roles in the folder of checkpoints. A resume does not look into Ray's own folder."""
        steps: dict[int, list[Checkpoint]] = defaultdict(list)
        for checkpoint in self.checkpoints:
            if checkpoint.run == run and all(location.root == CHECKPOINTS for location in checkpoint.locations):
                steps[checkpoint.step].append(checkpoint)
        return steps

    def refuse_silent(self, why: str, hint: str) -> None:
        """Raises: ConnectionFailed: a node has not answered."""
        if self.silent:
            raise ConnectionFailed(f"{self.silent[0]}; {why}", hint=hint)


def _latest(fitting: Sequence[Checkpoint]) -> Checkpoint:
    """Of the run that was written to last: the complete step that a resume takes.

    Without such a step the highest complete one.
    """
    complete = [checkpoint for checkpoint in fitting if checkpoint.complete]
    if not complete:
        newest = max(fitting, key=lambda candidate: (candidate.modified_at, candidate.step))
        named = f" --name {shlex.quote(newest.run)}" if len({checkpoint.run for checkpoint in fitting}) > 1 else ""
        raise CheckpointError(
            f"no checkpoint is complete; {newest.name}{'' if newest.missing else ':'} {newest.shortfall}",
            hint=f"Whether what is there is enough for a model: cloudrl checkpoints verify {newest.step}{named}",
        )
    run = max(complete, key=lambda candidate: candidate.modified_at).run
    steps: dict[int, list[Checkpoint]] = defaultdict(list)
    for candidate in fitting:
        if candidate.run == run:
            steps[candidate.step].append(candidate)
    order = (*resume_order(steps), *sorted(steps, reverse=True))
    chosen = next(step for step in order if any(checkpoint.complete for checkpoint in steps[step]))
    return max(
        (checkpoint for checkpoint in steps[chosen] if checkpoint.complete), key=lambda candidate: candidate.modified_at
    )


def resume_order(steps: Mapping[int, Sequence[Checkpoint]]) -> list[int]:
    """Steps of a run in the order in which a resume tries them.

    First the step of the newest tracker, or a higher one that is newer, then the lower ones: an earlier attempt of the
    same name may have left higher ones, which its user has given up.
    """
    tracked = [step for step, checkpoints in steps.items() if any(checkpoint.resumes for checkpoint in checkpoints)]
    if not tracked:
        return sorted(steps, reverse=True)
    [step] = tracked
    at = max(checkpoint.modified_at for checkpoint in steps[step])
    fitting = [
        candidate for candidate in steps if candidate <= step or max(one.modified_at for one in steps[candidate]) > at
    ]
    return sorted(fitting, reverse=True)
