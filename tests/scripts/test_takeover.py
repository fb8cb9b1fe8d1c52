"""What the guides' own scripts become, with what is wrong in them; and what becomes of single lines."""

import shlex
from pathlib import Path
from typing import Any

import pytest
from planning import cluster, plan
from taken_over import TakeOver

from cloudrl.jobs import SubmitOptions
from cloudrl.scripts.imported import Imported
from cloudrl.scripts.lines import Fate
from cloudrl.verl import keys
from cloudrl.verl.composition import compose
from cloudrl.verl.releases import RELEASE

pytestmark = pytest.mark.io

GUIDES = Path(__file__).parents[1] / "recipes" / "scripts"
MAIN = "python3 -m verl.trainer.main_ppo"


def said(imported: Imported, fate: Fate) -> dict[str, str]:
    return {line.text: line.why for line in imported.lines if line.fate is fate}


@pytest.fixture(params=["ppo", "grpo-qwen3-32b", "ppo-rocm-0.5b", "ppo-sglang-7b-offload", "search-r1"])
def guide(request: pytest.FixtureRequest, take_over: TakeOver) -> tuple[str, Imported]:
    env = {"SLURM_NNODES": "2", "SLURM_GPUS_PER_NODE": "8"} if "rocm" in request.param else {}
    return request.param, take_over((GUIDES / f"{request.param}.sh").read_text(), env=env)


WRONG = {
    "ppo": {"trainer.resume_mode=disable": "never reaches verl"},  # behind a pipe
    "grpo-qwen3-32b": {
        "\\ ": "the command ends there",
        "trainer.nnodes=2": "the recipe has it",
        "trainer.save_freq=20": "the recipe has it",
        "trainer.test_freq=5": "the recipe has it",
        "trainer.total_epochs=1": "the recipe has it",
    },
    "ppo-rocm-0.5b": {"GPUs of a process": "CUDA_VISIBLE_DEVICES and HIP_VISIBLE_DEVICES and ROCR_VISIBLE_DEVICES"},
    "ppo-sglang-7b-offload": {},
    "search-r1": {
        "$train_data in trainer.experiment_name, trainer.default_local_dir": "--env train_data=VALUE",
        "$test_data in trainer.experiment_name, trainer.default_local_dir": "--env test_data=VALUE",
    },
}


def test_what_is_wrong_in_a_guide_is_named(guide: tuple[str, Imported]) -> None:
    name, imported = guide
    wrong = said(imported, Fate.WRONG)
    assert wrong.keys() == WRONG[name].keys()
    assert [text for text, words in WRONG[name].items() if words not in wrong[text]] == []


def test_the_shape_of_a_guide_is_its_clusters(guide: tuple[str, Imported]) -> None:
    name, imported = guide
    [training] = imported.trainings
    gpu = "amd:8" if "rocm" in name else "8"
    assert (training.job.nodes, training.job.gpu) == (2, gpu)
    assert (imported.cluster["nodes"], imported.cluster["gpu"]) == (2, gpu)
    assert not {keys.NODES, keys.GPUS} & set(training.job.overrides)


def test_lost_overrides_stand_in_the_recipe_as_comments(take_over: TakeOver) -> None:
    imported = take_over((GUIDES / "ppo.sh").read_text())
    assert "#   trainer.resume_mode: disable\n" in imported.recipes["run.yml"]
    assert keys.RESUME_MODE not in imported.trainings[0].job.overrides


BASE = f"""
{MAIN} algorithm.adv_estimator=grpo data.train_files=/d/train.parquet \\
    data.val_files="['/d/a b.parquet','/d/c.parquet']" \\
    data.train_batch_size=$((64 * 4)) data.max_prompt_length=512 data.max_response_length=1024 \\
    actor_rollout_ref.model.path=Qwen/Qwen2.5-0.5B-Instruct actor_rollout_ref.rollout.name=vllm \\
    actor_rollout_ref.actor.ppo_mini_batch_size=64 actor_rollout_ref.actor.use_dynamic_bsz=True \\
    actor_rollout_ref.actor.optim.lr=1e-6 trainer.save_freq=10 trainer.default_local_dir=/checkpoints/run \\
    trainer.logger=console trainer.project_name='my project' trainer.experiment_name="'it is: 1'" """
MORE = (
    "",
    'trainer.logger=\'["console","tensorboard"]\' trainer.val_before_train=false trainer.test_freq=5',
    "+actor_rollout_ref.rollout.engine_kwargs.vllm.seed=7 '+data.custom={a: 1, b: [x, 2]}'",
    "actor_rollout_ref.actor.clip_ratio_high=0.28 actor_rollout_ref.rollout.n=5 data.shuffle=False algorithm.gamma=1",
    "model_engine=megatron actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2",
    "~trainer.balance_batch +data.apply_chat_template_kwargs.enable_thinking=false data.filter_overlong_prompts=true",
    "trainer.experiment_name=001 trainer.project_name=null data.prompt_key=1e3 data.image_key=True",
)


@pytest.mark.parametrize("more", MORE)
def test_the_configuration_is_the_scripts_own(take_over: TakeOver, more: str) -> None:
    """Composed of the recipe on its cluster, and of the script's words: every value is the same."""
    imported = take_over(f"{BASE} {more} trainer.nnodes=2 trainer.n_gpus_per_node=8")
    [training] = imported.trainings
    words = shlex.split((BASE + more).replace("\\\n", " ").replace("$((64 * 4))", "256"))[3:]
    shape = ("trainer.nnodes=2", "trainer.n_gpus_per_node=8", "trainer.resume_mode=auto")
    theirs = compose(RELEASE.verl, (*words, *shape)).values
    facts = cluster(nodes=2, gpus_per_node=8, gpu_nodes=2)
    sent = plan(training.job, facts, SubmitOptions(unchecked=True)).argv
    start = sent.index("verl.trainer.main_ppo") + 1
    ours = compose(RELEASE.verl, tuple(sent[start:])).values
    assert theirs is not None
    assert ours is not None
    ours["trainer"]["validation_data_dir"] = theirs["trainer"]["validation_data_dir"]  # cloudrl adds it
    ours["transfer_queue"] = theirs["transfer_queue"]  # the cluster's CPUs decide
    if "critic" not in more:
        ours["critic"]["model"]["path"] = theirs["critic"]["model"]["path"]
    assert ours == theirs


@pytest.mark.parametrize(
    ("line", "fate", "why"),
    [
        ("ray start --head --port=6379", Fate.DROPPED, "cloudrl's agents start Ray"),
        ("ray stop --force", Fate.DROPPED, "cloudrl ends its own processes"),
        ("sleep 10", Fate.DROPPED, "waits for a condition"),
        ("pip3 install -U vllm", Fate.DROPPED, "--setup 'pip install ...'"),
        ("python3 -m pip install .", Fate.DROPPED, "--setup 'pip install ...'"),
        ("ulimit -n 65535", Fate.DROPPED, "the agents raise"),
        ("git clone https://github.com/volcengine/verl", Fate.DROPPED, "--working-dir DIR"),
        ("huggingface-cli download Qwen/Qwen2.5-7B", Fate.DROPPED, "--model NAME"),
        ("wandb login $WANDB_API_KEY", Fate.DROPPED, "--env NAME"),
        ("python3 scripts/model_merger.py merge --backend fsdp", Fate.DROPPED, "cloudrl checkpoints merge"),
        ("python3 -c 'import transformers; transformers.pipeline(1)'", Fate.DROPPED, "--model NAME"),
        ("python3 serve_retriever.py --port 8000", Fate.UNKNOWN, "services of the cluster"),
        ("my-own-tool --fast", Fate.UNKNOWN, "does not know this program"),
        ("python3 plot.py", Fate.UNKNOWN, "another program"),
    ],
)
def test_a_line_beside_the_training(take_over: TakeOver, line: str, fate: Fate, why: str) -> None:
    [found] = [each for each in take_over(f"{line}\n{MAIN} a.x=1\n").lines if each.number == 1]
    assert found.fate is fate
    assert why in found.why


def test_data_and_models_that_the_script_makes_are_the_clusters(take_over: TakeOver) -> None:
    imported = take_over(
        "python3 examples/data_preprocess/gsm8k.py --local_dir ../data/gsm8k\n"
        "hf download Qwen/Qwen2.5-7B --local-dir ./model\n"
        f"{MAIN} data.train_files=../data/gsm8k/train.parquet data.val_files=[../data/gsm8k/test.parquet] "
        "actor_rollout_ref.model.path=./model critic.model.path=./model"
    )
    [training] = imported.trainings
    assert dict(training.job.overrides) == {
        "actor_rollout_ref.model.path": "Qwen/Qwen2.5-7B", "critic.model.path": "Qwen/Qwen2.5-7B",
    }  # fmt: skip
    assert (training.job.data, training.job.model) == (("gsm8k",), "Qwen/Qwen2.5-7B")
    assert (imported.cluster["data"], imported.cluster["models"]) == (["gsm8k"], ["Qwen/Qwen2.5-7B"])


def test_variables_go_where_they_belong(take_over: TakeOver) -> None:
    names = (
        "WANDB_MODE=offline NCCL_DEBUG=INFO NCCL_IB_HCA=mlx5_0 CUDA_VISIBLE_DEVICES=0 WANDB_API_KEY=abc HF_TOKEN=hf_x "
        "LD_LIBRARY_PATH=/x RAY_ADDRESS=auto PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=true"
    )
    imported = take_over(f"export {names}\nA=1 {MAIN} a.x=1")
    [training] = imported.trainings
    assert training.fields["env"] == {"A": "1", "TOKENIZERS_PARALLELISM": "true", "WANDB_MODE": "offline"}
    assert imported.cluster["env"] == {"NCCL_DEBUG": "INFO"}
    assert set(training.secrets) == {"WANDB_API_KEY", "HF_TOKEN"}
    assert "abc" not in "".join(imported.files.values())
    assert "hf_x" not in "".join(map(str, imported.lines))
    [_, submit] = imported.commands()
    assert submit.endswith("--env HF_TOKEN --env WANDB_API_KEY")


def test_a_secret_in_an_argument_is_in_no_file(take_over: TakeOver) -> None:
    imported = take_over(f"{MAIN} a.x=1 +reward.api_key=sk-abcdefghijklmnopqrstuvwxyz")
    assert "sk-abc" not in "".join(imported.files.values()) + "".join(map(str, imported.lines))


def test_files_of_the_project_are_sent(take_over: TakeOver) -> None:
    files = {"reward.py": "def compute_score(): ...\n", "data/train.parquet": "", "data/test.parquet": ""}
    imported = take_over(
        f"{MAIN} reward.custom_reward_function.path=reward.py data.train_files=$PWD/data/train.parquet "
        "data.val_files=[data/test.parquet,/d/x.parquet]",
        files=files,
    )
    [training] = imported.trainings
    assert training.fields["overrides"] == {
        "reward.custom_reward_function.path": "./reward.py",
        "data.train_files": "./data/train.parquet",
        "data.val_files": ["./data/test.parquet", "/d/x.parquet"],
    }
    assert training.working_dir is None


def test_a_configuration_folder_of_the_project_is_sent_as_a_whole(take_over: TakeOver) -> None:
    imported = take_over(
        f'{MAIN} --config-path="$PWD/config" --config-name=mine '
        "actor_rollout_ref.rollout.multi_turn.tool_config_path=$PWD/t.yaml",
        files={"config/mine.yaml": "", "t.yaml": ""},
    )
    [training] = imported.trainings
    assert list(training.job.entrypoint[3:]) == ["--config-dir=config", "--config-name=mine"]
    assert training.fields["overrides"] == {"actor_rollout_ref.rollout.multi_turn.tool_config_path": "t.yaml"}
    assert training.working_dir == "."


def test_another_program_is_a_recipe_with_its_entry_point(take_over: TakeOver) -> None:
    imported = take_over(
        "torchrun --standalone --nnodes=1 --nproc_per_node=8 -m verl.trainer.sft_trainer "
        "data.train_files=/d/a.parquet x.y=1\n"
        "python3 -m recipe.dapo.main_dapo data.train_files=/d/a.parquet trainer.nnodes=4",
        files={"recipe/dapo/main_dapo.py": ""},
    )
    first, second = imported.trainings
    assert list(first.job.entrypoint) == [
        "torchrun", "--standalone", "--nnodes=1", "--nproc_per_node=8", "-m", "verl.trainer.sft_trainer",
    ]  # fmt: skip
    assert (list(second.job.entrypoint), second.working_dir) == (["python3", "-m", "recipe.dapo.main_dapo"], ".")
    assert second.job.nodes == 4


def test_ray_job_submit(take_over: TakeOver) -> None:
    env = "working_dir: ./\nexcludes: [/.git/, big/]\nenv_vars: {A: '1', HF_TOKEN: x}\npip: [x]\n"
    imported = take_over(
        f"cat > env.yaml <<'EOF'\n{env}EOF\n"
        f"ray job submit --address=http://127.0.0.1:8265 --runtime-env=env.yaml --no-wait -- {MAIN} a.x=1"
    )
    [training] = imported.trainings
    assert (training.fields["env"], training.secrets, training.working_dir) == ({"A": "1"}, ("HF_TOKEN",), ".")
    assert training.runtime_env == {"excludes": ["big/"], "pip": ["x"]}
    assert imported.files["run.runtime-env.yml"] == "excludes:\n- big/\npip:\n- x\n"
    assert imported.commands("out")[0] == (
        "cloudrl check out/run.yml -f out/run.cluster.yml --working-dir . --runtime-env out/run.runtime-env.yml"
    )
    assert (
        imported.commands()[0]
        == "cloudrl check ./run.yml -f run.cluster.yml --working-dir . --runtime-env run.runtime-env.yml"
    )


def test_a_runtime_environment_as_json(take_over: TakeOver) -> None:
    imported = take_over(
        'ray job submit --runtime-env-json=\'{"working_dir": "s3://b/x.zip", "env_vars": {"A": "1"}}\' -- '
        f"{MAIN} a.x=1"
    )
    [training] = imported.trainings
    assert (training.fields["env"], training.working_dir) == ({"A": "1"}, "s3://b/x.zip")


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("a.x=~/data", "Hydra cannot read it"),
        ("a.x='$(date)'", "Hydra cannot read it"),
        ("a.x=1,2", "several runs"),
        ("...", "no override"),
    ],
)
def test_what_hydra_refuses_is_named(take_over: TakeOver, value: str, words: str) -> None:
    wrong: dict[str, Any] = said(take_over(f"{MAIN} {value} b.y=1"), Fate.WRONG)
    assert [why for why in wrong.values() if words in why]


def test_what_yaml_cannot_hold_stands_in_the_entry_point(take_over: TakeOver) -> None:
    [training] = take_over(f"{MAIN} ~trainer.balance_batch a.x=1 'a.y=glob(*)'").trainings
    assert list(training.job.entrypoint[3:]) == ["~trainer.balance_batch", "a.y=glob(*)"]
    assert dict(training.job.overrides) == {"a.x": "1"}


def test_secrets_in_other_lines_are_masked(take_over: TakeOver) -> None:
    imported = take_over(
        "wandb login abc123abc\ndocker run -e WANDB_API_KEY=abc123abc img python3 x.py\n"
        f"curl --token abc123abc https://user:abc123abc@h/x\nexport PLAIN=hf_abcdefghijklmnopqrstuv\n{MAIN} a.x=1"
    )
    shown = "\n".join(map(str, imported.lines)) + "".join(imported.files.values())
    assert "abc123abc" not in shown
    assert "hf_abc" not in shown
    assert imported.trainings[0].secrets == ("PLAIN",)


def test_how_a_script_ended_is_said(take_over: TakeOver) -> None:
    wrong = said(take_over("set -e\nray start --head\nfalse\n" + MAIN), Fate.WRONG)
    assert wrong == {"exit status 1": "the script stopped before any training: it said nothing"}


def test_a_link_out_of_the_project_leads_nowhere(take_over: TakeOver, tmp_path: Path) -> None:
    (tmp_path.parent / "outside").write_text("a.x=1")
    (tmp_path / "link").symlink_to(tmp_path.parent / "outside")
    [training] = take_over(f"{MAIN} b.y=1 $(cat link)").trainings
    assert dict(training.job.overrides) == {"b.y": "1"}


AMD = """#!/bin/bash
#SBATCH --nodes=2
#SBATCH --gpus-per-node=8
export HIP_VISIBLE_DEVICES=0,1
srun bash -c "
    docker run --rm -d -e HIP_VISIBLE_DEVICES=${HIP_VISIBLE_DEVICES} --device /dev/kfd -v \\${HOME}:\\${HOME} \\
    --shm-size 128G --name \\"c\\" \\"img\\" tail -f /dev/null
"
nodes_array=($(scontrol show hostnames "$SLURM_JOB_NODELIST" | tr '\\n' ' '))
head_node=${nodes_array[0]}
ip=$(srun --nodes=1 --ntasks=1 -w "$head_node" hostname --ip-address)
for ((i = 1; i <= SLURM_JOB_NUM_NODES - 1; i++)); do
    srun --nodes=1 -w "${nodes_array[$i]}" docker exec c ray start --address "$ip:6379" --block &
done
docker exec c python3 examples/data_preprocess/gsm8k.py --local_dir ../data/gsm8k
srun --overlap -w "$head_node" docker exec c $TRAIN data.train_files=../data/gsm8k/train.parquet \\
    data.val_files=../data/gsm8k/test.parquet trainer.nnodes=$SLURM_NNODES trainer.n_gpus_per_node=$SLURM_GPUS_PER_NODE
"""


def test_a_script_for_slurm_with_containers_and_amd(take_over: TakeOver) -> None:
    imported = take_over(AMD.replace("$TRAIN", MAIN))
    assert imported.cluster == {
        "name": "run", "nodes": 2, "gpu": "amd:8", "data": ["gsm8k"], "shm_size": "128GB",
        "slurm": {"container": "docker"},
    }  # fmt: skip
    [training] = imported.trainings
    assert (training.job.gpu, training.job.data, dict(training.job.overrides)) == ("amd:8", ("gsm8k",), {})
    assert set(said(imported, Fate.UNKNOWN)) == {"the folder for checkpoints"}
    assert "--volume /root:/root" in next(line.why for line in imported.lines if "docker run" in line.text)
    started = [line for line in imported.lines if line.text.startswith("ray start")]
    assert [line.text for line in started] == ["ray start --address 10.0.0.1:6379 --block"]


def test_checkpoints_of_slurm_stay_where_the_script_has_them(take_over: TakeOver) -> None:
    text = (
        f"#SBATCH --nodes=2\n#SBATCH --gres=gpu:8\n#SBATCH -p gpu\n{MAIN} trainer.default_local_dir=/scratch/me/run-1"
    )
    imported = take_over(text)
    assert imported.cluster["checkpoints"] == "/scratch/me"
    assert imported.cluster["slurm"] == {
        "volumes": ["/scratch/me:/scratch/me"], "partition": "gpu", "container": "bare",
    }  # fmt: skip
    assert "cloudrl slurm script ./run.yml -f run.cluster.yml" in imported.commands()


def test_a_training_that_a_script_does_not_come_to_is_missed(take_over: TakeOver) -> None:
    text = f"set -e\n{MAIN} a.x=1\ngrep -q done log.txt\n{MAIN} a.x=2\n"
    wrong = said(take_over(text), Fate.WRONG)
    assert "after the training in line 2" in wrong["exit status 2"]


def test_folders_of_this_machine_are_none_of_the_nodes(take_over: TakeOver) -> None:
    words = "trainer.rollout_data_dir=$OUT/rollout hydra.run.dir=outputs trainer.resume_from_path=$OUT/x"
    imported = take_over(f"OUT=$PWD/out\n{MAIN} {words}")
    assert list(imported.trainings[0].job.overrides) == ["trainer.resume_from_path"]
    assert list(said(imported, Fate.UNKNOWN).values()) == [
        "a path of this machine, and there is no such file; name one of the nodes"
    ]


@pytest.mark.parametrize(
    ("train", "val", "data"),
    [
        ("$HOME/data/gsm8k/train.parquet", "$HOME/data/gsm8k/test.parquet", ("gsm8k",)),
        ("data/nq_search/train.parquet", "data/nq_search/test.parquet", ("nq_search",)),
        (
            "\"['$HOME/data/gsm8k/train.parquet','$HOME/data/math/train.parquet']\"",
            "\"['$HOME/data/gsm8k/test.parquet','$HOME/data/math/test.parquet']\"",
            ("gsm8k", "math"),
        ),
        ("/mnt/gsm8k/train.parquet", "/mnt/gsm8k/test.parquet", ()),
        ("$HOME/data/gsm8k/train.parquet", "$HOME/data/math/test.parquet", ()),
        ("$HOME/data/gsm8k/train.parquet", "$HOME/data/gsm8k/train.parquet", ()),
        ("$HOME/data/mine/train.parquet", "$HOME/data/mine/test.parquet", ()),
    ],
)
def test_data_sets_that_a_cluster_prepares(take_over: TakeOver, train: str, val: str, data: tuple[str, ...]) -> None:
    [training] = take_over(f"{MAIN} data.train_files={train} data.val_files={val}").trainings
    assert training.job.data == data
    assert (keys.TRAIN_FILES in training.job.overrides) == (not data)
