"""Which adapter a run started from, by the commands of its jobs."""

import pytest

from cloudrl.verl.first_adapter import first_adapter

PPO = "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.model.lora_rank=8"
PATH = "actor_rollout_ref.model.lora_adapter_path"


@pytest.mark.parametrize(
    ("commands", "path"),
    [
        ([], None),
        ([PPO], ""),
        (["torchrun --nproc 2 -m verl.trainer.sft_trainer model.lora_rank=8"], ""),
        (["python3 /opt/verl/trainer/main_ppo.py a=b"], ""),
        ([f"{PPO} {PATH}=/models/mine"], "/models/mine"),
        ([f"{PPO} '+{PATH}=\"/models/my own\"'"], "/models/my own"),
        (["python3 -m verl.trainer.sft_trainer model.lora_adapter_path=me/mine"], "me/mine"),
        ([f"bash train.sh {PATH}=me/mine"], "me/mine"),
        ([f"{PPO} {PATH}=/models/one {PATH}=null"], ""),
        ([f"{PPO} {PATH}=/models/one", PPO], "/models/one"),
        ([PPO, f"{PPO} {PATH}=/models/one"], "/models/one"),
        (["bash train.sh"], None),
        ([PPO, "bash train.sh"], None),
        ([f"{PPO} --config-name=mine"], None),
        ([f"{PPO} --config-path /mine"], None),
        (["python3 -c 'import verl.trainer.main_ppo'"], None),
        (["echo 'unbalanced"], None),
    ],
)
def test_the_adapter(commands: list[str], path: str | None) -> None:
    assert first_adapter(commands) == path
