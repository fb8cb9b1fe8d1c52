"""The whole of it on this machine: two Ray nodes, a tiny model, real verl, and the merged model's answers."""

from dataclasses import dataclass
from pathlib import Path

from cloudrl.checkpoints.merge import Merged
from cloudrl.errors import CloudrlError, Interrupted, JobFailed
from cloudrl.jobs import Progress
from cloudrl.sdk.callbacks import Notice, OnProgress, Update, silent
from cloudrl.sdk.checkpoints import merge_result
from cloudrl.sdk.cluster import Cluster
from cloudrl.sdk.demo_generate import Answered, ask
from cloudrl.sdk.running import RunningCluster
from cloudrl.sdk.submission import follow

NAME = "demo"
RECIPE = "grpo-tiny"
MODEL = "tiny-adder"
DATA = "addition"
WINDOW_STEPS = 5
MIN_ACCURACY = 0.6
"""So many of the test split's questions are answered rightly after the training, or the demo has failed."""
MIN_GAIN = 0.15
"""And so many more than before it: a model that could add all along has not been trained."""


@dataclass(frozen=True)
class Demo:
    """What has come of it.

    Attributes:
        rewards: of each step.
        shards: files of the last checkpoint, one a rank.
        merged: the model that was made of them.
        before: what the model said to the test split, before the training. None of its questions is trained on, but
            88 of the 100 are with the two numbers swapped.
        after: what the merged model says.
    """

    rewards: tuple[float, ...]
    shards: tuple[Path, ...]
    merged: Merged
    before: Answered
    after: Answered

    @property
    def reward_before_and_after(self) -> tuple[float, float]:
        """Mean of the first and of the last five steps."""
        first, last = self.rewards[:WINDOW_STEPS], self.rewards[-WINDOW_STEPS:]
        return sum(first) / WINDOW_STEPS, sum(last) / WINDOW_STEPS

    def raise_for_accuracy(self) -> None:
        """Raise `JobFailed` unless it has learned to add."""
        before, after = self.before.accuracy, self.after.accuracy
        if after < MIN_ACCURACY:
            raise JobFailed(
                f"{after:.0%} of the answers to the test split are right; it should be {MIN_ACCURACY:.0%} at least"
            )
        if round(after - before, 6) < MIN_GAIN:
            raise JobFailed(
                f"{before:.0%} of the answers to the test split were right before the training, and {after:.0%} are "
                f"after it; it should be {MIN_GAIN * 100:.0f} percentage points more at least"
            )


def demo(nodes: int = 2, *, keep: bool = False, on_progress: OnProgress = silent) -> Demo:
    """Start Ray nodes here, train a tiny model with real verl, let it answer before and after, and clean up.

    Args:
        nodes: how many.
        keep: leave the cluster up.
        on_progress: receives everything on the way.

    Raises:
        CloudrlError: it did not work; unless `keep`, the cluster is ended, and its logs stay.
    """
    cluster = Cluster(name=NAME, nodes=nodes).up(on_progress=on_progress, detach=keep)
    folder = Path(cluster.status().state_dir)
    try:
        return _train_and_compare(cluster, folder, on_progress)
    except CloudrlError as error:
        if keep:
            raise
        message = "interrupted; the job ends with the demo" if isinstance(error, Interrupted) else error.message
        raise type(error)(message, hint=f"Its log: cloudrl logs --cluster {NAME} --log 'job-driver-*'") from error
    finally:
        if not keep:
            cluster.down()
            on_progress(Notice(f"{NAME} is down; logs stay in {folder}"))


def _train_and_compare(cluster: RunningCluster, folder: Path, on_progress: OnProgress) -> Demo:
    facts = cluster.facts()
    job = cluster.submit(RECIPE)
    rewards: list[float] = []

    def collect(update: Update) -> None:
        if isinstance(update, Progress) and update.reward is not None:
            rewards.append(update.reward)
        on_progress(update)

    follow(job, on_progress=collect)
    if len(rewards) < 2 * WINDOW_STEPS:
        raise JobFailed(f"only {len(rewards)} steps reported a reward; the demo needs {2 * WINDOW_STEPS}")
    checkpoint, merged = merge_result(job, folder / "models" / job.name, on_progress=on_progress)
    before, after = ask((Path(facts.models[MODEL]), merged.path), Path(facts.data[DATA]["test"]))
    shards = checkpoint.info.shards("model").values()
    files = tuple(Path(shard.location.folder, shard.path) for shard in shards)
    return Demo(tuple(rewards), files, merged, before, after)
