"""Each recipe that comes from somebody's script gives what the script gives, but for the differences listed here."""

import os
import re
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from patience import SLOWER
from planning import cluster, plan

from cloudrl import recipes
from cloudrl.jobs import SubmitOptions
from cloudrl.spec import parse_override
from cloudrl.spec.hydra import parse_overrides
from cloudrl.verl.releases import RELEASE

SCRIPTS = Path(__file__).parent / "scripts"
NAMES = sorted(path.stem for path in SCRIPTS.glob("*.sh"))

MOVED = {
    "critic.model.fsdp_config.param_offload": "critic.fsdp.param_offload",
    "critic.model.fsdp_config.optimizer_offload": "critic.fsdp.optimizer_offload",
}
"""Key of then -> key of verl 0.9.1, for recipes for that one."""

ITS_FOLDER = "each run gets a folder of its own below the cluster's"
ITS_NAME = "the project is the recipe"
SAVES = "-1 never saves"
BY_TOKENS = "16 answers of full length fill a GPU of 80 GB; micro batches go by tokens"
UNSET = "it begins with two variables that are set nowhere"
CONSOLE = "the console is where progress is read"
SEARCH_R1 = [name for name in NAMES if name.startswith("search-r1")]

DIFFERENT: dict[str, dict[str, tuple[Any, Any, str]]] = {
    "ppo": {
        "trainer.default_local_dir": ("/checkpoints", "/checkpoints/qwen-2.5-7B", ITS_FOLDER),
        "trainer.project_name": ("ppo_training", "ppo", ITS_NAME),
        "trainer.resume_mode": ("disable", "auto", "it stood behind the pipe, and verl's default held"),
    },
    "grpo-qwen3-32b": {
        "trainer.project_name": ("verl_grpo_example_gsm8k", "grpo-qwen3-32b", ITS_NAME),
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": (16, None, BY_TOKENS),
        "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": (8, None, BY_TOKENS),
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": (16, None, BY_TOKENS),
        "actor_rollout_ref.rollout.gpu_memory_utilization": (0.6, 0.5, "room to spare on a GPU of 80 GB"),
        "trainer.save_freq": (20, 2, "its only save is after the last of 7 steps"),
    },
    "ppo-sglang-7b-offload": {
        "data.train_files": (["/root/data/gsm8k/train.parquet"],
         ["/root/data/gsm8k/train.parquet", "/root/data/math/train.parquet"],
         "it names the files of MATH and does not use them"),
        "data.val_files": (["/root/data/gsm8k/test.parquet"],
         ["/root/data/gsm8k/test.parquet", "/root/data/math/test.parquet"], "as for training"),
        "trainer.project_name": ("verl_multinode", "ppo-sglang-7b-offload", ITS_NAME),
        "trainer.save_freq": (-1, 20, SAVES),
    },
    "ppo-rocm-0.5b": {
        "data.train_files": ("../data/gsm8k/train.parquet",
         ["/root/data/gsm8k/train.parquet", "/root/data/math/train.parquet"],
         "it prepares MATH and does not use it; a relative path means another folder on each node"),
        "data.val_files": ("../data/gsm8k/test.parquet",
         ["/root/data/gsm8k/test.parquet", "/root/data/math/test.parquet"], "as for training"),
        "actor_rollout_ref.model.path": ("Qwen/Qwen2-7B-Instruct", "Qwen/Qwen2.5-0.5B-Instruct",
         "it loads 0.5B and then sets 7B again"),
        "critic.model.path": ("Qwen/Qwen2-7B-Instruct", "Qwen/Qwen2.5-0.5B-Instruct", "as for the actor"),
        "trainer.project_name": ("verl_example", "ppo-rocm-0.5b", ITS_NAME),
        "trainer.save_freq": (-1, 20, SAVES),
    },
    "search-r1": {
        "data.train_files": ("data/nq_search/train.parquet", "/root/data/nq_search/train.parquet",
         "below the working directory, where the fork's .gitignore keeps it from being sent along"),
        "data.val_files": ("data/nq_search/test.parquet", "/root/data/nq_search/test.parquet", "as for training"),
        "trainer.default_local_dir": ("verl_checkpoints/--search-r1-ppo-qwen2.5-7b-em-multinode-2",
         "/checkpoints/search-r1-ppo-qwen2.5-7b-em-multinode-2", ITS_FOLDER),
        "trainer.experiment_name": ("--search-r1-ppo-qwen2.5-7b-em-multinode-2",
         "search-r1-ppo-qwen2.5-7b-em-multinode-2", UNSET),
        "trainer.logger": (["wandb"], ["console", "wandb"], CONSOLE),
        "trainer.project_name": ("Search-R1-release", "search-r1", ITS_NAME),
    },
    **{
        f"search-r1-grpo-{size}": {
            "data.train_files": ("data/nq_hotpotqa_train/train.parquet", "/root/data/nq_search/train.parquet",
             "of the questions of both, ready-made rows on the Hub; the recipe names them"),
            "data.val_files": ("data/nq_hotpotqa_train/test.parquet", "/root/data/nq_search/test.parquet",
             "as for training"),
            "trainer.default_local_dir": (f"verl_checkpoints/--search-r1-grpo-qwen2.5-{size}-em-multinode-4",
             f"/checkpoints/search-r1-grpo-qwen2.5-{size}-em-multinode-4", ITS_FOLDER),
            "trainer.experiment_name": (f"--search-r1-grpo-qwen2.5-{size}-em-multinode-4",
             f"search-r1-grpo-qwen2.5-{size}-em-multinode-4", UNSET),
            "trainer.logger": (["wandb"], ["console", "wandb"], CONSOLE),
            "trainer.project_name": ("Search-R1", f"search-r1-grpo-{size}", ITS_NAME),
        }
        for size in ("32b", "72b")
    },
}  # fmt: skip
"""Recipe -> key -> value of the script, our value, why."""

KEPT = {"trainer.max_actor_ckpt_to_keep": 2, "trainer.max_critic_ckpt_to_keep": 2}
WRITTEN_OUT = {
    "ppo": {"algorithm.adv_estimator": "gae", "actor_rollout_ref.rollout.name": "vllm", **KEPT},
    "grpo-qwen3-32b": {
        "actor_rollout_ref.actor.use_dynamic_bsz": True,
        "actor_rollout_ref.actor.ppo_max_token_len_per_gpu": 12288,
        "data.apply_chat_template_kwargs.enable_thinking": False,  # 1,024 tokens cut most thinking answers short
        "trainer.max_actor_ckpt_to_keep": 1,
    },
    "ppo-sglang-7b-offload": {"algorithm.adv_estimator": "gae"},
    "ppo-rocm-0.5b": {"algorithm.adv_estimator": "gae", "data.filter_overlong_prompts": True, **KEPT},
    **{name: {} for name in SEARCH_R1},
}
"""Recipe -> what the script leaves to the defaults of its time and the recipe says."""

GIVEN_BY_THE_CLUSTER = {
    "ppo": {"trainer.logger", "trainer.validation_data_dir"},
    "grpo-qwen3-32b": {"trainer.default_local_dir", "trainer.resume_mode", "trainer.validation_data_dir"},
    "ppo-sglang-7b-offload": {"trainer.default_local_dir", "trainer.resume_mode", "trainer.validation_data_dir"},
    "ppo-rocm-0.5b": {"trainer.default_local_dir", "trainer.resume_mode", "trainer.validation_data_dir"},
    **{name: set() for name in SEARCH_R1},
}
"""Recipe -> what neither of them says."""

OWN, DYNAMIC, DEFAULT = "the fork's own key", "micro batches go by tokens", "verl's default today"
TODAY: dict[str, str] = {
    "actor_rollout_ref.actor.fsdp_config.grad_offload": OWN,
    "actor_rollout_ref.actor.ppo_micro_batch_size": DYNAMIC,
    "actor_rollout_ref.actor.state_masking": OWN,
    "actor_rollout_ref.model.path": "an instruct model knows how functions are called",
    "actor_rollout_ref.ref.fsdp_config.param_offload": "room for an index on the GPU",
    "actor_rollout_ref.ref.log_prob_micro_batch_size": DYNAMIC,
    "actor_rollout_ref.rollout.log_prob_micro_batch_size": DYNAMIC,
    "actor_rollout_ref.rollout.n_agent": OWN,
    "actor_rollout_ref.rollout.temperature": DEFAULT,
    "actor_rollout_ref.rollout.top_p": DEFAULT,
    "algorithm.no_think_rl": OWN,
    "critic.model.fsdp_config.grad_offload": OWN,
    "critic.model.fsdp_config.optimizer_offload": DEFAULT,
    "critic.model.fsdp_config.param_offload": DEFAULT,
    "critic.model.path": "as for the actor",
    "critic.ppo_micro_batch_size": DYNAMIC,
    "data.max_obs_length": OWN,
    "data.max_prompt_length": "of the question alone",
    "data.max_response_length": "of the conversation, not of a turn",
    "data.max_start_length": OWN,
    "data.shuffle_train_dataloader": OWN,
    "data.train_files": "rows for a model that calls a function",
    "data.val_batch_size": OWN,
    "data.val_files": "as for training",
    "max_turns": OWN,
    "retriever.topk": OWN,
    "retriever.url": OWN,
    "trainer.critic_warmup": DEFAULT,
    "trainer.default_local_dir": ITS_FOLDER,
    "trainer.experiment_name": UNSET,
    "trainer.logger": CONSOLE,
    "trainer.project_name": ITS_NAME,
    "trainer.save_freq": "a run that breaks off loses 20 steps, not 100",
    "trainer.val_only": DEFAULT,
}
"""Key of Search-R1's guide -> why `search-ppo`, for today's verl, has another value or none."""

THE_AGENTS = "the node agent's: verl refuses all three together"
THE_CLUSTERS = "the cluster's: where models are kept"
THEIR_NETWORK = "names the network cards of one cluster"

OTHER_VARIABLES = {
    "HIP_VISIBLE_DEVICES": THE_AGENTS,
    "ROCR_VISIBLE_DEVICES": THE_AGENTS,
    "CUDA_VISIBLE_DEVICES": THE_AGENTS,
    "TRANSFORMERS_CACHE": THE_CLUSTERS,
    "HF_HOME": THE_CLUSTERS,
    "NCCL_IB_HCA": THEIR_NETWORK,
    "NCCL_IB_GID_INDEX": THEIR_NETWORK,
    "NCCL_DEBUG": "TRACE fills the logs",
    "NCCL_CHECKS_DISABLE": "deprecated in NCCL 2.2.12",
    "CUDA_DEVICE_MAX_CONNECTIONS": "for Megatron on NVIDIA (verl 0.9.1, trainer/constants_ppo.py)",
    "HSA_NO_SCRATCH_RECLAIM": "verl sets it itself (there)",
}
"""Variable of the script for AMD that the recipe leaves out -> why."""


def script(name: str) -> str:
    return (SCRIPTS / f"{name}.sh").read_text()


def variables(text: str) -> dict[str, str]:
    """The script's variables, as they are at its end."""
    found = {"HOME": "/root"}
    for name, value in re.findall(r'^(?:export )?(\w+)=("?[^\s"]*"?)(?: +#.*)?$', text, re.MULTILINE):
        found[name] = expanded(value.strip("\"'"), found)
    return found


def expanded(text: str, known: Mapping[str, str]) -> str:
    """As a shell expands it; a variable that is not set is empty."""
    return re.sub(r"\$\{?(\w+)\}?", lambda match: known.get(match[1], ""), text)


def meant(name: str) -> dict[str, Any]:
    """Every override that the script's author wrote, wherever the shell loses it."""
    text = script(name)
    lines = re.findall(r"^ +(\+?[a-z_]+(?:\.[a-z_]+)*=.*)$", text, re.MULTILINE)
    words = [shlex.split(line.split(" ")[0])[0] if "$" not in line else line.split(" ")[0] for line in lines]
    return typed([expanded(word, variables(text)).replace('"', "") for word in words])


def typed(words: list[str]) -> dict[str, Any]:
    """Overrides as Hydra understands them, the last of a key."""
    return {each.key_or_group: each.value() for each in OverridesParser.create().parse_overrides(words)}


def sent(name: str, script: str | None = None) -> dict[str, Any]:
    """What the recipe becomes on a cluster as the script's author had one."""
    job, run = recipes.load(name), meant(script or name)["trainer.experiment_name"].lstrip("-")
    files = "/root/verl/data/hdfs" if name == "grpo-qwen3-32b" else None
    data = {
        each: {part: f"{files or f'/root/data/{each}'}/{part}.parquet" for part in ("train", "test")}
        for each in job.data
    }
    lab = cluster(nodes=job.nodes, data=data, models={job.model: job.model}, verl_version=job.verl)
    argv = plan(job, lab, SubmitOptions(name=run, env={"WANDB_API_KEY": "secret"})).argv
    return typed(list(argv[3:]))


def moved(name: str) -> dict[str, str]:
    return MOVED if recipes.load(name).verl == RELEASE.verl else {}


def translated(name: str) -> dict[str, Any]:
    """What the script's author wrote, in the keys of the recipe's verl."""
    keys = moved(name)
    return {keys.get(key, key): value for key, value in meant(name).items()}


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_gives_every_override_of_its_script(name):
    theirs, ours = translated(name), sent(name)
    assert len(theirs) > 20
    different = {key: (value, ours.get(key)) for key, value in theirs.items() if ours.get(key) != value}
    assert different == {key: (then, now) for key, (then, now, why) in DIFFERENT[name].items() if why}


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_adds_nothing_but_what_is_listed(name):
    theirs, ours = translated(name), sent(name)
    own = parse_overrides(recipes.load(name).overrides)
    added = {key: value for key, value in ours.items() if key not in theirs}
    assert {key: value for key, value in added.items() if key in own} == WRITTEN_OUT[name]
    assert {key for key in added if key not in own} == GIVEN_BY_THE_CLUSTER[name]


def test_every_script_is_compared():
    assert set(DIFFERENT) == set(WRITTEN_OUT) == set(GIVEN_BY_THE_CLUSTER) == set(NAMES)


def test_moved_keys_are_noted_beside_the_new_ones():
    for name in NAMES:
        written = (Path(recipes.__file__).parent / f"{name}.yml").read_text()
        theirs = meant(name)
        for then, now in moved(name).items():
            if then in theirs:
                assert re.search(rf"^  {re.escape(now)}: \w+ +# formerly {re.escape(then)}$", written, re.MULTILINE)


def test_the_recipe_for_amd_has_the_variables_of_its_script():
    text = script("ppo-rocm-0.5b")
    exported = {name: variables(text)[name] for name in re.findall(r"^export (\w+)=", text, re.MULTILINE)}
    env = dict(recipes.load("ppo-rocm-0.5b").env)
    assert set(exported) - set(env) == set(OTHER_VARIABLES)
    assert env == {name: value for name, value in exported.items() if name not in OTHER_VARIABLES}


@pytest.fixture
def received(tmp_path):
    """What reaches the command when a shell runs the script."""

    def run(name: str) -> dict[str, str]:
        stand_in = tmp_path / "bin"
        stand_in.mkdir()
        for command in ("python3", "ray"):
            (stand_in / command).write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {tmp_path}/received\n')
            (stand_in / command).chmod(0o755)
        environ = {**os.environ, "PATH": f"{stand_in}:/usr/bin:/bin"}
        subprocess.run(
            ["bash", str(SCRIPTS / f"{name}.sh")], cwd=tmp_path, env=environ, capture_output=True, timeout=30 * SLOWER
        )
        words = (tmp_path / "received").read_text().splitlines()
        return dict(parse_override(word) for word in words if re.match(r"\+?[a-z_.]+=", word))

    return run


def test_an_override_behind_a_pipe_reaches_nobody(received, tmp_path):
    assert set(meant("ppo")) - set(received("ppo")) == {"trainer.resume_mode"}
    assert (tmp_path / "trainer.resume_mode=disable").exists()


def test_a_comment_behind_a_backslash_ends_the_command(received):
    assert set(meant("grpo-qwen3-32b")) - set(received("grpo-qwen3-32b")) == {
        "trainer.nnodes",
        "trainer.save_freq",
        "trainer.test_freq",
        "trainer.total_epochs",
    }


@pytest.mark.parametrize("name", SEARCH_R1)
def test_nothing_of_search_r1s_scripts_is_lost(received, name):
    assert set(meant(name)) == {key.lstrip("+") for key in received(name)}


def test_search_r1s_guide_line_by_line_in_todays_verl():
    theirs, ours = meant("search-r1"), sent("search-ppo", "search-r1")
    assert {key for key, value in theirs.items() if ours.get(key) != value} == set(TODAY)
