"""How many steps a run has, and which of them it saves and validates.

Read in verl 0.9.1, trainer/ppo/v1/trainer_base.py (`_init_dataloader`, `fit`): a run ends at `total_epochs` or at
`total_training_steps`, whichever comes first. Only with the latter, or with neither cut short, is there a last step,
which is saved and validated whatever the frequencies are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cloudrl.units import dollars_text, duration_text
from cloudrl.verl import keys
from cloudrl.verl.setting import BATCH, Setting

_USUAL_STEPS = 40
"""For a suggestion where the length of the run is not known."""
_ASYNC_SAVE = f"{keys.ACTOR}.checkpoint.async_save"
_FEW_STEPS = 4
"""A run with fewer is over soon, or is one that only tries something."""
_WARMUP, _PROMPT_LENGTH = "trainer.critic_warmup", "data.max_prompt_length"
_MOST_ROWS = "data.train_max_samples"


@dataclass(frozen=True)
class Steps:
    """The steps of a run.

    Attributes:
        count: how many; verl may drop prompts that are too long, so that they are fewer.
        has_last: whether the run saves and validates the last of them in any case.
    """

    count: int
    has_last: bool = True


@dataclass(frozen=True)
class Budget:
    """What a cluster may cost, and how long a step takes.

    Attributes:
        dollars: at which the cluster ends.
        per_hour: US dollars of all nodes together.
        step_s: seconds of one step.
        run: the earlier run that took so long.
    """

    dollars: float
    per_hour: float
    step_s: float
    run: str

    @property
    def ends_s(self) -> float:
        """Seconds until the money is spent."""
        return self.dollars / self.per_hour * 3600

    @property
    def steps(self) -> int:
        """Whole steps until then."""
        return int(self.ends_s // self.step_s)


def steps_of(setting: Setting, rows: int | None) -> Steps | None:
    """How many steps a run has; None if nothing here says so.

    Args:
        setting: the configuration.
        rows: of the training files; None if unknown.
    """
    limit, epochs, batch = (setting.whole(key) for key in (keys.STEPS, keys.EPOCHS, BATCH))
    if rows is None or epochs is None or batch is None or batch < 1:
        return None if limit is None else Steps(limit)
    most = setting.whole(_MOST_ROWS) or 0
    in_epochs = (min(rows, most) if most > 0 else rows) // batch * epochs
    return Steps(in_epochs if limit is None else min(limit, in_epochs), has_last=limit is None or limit <= in_epochs)


def warnings_of_updates(setting: Setting, steps: Steps | None) -> Iterator[str]:
    """Steps that train no model: `step` updates the actor from step `critic_warmup` on, with a critic or without.

    Args:
        setting: the configuration.
        steps: of the run, if known.
    """
    warmup = setting.whole(_WARMUP) or 0
    if not setting.trains or warmup < 1:
        return
    if steps is not None and warmup > steps.count:
        what = f"is more than the {_count(steps.count)} of the run, which never trains the actor"
        yield f"{_WARMUP}={warmup} {what}. To train it: {_WARMUP}=0"
    elif warmup > 1 and not setting.uses_critic:
        yield f"{_WARMUP}={warmup} without a critic: no step before step {warmup} trains anything. Instead: {_WARMUP}=0"


def warnings_of_lengths(setting: Setting) -> Iterator[str]:
    """A limit that leaves nothing of a prompt.

    Read in verl 0.9.1: utils/dataset/rl_dataset.py, maybe_filter_out_long_prompts; and
    experimental/agent_loop/agent_loop.py, _cap_text_prompt_length, which keeps `prompt_ids[-limit:]`.
    """
    limit = setting.whole(_PROMPT_LENGTH)
    if limit is None or limit > 0:
        return
    default = setting.default(_PROMPT_LENGTH)
    drops = setting.get("data.filter_overlong_prompts")
    what = "drops every prompt: no row is left" if drops else "does not limit prompts as it says"
    yield f"{_PROMPT_LENGTH}={limit} {what}. A limit in tokens: {_PROMPT_LENGTH}={default or 1024}"


def warnings_of_saves(setting: Setting, steps: Steps | None, budget: Budget | None) -> Iterator[str]:
    """A first save that comes too late, or never.

    Args:
        setting: the configuration.
        steps: of the run, if known.
        budget: what the cluster may cost, if a limit, the price and the time of a step are known.
    """
    every = setting.whole(keys.SAVE_FREQ)
    if every is None or every < 1 or not setting.trains or (steps is not None and steps.count < 1):
        return
    strategy = setting.get(f"{keys.ACTOR}.strategy")
    if setting.get(_ASYNC_SAVE) and strategy != "megatron":  # trainer/ppo/v1/trainer_base.py: _save_checkpoint
        yield (
            f"{_ASYNC_SAVE}=True: verl leaves latest_checkpointed_iteration.txt to Megatron then, and with "
            f"{strategy} no file is written: a resume starts at step 0. Instead: {_ASYNC_SAVE}=False"
        )
    first = min(every, steps.count) if steps is not None and steps.has_last else every
    if budget is not None and first > budget.steps and (steps is None or steps.has_last or first <= steps.count):
        yield _after_the_money(first, budget)
    elif steps is not None and every > steps.count and (steps.count > 1 or not steps.has_last):
        what = (
            "only the last step is saved, and a run that breaks off before starts over"
            if steps.has_last
            else "it never saves"
        )
        sooner = f"{keys.SAVE_FREQ}={max(1, steps.count // 2)}"
        yield f"{keys.SAVE_FREQ}={every} is more than the {_count(steps.count)} of the run: {what}. Sooner: {sooner}"
    elif steps is not None and _FEW_STEPS <= steps.count < 2 * every and every <= steps.count:
        late = f"the first save comes after step {every} of {steps.count}, and a run that breaks off before starts over"
        yield f"{keys.SAVE_FREQ}={every}: {late}. Sooner: {keys.SAVE_FREQ}={steps.count // 4}"


def _after_the_money(first: int, budget: Budget) -> str:
    late = (
        f"the first save is due after {duration_text(first * budget.step_s)} ({_count(first)} of {budget.step_s:.0f} "
        f"s, as in run {budget.run}), but {dollars_text(budget.dollars)} at {dollars_text(budget.per_hour)} an hour "
        f"(--max-cost) last {duration_text(budget.ends_s)}"
    )
    if budget.steps < 1:
        least = 2 * budget.step_s / 3600 * budget.per_hour
        return f"{late}: not even one step. --max-cost {least + 0.01:.2f} is enough for one"
    return f"{late}. In time: {keys.SAVE_FREQ}={max(1, budget.steps // 2)}"


def notes_of_validation(setting: Setting, steps: Steps | None) -> Iterator[str]:
    """A validation set of which a run makes little use."""
    every = setting.whole(keys.TEST_FREQ)
    if every is None or not setting.trains or (steps is not None and steps.count < 2):
        return
    count = steps.count if steps is not None else _USUAL_STEPS
    sooner = f"{keys.TEST_FREQ}={max(1, count // 4)}"
    if every < 1:
        before = setting.get("trainer.val_before_train") is not False
        when = "validates only before the first step" if before else "never validates"
        yield f"{keys.TEST_FREQ}={every} {when}. More often: {sooner}"
    elif steps is not None and every > count:
        when = "validates only after the last step" if steps.has_last else "never validates"
        yield f"{keys.TEST_FREQ}={every} is more than the {count} steps of the run: it {when}. More often: {sooner}"


def _count(steps: int) -> str:
    return f"{steps} step{'' if steps == 1 else 's'}"
