"""Job + cluster -> submission: a pure function, so that what a dry run shows is what is sent."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from cloudrl.errors import InputError
from cloudrl.jobs.compatibility import release_of
from cloudrl.jobs.defaults import LOCAL_DIR, cluster_defaults
from cloudrl.jobs.environment import checked_env, is_secret_override
from cloudrl.jobs.options import SubmitOptions
from cloudrl.jobs.overrides import integer, parse_overrides
from cloudrl.jobs.secrets import PYTHON_KEY, collect_secrets, delivery_blocker, plan_delivery
from cloudrl.jobs.submission import Submission
from cloudrl.spec import Job, override_argument
from cloudrl.spec.hydra import split_key
from cloudrl.spec.names import is_secret

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from cloudrl.jobs.uploads import UploadItem
    from cloudrl.jobs.working_dir import Package
    from cloudrl.spec.shape import ClusterShape

STEPS, EPOCHS = "trainer.total_training_steps", "trainer.total_epochs"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def plan(
    job: Job,
    cluster: ClusterShape,
    options: SubmitOptions | None = None,
    *,
    package: Package | None = None,
    files: tuple[UploadItem, ...] = (),
    shell: Mapping[str, str] | None = None,
    now: datetime | None = None,
) -> Submission:
    """Say what is going to be sent.

    Args:
        job: The recipe.
        cluster: What it is sent to.
        options: What the user asks for, with no alias and no path of this machine left in it
            (`aliases.expand_aliases`, `uploads.plan_uploads`).
        package: The working directory, packed; it is going to be uploaded.
        files: What else is going to be uploaded.
        shell: The variables from which secrets that the job needs are taken.
        now: The present, for names; None is the clock's.

    Raises:
        InputError: Job, cluster and options do not go together; the message holds both values.
    """
    options = options or SubmitOptions()
    stamp = f"{now or datetime.now(timezone.utc):%Y%m%d-%H%M%S}"
    run, submission_id = _names(job, options, stamp)
    wished = job.with_overrides(_with_steps(options))
    cluster = replace(cluster, verl_version=release_of(job, cluster))
    variables = _variables(job, options)
    defaults = cluster_defaults(wished, cluster, name=run, wandb=bool(variables.get("WANDB_API_KEY")))
    if defaults.offline:
        variables = {"HF_HUB_OFFLINE": "1", **variables}
    # What was wished stands last, as it does on a command line.
    arguments = {**defaults.overrides, **wished.overrides}
    final = parse_overrides(arguments)
    taken, shell_notes = collect_secrets(
        final,
        shell or {},
        variables,
        offline=defaults.offline,
        blocker=delivery_blocker(options.runtime_env, cluster),
    )
    runtime_env = _environment(options, {**taken, **variables}, package)
    delivery = plan_delivery(runtime_env, final, cluster, submission_id)
    if delivery.overrides:
        arguments = {key: text for key, text in arguments.items() if split_key(key)[1] != PYTHON_KEY}
        arguments |= delivery.overrides
    return Submission(
        submission_id=submission_id,
        name=run,
        argv=(
            *delivery.wrapper_argv,
            *job.entrypoint,
            *(override_argument(key, value) for key, value in arguments.items()),
        ),
        runtime_env=delivery.runtime_env,
        metadata=_metadata(job, run, final),
        checkpoint_dir=final[LOCAL_DIR],
        total_steps=integer(final.get(STEPS)),
        notes=(*defaults.notes, *_notes(options, run, final, cluster, wished), *shell_notes, *delivery.notes),
        files=files,
        secrets=delivery.values,
    )


def _names(job: Job, options: SubmitOptions, stamp: str) -> tuple[str, str]:
    """The run's name and the submission id."""
    if options.name is None:
        run = default_id = f"{job.name[:80]}-{stamp}"
    else:
        run = _checked_name("--name", options.name)
        default_id = f"{run[:80]}-{stamp}"
    wanted = default_id if options.submission_id is None else options.submission_id
    return run, _checked_name("--submission-id", wanted)


def _with_steps(options: SubmitOptions) -> dict[str, Any]:
    """The user's overrides, with `--steps` in verl's keys.

    verl ends at whichever comes first, epochs or steps (verl 0.9.1, v1/trainer_base.py: fit), and an epoch
    has at least one step: as many epochs as steps are never too few.
    """
    overrides, steps = dict(options.overrides), options.steps
    if steps is None:
        return overrides
    if steps < 1:
        raise InputError(f"--steps {steps} is less than 1", hint="For example --steps 100")
    given = parse_overrides({key: str(value) for key, value in overrides.items()})
    if STEPS in given and integer(given[STEPS]) != steps:
        raise InputError(f"--steps {steps} and {STEPS}={given[STEPS]} differ", hint="Give one of the two")
    return {STEPS: steps, EPOCHS: steps, **overrides}


def _variables(job: Job, options: SubmitOptions) -> dict[str, str]:
    written = options.runtime_env.get("env_vars") or {}
    return checked_env({**job.env, **written, **options.env}, "environment")


def _environment(
    options: SubmitOptions, variables: Mapping[str, str], package: Package | None
) -> dict[str, Any]:
    """The runtime environment as Ray gets it; `excludes` has done its work by then."""
    kept = {key: value for key, value in options.runtime_env.items() if key not in ("excludes", "env_vars")}
    source = package.uri if package is not None else options.working_dir
    if source is not None:
        kept["working_dir"] = source
    return {**kept, "env_vars": dict(variables)} if variables else kept


def _metadata(job: Job, run: str, final: Mapping[str, str]) -> dict[str, str]:
    """What a later `jobs` command, perhaps on another machine, reads back."""
    said = {
        "job_name": run,  # Ray's own key: the name in the dashboard
        "cloudrl_recipe": job.name,
        "cloudrl_checkpoints": final[LOCAL_DIR],
    }
    steps = integer(final.get(STEPS))
    return {**said, "cloudrl_total_steps": str(steps)} if steps is not None else said


def _notes(
    options: SubmitOptions, run: str, final: Mapping[str, str], cluster: ClusterShape, job: Job
) -> Iterator[str]:
    folder = final[LOCAL_DIR]
    if options.name is not None and final.get("trainer.resume_mode") == "auto":
        yield f"run {run!r} continues from the newest checkpoint in {folder}, if there is one"
    inside = cluster.checkpoint_dir is None or f"{folder}/".startswith(
        cluster.checkpoint_dir.rstrip("/") + "/"
    )
    if not inside:
        yield f"{folder} lies outside {cluster.checkpoint_dir}: cloudrl can neither list nor merge it"
    if "console" not in final["trainer.logger"]:
        yield f"trainer.logger={final['trainer.logger']} has no console: no progress can be shown"
    secrets = [key for key, value in job.overrides.items() if value and is_secret_override(split_key(key)[1])]
    if secrets:
        yield f"{secrets[0]} is part of the command, which Ray's dashboard and log show; --env hides it"
    expanded = [key for key, value in options.env.items() if "$" in value and not is_secret(key)]
    if expanded:
        yield f"Ray expands $NAME and ${{NAME}} in the value of {expanded[0]}"


def _checked_name(option: str, value: str) -> str:
    if _NAME.fullmatch(value):
        return value
    slug = re.sub(r"[^A-Za-z0-9._-]+", "-", value).strip("-._")[:100]
    meant = f"; did you mean {slug!r}?" if _NAME.fullmatch(slug) else ""
    raise InputError(
        f"{option} {value!r} cannot be the name of a folder and a log file{meant}",
        hint="Letters, digits, dots, dashes and _; 1 to 100 of them, a letter or digit first",
    )
