"""The loggers of `trainer.logger`, and the variables that give them access and say which run of theirs it is."""

import hashlib
from collections.abc import Mapping

TRACKERS = ("wandb", "tensorboard", "swanlab", "mlflow", "trackio")
"""Those that keep curves, of what verl 0.9.1 has (utils/tracking.py: Tracking.supported_backend)."""

SECRETS_OF = {
    "wandb": ("WANDB_API_KEY",),
    "swanlab": ("SWANLAB_API_KEY",),
    "mlflow": ("MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_PASSWORD"),
    "vemlp_wandb": ("VOLC_ACCESS_KEY_ID", "VOLC_SECRET_ACCESS_KEY"),
    "clearml": ("CLEARML_API_ACCESS_KEY", "CLEARML_API_SECRET_KEY"),
    "trackio": ("HF_TOKEN",),
}
"""Logger -> what it, or the library below it, reads (verl 0.9.1, utils/tracking.py)."""
KEY_OR_MODE = {"wandb": ("WANDB_API_KEY", "WANDB_MODE"), "swanlab": ("SWANLAB_API_KEY", "SWANLAB_MODE")}
"""Logger -> the key without which it fails, and the variable that can have it do without."""


def variables_of_group(logger: str, group: str) -> dict[str, str]:
    """Variables with which a logger puts the run into a group (wandb 0.31.0, sdk/wandb_settings.py: run_group)."""
    return {"WANDB_RUN_GROUP": group} if logger == "wandb" else {}


def variables_of_run(logger: str, run: str) -> dict[str, str]:
    """Variables with which a job that resumes goes on in the run that the logger has of it, as one curve.

    verl gives no run id, so that each start would make another run (https://github.com/volcengine/verl/issues/2783).
    MLflow knows the id of a run only once it has made it, and verl tells Trackio never to resume.

    Args:
        logger: One of `trainer.logger`.
        run: Name of the run; the id is made of it.
    """
    if logger == "wandb":  # an id has up to 128 characters, without /, #, ?, %, : or a backslash
        return {"WANDB_RUN_ID": run, "WANDB_RESUME": "allow"}
    if logger == "swanlab":  # older releases of SwanLab take an id of 21 characters only
        return {"SWANLAB_RUN_ID": hashlib.sha256(run.encode()).hexdigest()[:21], "SWANLAB_RESUME": "allow"}
    return {}


def variables_of_files(logger: str, folder: str, variables: Mapping[str, str]) -> dict[str, str]:
    """Variables that keep a logger's files: by default they are in the job's working directory, which Ray removes.

    Args:
        logger: One of `trainer.logger`.
        folder: Of the run's checkpoints.
        variables: What the job has: W&B and SwanLab keep nothing but files when they are offline.
    """
    if logger == "tensorboard":
        return {"TENSORBOARD_DIR": f"{folder}/tensorboard"}
    if logger == "wandb" and variables.get("WANDB_MODE") == "offline":  # it makes the folder `wandb` in there
        return {"WANDB_DIR": folder}
    if logger == "swanlab" and variables.get("SWANLAB_MODE") in ("offline", "local"):
        return {"SWANLAB_LOG_DIR": f"{folder}/swanlog"}
    return {}
