"""What an adapter is multiplied with: by what verl writes of it, and by peft's config where a run started from one.

verl's `lora_train_meta.json` has one rank and one alpha (verl 0.9.1, utils/checkpoint/fsdp_checkpoint_manager.py,
`_get_lora_train_meta`). An adapter that verl makes needs no more. One that was made elsewhere
(`model.lora_adapter_path`) may also have rsLoRA, and ranks and alphas by pattern; its `adapter_config.json` tells them.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from cloudrl.errors import CheckpointError
from cloudrl.saves.names import LORA_META as META

_Value = TypeVar("_Value", int, float)

ADAPTER_CONFIG = "adapter_config.json"
_MOST = 1 << 31
_REPEATS = re.compile(r"[*+?{]")
_MAX_REPEATS, _MAX_PATTERN, _MAX_PATTERNS = 3, 300, 1000
"""A pattern is a stranger's: with few repeats, and none of a group, it ends soon on any name."""
_PEFT_ITSELF = "Merge it with peft, on a machine that has room for the model: merge_and_unload"


@dataclass(frozen=True)
class LoraSettings:
    """Rank and alpha of an adapter.

    Attributes:
        ranks: Pattern -> rank, of what has another one than `rank`; the first that fits counts.
        alphas: Pattern -> alpha.
        is_rank_stabilized: rsLoRA: alpha is divided by the root of the rank.
        is_told: Whether peft's own config says all of it.
    """

    rank: int
    alpha: float
    task_type: str | None
    ranks: Mapping[str, int] = field(default_factory=dict)
    alphas: Mapping[str, float] = field(default_factory=dict)
    is_rank_stabilized: bool = False
    is_told: bool = False

    def fits(self, key: str, rank: int) -> bool:
        """Whether something may have this rank.

        Args:
            key: The name that peft matches with patterns: of a module, or of a parameter without one.
            rank: Of its two halves.
        """
        return rank == _of(self.ranks, key, self.rank) or self.is_doubled(key, rank)

    def scale(self, key: str, rank: int) -> float:
        """What its B x A is multiplied with (peft 0.21, tuners/lora/layer.py, `update_layer`)."""
        alpha = _of(self.alphas, key, self.alpha * (2 if self.is_doubled(key, rank) else 1))
        return alpha / math.sqrt(rank) if self.is_rank_stabilized else alpha / rank

    def is_doubled(self, key: str, rank: int) -> bool:
        """Gate and up of experts, fused: peft 0.21 doubles rank and alpha (`_convert_peft_config_moe`)."""
        return key.endswith(".gate_up_proj") and rank == 2 * self.rank != _of(self.ranks, key, self.rank)


def _of(patterns: Mapping[str, _Value], key: str, otherwise: _Value) -> _Value:
    """As peft 0.21 looks it up (utils/other.py, `get_pattern_key`)."""
    return next((value for each, value in patterns.items() if re.match(rf"(.*\.)?({each})$", key)), otherwise)


def read_settings(meta: bytes | None, adapter_config: bytes | None = None) -> LoraSettings:
    """Read what there is.

    Args:
        meta: verl's `lora_train_meta.json`.
        adapter_config: peft's `adapter_config.json` of the adapter that the run started from.

    Raises:
        CheckpointError: There is neither, they contradict each other, or they say what is not supported.
    """
    if adapter_config is None:
        return _read_meta(meta)
    told = _read_adapter_config(adapter_config)
    if meta is not None and (said := _read_meta(meta)) and (said.rank, said.alpha) != (told.rank, told.alpha):
        raise CheckpointError(
            f"{META} has rank {said.rank} and alpha {said.alpha}, and {ADAPTER_CONFIG} beside it rank {told.rank} and "
            f"alpha {told.alpha}",
            hint=f"If the run started from the adapter of {ADAPTER_CONFIG}, remove {META}, else {ADAPTER_CONFIG}",
        )
    return told


def unsure_of_scale(settings: LoraSettings, first_adapter: str | None, label: str) -> list[str]:
    """What is to be told of a scale that may be another one.

    Args:
        settings: See `read_settings`.
        first_adapter: See `MergeInputs`.
        label: Of a shard.

    Raises:
        CheckpointError: It started from an adapter, and nothing says whether that has rsLoRA or patterns.
    """
    if settings.is_told or first_adapter == "":
        return []
    told = f"{META} has rank {settings.rank} and alpha {settings.alpha}, and no word of use_rslora and alpha_pattern"
    if first_adapter is None:
        warning = (
            f"the adapter is multiplied with {settings.alpha / settings.rank:g}: {told}. If the run started from an "
            f"adapter (model.lora_adapter_path) that has one of them, copy its {ADAPTER_CONFIG} beside the shards, "
            "and merge again"
        )
        return [warning]
    raise CheckpointError(
        f"the run started from the adapter {first_adapter}, and {told}",
        hint=f"Copy {ADAPTER_CONFIG} of that adapter beside the shards: {label}",
    )


def _read_meta(text: bytes | None) -> LoraSettings:
    hint = f'Write {META} beside the shards, with the values of the run: {{"r": 16, "lora_alpha": 32}}'
    if text is None:
        raise CheckpointError(
            f"there is no {META} beside the shards, and without it nothing tells the alpha of the adapter",
            hint=f"verl writes it on the node of rank 0. {hint}",
        )
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{META} is not JSON: {error}", hint=hint) from error
    rank, alpha = (content.get(key) if isinstance(content, dict) else None for key in ("r", "lora_alpha"))
    if type(rank) is not int or type(alpha) is not int or not 0 < rank < _MOST or not abs(alpha) < _MOST:
        raise CheckpointError(f"{META} has the rank {rank!r:.40} and the alpha {alpha!r:.40}", hint=hint)
    if alpha == 0:  # verl 0.9.1 writes it where it does not know: trainer/sft_trainer.py, `_get_lora_train_meta`
        raise CheckpointError(f"{META} says that lora_alpha is 0, with which the adapter changes nothing", hint=hint)
    task = content.get("task_type")
    return LoraSettings(rank, alpha, task if isinstance(task, str) else None)


def _read_adapter_config(text: bytes) -> LoraSettings:
    hint = f"Take {ADAPTER_CONFIG} from the adapter that the run started from (model.lora_adapter_path)"
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{ADAPTER_CONFIG} beside the shards is not JSON: {error}", hint=hint) from error
    if not isinstance(content, dict) or content.get("peft_type") != "LORA":
        raise CheckpointError(f"{ADAPTER_CONFIG} beside the shards is not that of a LoRA adapter", hint=hint)
    for key in ("use_dora", "use_qalora", "alora_invocation_tokens", "arrow_config"):
        if content.get(key):
            raise CheckpointError(f"{ADAPTER_CONFIG} has {key}, which is not supported", hint=_PEFT_ITSELF)
    rank, alpha, task = content.get("r"), content.get("lora_alpha"), content.get("task_type")
    if rank is None or alpha is None or not _is_rank(rank) or not _is_alpha(alpha):
        raise CheckpointError(
            f"{ADAPTER_CONFIG} beside the shards has the rank {rank!r:.40} and the alpha {alpha!r:.40}", hint=hint
        )
    return LoraSettings(
        rank,
        alpha,
        task if isinstance(task, str) else None,
        _read_patterns(content, "rank_pattern", _is_rank),
        _read_patterns(content, "alpha_pattern", _is_alpha),
        is_rank_stabilized=content.get("use_rslora") is True,
        is_told=True,
    )


def _read_patterns(content: Mapping[str, Any], key: str, is_value: Any) -> dict[str, Any]:
    """Raises: CheckpointError: they are not patterns, or might take for ever."""
    found = content.get(key) or {}
    if not isinstance(found, dict) or len(found) > _MAX_PATTERNS or not all(map(is_value, found.values())):
        raise CheckpointError(f"{ADAPTER_CONFIG} has an impossible {key}: {str(found)[:80]}", hint=_PEFT_ITSELF)
    for pattern in found:
        try:
            re.compile(rf"(.*\.)?({pattern})$")
        except (re.error, RecursionError, OverflowError) as error:
            raise CheckpointError(f"{key} has {pattern!r:.80}, no pattern: {error}", hint=_PEFT_ITSELF) from error
        repeats = _REPEATS.findall(pattern.replace("(?:", "("))
        if len(pattern) > _MAX_PATTERN or len(repeats) > _MAX_REPEATS or re.search(r"\)[*+?{]|\\\d", pattern):
            raise CheckpointError(f"{key} has {pattern!r:.80}, which is too complex to be read here", hint=_PEFT_ITSELF)
    return found


def _is_rank(value: object) -> bool:
    return type(value) is int and 0 < value < _MOST


def _is_alpha(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < abs(value) < _MOST
