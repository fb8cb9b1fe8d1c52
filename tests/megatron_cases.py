"""The checkpoints of Megatron that `make_megatron.py` writes, apart from it since it imports torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """A model and how it is cut; `version` of megatron-core."""

    family: str
    version: str = "0.16.1"
    world: int = 4
    tp: int = 1
    pp: int = 1
    vpp: int | None = None
    ep: int = 1
    etp: int | None = None
    layers: int = 2
    first_stage: int | None = None
    kv: int = 2
    head_dim: int = 4
    vocab: int = 40
    padded_vocab: int = 40
    dtype: str = "bf16"
    tied: bool = False
    is_critic: bool = False
    is_unstacked: bool = False
    is_default: bool = False
    contents: tuple[str, ...] = ("model",)


CASES = {
    "qwen2-uneven-padded": Case("Qwen2", tp=2, pp=2, layers=3, first_stage=1, vocab=37, contents=("model", "extra")),
    "qwen3-more-ranks-than-groups": Case("Qwen3", tp=4, tied=True, head_dim=8, dtype="fp32"),
    "llama-virtual-stages": Case("Llama", pp=2, vpp=2, layers=4, dtype="fp16"),
    "qwen2-tied-stages": Case("Qwen2", world=2, pp=2, tied=True),
    "qwen2-critic": Case("Qwen2", world=2, tp=2, is_critic=True),
    "qwen3-moe": Case("Qwen3Moe", tp=2, pp=2, ep=2, etp=1),
    "mixtral-unstacked": Case("Mixtral", tp=2, ep=2, etp=2, is_unstacked=True),
    "qwen2-default": Case("Qwen2", world=2, tp=2, is_default=True),
    "qwen2-default-critic": Case("Qwen2", world=2, tp=2, is_default=True, is_critic=True),
    "qwen3-moe-0.18": Case("Qwen3Moe", "0.18.0", world=2, ep=2),
    "qwen3-moe-0.19": Case("Qwen3Moe", "0.19.2", world=2, ep=2),
}
