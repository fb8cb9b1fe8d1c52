"""The options of a merge of a checkpoint."""

from dataclasses import dataclass
from typing import Annotated

from cloudrl.options.declaration import Option


@dataclass(frozen=True)
class MergeOptions:
    """How a checkpoint becomes a model.

    Attributes:
        dtype: Of the weights: `bf16`, `fp16`, `fp32`, or `keep`; without it `bf16`, and `keep` for an adapter.
        lora: What becomes of a LoRA adapter: `merge` takes it into the model, `adapter` gives it alone, for peft.
        base: The model that the run was trained from, a folder or a name on the Hub: config and tokenizer for
            Megatron's distributed format, which has none.
        sync: Wait until the disk has the model, so that a power failure right afterwards cannot cost it.
    """

    dtype: Annotated[
        str | None, Option("bf16, fp16, fp32, or keep; bf16 by default, and keep for an adapter.", "TYPE")
    ] = None
    lora: Annotated[
        str, Option("What to make of a LoRA adapter: merge it into the model, or the adapter alone.", "MODE")
    ] = "merge"
    base: Annotated[
        str | None, Option("Folder or Hub name of the model trained from; for Megatron's .distcp weights.", "MODEL")
    ] = None
    sync: bool = False


DEFAULTS = MergeOptions()
