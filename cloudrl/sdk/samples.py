"""The samples of a run, from this machine or from whichever node has them."""

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from cloudrl.errors import CloudrlError
from cloudrl.jobs import JobHandle
from cloudrl.protocol.client import AgentClient
from cloudrl.protocol.side_by_side import side_by_side
from cloudrl.report import Sample, StepAnswers
from cloudrl.report.samples import READ_BYTES, choose_steps, parse_samples
from cloudrl.verl.charts import ALL_VALIDATION
from cloudrl.verl.keys import ROLLOUT_DIR, VALIDATION_DIR
from cloudrl.verl.metrics import Step


def read_here(folder: str, step: int) -> bytes | None:
    """The start of a file of this machine; None if absent."""
    try:
        with (Path(folder) / f"{step}.jsonl").open("rb") as file:
            return file.read(READ_BYTES)
    except OSError:
        return None


class NodeFiles:
    """Files of a cluster's checkpoint folder, from whichever rank has them: where verl's driver runs is not fixed."""

    def __init__(self, job: JobHandle) -> None:
        self._agent = job.connection.agent()
        self._ranks: list[int] | None = None
        self._root = ""

    def __call__(self, folder: str, step: int) -> bytes | None:
        """The start of a file; None where no rank has it.

        Raises:
            CloudrlError: no rank that answers has it, and some rank does not.
        """
        if self._agent is None:
            return None
        if self._ranks is None:
            status = self._agent.status()
            self._ranks = [node.rank for node in status.nodes]
            self._root = status.facts.checkpoint_dir.rstrip("/") + "/"
        if not folder.startswith(self._root):
            return None
        path = f"{folder.rstrip('/')[len(self._root) :]}/{step}.jsonl"
        content, self._ranks = _read_from_any(self._agent, self._ranks, path)
        return content


def _read_from_any(agent: AgentClient, ranks: list[int], path: str) -> tuple[bytes | None, list[int]]:
    """The start of a file, and the ranks in the order in which they are asked for the next one.

    Raises:
        CloudrlError: no rank that answers has it, and some rank does not.
    """

    def read(rank: int) -> tuple[int, bytes | CloudrlError | None]:
        try:
            return rank, agent.checkpoint_file(rank, path, READ_BYTES)
        except CloudrlError as failure:
            return rank, failure

    failures: list[CloudrlError] = []
    for some in (ranks[:1], ranks[1:]):  # who had the others, or all of a shared folder, comes first
        for rank, content in side_by_side(read, some):
            if isinstance(content, bytes):
                return content, [rank, *(other for other in ranks if other != rank)]
            failures += [content] if content is not None else []
    if failures:
        raise failures[-1]
    return None, ranks


class Chosen(NamedTuple):
    """The samples of a report.

    Attributes:
        samples: a choice of the answers.
        answers: how many there are, by step.
        steps: at how many steps verl has written answers.
        notes: on what is missing.
    """

    samples: tuple[Sample, ...] = ()
    answers: tuple[StepAnswers, ...] = ()
    steps: int = 0
    notes: tuple[str, ...] = ()


class Samples:
    """The samples of a run; a file is read once, but for that of the newest step, which may still be written to.

    Args:
        read: gives the start of the file of a step in a folder of the nodes.
    """

    def __init__(self, read: Callable[[str, int], bytes | None]) -> None:
        self._read, self._complete = read, set[int]()
        self._known: dict[int, tuple[list[Sample], StepAnswers]] = {}

    def of(self, config: Mapping[str, str], steps: Sequence[Step]) -> Chosen:
        """A choice of them, and notes on what is missing."""
        validated = [step.step for step in steps if any(key.startswith(ALL_VALIDATION) for key in step.metrics)]
        folders = [(config.get(VALIDATION_DIR), validated), (config.get(ROLLOUT_DIR), [step.step for step in steps])]
        folder, numbers = next(
            ((place, with_files) for place, with_files in folders if place and place.startswith("/") and with_files),
            ("", []),
        )
        if not folder:
            return Chosen()
        wanted, written = choose_steps(numbers), len(set(numbers))
        try:
            for step in wanted:
                if step not in self._complete and (content := self._read(folder, step)) is not None:
                    self._known[step] = parse_samples(content, step)
                    self._complete |= {step} - {steps[-1].step}
        except CloudrlError as failure:
            return self._of(wanted, written, f"samples cannot be read now: {failure.message}")
        if not any(step in self._known for step in wanted):
            return Chosen(notes=(f"no samples: {folder} has none, or cannot be reached from here",))
        return self._of(wanted, written)

    def _of(self, wanted: Sequence[int], written: int, *notes: str) -> Chosen:
        known = [self._known[step] for step in wanted if step in self._known]
        samples = tuple(chain.from_iterable(samples for samples, _ in known))
        return Chosen(samples, tuple(answers for _, answers in known), written, notes)
