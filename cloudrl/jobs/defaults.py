"""What a job takes from the cluster that it is sent to."""

from dataclasses import replace

from cloudrl.errors import Refusals
from cloudrl.jobs.draft import JobDraft, Snapshot
from cloudrl.jobs.local_files import HUB_ID
from cloudrl.jobs.program_files import keys_of_program
from cloudrl.logs.sent_files import PACKAGE_FOLDER
from cloudrl.spec import override_argument
from cloudrl.verl import keys
from cloudrl.verl.command import is_fine_tuning
from cloudrl.verl.defaults import NEEDED, cluster_defaults, fine_tuning_defaults


def take_cluster_defaults(draft: JobDraft, snapshot: Snapshot) -> JobDraft:
    """Pass: complete a job with what the cluster gives, for keys that neither recipe nor user has set.

    What only the user can say, and checkpoints that would be lost, are refused.
    """
    refused = Refusals()
    job, cluster, values = draft.job, draft.cluster, draft.values
    has_wandb_key = bool(draft.variables.get("WANDB_API_KEY"))
    words = [override_argument(key, value) for key, value in draft.arguments.items()]
    program = keys_of_program(job.entrypoint, cluster.verl_version or "", snapshot.files.program, words)
    if is_fine_tuning(job.entrypoint):
        defaults = fine_tuning_defaults(
            job, cluster, values, draft.name, has_wandb_key=has_wandb_key, has_key=program.has, refused=refused
        )
        return draft.noting(defaults=defaults).refused(*refused)
    defaults = cluster_defaults(
        job, cluster, values, draft.name, has_wandb_key=has_wandb_key, has_key=program.has,
        unsettled=draft.unsettled.union(() if program.is_known else NEEDED), refused=refused,
    )  # fmt: skip
    model, notes = job.model or "", []
    if keys.MODEL_PATH not in values and "/" in model and model[0] != "/" and model not in cluster.models:
        notes = [f"model {model} is not prepared on cluster {cluster.name!r}: every worker downloads it from the Hub"]
    draft = draft.noting(*notes, defaults=defaults).refused(*refused)
    return replace(draft, variables={"HF_HUB_OFFLINE": "1", **draft.variables}) if is_offline(draft) else draft


def is_offline(draft: JobDraft) -> bool:
    """Whether every model of a complete job is on the nodes, so that nothing need be asked of the Hub."""
    models = {
        value
        for key, value in draft.values.items()
        if key in (keys.MODEL_PATH, keys.CRITIC_MODEL_PATH) or (key.endswith("path") and HUB_ID.fullmatch(value))
    }
    prepared = set(draft.cluster.models.values())
    return all(model.startswith(("/", f"{PACKAGE_FOLDER}/")) or model in prepared for model in models)
