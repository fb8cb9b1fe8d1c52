"""Writes a step as FSDP2 does on several GPUs, all of its tensors on this one: `python cuda_shards.py RUN WORLD_SIZE`.

`RUN/whole` is the same model in one file of safetensors.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

import make_sharded
import torch
from safetensors.torch import save_file


def main(root: str, world_size: int) -> None:
    make_sharded.main(root, 1, world_size, device="cuda")
    (Path(root) / "whole").mkdir()
    whole = {name: value.contiguous() for name, value in make_sharded.whole(1).items()}
    save_file(whole, Path(root) / "whole" / "model.safetensors", metadata={"format": "pt"})


if __name__ == "__main__":
    torch.cuda.init()
    main(sys.argv[1], int(sys.argv[2]))
