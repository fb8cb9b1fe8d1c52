
# -- the agent runs in Apptainer on each node

# One file for all nodes, in the shared folder; of two jobs that want it one waits.
prepare_image() {
  local file said
  [[ $IMAGE == /* ]] && return
  file=$RUN_DIR/images/$(printf '%s' "$IMAGE" | tr -c 'A-Za-z0-9._-' _).sif
  mkdir -p "$RUN_DIR/images"
  if [ ! -e "$file" ]; then
    say "pulling $IMAGE"
    # shellcheck disable=SC2016 # for the inner shell
    said=$(timeout "$JOIN_TIMEOUT_S" flock "$file.lock" sh -c '[ -e "$1" ] || { apptainer pull --force "$1.part" "docker://$2" && mv "$1.part" "$1"; }' \
      sh "$file" "$IMAGE" 2>&1) || fail "no image $IMAGE: ${said##*$'\n'}"
  fi
  export CLOUDRL_IMAGE=$file
}

prepare_node() {
  inside=$folder run_dir=$CLOUDRL_RUN_DIR/nodes/$rank ray_dir=$folder/ray
  IMAGE=${CLOUDRL_IMAGE:-$IMAGE}
  command -v apptainer >/dev/null || fail "there is no apptainer on this node"
  [ -r "$IMAGE" ] || fail "there is no image $IMAGE on this node"
}

start_agent() {
  local name words=(--cleanenv --writable-tmpfs --bind "$folder" --bind "$CLOUDRL_RUN_DIR")
  for name in "${VOLUMES[@]}"; do
    [ -e "${name%%:*}" ] || mkdir -p "${name%%:*}" || fail "there is no ${name%%:*} on this node"
    words+=(--bind "$name")
  done
  for name in "${VARIABLES[@]}" "${SECRETS[@]}" "${!SLURM_@}" "${!CLOUDRL_@}" "${!MLP_@}" HIP_VISIBLE_DEVICES \
    CUDA_VISIBLE_DEVICES; do
    [ -z "${!name+set}" ] || export "APPTAINERENV_$name=${!name}" # its value shows in no list of processes
  done
  case $GPUS in
    amd) words+=(--rocm) ;;
    nvidia) words+=(--nv) ;;
  esac
  apptainer exec "${words[@]}" "${CONTAINER_OPTIONS[@]}" "$IMAGE" \
    "$PYTHON" "$inside/cloudrl-node.pyz" run "${options[@]}" &
  agent=$!
}

# shellcheck disable=SC2317 # a trap calls it, and the next one
stop_agent() { kill -TERM "$agent" 2>/dev/null || true; }

# shellcheck disable=SC2317
clean_up() { :; }
