"""What a run of verl takes from its cluster, as overrides, and what only the user can say."""

from collections.abc import Callable, Mapping, Set
from pathlib import PurePosixPath

from cloudrl.errors import InputError, Refusals, did_you_mean
from cloudrl.protocol.facts import ClusterFacts
from cloudrl.spec import HydraText, Job, hydra_text
from cloudrl.spec.hydra import one_or_many
from cloudrl.verl import keys
from cloudrl.verl.command import model_key
from cloudrl.verl.placement import USUAL_QUEUE_UNITS, queue_room

USUAL_SAVE_FREQ = 20
"""Steps between checkpoints by default, so the most that a failure costs. It is what multi-node runs of
verl usually set; a shorter run still saves, because verl saves its last step whenever save_freq is above zero
(verl 0.9.1, trainer/ppo/v1/trainer_base.py: fit)."""
NEEDED = (keys.TRAIN_FILES, keys.VAL_FILES, keys.MODEL_PATH, keys.LOCAL_DIR)
"""What `main_ppo` cannot do without."""


def cluster_defaults(
    job: Job,
    cluster: ClusterFacts,
    values: Mapping[str, str],
    run: str,
    *,
    has_wandb_key: bool,
    has_key: Callable[[str], bool] = lambda _key: True,
    unsettled: frozenset[str] = frozenset(),
    refused: Refusals,
) -> dict[str, HydraText]:
    """Overrides for what neither recipe nor user has set, in keys that the cluster's verl has.

    Args:
        job: The recipe.
        cluster: Where it goes, with the release of verl that is going to run there.
        values: Bare key -> value of all overrides.
        run: Its name.
        has_wandb_key: Whether the run may report to Weights & Biases.
        has_key: Whether the configuration of the job's program has a key.
        unsettled: Keys that are not missing, since something else about them is refused, or the program may need none.
        refused: Receives what is missing and only the user can say, and what would lose checkpoints.
    """
    with refused.collect():
        _check_saving(values, cluster.checkpoint_dir)
    defaults = _of_any_trainer(job, cluster, run, has_wandb_key=has_wandb_key)
    if job.device == "cpu":
        defaults[keys.DEVICE] = "cpu"
    if cluster.has_agents:
        folder = values.get(keys.LOCAL_DIR) or defaults[keys.LOCAL_DIR]
        defaults[keys.VALIDATION_DIR] = f"{folder}/validation"  # where `cloudrl report` finds it
    room = queue_room(job, values, cluster)
    if room is not None and room < USUAL_QUEUE_UNITS:
        defaults[keys.QUEUE_UNITS] = room
    settled = set[str]()
    for section, given in ((_data, (keys.TRAIN_FILES, keys.VAL_FILES)), (_model, (keys.MODEL_PATH,))):
        before = len(refused)
        with refused.collect():
            defaults |= section(job, cluster, values)
        settled |= {*given} if len(refused) > before else set()
    with refused.collect():
        _check_complete(job, cluster, {*defaults, *values, *settled, *unsettled}, has_key)
    missing = [
        key for key in defaults if key not in values and keys.has_key(cluster.verl_version, key) and has_key(key)
    ]
    return {key: hydra_text(defaults[key]) for key in missing}


def fine_tuning_defaults(
    job: Job,
    cluster: ClusterFacts,
    values: Mapping[str, str],
    run: str,
    *,
    has_wandb_key: bool,
    has_key: Callable[[str], bool],
    refused: Refusals,
) -> dict[str, HydraText]:
    """The same for verl's supervised fine-tuning (verl 0.9.1, trainer/config/sft_trainer_engine.yaml).

    Its data has a column of messages, which no data set of a cluster has, and its model a key of its own.
    """
    with refused.collect():
        _check_saving(values, cluster.checkpoint_dir)
    defaults, model = _of_any_trainer(job, cluster, run, has_wandb_key=has_wandb_key), model_key(job.entrypoint)
    if model not in values:
        with refused.collect():
            if (path := _model_path(job, cluster)) is not None:
                defaults[model] = path
    missing = [key for key in (keys.TRAIN_FILES, model) if key not in {**defaults, **values}]
    if missing:
        example = {keys.TRAIN_FILES: "/data/messages.parquet", model: "/models/NAME"}
        hint = "Add, with paths that every node sees: " + " ".join(f"{key}={example[key]}" for key in missing)
        refused.append(
            InputError(
                f"neither recipe {job.name!r} nor cluster {cluster.name!r} says: {', '.join(missing)}", hint=hint
            )
        )
    return {key: hydra_text(text) for key, text in defaults.items() if key not in values and has_key(key)}


def _of_any_trainer(
    job: Job, cluster: ClusterFacts, run: str, *, has_wandb_key: bool
) -> dict[str, str | int | list[str]]:
    """Size, names, logger and saves: keys that the configurations of all trainers share."""
    defaults: dict[str, str | int | list[str]] = {
        keys.NODES: cluster.gpu_nodes,
        keys.GPUS: cluster.gpus_per_node,
        keys.PROJECT: job.name,
        keys.EXPERIMENT: run,
        keys.LOGGER: ["console", "wandb"] if has_wandb_key else ["console"],
        keys.SAVE_FREQ: USUAL_SAVE_FREQ,
        keys.RESUME_MODE: "auto",
    }
    if cluster.has_agents:
        defaults[keys.LOCAL_DIR] = f"{cluster.checkpoint_dir.rstrip('/')}/{run}"
    return defaults


def needs_critic(values: Mapping[str, str]) -> bool:
    """Whether verl is going to build a critic (verl 0.9.1, trainer/ppo/utils.py: need_critic)."""
    enabled = values.get(keys.USES_CRITIC, "null").lower()
    if enabled in ("true", "false"):
        return enabled == "true"
    return values.get(keys.ESTIMATOR, "gae") == "gae" or any(key.startswith(f"{keys.CRITIC}.") for key in values)


def _check_saving(values: Mapping[str, str], checkpoint_dir: str) -> None:
    folder = values.get(keys.LOCAL_DIR)
    if folder is not None and not folder.startswith("/"):
        parent = (checkpoint_dir or "/checkpoints").rstrip("/")
        raise InputError(
            f"{keys.LOCAL_DIR}={folder} is relative: checkpoints would land in Ray's temporary copy of the "
            "working directory, another one on each node, and vanish with it",
            hint=f"{keys.LOCAL_DIR}={parent}/{PurePosixPath(folder).name or 'NAME'}",
        )


def _data(job: Job, cluster: ClusterFacts, values: Mapping[str, str]) -> dict[str, list[str] | str]:
    if keys.TRAIN_FILES in values and keys.VAL_FILES in values:
        return {}
    names = list(job.data) or (list(cluster.data) if len(cluster.data) == 1 else [])
    unknown = [name for name in names if name not in cluster.data]
    if unknown and cluster.has_agents:
        available = ", ".join(cluster.data) or "none"
        raise InputError(
            f"recipe {job.name!r} reads data set {unknown[0]!r}, which cluster {cluster.name!r} has not "
            f"prepared (it has: {available}{did_you_mean(unknown[0], cluster.data)})",
            hint=f"When you start the cluster: --data {unknown[0]}\n"
            f"Or give files: {keys.TRAIN_FILES}=/path/train.parquet {keys.VAL_FILES}=/path/test.parquet",
        )
    if unknown or not names:
        return {}
    return {
        keys.TRAIN_FILES: one_or_many([cluster.data[name]["train"] for name in names]),
        keys.VAL_FILES: one_or_many([cluster.data[name]["test"] for name in names]),
    }


def _model(job: Job, cluster: ClusterFacts, values: Mapping[str, str]) -> dict[str, str]:
    path = values.get(keys.MODEL_PATH) or _model_path(job, cluster)
    if path is None:
        return {}
    return {keys.MODEL_PATH: path, keys.CRITIC_MODEL_PATH: path} if needs_critic(values) else {keys.MODEL_PATH: path}


def _model_path(job: Job, cluster: ClusterFacts) -> str | None:
    model = job.model or (next(iter(cluster.models)) if len(cluster.models) == 1 else None)
    if model is None or model in cluster.models:
        return str(cluster.models[model]) if model is not None else None
    if "/" in model:
        return model
    if not cluster.has_agents:
        return None  # a plain Ray cluster makes none; what is missing is said in one message
    raise InputError(
        f"model {model!r} is made by cloudrl, and cluster {cluster.name!r} has not made it",
        hint=f"When you start the cluster: --model {model}\nOr give a folder: {keys.MODEL_PATH}=/path",
    )


def _check_complete(job: Job, cluster: ClusterFacts, everything: Set[str], has_key: Callable[[str], bool]) -> None:
    missing = [key for key in filter(has_key, NEEDED) if key not in everything]
    if not missing:
        return
    if not cluster.has_agents:
        reason = f"what answers at {cluster.name!r} is a plain Ray cluster, which prepares nothing"
    else:
        reason = f"neither recipe {job.name!r} nor cluster {cluster.name!r} says"
    files = ("/data/train.parquet", "/data/test.parquet", "/models/NAME", "/ckpt/NAME")
    example = dict(zip(NEEDED, files, strict=True))
    raise InputError(
        f"{reason}: {', '.join(missing)}",
        hint="Add, with paths that every node sees: " + " ".join(f"{key}={example[key]}" for key in missing),
    )
