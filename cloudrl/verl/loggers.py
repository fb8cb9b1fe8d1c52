"""The loggers of `trainer.logger`, and the variables that give them access."""

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
