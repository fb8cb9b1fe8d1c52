"""What servers of the rollout assert once they start, and need no GPU to be seen (verl 0.9.1)."""

from __future__ import annotations

from collections.abc import Iterator

from cloudrl.verl.keys import ROLLOUT
from cloudrl.verl.override_parsing import Problem
from cloudrl.verl.setting import MODE, Setting

_DATA, _TENSOR = f"{ROLLOUT}.data_parallel_size", f"{ROLLOUT}.tensor_model_parallel_size"


def data_parallel_servers_fit(setting: Setting) -> Iterator[Problem]:
    """workers/rollout/vllm_rollout/vllm_async_server.py: launch_server, with the GPUs that a replica has on a node."""
    data, tensor = (max(1, setting.whole(key) or 1) for key in (_DATA, _TENSOR))
    if setting.get(f"{ROLLOUT}.name") != "vllm" or data < 2 or setting.get(f"{ROLLOUT}.disaggregation.enabled"):
        return
    of_node = min(setting.rollout_gpus_per_node, setting.replica)
    if of_node % tensor:
        yield Problem(
            f"a replica has {of_node} GPUs on a node, which {_TENSOR}={tensor} does not divide, and {_DATA}={data}",
            f"{_TENSOR}={next(each for each in range(min(tensor, of_node), 0, -1) if of_node % each == 0)}",
        )


def disaggregation_is_possible(setting: Setting) -> Iterator[Problem]:
    """workers/rollout/vllm_rollout/vllm_pd_replica.py: vLLMPDReplica; sglang_rollout/sglang_pd_replica.py."""
    section, name = f"{ROLLOUT}.disaggregation", setting.get(f"{ROLLOUT}.name")
    if not setting.get(f"{section}.enabled") or name not in ("vllm", "sglang"):
        return
    backend = setting.get(f"{section}.transfer_backend")
    if name == "vllm" and backend in ("ascend", "mori", "fake"):
        yield Problem(f"{section}.transfer_backend={backend}: vLLM has nixl and mooncake in verl 0.9.1",
                      f"{section}.transfer_backend=nixl")  # fmt: skip
    for key, value in ((f"{section}.prefill_replicas", setting.whole(f"{section}.prefill_replicas")),
                       (_DATA, setting.whole(_DATA))):  # fmt: skip
        if value is not None and value > 1:
            yield Problem(f"{key}={value}: disaggregation takes 1", f"{key}=1")
    tensor, replicas = setting.whole(_TENSOR) or 1, setting.whole(f"{section}.decode_replicas") or 1
    of_decode = setting.whole(f"{section}.decode_tensor_model_parallel_size") or tensor
    needed, has = tensor + replicas * of_decode, setting.rollout_gpus_per_node
    if needed > has:
        yield Problem(f"a replica of prefill and decode takes {needed} GPUs, and a node has {has}",
                      f"{section}.decode_replicas=1" if replicas > 1 and tensor + of_decode <= has else "")  # fmt: skip
    if setting.is_v1 and setting.get(MODE) == "separate_async":
        switch = "trainer.v1.separate_async.hybrid_rollout.enable_switch"
        if setting.get(switch) and setting.get("actor_rollout_ref.hybrid_engine") is not False:
            yield Problem(f"{switch} and {section}.enabled exclude each other", f"{switch}=False")


def rewards_have_what_they_ask(setting: Setting) -> Iterator[Problem]:
    """experimental/reward_loop/reward_loop.py: _init_reward_fn; trainer/ppo/reward.py: get_custom_reward_fn."""
    model, manager = "reward.reward_model", "reward.reward_manager"
    if setting.get(f"{model}.enable") and not setting.get(f"{model}.model_path"):
        yield Problem(f"{model}.enable needs the path of a model", f"{model}.model_path=MODEL")
    engine = f"{model}.rollout.name"
    if setting.get(f"{model}.enable") and setting.get(engine) in (None, "", "???"):
        yield Problem(f"{model}.enable needs an engine, and {engine} is not set", f"{engine}=vllm")
    if setting.get(f"{manager}.source") == "importlib" and not setting.get(f"{manager}.module.path"):
        yield Problem(f"{manager}.source=importlib needs {manager}.module.path", f"{manager}.source=register")
    function = "reward.custom_reward_function"
    if setting.get(f"{function}.path") and setting.has(f"{function}.name") and not setting.get(f"{function}.name"):
        yield Problem(f"{function}.path needs the name of a function", f"{function}.name=compute_score")


def overlong_answers_have_limits(setting: Setting) -> Iterator[Problem]:
    """experimental/reward_loop/reward_manager/dapo.py: __init__."""
    section = "reward.reward_kwargs"
    buffer = f"{section}.overlong_buffer_cfg"
    if setting.get("reward.reward_manager.name") != "dapo" or setting.get(buffer) is None:
        return
    key, longest = f"{section}.max_resp_len", setting.whole("data.max_response_length")
    whole = f" +{key}={longest}" if setting.get(key) is None and longest else ""
    if not setting.has(f"{buffer}.enable"):
        yield Problem(f"{buffer} needs {buffer}.enable (dapo.py)", f"+{buffer}.enable=True{whole}")
    if not setting.get(f"{buffer}.enable"):
        return
    if not setting.has(f"{buffer}.len"):
        yield Problem(f"{buffer}.enable needs {buffer}.len, the tokens over which the penalty grows (dapo.py)")
    limit, length = setting.whole(key), setting.whole(f"{buffer}.len")
    if setting.get(key) is None:
        yield Problem(f"{buffer}.enable needs {key}, the length at which the whole penalty is due (dapo.py)",
                      whole.lstrip())  # fmt: skip
    elif isinstance(setting.get(key), str) or isinstance(setting.get(f"{buffer}.len"), str):
        yield Problem(f"{key} and {buffer}.len are numbers of tokens (dapo.py)")
    elif limit is not None and length is not None and not 0 < length <= limit:
        yield Problem(f"{buffer}.len={length}: verl's manager needs 1 to {key}={limit} (dapo.py)",
                      f"++{buffer}.len={max(1, limit // 4)}" if limit > 0 else "")  # fmt: skip


def distillation_is_possible(setting: Setting) -> Iterator[Problem]:
    """workers/config/distillation.py: _validate_topk_logprobs; the rest of it is followed in verl's own code."""
    loss = "distillation.distillation_loss"
    if not setting.get("distillation.enabled") or setting.get(f"{loss}.loss_mode") != "forward_kl_topk":
        return
    top = setting.whole(f"{loss}.topk")
    if top is None:
        yield Problem(f"{loss}.loss_mode=forward_kl_topk needs {loss}.topk", f"{loss}.topk=64")


RULES = (
    data_parallel_servers_fit,
    disaggregation_is_possible,
    rewards_have_what_they_ask,
    overlong_answers_have_limits,
    distillation_is_possible,
)
