"""Keys of verl's configuration: those that cloudrl reads or fills in, since which release, and which are paths.

A key that only a rule of `cloudrl.verl.rules` looks at stands there.

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

from cloudrl.saves import names
from cloudrl.spec import job

ACTOR, ROLLOUT, REF = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.ref"
MODEL, CRITIC = "actor_rollout_ref.model", "critic"
"""Sections of the configuration."""

MODEL_ENGINE = "model_engine"
"""The group that decides which keys actor and critic have."""
MAIN, DEVICE, ENGINE = job.MAIN, job.DEVICE, job.ENGINE
RESUME_MODE, RESUME_FROM = names.RESUME_MODE, names.RESUME_FROM

MODEL_PATH, CRITIC_MODEL_PATH = f"{MODEL}.path", f"{CRITIC}.model.path"
FINE_TUNED, FINE_TUNED_BEFORE = "model.path", "model.partial_pretrain"
"""The model of supervised fine-tuning, whose configuration is another one; before, that of `fsdp_sft_trainer`."""
REWARD_MODEL_PATH = "reward.reward_model.model_path"
TRAIN_FILES, VAL_FILES = "data.train_files", "data.val_files"
PROMPT_LENGTH, RESPONSE_LENGTH = "data.max_prompt_length", "data.max_response_length"

NODES, GPUS = "trainer.nnodes", "trainer.n_gpus_per_node"
STEPS, EPOCHS = "trainer.total_training_steps", "trainer.total_epochs"
VAL_ONLY = "trainer.val_only"
PROJECT, EXPERIMENT, LOGGER = "trainer.project_name", "trainer.experiment_name", "trainer.logger"
CALLBACK = "trainer.checkpoint_callback_class"
"""The class that verl calls after each save; in 0.9.1, not in 0.9.0."""
SAVE_FREQ, TEST_FREQ = "trainer.save_freq", "trainer.test_freq"
CHECKPOINTS_KEPT, CRITICS_KEPT = "trainer.max_actor_ckpt_to_keep", "trainer.max_critic_ckpt_to_keep"
LOCAL_DIR = "trainer.default_local_dir"
VALIDATION_DIR, ROLLOUT_DIR = "trainer.validation_data_dir", "trainer.rollout_data_dir"
"""verl writes `STEP.jsonl` there: prompt, answer and score of each answer of a validation, or of a training step."""
HOME_EXPANDED = ("data.cache_dir", f"{ROLLOUT}.skip.dump_dir")
"""verl 0.9.1, utils/dataset/rl_dataset.py and utils/skip/rollout_skip.py: expanduser. No other path is expanded."""
USE_V1 = "trainer.use_v1"
"""Whether verl's default trainer runs, and not the older one."""
TRAINER_MODE = "trainer.v1.trainer_mode"

ESTIMATOR = "algorithm.adv_estimator"
USES_CRITIC = f"{CRITIC}.enable"
ANSWERS = f"{ROLLOUT}.n"
TOKENS_AT_ONCE = f"{ACTOR}.ppo_max_token_len_per_gpu", f"{ACTOR}.ppo_micro_batch_size_per_gpu"
FINE_TUNED_TOKENS_AT_ONCE = "data.max_token_len_per_gpu", "data.micro_batch_size_per_gpu"
"""What a GPU computes at once: with dynamic batches, and without; of fine-tuning."""
LOADERS, AGENT_WORKERS = "data.dataloader_num_workers", f"{ROLLOUT}.agent.num_workers"
"""Processes in host memory: they read data, and hold conversations; of the first, a node has as many for each job."""
FUSED_KERNELS = f"{MODEL}.use_fused_kernels", "model.use_fused_kernels"
"""Of reinforcement learning, and of fine-tuning."""
USES_SHM = f"{MODEL}.use_shm"
LEARNING_RATE, ENTROPY_BONUS = f"{ACTOR}.optim.lr", f"{ACTOR}.entropy_coeff"

QUEUE_UNITS = "transfer_queue.backend.SimpleStorage.num_data_storage_units"
QUEUE_BACKEND = "transfer_queue.backend.storage_backend"
PY_EXECUTABLE = "ray_kwargs.ray_init.runtime_env.py_executable"

REWARD_PATH, REWARD_NAME = "reward.custom_reward_function.path", "reward.custom_reward_function.name"
REWARD_FUNCTION = "compute_score"
"""verl's default for `REWARD_NAME` (verl 0.9.1, trainer/config/reward/reward.yaml)."""
OLD_REWARD_PATH, OLD_REWARD_NAME = "custom_reward_function.path", "custom_reward_function.name"
"""verl up to 0.7. In 0.8 it wins over the newer key; `main_ppo` of 0.9 does not read it (`unread_keys.py`)."""
_SCORING = ("custom_reward_function.", "reward_model.", "reward_manager.module.")
"""Begin the keys by which a job brings its own scores, below `reward.` since verl 0.8."""

SEARCH_R1_URL = "retriever.url"
"""Of Search-R1's fork of verl alone."""

_OF_ONE_RUN = frozenset((EXPERIMENT, LOCAL_DIR, VALIDATION_DIR, ROLLOUT_DIR, RESUME_MODE, RESUME_FROM))
"""What two runs of one recipe cannot share: their name, their folders, and where they go on from."""
_SEED = re.compile(r"(?:.*[._])?seed")

_SINCE = {
    RESUME_MODE: (0, 2),  # not in v0.1, in v0.2
    DEVICE: (0, 4),  # not in v0.3.0.post1, in v0.4.0
    VALIDATION_DIR: (0, 4),  # likewise
    USE_V1: (0, 9),  # not in v0.8.0, in v0.9.0
}
"""Key -> the first release that has it. Those that v0.1 has already, such as `NODES`, are not listed."""


def is_seed(key: str) -> bool:
    """Whether a key chooses random numbers and nothing else, such as `data.seed` and `..actor.data_loader_seed`."""
    return _SEED.fullmatch(key) is not None


def is_of_one_run(key: str) -> bool:
    """Whether a key has another value in every run, even of the same recipe."""
    return key in _OF_ONE_RUN


def has_key(verl: str | None, key: str) -> bool:
    """Whether a release of verl has a key that cloudrl fills in; one of unknown number counts as new."""
    return release_number(verl) >= _SINCE.get(key, (0, 0))


def brings_scores(key: str) -> bool:
    """Whether a job that has this bare key brings its own scores."""
    return key.removeprefix("reward.").startswith(_SCORING)


def release_number(verl: str | None) -> tuple[int, ...]:
    """The first two numbers of a release, `(0, 9)` of 0.9.1; what says none counts as newer than all.

    Holds for any package whose releases are numbers.
    """
    return tuple(int(part) for part in re.findall(r"\d+", verl or "")[:2]) or (9999,)


class PathKind(Enum):
    """What is at the path."""

    DATA = "data file"
    """One or a list of them."""
    CODE = "Python file"
    """The object in it is named by the `name` beside `path`."""
    TOOLS = "YAML file of tools"
    FILE = "file"
    MODEL = "model folder"
    """Or the id of a model on the Hugging Face Hub."""
    FOLDER = "folder"


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
    (
        r"((actor_rollout_ref|critic|reward_model)\.)?model\.(path|hf_config_path|tokenizer_path|partial_pretrain)",
        PathKind.MODEL,
    ),
    (r"reward\.reward_model\.model_path", PathKind.MODEL),
    (r"distillation\.teacher_models\.[^.]+\.model_path", PathKind.MODEL),
    (r"(actor_rollout_ref|critic)\.model\.(lora_adapter_path|lora\.adapter_path)", PathKind.MODEL),
)
_PATTERNS = tuple((re.compile(pattern), kind) for pattern, kind in _KINDS)


def kind_of(key: str) -> PathKind | None:
    """What verl reads under a bare key; None for a key whose value is not a path to read from."""
    return next((kind for pattern, kind in _PATTERNS if pattern.fullmatch(key)), None)


def name_key(path_key: str) -> str | None:
    """The key that names the object in a Python file."""
    return path_key.removesuffix("path") + "name" if kind_of(path_key) is PathKind.CODE else None
