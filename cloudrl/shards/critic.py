"""A critic of Megatron's: its head is saved as that of a language model, `lm_head.weight` of one row.

verl 0.9.1 puts a linear layer without a bias in the place of the output layer (models/mcore/bridge.py:
LinearForLastLayer), and the bridges write it under the name of that.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from cloudrl.errors import CheckpointError
from cloudrl.shards.architectures import WITHOUT_CRITIC
from cloudrl.shards.model_files import first_architecture
from cloudrl.shards.plan import HEAD, Output

_SCORE, _BIAS = "score.weight", "score.bias"
_CAUSAL, _CRITIC = "ForCausalLM", "ForTokenClassification"


def is_value_head(shape: tuple[int, ...], config: Mapping[str, Any]) -> bool:
    """Whether an output layer of this shape gives a value, not the vocabulary."""
    return len(shape) == 2 and shape[0] == 1 and config.get("vocab_size") != 1


def critic_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """What is another in the config of a critic: the class that has a `score`, of one label.

    Raises:
        CheckpointError: There is no such class.
    """
    changes: dict[str, Any] = {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
    if named := first_architecture(config):
        family = named.removesuffix(_CAUSAL).removesuffix(_CRITIC)
        if family == named or family in WITHOUT_CRITIC:
            raise CheckpointError(
                f"this critic cannot be merged: transformers has no class for a critic made from {named}",
                hint="The actor can: cloudrl checkpoints merge --role actor --to DIR",
            )
        changes["architectures"] = [family + _CRITIC]
    return changes


def critic_outputs(outputs: list[Output]) -> list[Output]:
    """The same with the head as transformers names it, and the bias that its class has (zero: verl trains none)."""
    (head,) = [output for output in outputs if output.name == HEAD]
    others = [output for output in outputs if output.name not in {HEAD, _BIAS}]
    return [*others, replace(head, name=_SCORE), Output(_BIAS, (1,), head.dtype, ())]
