"""The samples of a run, from this machine or from whichever node has them."""

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path

from cloudrl.errors import CloudrlError
from cloudrl.jobs import JobHandle
from cloudrl.protocol.client import AgentClient
from cloudrl.protocol.side_by_side import side_by_side
from cloudrl.report import Sample
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


class Samples:
    """The samples of a run; a file is read once, but for that of the newest step, which may still be written to.

    Args:
        read: gives the start of the file of a step in a folder of the nodes.
    """

    def __init__(self, read: Callable[[str, int], bytes | None]) -> None:
        self._read, self._known, self._complete = read, dict[int, list[Sample]](), set[int]()

    def of(self, config: Mapping[str, str], steps: Sequence[Step]) -> tuple[tuple[Sample, ...], tuple[str, ...]]:
        """A choice of them, and notes on what is missing."""
        validated = [step.step for step in steps if any(key.startswith(ALL_VALIDATION) for key in step.metrics)]
        folders = [(config.get(VALIDATION_DIR), validated), (config.get(ROLLOUT_DIR), [step.step for step in steps])]
        folder, numbers = next(
            ((place, with_files) for place, with_files in folders if place and place.startswith("/") and with_files),
            ("", []),
        )
        if not folder:
            return (), ()
        wanted = choose_steps(numbers)
        try:
            for step in wanted:
                if step not in self._complete and (content := self._read(folder, step)) is not None:
                    self._known[step] = parse_samples(content, step)
                    self._complete |= {step} - {steps[-1].step}
        except CloudrlError as failure:
            return self._of(wanted), (f"samples cannot be read now: {failure.message}",)
        samples = self._of(wanted)
        return samples, () if samples else (f"no samples: {folder} has none, or cannot be reached from here",)

    def _of(self, wanted: Sequence[int]) -> tuple[Sample, ...]:
        return tuple(chain.from_iterable(self._known.get(step, ()) for step in wanted))
