"""How many saves of a run a disk has to hold at once.

Read in verl 0.9.1, utils/checkpoint/checkpoint_manager.py (`ensure_checkpoint_capacity`, `register_checkpoint`): a run
that keeps one save removes the old one after the new one is written; one that keeps more removes the oldest before.
Only rank 0 removes, on its own node, so nodes with disks of their own keep every save.
"""

from cloudrl.verl import keys
from cloudrl.verl.setting import Setting
from cloudrl.verl.steps import Steps

ROTATION = 2
"""Saves that a disk has to hold while one takes the place of another."""

_FINE_TUNED = "trainer.max_ckpt_to_keep"
"""Of verl's fine-tuning: trainer/config/sft_trainer_engine.yaml."""


def saves_at_once(setting: Setting, steps: Steps | None, *, has_one_folder: bool) -> int | None:
    """The most saves of one run that a disk holds at a time; None if the length of the run is not known.

    Args:
        setting: of a job that saves.
        steps: of the run, if known.
        has_one_folder: whether all nodes save into one folder, from which rank 0 removes what is old.
    """
    kept = _kept(setting) if has_one_folder else 0
    written = _written(setting, steps) if steps is not None else None
    if kept < 1:
        return written
    at_once = max(kept, ROTATION)
    return at_once if written is None else min(at_once, written)


def kept_keys(setting: Setting) -> tuple[str, ...]:
    """The keys that say how many saves verl keeps: of the actor and of a critic, or of fine-tuning."""
    if not setting.has(keys.CHECKPOINTS_KEPT):
        return (_FINE_TUNED,)
    return (keys.CHECKPOINTS_KEPT, keys.CRITICS_KEPT) if setting.uses_critic else (keys.CHECKPOINTS_KEPT,)


def _kept(setting: Setting) -> int:
    """Saves that verl keeps; 0 for all of them, of one role at least."""
    if setting.get("trainer.remove_previous_ckpt_in_save"):  # the former name of keeping one
        return 1
    counts = [max(0, setting.whole(key) or 0) for key in kept_keys(setting)]
    return max(counts) if all(counts) else 0


def _written(setting: Setting, steps: Steps) -> int:
    """Saves that the run writes from its first step to its last."""
    every = setting.whole(keys.SAVE_FREQ) or 0
    if every < 1:
        return 0
    return steps.count // every + (1 if steps.has_last and steps.count % every else 0)
