"""Single values, names and sections: what ends a job late, and what verl never reads."""

from __future__ import annotations

import pytest
from verl_settings import problems, setting, with_hint

from cloudrl.jobs.findings import overrides_of
from cloudrl.verl import rules
from cloudrl.verl.release_files import SHIPPED
from cloudrl.verl.releases import RELEASE

A, R, REF = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.ref"
GRPO = ("algorithm.adv_estimator=grpo",)
TOKENS = (f"{A}.use_dynamic_bsz=True", f"{R}.log_prob_use_dynamic_bsz=True")
MEGATRON = ("model_engine=megatron", *GRPO, *TOKENS)
OVERLONG = ("reward.reward_manager.name=dapo", "+reward.reward_kwargs.overlong_buffer_cfg.enable=True")
PREFILL = (f"{R}.disaggregation.enabled=True",)
TEACHER = ("distillation.enabled=True", "distillation.nnodes=1", "distillation.n_gpus_per_node=8", "trainer.nnodes=1",
           "distillation.teacher_models.teacher_model.model_path=/t",
           "distillation.teacher_models.teacher_model.inference.name=vllm")  # fmt: skip


@pytest.mark.parametrize(
    ("overrides", "text", "hint"),
    [
        ((f"{A}.optim.lr=abc",), f"{A}.optim.lr=abc: verl needs a number of at least 0", f"{A}.optim.lr=1e-06"),
        ((f"{A}.optim.lr=-1",), "lr=-1: verl needs a number of at least 0", "lr=1e-06"),
        ((f"{R}.n=0",), f"{R}.n=0: verl needs a whole number of at least 1", f"{R}.n=1"),
        (("data.train_batch_size=2.56e2",), "=256.0: verl needs a whole number", "data.train_batch_size=256"),
        ((f"{R}.gpu_memory_utilization=80",), "=80: verl needs a number above 0 and at most 1", "utilization=0.8"),
        ((f"{R}.temperature=hot",), "temperature=hot: verl needs a number", "temperature=1.0"),
        ((f"{R}.top_p=1.5",), "top_p=1.5: verl needs a number above 0 and at most 1", "top_p=1"),
        (("trainer.save_freq=foo",), "save_freq=foo: verl needs a number here (trainer/ppo/v1/trainer_base.py: fit)",
         "trainer.save_freq=-1"),
        (("data.max_response_length=0",), "max_response_length=0: verl needs a whole number", "length=512"),
        (("data.train_batch_size=null",), "train_batch_size=null: verl needs a whole number", "size=1024"),
        (("trainer.nnodes=1.5",), "trainer.nnodes=1.5: verl needs a whole number of at least 1", "trainer.nnodes=1"),
        ((f"{A}.fsdp_config.fsdp_size=0",), "fsdp_size=0: verl needs a whole number", "fsdp_size=-1"),
        ((f"{A}.ppo_mini_batch_size=-1", *GRPO), "mini_batch_size=-1: verl needs", "size=256"),
        (("trainer.v1.sampler.max_off_policy_threshold=0",), "threshold=0: verl needs a whole number", "=8"),
        ((f"{A}.clip_ratio_c=1",), "clip_ratio_c=1: verl needs a number above 1", "clip_ratio_c=3.0"),
        ((f"{R}.agent.num_workers=0",), "num_workers=0: verl needs", "num_workers=8"),
        (("critic.optim.lr=abc",), "critic.optim.lr=abc: verl needs", "=1e-05"),
        # names
        (("trainer.logger=[console,wanb]",), "trainer.logger: verl has no logger wanb", "=[console,wandb]"),
        (("trainer.logger=null",), "trainer.logger=null: verl needs names", "trainer.logger=[console]"),
        ((f"{R}.name=vlm",), f"{R}.name=vlm: verl has sglang, trtllm, vllm (workers/rollout/base.py", "name=vllm"),
        ((f"{R}.dtype=bf17",), "dtype=bf17: verl has auto, half", ""),
        ((f"{R}.max_model_len=long",), "max_model_len=long: verl needs a whole number", f"{R}.max_model_len=null"),
        (("actor_rollout_ref.model.lora_rank={a:1}",), "lora_rank={'a': 1}: verl needs a number", "lora_rank=0"),
        ((f"{A}.optim.optimizer=null",), "optimizer=null: verl has none", f"{A}.optim.optimizer=AdamW"),
        ((f"{R}.expert_parallel_size=null",), f"{R}.expert_parallel_size=null: verl refuses it: TypeError", "size=1"),
        ((f"{A}.optim.lr_scheduler_type=null",), "lr_scheduler_type=null: verl refuses it", "type=constant"),
        ((f"{R}.checkpoint_engine.backend=nccll",), "backend=nccll: verl has", "backend=nccl"),
        (("reward.reward_manager.name=dpao",), "name=dpao: verl has", "reward.reward_manager.name="),
        ((f"{A}.fsdp_config.model_dtype=fp31",), "model_dtype=fp31: verl has", "model_dtype=fp32"),
        ((f"{A}.optim.optimizer=AdamX",), "optimizer=AdamX: verl has none", f"{A}.optim.optimizer=Adam"),
        ((f"{A}.use_kl_loss=True", f"{A}.kl_loss_type=low_var"), "kl_loss_type=low_var: verl has", "=low_var_kl"),
        (("algorithm.use_kl_in_reward=True", "algorithm.kl_ctrl.type=fix"), "type=fix: verl has fixed", "fixed"),
        (("trainer.v1.sampler.max_off_policy_strategy=droop",), "=droop: verl has drop, wait", "strategy=drop"),
        # sections
        (("+actor_rollout_ref.rollout.n_val=8",), "RolloutConfig of verl has no field 'n_val'", ""),
        ((f"+{A}.optim.lrr=1",), "FSDPOptimizerConfig of verl has no field 'lrr'", ""),
        (("+critic.my_key=1", *GRPO), "FSDPCriticConfig of verl has no field 'my_key'", ""),
        ((f"+{A}.clip_ratio_hihg=0.3",), "no field 'clip_ratio_hihg'", f"{A}.clip_ratio_high=0.3"),
        ((f"+{REF}.tau_pos_=1.0",), "no field 'tau_pos_'", f"+{REF}.tau_pos=1.0"),  # a field without a line in the YAML
        (("+actor_rollout_ref.model.mtp.enabl_train=True",), "no field 'enabl_train'", "model.mtp.enable_train=True"),
        ((f"{R}=gspo",), f"{R}=gspo: verl has a section here", f"~{R}"),  # and nothing of its keys
        ((f"{R}.val_kwargs=null",), "val_kwargs=null: verl reads keys of this section", f"~{R}.val_kwargs"),
        ((f"{A}.optim=linear",), f"{A}.optim=linear: verl has a section here", f"~{A}.optim"),  # no schedule of verl's
        ((f"{A}.policy_loss=gspo",), "policy_loss=gspo: verl has a section here", f"{A}.policy_loss.loss_mode=gspo"),
        (("data.apply_chat_template_kwargs=True",), "verl has a section here, not a single value", ""),
        (("algorithm.filter_groups=True",), "filter_groups=True: verl has a section", "groups.enable=True"),
        # followed in verl's own code
        ((f"{A}.optim.lr_scheduler_type=linear",),
         "=linear: verl refuses it: lr_scheduler_type in ['constant', 'cosine'] (workers/config/optimizer.py",
         "One of: constant, cosine"),
        (("actor_rollout_ref.model.target_modules=3",), "=3: verl refuses it: target_modules must be", ""),
        ((f"{R}.trace.max_samples_per_step_per_worker=-1",), "must be a non-negative integer or null", ""),
        ((*MEGATRON, f"{A}.megatron.dtype=float32"), "megatron.dtype=float32: verl refuses it: dtype float32 not", ""),
        ((*MEGATRON, f"{A}.megatron.router_replay.mode=R9"), "Invalid router_replay mode: R9", ""),
        # Megatron
        ((*MEGATRON, f"{A}.megatron.tensor_model_parallel_size=3"), "16 GPUs cannot be divided by", "parallel_size=2"),
        ((*MEGATRON, f"{A}.megatron.expert_model_parallel_size=3"), "expert_model_parallel_size=3 times", "=2"),
        ((*MEGATRON, f"{A}.megatron.virtual_pipeline_model_parallel_size=2"), "needs pipeline", "=null"),
        ((*MEGATRON, f"{A}.megatron.use_mbridge=False"), "verl needs the bridge", "use_mbridge=True"),
        ((f"{A}.strategy=megatron", *TOKENS, *GRPO), f"needs a section {A}.megatron", "model_engine"),
        # the trainer's steps, servers, rewards, distillation
        (("data.gen_batch_size=48",), "cannot be divided by data.gen_batch_size=48", "data.gen_batch_size=null"),
        ((f"{R}.data_parallel_size=2", f"{R}.tensor_model_parallel_size=8", "trainer.n_gpus_per_node=4",
          "trainer.nnodes=4"),
         "a replica has 4 GPUs on a node, which", "tensor_model_parallel_size=4"),
        ((*PREFILL, f"{R}.disaggregation.transfer_backend=mori"), "vLLM has nixl and mooncake", "backend=nixl"),
        ((*PREFILL, f"{R}.disaggregation.transfer_backend=foo"), "refuses it: disaggregation.transfer_backend", ""),
        ((*PREFILL, f"{R}.tensor_model_parallel_size=8"), "a replica of prefill and decode takes 16 GPUs", ""),
        (("reward.reward_manager.source=importlib",), "needs reward.reward_manager.module.path", "source=register"),
        ((*OVERLONG, "+reward.reward_kwargs.overlong_buffer_cfg.len=128"),
         "overlong_buffer_cfg.enable needs reward.reward_kwargs.max_resp", "reward.reward_kwargs.max_resp_len=512"),
        ((*OVERLONG, "+reward.reward_kwargs.max_resp_len=1024"), "enable needs reward.reward_kwargs.overlong", ""),
        ((OVERLONG[0], "+reward.reward_kwargs.overlong_buffer_cfg.len=9"), "overlong_buffer_cfg.enable (dapo.py)", ""),
        ((*OVERLONG, "+reward.reward_kwargs.overlong_buffer_cfg.len=9", "+reward.reward_kwargs.max_resp_len=abc"),
         "overlong_buffer_cfg.len are numbers of tokens", ""),
        ((*OVERLONG, "+reward.reward_kwargs.overlong_buffer_cfg.len=4096", "+reward.reward_kwargs.max_resp_len=1024"),
         "overlong_buffer_cfg.len=4096: verl's manager needs 1 to reward.reward_kwargs.max_resp_len=1024", "len=256"),
        ((*TEACHER, "distillation.distillation_loss.loss_mode=foo"), "loss_mode=foo: verl has none", ""),
        ((*TEACHER, "distillation.teacher_models.teacher_model.inference.tensor_model_parallel_size=3"),
         "Single teacher's per_replica_world_size (3) must divide", ""),
    ],
)  # fmt: skip
def test_what_ends_a_job(overrides: tuple[str, ...], text: str, hint: str) -> None:
    [problem] = problems(*overrides)
    assert text in problem.text
    assert hint in problem.hint
    assert "\n" not in problem.text
    if overrides_of(problem.hint):
        assert problems(*with_hint(overrides, problem)) == ()


@pytest.mark.parametrize(
    "overrides",
    [
        (f"{R}.top_k=0", f"{R}.val_kwargs.top_p=0.7"),
        ("critic.optim.lr=abc", *GRPO),  # there is no critic
        (f"{A}.kl_loss_type=foo",),  # nothing reads it
        ("reward_model.reward_manager=dapo", "+reward_model.reward_kwargs.overlong_buffer_cfg.enable=True"),
        ("algorithm.kl_ctrl.type=foo", "algorithm.gamma=x", *GRPO),
        (f"{A}.ppo_mini_batch_size=-1", "trainer.val_only=True", "critic.ppo_mini_batch_size=0",
         f"{A}.use_dynamic_bsz=True", f"{R}.log_prob_use_dynamic_bsz=True", "critic.use_dynamic_bsz=True"),
        ("trainer.save_freq=foo", "trainer.val_only=True"),
        ("trainer.total_epochs=1.5", "trainer.total_training_steps=null", "trainer.save_freq=2.5"),
        (f"{A}.fsdp_config.model_dtype=null", f"{A}.optim.optimizer_impl=bnb.optim", f"{A}.optim.optimizer=Adam8"),
        (f"{R}.name=sglang", f"{R}.quantization=fp8"),
        ("+trainer.mine=1", "+data.mine=1", f"+{R}.custom.mine=1", f"+{R}.engine_kwargs.vllm.mine=1",
         "+actor_rollout_ref.model.override_config.mine=1", "+reward.custom_reward_function.reward_kwargs.x=1"),
        (f"{A}.optim.override_optimizer_config={{eps:1e-8}}", "algorithm.rollout_correction=null"),
        (f"{R}.agent.default_agent_loop=tool_agent",),
        MEGATRON, TEACHER, PREFILL,
        (*TEACHER, *(f"+distillation.teacher_models.{name}.{key}" for name in ("one", "two")
                     for key in (f"key={name}", "model_path=/t", "num_replicas=2"))),
    ],
)  # fmt: skip
def test_what_verl_takes(overrides: tuple[str, ...]) -> None:
    assert problems(*overrides) == ()


def test_code_of_the_users_may_bring_names_and_keys() -> None:
    overrides = ("+algorithm.mine=1", f"{R}.name=mine", "reward.reward_manager.name=mine")
    assert len(problems(*overrides)) == 3
    assert problems(*overrides, own_code=True) == ()
    assert len(rules.notes(setting(*overrides, own_code=True))) == 2


def test_a_key_that_verl_does_not_read_is_noted() -> None:
    [note] = rules.notes(setting("+data.enable_thinkin=False"))
    assert note == (
        f"data.enable_thinkin: verl {RELEASE.verl} reads no key of that name; does your code read it?"
    )  # fmt: skip


@pytest.mark.parametrize("release", sorted({path.name for path in SHIPPED.iterdir() if path.is_dir()} - {RELEASE.verl}))
def test_of_another_release_only_its_own_code_speaks(release: str) -> None:
    plain = ("trainer.save_freq=foo", f"{A}.optim.lr=abc")
    assert problems(*plain, release=release) == ()
    assert rules.notes(setting(*plain, release=release)) == ()
    [problem] = problems(f"+{A}.my_key=1", release=release)
    assert problem.text == f"{A}.my_key: FSDPActorConfig of verl has no field 'my_key' (workers/config/actor.py)"
    [problem] = problems(f"{A}.loss_agg_mode=tokens", release=release)
    assert "verl refuses it: Invalid loss_agg_mode: tokens" in problem.text
