"""The Ray job of the benchmark: one task a node, each of which reads the data set and the model there.

It waits for nothing: with fewer nodes than asked for, or a file that is not there, it fails.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path


def main() -> None:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    parser = argparse.ArgumentParser()
    parser.add_argument("--data", help="a parquet file")
    parser.add_argument("--model", help="a model's folder")
    parser.add_argument("--nodes", type=int, required=True)
    args, overrides = parser.parse_known_args()
    # as the entry point of a recipe it gets them in verl's keys
    given = dict(override.lstrip("+").split("=", 1) for override in overrides)
    args.data = args.data or given["data.train_files"]
    args.model = args.model or given["actor_rollout_ref.model.path"]
    ray.init(log_to_driver=False)
    nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
    if len(nodes) != args.nodes:
        raise SystemExit(f"{len(nodes)} nodes are alive, not {args.nodes}")
    remote = ray.remote(num_cpus=1)(read_files)
    tasks = [
        remote.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote(
            args.data, args.model
        )
        for node in nodes
    ]
    answers = ray.get(tasks, timeout=120)
    if {answer["node"] for answer in answers} != set(nodes):
        raise SystemExit(f"the tasks did not run on all nodes: {answers}")
    print(json.dumps(answers))


def read_files(data: str, model: str) -> dict[str, object]:
    """Read both on this node; raises where one is missing or empty."""
    import pyarrow.parquet
    import ray

    rows = pyarrow.parquet.read_table(data).num_rows
    layers = json.loads(Path(model, "config.json").read_text())["num_hidden_layers"]
    weights = len(Path(model, "model.safetensors").read_bytes())
    if not (rows and layers and weights):
        raise ValueError(f"{rows} rows, {layers} layers, {weights} bytes of weights")
    return {"node": ray.get_runtime_context().get_node_id(), "rows": rows, "weights_bytes": weights}


if __name__ == "__main__":
    main()
