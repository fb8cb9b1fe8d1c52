"""From a recipe to what is sent: pure passes over one snapshot, so that what a dry run shows is what is sent.

A pass takes a draft and the snapshot and returns another draft. Their order, and why it is this one:

1. `name_run`: names are part of folders and of notes.
2. `choose_verl`: which keys there are, and whether job and cluster agree, depends on the verl that is going to run.
3. `change_engine`, `expand_aliases`, `set_trainer_mode`, `limit_steps`: from here on there are only overrides in
   verl's own keys.
4. `check_shell_text`, `plan_uploads`: from here on every value is meant as it is, and every path is one on the nodes.
5. `set_environment`: variables decide about loggers.
6. `set_debugger`: adds to the variables what a debugger needs.
7. `check_compatibility`, `take_cluster_defaults`: refuse what cannot work, then complete the job.
   `place_controller`: for the mode that the complete job has.
8. `plan_resume`: where a run of this name goes on, and on which nodes, if the job's command can choose them.
   `ask_trainer`, `continue_tracking`: for the trainer and the loggers that the complete job has.
9. `check_data`, `check_reward`, `check_config`, `note_surprises`: look at the complete job.
10. `collect_secrets`, `deliver_secrets`: what the complete job needs, and how it gets there.
11. `plan_durable`: whether all of it would be there again after a restart of the cluster. If it would not, and the user
    has not asked for a durable job, all passes run once more for a job that goes to Ray alone.

Validating before there is a cluster is the same pipeline over the snapshot that is expected. Since passes are cheap,
`submit.prepare` runs them twice: what is going to be sent is read only when nothing is in the way.

No pass ends planning. What is wrong is kept in the draft (`JobDraft.findings`), so that a refused job has all its
reasons; then `correction` plans again with what the hints say, until nothing more is found or no hint is left.
"""

import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace

from cloudrl.errors import InputError, Refusals
from cloudrl.jobs.aliases import expand_aliases
from cloudrl.jobs.asynchronous import (
    can_choose_nodes,
    is_placed,
    place_controller,
    set_trainer_mode,
    training_shape,
)
from cloudrl.jobs.compatibility import check_compatibility
from cloudrl.jobs.config_check import check_config
from cloudrl.jobs.correction import refusal
from cloudrl.jobs.data_check import check_data
from cloudrl.jobs.debugging import set_debugger
from cloudrl.jobs.defaults import take_cluster_defaults
from cloudrl.jobs.draft import JobDraft, Snapshot
from cloudrl.jobs.durability import RESUME_DECIDED_BY
from cloudrl.jobs.durable import plan_durable
from cloudrl.jobs.engine import change_engine
from cloudrl.jobs.findings import Finding
from cloudrl.jobs.redaction import redact_words
from cloudrl.jobs.reward_check import check_reward
from cloudrl.jobs.save_callback import ask_trainer
from cloudrl.jobs.secrets import collect_secrets, deliver_secrets
from cloudrl.jobs.shell_text import check_shell_text
from cloudrl.jobs.submission import Submission
from cloudrl.jobs.tracking import continue_tracking
from cloudrl.jobs.uploads import plan_uploads
from cloudrl.options.declaration import declared
from cloudrl.options.environment import checked_env
from cloudrl.options.job import SubmitOptions
from cloudrl.protocol.secret_names import MASK, is_secret, is_secret_override
from cloudrl.saves import resume as saves
from cloudrl.spec import Job, override_argument
from cloudrl.spec.hydra import integer, parse_overrides, split_key
from cloudrl.verl import keys
from cloudrl.verl.keys import has_key

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def name_run(draft: JobDraft, snapshot: Snapshot) -> JobDraft:
    """Pass: the run's name and the submission id; a look at the label of its group."""
    stamp, options, refused = f"{snapshot.now:%Y%m%d-%H%M%S}", draft.options, Refusals()
    run = f"{draft.job.name[:80]}-{stamp}"
    submission_id = run if options.name is None else f"{options.name[:80]}-{stamp}"
    if options.name is not None:
        with refused.collect():
            run = _checked_name("--name", options.name)
    if options.submission_id is not None:
        with refused.collect():
            submission_id = _checked_name("--submission-id", options.submission_id)
    if options.group is not None:
        with refused.collect():
            _checked_name("--group", options.group, "a label")
    return replace(draft, name=run, submission_id=submission_id).refused(*refused)


def choose_verl(draft: JobDraft, snapshot: Snapshot) -> JobDraft:
    """Pass: the release of verl that is going to run: a fork's, the nodes', or what the recipe is written for.

    The working directory stands before the image's packages on `sys.path`, for the entry point (`python3 -m`) and
    for every actor on every node (seen with Ray 2.60), so a verl in it takes the place of the image's.
    """
    fork, files = snapshot.files.verl_fork, snapshot.files
    release = draft.cluster.verl_version if fork is None else fork or None
    draft = replace(draft, cluster=replace(draft.cluster, verl_version=release or draft.job.verl))
    if fork is None or files.working_dir is None:
        return draft
    place = f"{files.working_dir.path} ({fork or 'of unknown version'})"
    return draft.noting(f"the job runs the verl in {place}, not the one of the nodes")


def limit_steps(draft: JobDraft, _snapshot: Snapshot) -> JobDraft:
    """Pass: `--steps` in verl's keys.

    verl ends at whichever comes first, epochs or steps (verl 0.9.1, v1/trainer_base.py: fit), and an epoch
    has at least one step: as many epochs as steps are never too few.
    """
    steps = draft.options.steps
    if steps is None:
        return draft
    if steps < 1:
        return draft.refused(InputError(f"--steps {steps} is less than 1", hint="For example --steps 100"))
    values = parse_overrides({key: str(value) for key, value in draft.overrides.items()})
    if keys.STEPS in values and integer(values[keys.STEPS]) != steps:
        differ = f"--steps {steps} and {keys.STEPS}={values[keys.STEPS]} differ"
        return draft.refused(InputError(differ, hint=f"~{keys.STEPS}"))
    return replace(draft, overrides={keys.STEPS: steps, keys.EPOCHS: steps, **draft.overrides})


_STEP_KNOWN_LATER = "the step that the run continues from is known once the cluster is up"
_TELL_START = ("run {!r} starts from step 1", "run {!r} continues from step ", _STEP_KNOWN_LATER)
"""Notes of `plan_resume`, by their beginnings."""


def continues_a_run(job: Job, options: SubmitOptions) -> bool:
    """Whether what the cluster has saved decides where the job starts: it has a name, and no option says otherwise."""
    values = job.with_overrides(options.overrides).values
    return options.name is not None and not values.keys() & RESUME_DECIDED_BY


def plan_resume(draft: JobDraft, snapshot: Snapshot) -> JobDraft:
    """Pass: go on from the newest step of the run, and say which.

    Unchanged where the user decides by overrides, for a plain Ray cluster, and for a verl that cannot go on.

    Raises:
        InputError: The run has done all its steps.
        CheckpointError: The run has steps, and none of them can be loaded where the job is going to run.
        ConnectionFailed: A node is silent that may have the newest step.
    """
    cluster, saved, values = draft.cluster, snapshot.saved, draft.values
    if snapshot.is_expected and continues_a_run(draft.job, draft.options):
        return draft.noting(_STEP_KNOWN_LATER)
    if saved is None or not cluster.has_agents or not has_key(cluster.verl_version, keys.RESUME_MODE):
        return draft
    nodes, gpus = training_shape(draft)
    if not 0 < nodes <= cluster.gpu_nodes or not (nodes == cluster.gpu_nodes or can_choose_nodes(draft)):
        return draft  # it is not known on which of the nodes
    ranks = saves.Ranks(nodes * gpus, nodes, snapshot.addresses, are_placed=is_placed(draft))
    resume = saves.plan_resume(
        saved, draft.name, ranks=ranks, checkpoint_dir=cluster.checkpoint_dir, cluster=cluster.name
    )
    if resume is None:
        return draft.noting(f"run {draft.name!r} starts from step 1: the cluster has saved no step of it")
    total = integer(values.get(keys.STEPS))
    if total is not None and resume.step >= total and values.get(keys.VAL_ONLY, "").lower() != "true":
        raise InputError(
            f"run {draft.name!r} has done its {total} steps: step {resume.step} is saved, and nothing is left to train",
            hint=f"Go on: --steps {resume.step + total}\nBegin another run: --name {draft.name}-2",
        )
    of = "" if total is None else f" of {total}"
    note = f"run {draft.name!r} continues from step {resume.step}{of}"
    draft = draft.noting(note, *resume.notes)
    if draft.may_be_durable:  # the agents plan each attempt themselves, when it starts
        return draft
    return replace(draft, variables={**draft.variables, **resume.variables}).overriding(resume.overrides)


def set_environment(draft: JobDraft, _snapshot: Snapshot) -> JobDraft:
    """Pass: the runtime environment; `excludes` has done its work by then."""
    options = draft.options
    runtime_env = {key: value for key, value in options.runtime_env.items() if key != "excludes"}
    from_file = runtime_env.pop("env_vars", None) or {}
    working_dir = draft.package.uri if draft.package is not None else options.working_dir
    if working_dir is not None:
        runtime_env["working_dir"] = working_dir
    refused, variables = Refusals(), {**draft.job.env, **from_file, **options.env}
    with refused.collect():
        variables = checked_env(variables, "environment")
    return replace(draft, runtime_env=runtime_env, variables=variables).refused(*refused)


def note_surprises(draft: JobDraft, _snapshot: Snapshot) -> JobDraft:
    """Pass: what a user may not expect of the finished job."""
    values, options, checkpoint_dir = draft.values, draft.options, draft.cluster.checkpoint_dir
    folder, logger, notes = values.get(keys.LOCAL_DIR, ""), values.get(keys.LOGGER), []
    is_told = any(note.startswith(tuple(text.format(draft.name) for text in _TELL_START)) for note in draft.notes)
    if options.name is not None and values.get(keys.RESUME_MODE) == "auto" and not is_told:
        notes.append(f"run {draft.name!r} continues from the newest checkpoint in {folder}, if there is one")
    if checkpoint_dir and folder.startswith("/") and not f"{folder}/".startswith(checkpoint_dir.rstrip("/") + "/"):
        notes.append(f"{folder} is outside {checkpoint_dir}: cloudrl can neither list nor merge it")
    if logger is not None and "console" not in logger:
        notes.append(f"{keys.LOGGER}={logger} has no console: no progress can be shown")
    for key, value in draft.asked.overrides.items():
        if value and is_secret_override(split_key(key)[1]):
            notes.append(f"{key} is part of the command, which Ray's dashboard and log show; --env hides it")
            break
    if "PATH" in draft.variables:
        notes.append(
            "PATH replaces the one of the nodes for this job: `python3` may be another one there, without verl"
        )
    for key, value in options.env.items():
        if "$" in value and not is_secret(key):
            notes.append(f"Ray expands $NAME and ${{NAME}} in the value of {key}")
            break
    return draft.noting(*notes)


PASSES: tuple[Callable[[JobDraft, Snapshot], JobDraft], ...] = (
    name_run,
    choose_verl,
    change_engine,
    expand_aliases,
    set_trainer_mode,
    limit_steps,
    check_shell_text,
    plan_uploads,
    set_environment,
    set_debugger,
    check_compatibility,
    take_cluster_defaults,
    place_controller,
    plan_resume,
    ask_trainer,
    continue_tracking,
    check_data,
    check_reward,
    check_config,
    note_surprises,
    collect_secrets,
    deliver_secrets,
    plan_durable,
)


def plan_job(job: Job, options: SubmitOptions, snapshot: Snapshot) -> Submission:
    """All passes, one after the other, and what the finished draft says is sent.

    Raises:
        JobRefused: Job, cluster and options do not go together; it has all the reasons, each with both values.
        CheckpointError: The run of this name has steps, and its ranks could load none of them.
    """
    draft = _draft(job, options, snapshot)
    if not draft.findings:
        return _submission(draft, snapshot.commit)
    planned = [draft]

    def plan_again(changed: SubmitOptions) -> Sequence[Finding]:
        planned.append(_draft(job, changed, snapshot))
        return planned[-1].findings

    refused = refusal(draft.findings, job, options, plan_again)
    raise refused.warning(*planned[-1].warnings)  # of the job as corrected


def _draft(job: Job, options: SubmitOptions, snapshot: Snapshot) -> JobDraft:
    """All passes, and once more for a plain job if the agents cannot carry this one through by default."""
    draft = _passed(JobDraft(job=job, options=options, cluster=snapshot.cluster, overrides=options.overrides), snapshot)
    if not draft.plain_because:
        return draft
    options = replace(options, durable=False)
    plain = JobDraft(job=job, options=options, cluster=snapshot.cluster, overrides=options.overrides)
    return _passed(plain, snapshot).noting(draft.plain_because)


def _passed(draft: JobDraft, snapshot: Snapshot) -> JobDraft:
    for each in PASSES:
        try:
            draft = each(draft, snapshot)
        except InputError as error:
            draft = draft.refused(error)
    return draft


def _asked_overrides(options: SubmitOptions) -> str:
    """What the user has asked for beyond the recipe, as one types it, without values of secrets."""
    shown = {key: MASK if is_secret_override(split_key(key)[1]) else value for key, value in options.overrides.items()}
    aliases = (option for option in declared(SubmitOptions) if option.option.is_alias)
    words = [word for alias in aliases for word in alias.words(getattr(options, alias.field))]
    return shlex.join(redact_words([*words, *(override_argument(key, value) for key, value in shown.items())]))


def _submission(draft: JobDraft, commit: str) -> Submission:
    values = draft.values
    steps = integer(values.get(keys.STEPS))
    metadata = {
        "job_name": draft.name,  # Ray's own key: the name in the dashboard
        "cloudrl_recipe": draft.job.name,
        **({"cloudrl_group": draft.options.group} if draft.options.group else {}),
        **({"cloudrl_checkpoints": values[keys.LOCAL_DIR]} if keys.LOCAL_DIR in values else {}),
        **({"cloudrl_verl": draft.cluster.verl_version} if draft.cluster.verl_version else {}),
        **({"cloudrl_total_steps": str(steps)} if steps is not None else {}),
        **({"cloudrl_overrides": asked} if (asked := _asked_overrides(draft.options)) else {}),
        **({"cloudrl_commit": commit} if commit else {}),
    }
    overrides = (override_argument(key, value) for key, value in draft.arguments.items())
    return Submission(
        submission_id=draft.submission_id,
        argv=(*draft.job.entrypoint, *overrides),
        runtime_env={**draft.runtime_env, **({"env_vars": draft.variables} if draft.variables else {})},
        metadata=metadata,
        notes=draft.notes,
        warnings=draft.warnings,
        not_checked=draft.not_checked,
        memory=draft.memory,
        uploads=draft.uploads,
        secrets=draft.secrets,
        package=draft.package,
        durable=draft.durable,
        ray_session=draft.cluster.ray_session,
    )


def _checked_name(option: str, value: str, what: str = "the name of a folder and a log file") -> str:
    if _NAME.fullmatch(value):
        return value
    slug = re.sub(r"[^A-Za-z0-9._-]+", "-", value).strip("-._")[:100]
    meant = f"; did you mean {slug!r}?" if _NAME.fullmatch(slug) else ""
    raise InputError(
        f"{option} {value!r} cannot be {what}{meant}",
        hint="Letters, digits, dots, dashes and _; 1 to 100 of them, a letter or digit first",
    )
