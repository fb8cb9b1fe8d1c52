
# -- the steps themselves run in the container, by the Slurm plug-in pyxis

prepare_image() {
  local name registry=${IMAGE%%/*}
  # enroot, below pyxis, ends the name of a registry with `#`
  if [[ $IMAGE == */* && $registry == *[.:]* ]]; then IMAGE=$registry#${IMAGE#*/}; fi
  for name in "${VOLUMES[@]}"; do
    [ -e "${name%%:*}" ] || mkdir -p "${name%%:*}" || fail "there is no ${name%%:*} on this node"
  done
  VOLUMES+=("$TMP_DIR:$TMP_DIR") # also /tmp, where enroot would mount memory (conf/mounts/10-system.fstab)
  STEP+=(--container-image="$IMAGE" --container-writable --no-container-entrypoint)
  STEP+=(--container-mounts="$(IFS=,; echo "$CLOUDRL_RUN_DIR:$CLOUDRL_RUN_DIR${VOLUMES[*]:+,${VOLUMES[*]}}")")
}
