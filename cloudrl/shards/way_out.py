"""What to do with shards of an architecture that cloudrl does not merge: one hint for each kind of refusal.

verl's own merger compares nothing with the config. From names that a model does not have, it writes one that loads with
random numbers; of LoRA it writes the base model. So it is named only where its result was loaded again.
"""

import re
import shlex
from collections.abc import Set as AbstractSet

from cloudrl.saves.names import OF_STEP
from cloudrl.shards.shard import Shard
from cloudrl.shards.source import LocalShard
from cloudrl.shards.wrappers import common_prefix

VERL_MERGES = frozenset(
    f"{family}ForCausalLM"
    for family in (
        "Apertus", "Arcee", "Bamba", "Bloom", "Cohere", "Cohere2", "Dots1", "Ernie4_5", "Ernie4_5_Moe", "Exaone4",
        "Falcon", "GPTJ", "GPTNeoX", "Glm", "GraniteMoe", "Helium", "HunYuanDenseV1", "HunYuanMoEV1", "JetMoe", "Lfm2",
        "MiniMax", "Ministral", "Ministral3", "Mpt", "Nemotron", "OPT", "Olmo", "Phi", "Phimoe", "SeedOss", "StableLm",
    )
)  # fmt: skip
"""Those of which the result of verl's merger was loaded again, equal to the model (tests/shards/verl_others.py)."""
_TOPS = {"model", "transformer", "gpt_neox", "lm_head", "embed_out"}
"""The first part of all their names."""
_ROLE = re.compile(rf"{OF_STEP}(\d+)(/[^/]+)?(?=/model_world_size_)")
CONFIG_OF_THE_RUN = (
    "Is it the config of this model? Take huggingface/config.json from the run's rank 0, or another step: "
    "cloudrl checkpoints list"
)
KEEP_SHARDS = "Keep the shards of all ranks, for the tools of its authors"


def way_out(architecture: str, names: AbstractSet[str], shard: Shard, *, is_plain: bool) -> str:
    """The hint.

    Args:
        architecture: Of the model.
        names: Of its tensors, without wrappers of torch.
        shard: Any of its shards.
        is_plain: Whether the shards have the names of the model itself: no wrapper, no adapter.
    """
    is_plain = is_plain and not common_prefix(names) and {name.partition(".")[0] for name in names} <= _TOPS
    source = shard.archive.source
    match = _ROLE.search(source.label)
    pull = f"cloudrl checkpoints pull {match[1] if match else ''}".rstrip() + " --to ./raw"
    if not is_plain or architecture not in VERL_MERGES:
        return KEEP_SHARDS if isinstance(source, LocalShard) else f"{KEEP_SHARDS}: {pull}"
    if isinstance(source, LocalShard):
        before, folder = "", str(source.path.parent)
    else:
        before, folder = f"{pull}\n", f"raw/{match[0] if match else f'{OF_STEP}N/actor'}"
    command = f"python -m verl.model_merger merge --backend fsdp --local_dir {shlex.quote(folder)} --target_dir ./model"
    return f"verl's own merger loads the model to do this, with as much memory as it is large:\n{before}{command}"
