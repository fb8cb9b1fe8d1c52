"""Where nodes keep what clients send, and what jobs find there. The command of a job names these places."""

USER_FILES = "user-files"
"""The folder of files that users have sent, in `.cloudrl` below the folder of checkpoints: it outlives a machine."""
MEMORY = "/dev/shm"  # noqa: S108  a file system in memory
ON_HEAD = "cloudrl_on_head"
"""The module on the PYTHONPATH of jobs that runs verl with its controller on the head (`node/main_on_head.py`)."""

SAVE_HOOK = "cloudrl_save_hook"
"""Likewise: the module with the callback that tells the agent what verl has saved (`node/save_hook.py`)."""
SAVE_CALLBACK = f"{SAVE_HOOK}.SaveCallback"
ATTEMPT_VARIABLE, SAVE_EVERY_VARIABLE = "CLOUDRL_ATTEMPT", "CLOUDRL_SAVE_EVERY_S"
OWN_CALLBACK_VARIABLE = "CLOUDRL_CHECKPOINT_CALLBACK"
"""What that callback reads: of which attempt it is, how often it is to save, and the user's own callback."""
TRAINING_NODES = "CLOUDRL_TRAINING_NODES"
"""The variable by which that module gets the addresses of the nodes that train, in the order of their ranks."""


def secrets_folder(user: object, run: str) -> str:
    """The folder of the secrets of a cluster's jobs, the same on every node.

    Args:
        user: the number of the user that the agents run as.
        run: the cluster's id, as a name of a file.
    """
    return f"{MEMORY}/cloudrl-{user}-{run}"


HUB_CACHE = ".cloudrl/huggingface"
"""Models of the Hub, likewise, where the user has no other place for them."""
COMPILED = ".cloudrl/compiled"
"""Kernels that were compiled, in a folder for each machine."""
