"""A stand-in for `python3 -m verl.trainer.main_ppo`: takes all GPUs of a real Ray, says seven steps, saves the last.

Each of two nodes writes the shards of its own rank to its own disk, as verl's workers do.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import ray

STEPS = 7
TESTS = str(Path(__file__).resolve().parents[1])


@ray.remote
class Node:
    """Holds a node's GPUs."""

    def save(self, rank: int, run: Path) -> None:
        sys.path.append(TESTS)
        from small_step import write_step

        with tempfile.TemporaryDirectory() as folder:
            write_step(Path(folder), STEPS)
            for path in Path(folder).rglob("*"):
                owner = int(path.stem.partition("_rank_")[2] or 0)  # what belongs to no rank is rank 0's
                if path.is_file() and owner == rank and path.parent != Path(folder):
                    target = run / path.relative_to(folder)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(path, target)


def main() -> None:
    options = dict(word.partition("=")[::2] for word in sys.argv[1:])
    files = ("data.train_files", "data.val_files", "actor_rollout_ref.model.path")
    absent = [name for name in files if not Path(options[name]).exists()]
    nodes, gpus = int(options["trainer.nnodes"]), int(options["trainer.n_gpus_per_node"])
    ray.init(log_to_driver=False)
    assert (absent, ray.cluster_resources()["GPU"]) == ([], nodes * gpus)
    actor: Any = Node
    held = [actor.options(num_gpus=gpus).remote() for _ in range(nodes)]
    print("Total training steps:", STEPS, flush=True)
    for step in range(1, STEPS + 1):
        print(f"step:{step} - critic/score/mean:{step / 10} - timing_s/step:0.1", flush=True)
    run = Path(options["trainer.default_local_dir"])
    ray.get([node.save.remote(rank, run) for rank, node in enumerate(held)])
    (run / "latest_checkpointed_iteration.txt").write_text(str(STEPS))


if __name__ == "__main__":
    main()
