
# -- the agent runs in a container of its own on each node

prepare_image() { :; }

prepare_node() {
  local said
  inside=/opt/cloudrl run_dir=/tmp/cloudrl-run ray_dir=/tmp/ray
  container=cloudrl-$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}-$rank
  said=$(timeout 20 "$ENGINE" version 2>&1) || fail "$ENGINE does not answer on this node: ${said##*$'\n'}"
  remove_stale
  if [ -n "$DOCKERFILE" ]; then
    [ -r "$DOCKERFILE" ] || fail "there is no $DOCKERFILE on this node"
    IMAGE=$IMAGE:$(sha256sum <"$DOCKERFILE" | cut -c1-12)
  fi
  "$ENGINE" image inspect "$IMAGE" >/dev/null 2>&1 && return
  if [ -n "$DOCKERFILE" ]; then
    say "building $IMAGE"
    said=$("$ENGINE" build -q -t "$IMAGE" -f "$DOCKERFILE" "$(dirname "$DOCKERFILE")" 2>&1) || fail "no image: ${said##*$'\n'}"
  else
    say "pulling $IMAGE"
    said=$("$ENGINE" pull -q "$IMAGE" 2>&1) || fail "no image $IMAGE: ${said##*$'\n'}"
  fi
}

# Containers outlive a node step that was killed. Only our own, of jobs that Slurm says are over.
remove_stale() {
  local name job
  while IFS= read -r name; do
    job=${name#cloudrl-} job=${job%%-*}
    [ "$job" = "$SLURM_JOB_ID" ] || is_over "$job" || continue
    say "removing container $name, which its job has left"
    "$ENGINE" rm -f "$name" >/dev/null 2>&1 || true
  done < <("$ENGINE" ps -a --filter "label=cloudrl.node=$(id -un)@$SLURMD_NODENAME" --format '{{.Names}}')
}

start_agent() {
  local name site words=(--name "$container" --network host --log-driver none --security-opt label=disable
    --label "cloudrl.node=$(id -un)@$SLURMD_NODENAME" --entrypoint "$PYTHON"
    --mount "type=bind,source=$folder,target=$inside,readonly") # no empty folder where docker does not see this one
  for name in "${VOLUMES[@]}"; do
    [ -e "${name%%:*}" ] || mkdir -p "${name%%:*}" || fail "there is no ${name%%:*} on this node"
    words+=(--volume "$name")
  done
  mapfile -t site < <(site_variables)
  for name in "${site[@]}" "${VARIABLES[@]}" "${SECRETS[@]}" "${!SLURM_@}" "${!CLOUDRL_@}" "${!MLP_@}"; do
    words+=(--env "$name") # without its value, which shows in no list of processes
  done
  [ -z "$SHM_SIZE" ] || words+=(--shm-size "$SHM_SIZE")
  [ ! -e /dev/infiniband ] || words+=(--device /dev/infiniband --ulimit memlock=-1)
  give_devices
  # what the container sees is the whole node
  [ "$GPUS" = none ] || options+=(--cpus-per-node="${SLURM_CPUS_PER_TASK:-$SLURM_CPUS_ON_NODE}")
  "$ENGINE" run "${words[@]}" "${CONTAINER_OPTIONS[@]}" "$IMAGE" "$inside/cloudrl-node.pyz" run "${options[@]}" &
  agent=$!
}

give_devices() {
  local id ids=${SLURM_STEP_GPUS:-} group=video
  case $GPUS-$ENGINE in
    amd-*)
      [ "$ENGINE" = docker ] || [ "$(id -u)" = 0 ] || group=keep-groups
      [ -z "$ids" ] || export HIP_VISIBLE_DEVICES=$ids
      words+=(--device /dev/kfd --device /dev/dri --group-add "$group" --cap-add SYS_PTRACE
        --security-opt seccomp=unconfined ${HIP_VISIBLE_DEVICES:+--env HIP_VISIBLE_DEVICES})
      ;;
    nvidia-docker) words+=(--gpus "${ids:+\"device=}${ids:-all}${ids:+\"}") ;;
    nvidia-podman)
      for id in ${ids//,/ }; do words+=(--device "nvidia.com/gpu=$id"); done
      [ -n "$ids" ] || words+=(--device nvidia.com/gpu=all)
      ;;
  esac
}

# shellcheck disable=SC2317 # a trap calls it, and the next one
stop_agent() { "$ENGINE" stop -t 3 "$container" >/dev/null 2>&1 || true; }

# shellcheck disable=SC2317
clean_up() {
  [ -n "$agent" ] || return 0
  local said
  mkdir -p "$folder" # stop_node may have removed it, and docker copies nothing without what the container had bound
  said=$("$ENGINE" cp "$container:$run_dir" "$CLOUDRL_RUN_DIR/nodes/$rank" 2>&1) ||
    say "the agent's log cannot be copied out of its container: ${said##*$'\n'}"
  "$ENGINE" rm -f "$container" >/dev/null 2>&1 || true
}
