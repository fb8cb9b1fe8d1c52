#!/bin/bash
# Training grpo on Slurm, rendered by cloudrl. Nothing else is needed to start it:
#
#   sbatch two.sh
#
# Each node runs one agent, which checks it, starts Ray and fetches data and models; READY means that all of it is up.
# Logs and state: ~/.cloudrl/slurm/JOB_ID, which all nodes share.
#SBATCH --job-name=two
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --mem=524288M
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.log
#SBATCH --signal=B:USR1@120
#SBATCH --partition=gpu
#SBATCH --account=rl-lab
#SBATCH --time=24:00:00
#SBATCH --exclusive
#SBATCH --mail-type=END,FAIL
#SBATCH --comment="two words, \"quoted\""

set -euo pipefail
umask 077

# of another job, if sbatch was typed in one; srun would read them
unset SLURM_MEM_PER_CPU SLURM_MEM_PER_GPU SLURM_MEM_PER_NODE SLURM_CPU_BIND SLURM_CPUS_PER_GPU SLURM_CPUS_PER_TASK \
  SLURM_GPUS SLURM_GPUS_PER_SOCKET SLURM_GPUS_PER_TASK SLURM_MEM_BIND SLURM_NTASKS_PER_GPU SLURM_NTASKS_PER_TRES \
  SLURM_TRES_PER_TASK

RUN_DIR=$HOME/.cloudrl/slurm
TMP_DIR=/tmp
CLUSTER=two
GPUS=nvidia
MAX_FAILURES=5          # so often a lost node lets the job start again
TIME_LIMIT_NOTICE_S=120 # as in --signal
JOIN_TIMEOUT_S=1800
PYTHON=python3
SECRETS=(
  HF_TOKEN
)
STEP=() # further options of srun
export NCCL_DEBUG=WARN
export GREETING='it'"'"'s'
options=(
  --device=gpu
  --gpus-per-node=8
  '--setup=pip install -q '"'"'math-verify'"'"''
  '--import-check=numpy,torch'
  --data=gsm8k
  --model=Qwen/Qwen2.5-0.5B-Instruct
  --checkpoints=/shared/ckpt
  --data-dir=/shared/ckpt/.cloudrl/data
  --join-timeout-s=1800
  --disks-stay=yes
)

set_up_node() {
# shellcheck disable=SC1091
command -v module >/dev/null || . /etc/profile
module load cuda/13.0 || fail 'module load cuda/13.0'
{
ulimit -l unlimited || true
} || fail 'node_setup: ulimit -l unlimited || true'
}

# ---- From here on nothing needs to be changed --------------------------------------------------------------------

who=batch rank='' stopped='' agent='' status=0
failed=4 retry=75   # what agents end with: a failure, and the loss of a cluster that was READY
# one task of a job array has the number of the whole array, and Slurm's commands would take it for that
this_job=${SLURM_JOB_ID:-}
if [ "${SLURM_ARRAY_JOB_ID:-none}" = "$this_job" ]; then this_job+=_$SLURM_ARRAY_TASK_ID; fi

say() { printf '[%(%H:%M:%S)T %s] %s\n' -1 "$who" "$*"; }

fail() {
  [ -z "$stopped" ] || exit 143 # what is being done when the end comes fails because of it
  say "FAILED: $*"
  [ -z "$rank" ] || printf '%s: %s\n' "$who" "$*" >"$CLOUDRL_RUN_DIR/nodes/$rank.failed"
  exit "$failed"
}

# -- the batch script: one agent a node, as steps of this job; it ends when one of them does

batch() {
  [ -n "${SLURM_JOB_ID:-}" ] || { say "this is a job for Slurm: sbatch $0"; exit 2; }
  local hosts pids=() node began log_begin # of this start: a job that is queued again writes on
  log_begin=$(stat -L -c %s "/proc/$$/fd/1")
  mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
  [ "${#hosts[@]}" = "$SLURM_JOB_NUM_NODES" ] || fail "scontrol does not say which nodes are in $SLURM_JOB_NODELIST"
  make_run_dir
  trap 'rm -rf "$CLOUDRL_RUN_DIR"/{key,job.sh,cloudrl-node.pyz,files}' EXIT # steps that still run have read job.sh
  describe_cluster "${hosts[@]}"
  say "job $SLURM_JOB_ID, start ${SLURM_RESTART_COUNT:-0} on $SLURM_JOB_NODELIST; logs: $CLOUDRL_RUN_DIR"
  trap 'stopped=TERM' TERM INT
  trap 'stopped=USR1' USR1
  prepare_image
  [ -z "$stopped" ] || finish # during a long pull
  began=$SECONDS
  for node in "${!hosts[@]}"; do
    start_node "$node" "${hosts[node]}" &
    pids+=($!)
  done
  until [ -n "$stopped" ] || any_ended "${pids[@]}" || is_late "$began"; do pause; done
  # the agent of rank 0 hears of the others, says why, and ends by itself; it cannot of a node that never had an agent
  [ -n "$stopped" ] || [ -n "$(reasons)" ] || await 20 "${pids[0]}"
  trap : TERM INT USR1
  if any_ended "${pids[0]}"; then
    wait "${pids[0]}" || status=$?
    [ "$stopped" = TERM ] || stopped='' # the time limit is near, and the training has just ended
  else
    status=$failed
    [ -n "$stopped" ] || tail -n 3 "$CLOUDRL_RUN_DIR"/nodes/*.log 2>/dev/null || true # rank 0 says nothing of it
  fi
  stop_nodes "${pids[@]}"
  finish
}

finish() {
  local each
  while IFS= read -r each; do say "$each"; done < <(reasons)
  case $stopped in
    TERM) status=143 ;;
    USR1)
      if was_ready; then requeue "the time limit is near"; else
        give_up "the time limit is near, and the cluster was not READY in time: raise slurm.time"
      fi
      ;;
    *)
      [ "$status" != "$retry" ] || requeue_failed
      if [ "$status" = 143 ] && is_preempted; then requeue "another job takes the nodes"; fi
      ;;
  esac
  printf '%s\n' "$status" >"$CLOUDRL_RUN_DIR/status"
  say "ended with status $status"
  exit "$status"
}

# A job whose time is too short to get that far would be queued again for ever. The log of the agent is not there yet
# where it has to be copied out of a container and that takes too long; what rank 0 says is in the job's log as well.
was_ready() {
  grep -qs '] READY: ' "$CLOUDRL_RUN_DIR/nodes/0/agent.log" && return
  [ -f "/proc/$$/fd/1" ] && grep -q '] READY: ' < <(tail -c "+$((log_begin + 1))" "/proc/$$/fd/1")
}

# Within GraceTime Slurm tells the steps alone, and before 24.05 a job that ends then is not queued again.
is_preempted() { [[ $(timeout 20 scontrol show job "$this_job") =~ PreemptTime=[0-9] ]]; }

give_up() { # WHY
  say "FAILED: $1"
  printf '%s\n' "$1" >"$CLOUDRL_RUN_DIR/nodes/0.failed"
  status=$failed
}

# The agent of rank 0 knows of nodes that do not join; whether it is there at all only this script knows.
is_late() { # SINCE
  if ((SECONDS - $1 <= JOIN_TIMEOUT_S)) || [ -e "$CLOUDRL_RUN_DIR/nodes/0.agent" ]; then return 1; fi
  give_up "rank 0 has no agent after $JOIN_TIMEOUT_S s: its image, the set-up of its node or Slurm itself hangs"
}

requeue_failed() {
  local record="$RUN_DIR/$SLURM_JOB_ID/failures"
  date >>"$record"
  if (($(wc -l <"$record") < MAX_FAILURES)); then
    requeue "a node, or Ray on it, was lost"
    give_up "a node, or Ray on it, was lost, and Slurm does not queue this job again"
    return
  fi
  give_up "a node, or Ray on it, was lost $MAX_FAILURES times; the job is not queued again"
}

# Slurm ends the job as soon as it is queued again; the next start has another folder, and goes on from a checkpoint.
requeue() {
  printf 'requeued\n' >"$CLOUDRL_RUN_DIR/status"
  say "$1: queued again"
  timeout 60 scontrol requeue "$this_job" && exit 0
  say "scontrol cannot queue this job again"
  status=$failed
}

make_run_dir() {
  mkdir -p "$RUN_DIR" || fail "$RUN_DIR cannot be made"
  { [ -O "$RUN_DIR" ] && [ "$(stat -c %u "$RUN_DIR")" = "$EUID" ]; } || fail "$RUN_DIR belongs to another user"
  chmod 700 "$RUN_DIR"
  export CLOUDRL_RUN_DIR="$RUN_DIR/$SLURM_JOB_ID/${SLURM_RESTART_COUNT:-0}"
  mkdir -p "$CLOUDRL_RUN_DIR"/{nodes,files} || fail "$CLOUDRL_RUN_DIR cannot be written"
  head -c 32 /dev/urandom | od -An -v -tx1 | tr -d ' \n' >"$CLOUDRL_RUN_DIR/key" || fail "no room in $RUN_DIR"
  cp -- "$0" "$CLOUDRL_RUN_DIR/job.sh" || fail "no room in $RUN_DIR"
  write_agent >"$CLOUDRL_RUN_DIR/cloudrl-node.pyz" || fail "the agent cannot be written to $RUN_DIR"
  write_files "$CLOUDRL_RUN_DIR/files" || fail "no room in $RUN_DIR"
  # in a job array each task is a run of its own
  write_job | sed "s/__TASK__/${SLURM_ARRAY_TASK_ID:+-$SLURM_ARRAY_TASK_ID}/g" >"$CLOUDRL_RUN_DIR/job.json"
}

# What the agents read (cloudrl/node/identity.py), and what a client has to know.
describe_cluster() { # HOST...
  local ip port end name
  ip=$(address_of "$1")
  [ -n "$ip" ] || fail "node $1 has no IPv4 address but loopback: getent ahostsv4 $1"
  port=$((20000 + SLURM_JOB_ID % 2500 * 4)) # two jobs on a node differ
  while is_open "$ip" "$port" "$((port + 1))" "$((port + 3))" || is_open 127.0.0.1 "$((port + 2))"; do
    port=$((port + 4))
  done
  printf '{"ip": "%s", "agent": %d, "gcs": %d, "dashboard": %d, "client": %d}\n' \
    "$ip" "$port" "$((port + 1))" "$((port + 2))" "$((port + 3))" >"$CLOUDRL_RUN_DIR/head.json"
  export CLOUDRL_PROVIDER=slurm CLOUDRL_CLUSTER=$CLUSTER CLOUDRL_RUN_ID=$SLURM_JOB_ID CLOUDRL_HEAD_IP=$ip
  export CLOUDRL_NODES_NUM=$SLURM_JOB_NUM_NODES CLOUDRL_RETRY_STATUS=$retry CLOUDRL_PORT=$port
  keep_nodes_off_proxy "$@"
  # verl's older trainer saves before this time (verl 0.9.1, utils/checkpoint/checkpoint_manager.py)
  end=$(timeout 10 squeue --noheader --jobs="$this_job" --format=%e || true)
  if [ -n "$end" ] && end=$(date --date="$end" +%s 2>/dev/null); then
    export MLP_CURRENT_CAPACITY_BLOCK_EXPIRATION_TIMESTAMP=$((end - TIME_LIMIT_NOTICE_S))
    export CLOUDRL_ENDS_AT=$((end - TIME_LIMIT_NOTICE_S))
  fi
  for name in "${SECRETS[@]}"; do
    [ -n "${!name:-}" ] || export "$name=$(secret "$name")"
    [ -n "${!name}" ] || fail "secret $name is not set: export it before sbatch, or write it to $RUN_DIR/secrets/$name"
  done
}

secret() { # NAME: of this cluster, or else of all
  local file
  for file in "$RUN_DIR/secrets/$CLUSTER/$1" "$RUN_DIR/secrets/$1"; do
    if [ -s "$file" ]; then cat "$file" && return; fi
  done
}

# The first IPv4 address of a node that other nodes can reach, by its name or else by what Slurm calls it.
address_of() {
  local name
  for name in "$1" "$(timeout 20 scontrol show node "$1" | sed -n 's/.*NodeAddr=\([^ ]*\).*/\1/p')"; do
    getent ahostsv4 "$name" | awk '$1 !~ /^127\./ {print $1; exit}' || true
  done | awk 'NR == 1'
}

# Programs of a job speak HTTP with each other, and requests and httpx would send that to a site's proxy.
keep_nodes_off_proxy() { # HOST...
  [ -n "${http_proxy:-}${https_proxy:-}${all_proxy:-}${HTTP_PROXY:-}${HTTPS_PROXY:-}${ALL_PROXY:-}" ] || return 0
  local host direct=${no_proxy:-${NO_PROXY:-}}
  direct+=${direct:+,}localhost,127.0.0.1
  for host; do direct+=,$host,$(address_of "$host"); done
  export no_proxy=$direct NO_PROXY=$direct
}

is_open() { # IP PORT...
  local port
  for port in "${@:2}"; do
    if (: <"/dev/tcp/$1/$port") 2>/dev/null; then return 0; fi
  done
  return 1
}

start_node() { # RANK HOST
  # the log of rank 0 is that of the job
  [ "$1" = 0 ] || exec >"$CLOUDRL_RUN_DIR/nodes/$1.log" 2>&1
  exec srun --overlap --export=ALL --nodes=1 --ntasks=1 --nodelist="$2" \
    --cpus-per-task="${SLURM_CPUS_PER_TASK:-$SLURM_CPUS_ON_NODE}" "${STEP[@]}" bash "$CLOUDRL_RUN_DIR/job.sh" node "$1"
}

reasons() { cat "$CLOUDRL_RUN_DIR"/nodes/*.failed 2>/dev/null || true; }

pause() { # a signal ends it
  sleep 1 >/dev/null 2>&1 &
  wait $! || true
}

any_ended() { # PID...
  local pid
  for pid; do kill -0 "$pid" 2>/dev/null || return 0; done
  return 1
}

stop_nodes() { # PID...: the steps get the signal, this script does not; one that was just starting gets the next
  local pid _
  for _ in 1 2 3; do
    for pid; do any_ended "$pid" || break; done
    any_ended "$pid" && return
    timeout 30 scancel --quiet --signal=TERM "$this_job" || true
    await 10 "$@"
  done
}

await() { # SECONDS PID...: until all have ended
  local deadline=$((SECONDS + $1)) pid
  for pid in "${@:2}"; do
    until any_ended "$pid" || ((SECONDS >= deadline)); do pause; done
  done
}

# -- one node: a step of the job; it owns its agent and whatever that runs in

node() { # RANK
  rank=$1
  who="rank $1, $SLURMD_NODENAME"
  folder=$TMP_DIR/cr-$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}-$rank # short: paths of Unix sockets end at 107 bytes
  export CLOUDRL_NODE_RANK=$rank
  trap stop_node TERM INT
  remove_stale_folders
  mkdir -m 700 "$folder" || fail "$folder cannot be made"
  trap 'clean_up; rm -rf "$folder"' EXIT
  cp -R "$CLOUDRL_RUN_DIR"/{key,job.json,cloudrl-node.pyz,files/.} "$folder" || fail "no room in $folder"
  ulimit -c 0 || true # Ray leaves a core when it is killed
  set +eu # a site's own commands
  set_up_node
  set -eu
  choose_devices
  prepare_node
  local p=$CLOUDRL_PORT
  options+=(--key-file="$inside/key" --run-dir="$run_dir" --ray-temp-dir="$ray_dir" --agent-port="$p"
    --gcs-port="$((p + 1))" --dashboard-port="$((p + 2))" --client-port="$((p + 3))" --dashboard-agent-port=0
    --node-manager-port=0 --object-manager-port=0 --worker-ports=0-0)
  if [ "$rank" = 0 ] && [ -s "$folder/job.json" ]; then options+=(--job="$inside/job.json"); fi
  [ -z "$stopped" ] || exit 143
  touch "$CLOUDRL_RUN_DIR/nodes/$rank.agent" || fail "no room in $CLOUDRL_RUN_DIR"
  start_agent
  [ -z "$stopped" ] || stop_agent # told before there was one
  while :; do
    status=0
    wait "$agent" || status=$?
    any_ended "$agent" && break
  done
  exit "$status"
}

# After scancel Slurm kills what is there after KillWait, which may be 5 s: an agent that takes longer loses its folder.
# shellcheck disable=SC2317 # a trap calls it
stop_node() {
  [ -n "$stopped" ] || { sleep 4; rm -rf "$folder"; } >/dev/null 2>&1 &
  stopped=TERM
  [ -z "$agent" ] || stop_agent
}

# A node step that Slurm had to kill leaves its folder. Only our own are removed, and only of what is over.
remove_stale_folders() {
  local old job
  for old in "$TMP_DIR"/cr-*; do
    [ -O "$old" ] || continue
    job=${old#"$TMP_DIR"/cr-} job=${job%%-*}
    if [ "$job" = "$SLURM_JOB_ID" ]; then
      [[ $old != "${folder%-*}"-* ]] || continue # another rank of this start
    else
      is_over "$job" || continue
    fi
    rm -rf "$old" || true
  done
}

# What a site gives programs on its nodes: the way to the internet, and to the fast network. Tokens are secrets, which
# are named one by one.
# shellcheck disable=SC2317 # docker and apptainer call it
site_variables() {
  local name
  for name in {http,https,ftp,all,no}_proxy {HTTP,HTTPS,FTP,ALL,NO}_PROXY "${!HF_@}" "${!NCCL_@}" "${!RCCL_@}" \
    "${!UCX_@}" "${!FI_@}" "${!GLOO_@}"; do
    [[ $name == HF_TOKEN* || -z ${!name+set} ]] || printf '%s\n' "$name"
  done
}

is_over() { # JOB: Slurm says so, or has forgotten it
  local said
  said=$(timeout 10 squeue --noheader --jobs="$1" --states=all --format=%T 2>&1 || true)
  [[ $said == *"Invalid job id"* || $said =~ ^(COMPLETED|CANCELLED|FAILED|TIMEOUT|NODE_FAIL|OUT_OF_MEMORY)$ ]]
}

# Slurm sets the variables of all vendors at once, and verl refuses more than one of them.
choose_devices() {
  local given=${ROCR_VISIBLE_DEVICES:-${CUDA_VISIBLE_DEVICES:-}}
  unset ROCR_VISIBLE_DEVICES GPU_DEVICE_ORDINAL ZE_AFFINITY_MASK HIP_VISIBLE_DEVICES
  [ "$GPUS" = nvidia ] || unset CUDA_VISIBLE_DEVICES
  case $GPUS in
    amd)
      [ -e /dev/kfd ] || fail "there is no /dev/kfd on this node: no GPU of AMD, or no driver"
      [ -z "$given" ] || export HIP_VISIBLE_DEVICES=$given
      ;;
    nvidia) [ -e /dev/nvidiactl ] || fail "there is no /dev/nvidiactl on this node: no GPU of NVIDIA, or no driver" ;;
  esac
}

# -- the agent runs on the node itself

prepare_image() { :; }

prepare_node() {
  inside=$folder run_dir=$CLOUDRL_RUN_DIR/nodes/$rank ray_dir=$folder/ray
  command -v "$PYTHON" >/dev/null || fail "there is no $PYTHON on this node"
}

start_agent() {
  "$PYTHON" "$folder/cloudrl-node.pyz" run "${options[@]}" &
  agent=$!
}

# shellcheck disable=SC2317 # a trap calls it, and the next one
stop_agent() { kill -TERM "$agent" 2>/dev/null || true; }

# shellcheck disable=SC2317
clean_up() { :; }

write_job() {
  cat <<'JOB'
{
  "submission_id": "grpo__TASK__",
  "argv": [
    "python3",
    "-m",
    "verl.trainer.main_ppo",
    "trainer.nnodes=2",
    "trainer.default_local_dir=/ckpt/grpo__TASK__"
  ],
  "runtime_env": {
    "env_vars": {
      "HF_HUB_OFFLINE": "1"
    }
  },
  "metadata": {
    "job_name": "grpo__TASK__"
  }
}
JOB
}

# cloudrl-node.pyz
write_agent() {
  base64 -d <<'AGENT' | gzip -d
H4sIAAAAAAACAwMAAAAAAAAAAAA=
AGENT
}

write_files() { :; }

if [ "${1:-}" = node ]; then node "$2"; else batch; fi
