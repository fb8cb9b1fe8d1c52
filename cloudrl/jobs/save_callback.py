"""verl's trainer tells the agents what it has saved, and saves when they or `--save-every` want it."""

from __future__ import annotations

from dataclasses import replace

from cloudrl.errors import InputError
from cloudrl.jobs.asynchronous import PLAIN
from cloudrl.jobs.debugging import sees_nodes_path
from cloudrl.jobs.draft import JobDraft, Snapshot
from cloudrl.protocol.folders import ON_HEAD, OWN_CALLBACK_VARIABLE, SAVE_CALLBACK, SAVE_EVERY_VARIABLE
from cloudrl.spec.hydra import parse_overrides
from cloudrl.spec.sizes import duration_with_unit, seconds_of
from cloudrl.verl import keys
from cloudrl.verl.composition import compose, is_known
from cloudrl.verl.setting import Setting

_PROGRAMS = (PLAIN, ("python3", "-m", ON_HEAD, keys.MAIN))
LAST_STEP_ALONE = 1_000_000
"""As `trainer.save_freq`: only the last step is saved, unless something else asks for a save."""


def ask_trainer(draft: JobDraft, _snapshot: Snapshot) -> JobDraft:
    """Pass: the callback of verl's trainer, for a durable job and for `--save-every`; the user's own runs behind it.

    Without it the agents see on the disks what was saved, and cannot ask for a save.

    Raises:
        InputError: `--save-every` is not a duration, or the trainer has no such callback.
    """
    every = draft.options.save_every
    if not draft.may_be_durable and every is None:
        return draft
    every_s = seconds_of(duration_with_unit(every)) if every is not None else None
    missing = _why_not(draft)
    if missing and every_s is not None:
        raise InputError(f"--save-every: {missing}", hint=f"By steps: {keys.SAVE_FREQ}=10")
    if missing:
        return draft
    own, variables = draft.values.get(keys.CALLBACK, "null"), dict(draft.variables)
    if own not in ("null", ""):
        if "." not in own:
            return draft  # verl refuses it
        variables[OWN_CALLBACK_VARIABLE] = own
    overrides: dict[str, object] = {keys.CALLBACK: SAVE_CALLBACK}
    if every_s is not None:
        variables[SAVE_EVERY_VARIABLE] = str(every_s)
        asked = parse_overrides({key: str(value) for key, value in draft.options.overrides.items()})
        if keys.SAVE_FREQ not in asked:
            overrides[keys.SAVE_FREQ] = LAST_STEP_ALONE
    return replace(draft.without(*overrides), variables=variables).overriding(overrides)


def _why_not(draft: JobDraft) -> str:
    """What is in the way; "" where the trainer takes the callback and finds it."""
    cluster, release = draft.cluster, draft.cluster.verl_version
    if not cluster.has_agents or not cluster.asks_trainers:
        return f"the agents of cluster {cluster.name!r} cannot ask a trainer to save"
    program = draft.job.entrypoint
    if not any(program[: len(words)] == words for words in _PROGRAMS):
        return f"only {keys.MAIN} can be asked to save, and the job runs {' '.join(program[:4])}"
    if not sees_nodes_path(draft):
        return "the job's own PYTHONPATH or image hides the nodes' modules"
    if release is None or not is_known(release):
        return f"it is not known whether verl {release or 'there'} can be asked to save"
    setting = Setting(compose(release, ()).values or {}, 0)
    if not setting.has(keys.CALLBACK) or draft.values.get(keys.USE_V1, "true").lower() == "false":
        return f"only the trainer of verl 0.9.1 and later ({keys.USE_V1}=true) can be asked to save"
    return ""
