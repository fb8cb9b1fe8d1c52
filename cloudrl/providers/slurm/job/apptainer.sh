
# -- the agent runs in Apptainer or SingularityCE on each node

# One file for all nodes, in the shared folder; of two jobs that want it one waits. The lock is a link whose text is the
# job that holds it: flock needs a mount option on Lustre. Each job pulls into a file of its own, so that no file is
# spoiled where two jobs remove the lock of a third one at once.
prepare_image() {
  local file part said deadline=$((SECONDS + JOIN_TIMEOUT_S))
  [[ $IMAGE == /* ]] && return
  file=$RUN_DIR/images/$(printf '%s' "$IMAGE" | tr -c 'A-Za-z0-9._-' _).sif
  part=$file.$this_job.part
  export CLOUDRL_IMAGE=$file
  mkdir -p "$RUN_DIR/images" || fail "$RUN_DIR/images cannot be made"
  until [ -e "$file" ] || ln -s -T "$this_job" "$file.lock" 2>/dev/null; do await_image "$file" "$deadline"; done
  if [ ! -e "$file" ]; then
    say "pulling $IMAGE"
    if ! said=$(pull_image "$part" "$((deadline - SECONDS + 1))" 2>&1); then
      rm -f "$part" "$file.lock"
      fail "no image $IMAGE: ${said##*$'\n'}"
    fi
    mv "$part" "$file"
  fi
  [ "$(readlink "$file.lock")" != "$this_job" ] || rm -f "$file.lock"
}

# A module may bring the program, here as on each node. Layers are not kept: their usual place is the user's home.
pull_image() { # FILE SECONDS
  if ! find_program; then
    set +eu
    set_up_node
    set -eu
    find_program || { echo "there is neither apptainer nor singularity on this node"; return 1; }
  fi
  export APPTAINER_TMPDIR=${APPTAINER_TMPDIR:-$TMP_DIR} SINGULARITY_TMPDIR=${SINGULARITY_TMPDIR:-$TMP_DIR}
  timeout "$2" "$program" pull --force --disable-cache "$1" "docker://$IMAGE"
}

find_program() {
  for program in apptainer singularity; do
    if command -v "$program" >/dev/null; then return; fi
  done
  return 1
}

# Another job pulls it. A lock that is left, of a job that is over or of an earlier start of this one, is removed.
await_image() { # FILE DEADLINE
  local holder
  holder=$(readlink "$1.lock") || holder='' # it has just ended, or there is no room for a lock
  if [ "$holder" = "$this_job" ] || { [ -n "$holder" ] && is_over "$holder"; }; then
    rm -f "$1.lock" "$1.$holder.part"
  else
    ((SECONDS < $2)) || fail "no image $IMAGE: $1.lock is not free after $JOIN_TIMEOUT_S s; job: ${holder:-none}"
    sleep 5
  fi
}

prepare_node() {
  inside=$folder run_dir=$CLOUDRL_RUN_DIR/nodes/$rank ray_dir=$folder/ray
  IMAGE=${CLOUDRL_IMAGE:-$IMAGE}
  find_program || fail "there is neither apptainer nor singularity on this node"
  [ -r "$IMAGE" ] || fail "there is no image $IMAGE on this node"
  mkdir "$folder/home" || fail "no room in $folder"
  export CLOUDRL_PACKAGES=$folder/packages # the image is read-only
}

# The home is one of this job, so that what programs keep there (caches, compiled kernels, packages of pip) goes with it;
# the user's own stays where it is, for files that are named.
start_agent() {
  local name site words=(--cleanenv --writable-tmpfs --home "$folder/home")
  [ ! -d "$HOME" ] || words+=(--bind "$HOME")
  words+=(--bind "$folder" --bind "$CLOUDRL_RUN_DIR")
  for name in "${VOLUMES[@]}"; do
    [ -e "${name%%:*}" ] || mkdir -p "${name%%:*}" || fail "there is no ${name%%:*} on this node"
    words+=(--bind "$name")
  done
  mapfile -t site < <(site_variables)
  for name in "${site[@]}" "${VARIABLES[@]}" "${SECRETS[@]}" "${!SLURM_@}" "${!CLOUDRL_@}" "${!MLP_@}" \
    HIP_VISIBLE_DEVICES CUDA_VISIBLE_DEVICES; do
    [ -z "${!name+set}" ] || export "${program^^}ENV_$name=${!name}" # its value shows in no list of processes
  done
  case $GPUS in
    amd) words+=(--rocm) ;;
    nvidia) words+=(--nv) ;;
  esac
  "$program" exec "${words[@]}" "${CONTAINER_OPTIONS[@]}" "$IMAGE" \
    "$PYTHON" "$inside/cloudrl-node.pyz" run "${options[@]}" &
  agent=$!
}

# shellcheck disable=SC2317 # a trap calls it, and the next one
stop_agent() { kill -TERM "$agent" 2>/dev/null || true; }

# shellcheck disable=SC2317
clean_up() { :; }
