"""What is wrong, or odd, with a checkpoint: findings with the rank and the file that they are about."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """One thing found.

    Attributes:
        message: What is wrong, with both values.
        rank: Whose; None if it is about the whole.
        file: The label of the source.
        fatal: False for what may be as it should: a missing replica, no way to tell the step.
    """

    message: str
    rank: int | None = None
    file: str | None = None
    fatal: bool = True


@dataclass(frozen=True)
class Report:
    """What a check has found.

    Attributes:
        world_size: Ranks of the run that saved it; None when no file says so.
        shards: Pieces that each sharded tensor was cut into (less than the world size with replicas).
        ranks: Those whose shards were read.
        tensors: How many the model has.
        size_bytes: Of the shards that were read.
        step: The training step, from the records of the saves, the scheduler or the optimizer; None when nothing tells.
        step_source: What told it: `record`, `scheduler`, `optimizer`.
        findings: In the order of the ranks.
    """

    world_size: int | None
    shards: int | None
    ranks: tuple[int, ...]
    tensors: int
    size_bytes: int
    step: int | None
    step_source: str | None
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Nothing that a merge would refuse."""
        return not any(finding.fatal for finding in self.findings)
