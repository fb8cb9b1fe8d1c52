"""Keys of verl's configuration: which of those that cloudrl fills in a release has, and which are paths.

An old release gets no key that it lacks: Hydra refuses it ("Could not override ..."). Read in verl's repository, tag by
tag: trainer/config/ppo_trainer.yaml.

A path of this machine makes sense under keys under which verl reads a file or a folder. Source: verl 0.9.1,
trainer/config/_generated_ppo_trainer.yaml and _generated_ppo_megatron_trainer.yaml, read through for what ends in path,
file, files or dir; what verl writes to (checkpoints, profiles, dumps) and what one run leaves for another on the nodes'
own disks (trainer.resume_from_path, dist_checkpointing_path) is left out on purpose. A test compares the list with the
installed verl.
"""

import re
from enum import Enum

_SINCE = {
    "trainer.resume_mode": (0, 2),  # not in v0.1, in v0.2
    "trainer.device": (0, 4),  # not in v0.3.0.post1, in v0.4.0
    "trainer.validation_data_dir": (0, 4),  # likewise
    "trainer.use_v1": (0, 9),  # not in v0.8.0, in v0.9.0
}
"""Key -> the first release that has it. Those that v0.1 has already, such as trainer.nnodes, are not listed."""


MAIN = "verl.trainer.main_ppo"
"""The module that starts verl's trainer."""


def has_key(verl: str | None, key: str) -> bool:
    """Whether a release of verl has a key that cloudrl fills in; one of unknown number counts as new."""
    return release_number(verl) >= _SINCE.get(key, (0, 0))


def release_number(verl: str | None) -> tuple[int, ...]:
    """The first two numbers of a release, `(0, 9)` of 0.9.1; what says none counts as newer than all.

    Holds for any package whose releases are numbers.
    """
    return tuple(int(part) for part in re.findall(r"\d+", verl or "")[:2]) or (9999,)


class PathKind(Enum):
    """What lies at the path."""

    DATA = "data file"
    """One or a list of them."""
    CODE = "Python file"
    """The object in it is named by the `name` beside `path`."""
    TOOLS = "YAML file of tools"
    FILE = "file"
    MODEL = "model folder"
    """Or the id of a model on the Hugging Face Hub."""
    FOLDER = "folder"


REWARD_PATH, REWARD_NAME = "reward.custom_reward_function.path", "reward.custom_reward_function.name"
REWARD_FUNCTION = "compute_score"
"""verl's default for `REWARD_NAME` (verl 0.9.1, trainer/config/reward/reward.yaml)."""

_KINDS: tuple[tuple[str, PathKind], ...] = (
    (r"data\.(train|val)_files", PathKind.DATA),
    (r"(reward\.)?custom_reward_function\.path", PathKind.CODE),
    (r"reward\.reward_manager\.module\.path", PathKind.CODE),
    (r"data\.custom_cls\.path", PathKind.CODE),
    (r"trainer\.v1\.sampler\.custom_sampler\.path", PathKind.CODE),
    (r"actor_rollout_ref\.rollout\.agent\.custom_async_server\.path", PathKind.CODE),
    (r"reward_model\.reward_loop_module_path", PathKind.FILE),
    (r"(data|actor_rollout_ref\.rollout\.multi_turn)\.tool_config_path", PathKind.TOOLS),
    (r"(data|actor_rollout_ref\.rollout\.multi_turn)\.function_tool_path", PathKind.FILE),
    (r"actor_rollout_ref\.rollout\.(router_config_path|agent\.agent_loop_config_path)", PathKind.FILE),
    (r"(actor_rollout_ref|reward\.reward_model)\.rollout\.quantization_config_file", PathKind.FILE),
    (r"(actor_rollout_ref|critic)\..*\bqat\.quantization_config_path", PathKind.FILE),
    (r"(.+\.)?precision_debugger\.config_path", PathKind.FILE),
    (r"(actor_rollout_ref|critic|reward_model)\.model\.(path|hf_config_path|tokenizer_path)", PathKind.MODEL),
    (r"reward\.reward_model\.model_path", PathKind.MODEL),
    (r"distillation\.teacher_models\.[^.]+\.model_path", PathKind.MODEL),
    (r"(actor_rollout_ref|critic)\.model\.(lora_adapter_path|lora\.adapter_path)", PathKind.MODEL),
)
_PATTERNS = tuple((re.compile(pattern), kind) for pattern, kind in _KINDS)


def kind_of(key: str) -> PathKind | None:
    """What verl reads under a bare key; None for a key whose value is no path to read from."""
    return next((kind for pattern, kind in _PATTERNS if pattern.fullmatch(key)), None)


def name_key(path_key: str) -> str | None:
    """The key that names the object in a Python file."""
    return path_key.removesuffix("path") + "name" if kind_of(path_key) is PathKind.CODE else None
