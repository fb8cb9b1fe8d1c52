#!/bin/bash
# Training ppo-rocm on Slurm, rendered by cloudrl. Nothing else is needed to start it:
#
#   sbatch ppo-rocm.sh
#
# Each node runs one agent, which checks it, starts Ray and fetches data and models; READY means that all of it is up.
# Logs and state: ~/.cloudrl/slurm/JOB_ID, which all nodes share.
#SBATCH --job-name=ppo-rocm
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=56
#SBATCH --mem=204800M
#SBATCH --comment=cloudrl:
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.log
#SBATCH --signal=B:USR1@120
#SBATCH --time=24:00:00

set -euo pipefail
umask 077

# of another job, if sbatch was typed in one; srun would read them
unset SLURM_MEM_PER_CPU SLURM_MEM_PER_GPU SLURM_MEM_PER_NODE SLURM_CPU_BIND SLURM_CPUS_PER_GPU SLURM_GPUS \
  SLURM_GPUS_PER_SOCKET SLURM_GPUS_PER_TASK SLURM_MEM_BIND SLURM_NTASKS_PER_GPU SLURM_NTASKS_PER_TRES \
  SLURM_TRES_PER_TASK

RUN_DIR=$HOME/.cloudrl/slurm
TMP_DIR=/tmp
CLUSTER=ppo-rocm
GPUS=amd
MAX_FAILURES=5          # so often a lost node lets the job start again
TIME_LIMIT_NOTICE_S=120 # as in --signal
JOIN_TIMEOUT_S=1800
PYTHON=python3
ENGINE=docker
DOCKERFILE=''
SHM_SIZE=128GB
IMAGE=verlai/verl:rocm702-vllm020-te210-20260518
VOLUMES=(
  /shared/me/checkpoints:/checkpoints
  /shared/me/huggingface:/root/.cache/huggingface
)
CONTAINER_OPTIONS=()
VARIABLES=()
SECRETS=()
STEP=() # further options of srun
unset HF_HUB_CACHE HF_XET_CACHE HF_ASSETS_CACHE HF_DATASETS_CACHE HF_MODULES_CACHE HF_TOKEN_PATH # where the login node has them, the container may have nothing
options=(
  --device=gpu
  --gpus-per-node=8
  '--setup=pip install --no-deps verl==0.9.1 TransferQueue==0.1.11'
  '--import-check=numpy,torch,vllm'
  --data=gsm8k
  --data=math
  --model=Qwen/Qwen2.5-0.5B-Instruct
  --checkpoints=/checkpoints
  --data-dir=/checkpoints/.cloudrl/data
  --join-timeout-s=1800
  --disks-stay=yes
)

set_up_node() {
  :
}


write_job() {
  cat <<'JOB'
{
  "argv": [
    "python3",
    "-m",
    "cloudrl_on_head",
    "verl.trainer.main_ppo",
    "trainer.nnodes=2",
    "trainer.n_gpus_per_node=8",
    "trainer.project_name=ppo-rocm-0.5b",
    "trainer.experiment_name=ppo-rocm__TASK__",
    "trainer.logger=[console]",
    "trainer.resume_mode=auto",
    "trainer.default_local_dir=/checkpoints/ppo-rocm__TASK__",
    "trainer.validation_data_dir=/checkpoints/ppo-rocm__TASK__/validation",
    "data.train_files=[/checkpoints/.cloudrl/data/gsm8k/train.parquet,/checkpoints/.cloudrl/data/math/train.parquet]",
    "data.val_files=[/checkpoints/.cloudrl/data/gsm8k/test.parquet,/checkpoints/.cloudrl/data/math/test.parquet]",
    "actor_rollout_ref.model.path=Qwen/Qwen2.5-0.5B-Instruct",
    "critic.model.path=Qwen/Qwen2.5-0.5B-Instruct",
    "data.train_batch_size=1024",
    "data.max_prompt_length=1024",
    "data.max_response_length=1024",
    "data.filter_overlong_prompts=True",
    "algorithm.adv_estimator=gae",
    "algorithm.kl_ctrl.kl_coef=0.0001",
    "actor_rollout_ref.actor.ppo_mini_batch_size=256",
    "actor_rollout_ref.actor.optim.lr=1e-06",
    "critic.optim.lr=1e-05",
    "trainer.critic_warmup=0",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8",
    "critic.ppo_micro_batch_size_per_gpu=8",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=16",
    "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=16",
    "actor_rollout_ref.model.use_remove_padding=True",
    "actor_rollout_ref.model.enable_gradient_checkpointing=True",
    "critic.model.use_remove_padding=True",
    "critic.model.enable_gradient_checkpointing=False",
    "actor_rollout_ref.actor.fsdp_config.param_offload=False",
    "actor_rollout_ref.actor.fsdp_config.optimizer_offload=False",
    "actor_rollout_ref.ref.fsdp_config.param_offload=True",
    "critic.fsdp.param_offload=False",
    "critic.fsdp.optimizer_offload=False",
    "actor_rollout_ref.rollout.name=vllm",
    "actor_rollout_ref.rollout.tensor_model_parallel_size=2",
    "actor_rollout_ref.rollout.gpu_memory_utilization=0.9",
    "trainer.total_epochs=15",
    "trainer.save_freq=20",
    "trainer.test_freq=10",
    "trainer.val_before_train=False",
    "trainer.checkpoint_callback_class=cloudrl_save_hook.SaveCallback",
    "trainer.max_actor_ckpt_to_keep=null",
    "trainer.max_critic_ckpt_to_keep=null"
  ],
  "submission_id": "ppo-rocm__TASK__",
  "runtime_env": {
    "env_vars": {
      "HF_HUB_OFFLINE": "1",
      "HYDRA_FULL_ERROR": "1",
      "TOKENIZERS_PARALLELISM": "false",
      "GPU_MAX_HW_QUEUES": "2",
      "TORCH_NCCL_HIGH_PRIORITY": "1",
      "NCCL_CROSS_NIC": "0",
      "NCCL_PROTO": "Simple",
      "RCCL_MSCCL_ENABLE": "0"
    }
  },
  "metadata": {
    "job_name": "ppo-rocm__TASK__",
    "cloudrl_recipe": "ppo-rocm-0.5b",
    "cloudrl_checkpoints": "/checkpoints/ppo-rocm__TASK__",
    "cloudrl_verl": "0.9.1"
  },
  "durable": {
    "world_size": 16,
    "total_steps": null,
    "saves": true,
    "chooses_step": false,
    "training_nodes": 0,
    "is_placed": false,
    "keep": 2,
    "keep_every": 0,
    "keep_best": "",
    "mirror": "",
    "mirror_rate": 0
  }
}
JOB
}

