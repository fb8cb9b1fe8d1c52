
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
