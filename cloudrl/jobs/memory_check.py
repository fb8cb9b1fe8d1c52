"""Whether a job fits in memory, and whether its model goes with the configuration, before anything is paid for."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from cloudrl.errors import CheckpointError
from cloudrl.jobs.data_check import training_rows
from cloudrl.jobs.draft import JobDraft, Snapshot
from cloudrl.jobs.findings import Finding
from cloudrl.jobs.save_room import SaveRoom, save_bytes, saves_there
from cloudrl.protocol.facts import ClusterFacts
from cloudrl.verl.command import model_key
from cloudrl.verl.engine_classes import unread, unserved
from cloudrl.verl.kept_saves import kept_keys, saves_at_once
from cloudrl.verl.keys import CRITIC_MODEL_PATH, DEVICE, MODEL_PATH, ROLLOUT, SAVE_FREQ
from cloudrl.verl.memory.amount import GIB
from cloudrl.verl.memory.cards import card_of, suggestion
from cloudrl.verl.memory.fine_tuning import fine_tuning_changes, fine_tuning_workload, limit_of, on_gpus
from cloudrl.verl.memory.host import DISK
from cloudrl.verl.memory.reading import NotModelled, workload_of
from cloudrl.verl.memory.remedies import Reads, Refuses, Suggests, find_remedy
from cloudrl.verl.memory.report import MemoryReport
from cloudrl.verl.memory.runs import RunMemory, earlier_run, lengths_of
from cloudrl.verl.memory.verdict import Estimate
from cloudrl.verl.memory.workload import Lengths, Machine, Workload
from cloudrl.verl.model_config import ModelConfig, known_model
from cloudrl.verl.model_rules import (
    Models,
    fine_tuning_divides_the_model,
    lengths_room,
    model_notes,
    model_problems,
)
from cloudrl.verl.override_parsing import Problem
from cloudrl.verl.rules import problems
from cloudrl.verl.rules.fine_tuning import fine_tuning_problems, overlong_rows
from cloudrl.verl.setting import Setting
from cloudrl.verl.steps import steps_of


def check_model(draft: JobDraft, setting: Setting, snapshot: Snapshot) -> tuple[JobDraft, tuple[Problem, ...]]:
    """Look at the model beside the configuration, and at memory.

    Args:
        draft: the complete job.
        setting: its composed configuration.
        snapshot: with the config.json of its models, as far as they are here.

    Returns:
        The job with notes and with the verdict on its memory, and why it cannot work with this model.
    """
    if draft.cluster.device == "cpu" or setting.get(DEVICE) == "cpu":
        return draft, ()
    models = _models(draft, setting, snapshot)
    if models is None:
        path = setting.get(MODEL_PATH)
        return draft.skipping(f"memory and heads (config.json of {path} unknown)"), ()
    try:
        found, notes = model_problems(setting, models), model_notes(setting, models)
    except CheckpointError as why:
        return draft.skipping(f"memory and heads ({why})"), ()
    draft, found = _unless_a_guess(draft.noting(*notes), models.actor, found)
    draft = _with_engine(draft, setting, models.actor)
    job = _Checked(setting, models, _limit_of_answers(setting, models.actor), _refusals(models))
    return _judged(draft, job, snapshot), found


def _with_engine(draft: JobDraft, setting: Setting, model: ModelConfig) -> JobDraft:
    """With what is known of the rollout engine's class for the model; of a guess nothing is."""
    if model.is_guess:
        return draft
    version = draft.cluster.rollout_versions.get(str(setting.get(f"{ROLLOUT}.name")))
    if unknown := unread(setting, model, version):
        return draft.skipping(unknown)
    return draft.warning(*unserved(setting, model, version or "", draft.cluster.verl_version))


def check_fine_tuning(
    draft: JobDraft, setting: Setting, snapshot: Snapshot, *, gpus: int | None, on_ray: bool
) -> tuple[JobDraft, tuple[Problem, ...]]:
    """The same for verl's supervised fine-tuning.

    Args:
        draft: the complete job.
        setting: its composed configuration.
        snapshot: see `check_model`.
        gpus: processes of training; None if the command does not tell, so that the configuration counts.
        on_ray: whether `sft_trainer_ray` starts them.
    """
    if draft.cluster.device == "cpu" or setting.get(DEVICE) == "cpu":
        return draft, ()
    path = str(setting.get(model_key(draft.job.entrypoint)))
    model = _model(draft, snapshot, path)
    if model is None:
        return draft.skipping(f"memory and heads (config.json of {path} unknown)"), ()
    setting = on_gpus(setting, gpus)
    if (rows := snapshot.prompts) is not None:
        draft = draft.warning(*overlong_rows(setting, rows.name, rows.tokens))
    try:
        found = fine_tuning_divides_the_model(setting, model)
    except CheckpointError as why:
        return draft.skipping(f"memory and heads ({why})"), ()
    draft, found = _unless_a_guess(draft, model, found)
    models = Models(model, None, card_of(draft.cluster.gpu, draft.cluster.gpu_memory_mib))

    def count_refusals(changed: Setting) -> int:
        refused = fine_tuning_problems(changed, gpus=changed.world_size, on_ray=on_ray)
        return len(refused) + len(fine_tuning_divides_the_model(changed, model))

    reads = functools.partial(fine_tuning_workload, on_ray=on_ray)
    suggests = functools.partial(fine_tuning_changes, on_ray=on_ray)
    job = _Checked(setting, models, limit_of(setting), count_refusals, reads, suggests)
    return _judged(draft, job, snapshot), found


def _unless_a_guess(
    draft: JobDraft, model: ModelConfig, found: tuple[Problem, ...]
) -> tuple[JobDraft, tuple[Problem, ...]]:
    """What refuses the job; of a model that is only called like a known one it is a warning."""
    return (draft.warning(*(problem.text for problem in found)), ()) if model.is_guess else (draft, found)


@dataclass(frozen=True)
class _Checked:
    """A job whose memory is estimated, by the program of verl that it runs.

    Attributes:
        setting: its configuration, with the GPUs that train.
        models: of the job, with the card.
        limits: how long sequences may be.
        refuses: counts what speaks against a configuration.
        reads: makes a workload of a configuration.
        suggests: overrides that may help; None for those of `main_ppo`.
    """

    setting: Setting
    models: Models
    limits: Lengths
    refuses: Refuses
    reads: Reads = workload_of
    suggests: Suggests | None = None


def _models(draft: JobDraft, setting: Setting, snapshot: Snapshot) -> Models | None:
    """The models of a job, as far as their config.json is known; None without the actor's."""
    actor = _model(draft, snapshot, str(setting.get(MODEL_PATH)))
    if actor is None:
        return None
    critic = _model(draft, snapshot, str(setting.get(CRITIC_MODEL_PATH))) if setting.uses_critic else None
    teachers = setting.get("distillation.teacher_models") if setting.get("distillation.enabled") else None
    rows = teachers.values() if isinstance(teachers, Mapping) else ()
    paths = (str(row.get("model_path")) for row in rows if isinstance(row, Mapping))
    known = tuple(filter(None, (_model(draft, snapshot, path) for path in paths)))
    return Models(actor, critic, card_of(draft.cluster.gpu, draft.cluster.gpu_memory_mib), known)


def _model(draft: JobDraft, snapshot: Snapshot, path: str) -> ModelConfig | None:
    """The model at a path of the nodes: by the name that the user has for it."""
    names = list(_names(draft, path))
    read = (snapshot.models.get(name) for name in names)
    return next(filter(None, (*read, *map(known_model, names))), None)


def _names(draft: JobDraft, path: str) -> Iterator[str]:
    yield path
    yield from (name for name, folder in draft.cluster.models.items() if folder == path)
    yield from (upload.text for upload in draft.uploads if upload.to == path)


def _judged(draft: JobDraft, job: _Checked, snapshot: Snapshot) -> JobDraft:
    """With the verdict, or why there is no verdict."""
    models, card, facts = job.models, job.models.card, draft.cluster
    earlier = earlier_run(snapshot.runs, draft.job.name, models.actor.name)
    try:
        work = job.reads(job.setting, _lengths(job.limits, snapshot, earlier))
        machine = _machine(card.gib or 0, facts, job.setting, work.nodes)
        estimate = Estimate(models.actor, models.critic or models.actor, work, machine)
        if card.gib is None:  # what goes to disks does not depend on it
            draft = draft.skipping(f"memory (card unknown{suggestion(facts.gpu)})")
            return _with_room(draft, estimate, job.setting, snapshot)
        remedy = None if estimate.likely_fits else find_remedy(
            job.setting, estimate, refuses=job.refuses, reads=job.reads, suggests=job.suggests
        )  # fmt: skip
    except (NotModelled, CheckpointError) as why:
        return draft.skipping(f"memory ({why})")
    notes = (*_basis(models, estimate, earlier), *_not_counted(estimate))
    draft = replace(draft, memory=MemoryReport(estimate, card, remedy, notes))
    return _with_room(draft, estimate, job.setting, snapshot)


def _with_room(draft: JobDraft, estimate: Estimate, setting: Setting, snapshot: Snapshot) -> JobDraft:
    """Refuse a job whose first or second save cannot be written; what else does not fit is a warning.

    Free bytes are known of a cluster that is up. What a plan asks for is the least that a machine may have.
    """
    facts, warning = draft.cluster, draft.memory.warning if draft.memory is not None else None
    nodes = 1 if facts.shared_checkpoints else estimate.work.nodes
    saves, size_bytes = (setting.whole(SAVE_FREQ) or 0) > 0 and setting.trains, save_bytes(estimate, nodes)
    is_guess = estimate.model.is_guess or estimate.critic_model.is_guess
    if snapshot.is_expected or is_guess or not saves or not size_bytes:
        return draft.warning(*filter(None, [warning]))
    steps = steps_of(setting, training_rows(draft, snapshot))
    at_once = saves_at_once(setting, steps, has_one_folder=nodes == 1)
    free_bytes = facts.disk_bytes if saves_there(facts, setting) else 0
    room = SaveRoom(facts, free_bytes, size_bytes, nodes, at_once, kept_keys(setting))
    if draft.options.unchecked or not room.is_short:
        return draft.warning(*filter(None, [warning, room.warning]))
    draft = draft.refused(Finding(room.reason, room.hint, is_about_verl=True))
    return draft if estimate.worst.group == DISK else draft.warning(*filter(None, [warning]))


def _machine(card_gib: float, facts: ClusterFacts, setting: Setting, nodes: int) -> Machine:
    """What a node has; every node that trains saves its own shards, into its own folder or into one.

    The room is unknown where a job saves elsewhere than the cluster does.
    """
    folders = 1 if facts.shared_checkpoints else nodes
    sizes = (facts.memory_bytes, facts.disk_bytes * folders * saves_there(facts, setting), facts.shm_bytes)
    host, disk, shm = (size / GIB or None for size in sizes)
    return Machine(card_gib, host_gib=host, disk_gib=disk, shm_gib=shm)


def _limit_of_answers(setting: Setting, model: ModelConfig) -> Lengths:
    """The limits of prompt and answer, as far as the rollout lets an answer go."""
    prompt, response = (setting.whole(f"data.max_{each}_length") or 512 for each in ("prompt", "response"))
    if (room := lengths_room(setting, model)) is not None and room > prompt:
        response = min(response, room - prompt)
    return Lengths(prompt, response)


def _lengths(limits: Lengths, snapshot: Snapshot, earlier: RunMemory | None) -> Lengths:
    """With their means, as far as an earlier run or the data tell them."""
    prompts = snapshot.prompts
    how = (prompts.mean, prompts.source) if prompts is not None else (None, "")
    return lengths_of(limits, earlier, *how)


def _refusals(models: Models) -> Refuses:
    return lambda setting: len(problems(setting)) + len(model_problems(setting, models))


def _not_counted(estimate: Estimate) -> Iterator[str]:
    """Parts of this job's memory that no term of the estimate stands for (docs/memory.md)."""
    model, actor = estimate.model, estimate.work.actor
    parts = {
        "tokens of images": model.counts.vision > 0,
        "buffers that dispatch tokens to experts": actor.is_megatron and model.experts > 0 and actor.expert > 1,
        "virtual pipeline stages": actor.has_virtual_stages,
    }
    if found := [part for part, is_there in parts.items() if is_there]:
        yield f"not counted: {', '.join(found)}"


def _basis(models: Models, estimate: Estimate, earlier: RunMemory | None) -> Iterator[str]:
    """What the estimate rests on."""
    yield f"the model's sizes are from {models.actor.source}"
    if not models.actor.counts.is_exact:
        yield f"{models.actor.architecture or 'its architecture'} counts as a similar one"
    yield from _length_basis(estimate.work)
    if earlier is not None and earlier.allocated_gib:
        yield f"run {earlier.submission_id} on {earlier.shape or 'other GPUs'}: {earlier.sentence}"


def _length_basis(work: Workload) -> Iterator[str]:
    """How long sequences count, and why."""
    lengths = work.lengths
    if work.actor.pads_to_limit:
        yield f"every row counts as {lengths.longest} tokens: verl pads it to that"
    elif lengths.mean is not None:
        yield f"sequences count as {lengths.mean:.0f} tokens in the mean, as those of {lengths.source}"
    elif lengths.prompt_mean is not None:
        yield lengths.source
        if lengths.response:
            yield f"answers count as half of their limit of {lengths.response} tokens, at most as all of it"
    else:
        yield f"sequences count as half of their limit of {lengths.longest} tokens, at most as all of it"
