"""Whether a job fits in memory, and whether its model goes with the configuration, before anything is paid for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from cloudrl.errors import CheckpointError
from cloudrl.jobs.draft import JobDraft, Snapshot
from cloudrl.jobs.findings import Finding
from cloudrl.protocol.facts import ClusterFacts
from cloudrl.units import size_text
from cloudrl.verl.composition import Problem
from cloudrl.verl.keys import ACTOR, CRITIC_MODEL_PATH, DEVICE, MODEL_PATH, SAVE_FREQ
from cloudrl.verl.memory.amount import GIB
from cloudrl.verl.memory.cards import card_of, suggestion
from cloudrl.verl.memory.host import DISK
from cloudrl.verl.memory.reading import NotModelled, workload_of
from cloudrl.verl.memory.remedies import Refuses, find_remedy
from cloudrl.verl.memory.report import MemoryReport
from cloudrl.verl.memory.runs import RunMemory, earlier_run, lengths_of
from cloudrl.verl.memory.verdict import Estimate
from cloudrl.verl.memory.workload import Lengths, Machine
from cloudrl.verl.model_config import ModelConfig, known_model
from cloudrl.verl.model_rules import Models, lengths_room, model_notes, model_problems
from cloudrl.verl.rules import problems
from cloudrl.verl.setting import Setting


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
    draft = draft.noting(*notes)
    if models.actor.is_guess:
        draft, found = draft.warning(*(problem.text for problem in found)), ()
    return _judged(draft, setting, models, snapshot), found


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


def _judged(draft: JobDraft, setting: Setting, models: Models, snapshot: Snapshot) -> JobDraft:
    """With the verdict, or why there is no verdict."""
    card, facts = models.card, draft.cluster
    if card.gib is None:
        return draft.skipping(f"memory (card unknown{suggestion(draft.cluster.gpu)})")
    machine = _machine(card.gib, facts)
    earlier = earlier_run(snapshot.runs, draft.job.name, models.actor.name)
    try:
        work = workload_of(setting, _lengths(setting, models.actor, snapshot, earlier))
        estimate = Estimate(models.actor, models.critic or models.actor, work, machine)
        remedy = None if estimate.likely_fits else find_remedy(setting, estimate, refuses=_refusals(models))
    except (NotModelled, CheckpointError) as why:
        return draft.skipping(f"memory ({why})")
    report = MemoryReport(
        estimate, card, remedy, (*_basis(models, estimate, earlier), *_not_counted(setting, models.actor))
    )
    return _with_room(replace(draft, memory=report), setting, snapshot)


def _with_room(draft: JobDraft, setting: Setting, snapshot: Snapshot) -> JobDraft:
    """Refuse a job whose first save cannot be written; what else does not fit is a warning.

    Free bytes are known of a cluster that is up. What a plan asks for is the least that a machine may have.
    """
    report, facts = draft.memory, draft.cluster
    if report is None:
        return draft
    save = next(phase for phase in report.estimate.phases if phase.group == DISK)
    saves = (setting.whole(SAVE_FREQ) or 0) > 0 and setting.trains
    if snapshot.is_expected or draft.options.unchecked or not (saves and save.fails_for_sure):
        return draft.warning(*filter(None, [report.warning]))
    nodes = 1 if facts.shared_checkpoints else max(1, facts.gpu_nodes)
    each = "" if nodes == 1 else " on each node"
    found = Finding(
        f"one save takes {size_text(int(save.need.likely * GIB / nodes))}{each}, and {facts.checkpoint_dir} of cluster "
        f"{facts.name!r} has room for {size_text(facts.disk_bytes)}: the first save would fail",
        f"Make room: cloudrl checkpoints prune --cluster {facts.name} --keep-last 1\n"
        f"Or save on a larger disk: --volume /DISK:{facts.checkpoint_dir} with cloudrl up, or --set disk=...",
        is_about_verl=True,
    )
    is_known = report.estimate.worst.group == DISK
    return draft.refused(found) if is_known else draft.refused(found).warning(*filter(None, [report.warning]))


def _machine(card_gib: float, facts: ClusterFacts) -> Machine:
    """What a node has; every node saves its own shards, into its own folder or into one."""
    folders = 1 if facts.shared_checkpoints else max(1, facts.gpu_nodes)
    sizes = (facts.memory_bytes, facts.disk_bytes * folders, facts.shm_bytes)
    host, disk, shm = (size / GIB or None for size in sizes)
    return Machine(card_gib, host_gib=host, disk_gib=disk, shm_gib=shm)


def _lengths(setting: Setting, model: ModelConfig, snapshot: Snapshot, earlier: RunMemory | None) -> Lengths:
    """The limits of prompt and answer, and their means as far as an earlier run or the data tell them."""
    prompt, response = (setting.whole(f"data.max_{each}_length") or 512 for each in ("prompt", "response"))
    if (room := lengths_room(setting, model)) is not None and room > prompt:
        response = min(response, room - prompt)
    prompts = snapshot.prompts
    how = (prompts.mean, prompts.source) if prompts is not None else (None, "")
    return lengths_of(Lengths(prompt, response), earlier, *how)


def _refusals(models: Models) -> Refuses:
    return lambda setting: len(problems(setting)) + len(model_problems(setting, models))


def _not_counted(setting: Setting, model: ModelConfig) -> Iterator[str]:
    """Parts of this job's memory that no term of the estimate stands for (docs/memory.md)."""
    megatron = f"{ACTOR}.megatron"
    is_megatron = setting.get(f"{ACTOR}.strategy") == "megatron"
    parts = {
        "tokens of images": model.counts.vision > 0,
        "buffers that dispatch tokens to experts": is_megatron
        and model.experts > 0
        and (setting.whole(f"{megatron}.expert_model_parallel_size") or 1) > 1,
        "virtual pipeline stages": is_megatron
        and bool(setting.get(f"{megatron}.virtual_pipeline_model_parallel_size")),
    }
    if found := [part for part, is_there in parts.items() if is_there]:
        yield f"not counted: {', '.join(found)}"


def _basis(models: Models, estimate: Estimate, earlier: RunMemory | None) -> Iterator[str]:
    """What the estimate rests on."""
    yield f"the model's sizes are from {models.actor.source}"
    if not models.actor.counts.is_exact:
        yield f"{models.actor.architecture or 'its architecture'} counts as a similar one"
    lengths = estimate.work.lengths
    if lengths.mean is not None:
        yield f"sequences count as {lengths.mean:.0f} tokens in the mean, as those of {lengths.source}"
    elif lengths.prompt_mean is not None:
        yield lengths.source
        yield f"answers count as half of their limit of {lengths.response} tokens, at most as all of it"
    else:
        yield f"sequences count as half of their limit of {lengths.longest} tokens, at most as all of it"
    if earlier is not None and earlier.allocated_gib:
        yield f"run {earlier.submission_id} on {earlier.shape or 'other GPUs'}: {earlier.sentence}"
