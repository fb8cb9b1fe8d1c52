"""verl's FSDP2 engines on the device "cpu". Importing this module registers them, and mends what a CPU needs mended."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from transformers import AutoModelForTokenClassification
from verl.utils import fsdp_utils
from verl.utils import model as verl_model
from verl.workers.engine import EngineRegistry
from verl.workers.engine.fsdp import transformer_impl as fsdp

if TYPE_CHECKING:
    import torch

_BACKENDS = ["fsdp", "fsdp2"]
_Saved = tuple[dict[str, tuple["torch.Tensor", Any]], Any]
"""Name -> this rank's part of a parameter and how it is sharded, and how all are."""


def _save_copies(save: Callable[[torch.nn.Module], _Saved]) -> Callable[[torch.nn.Module], _Saved]:
    """Wrap verl's function that keeps a model in host memory, with copies in what it returns.

    verl moves parameters to the CPU, which copies none that is there already: what it keeps would go on changing with
    the model. In mode separate_async that is the policy before the step's updates (verl 0.9.1, utils/fsdp_utils.py:
    fsdp2_sharded_save_to_cpu; experimental/separation/engine_workers.py imports it by name at each call).
    """

    @functools.wraps(save)
    def saved(model: torch.nn.Module) -> _Saved:
        parameters, spec = save(model)
        return {name: (tensor.clone(), sharded) for name, (tensor, sharded) in parameters.items()}, spec

    return saved


fsdp_utils.fsdp2_sharded_save_to_cpu = _save_copies(fsdp_utils.fsdp2_sharded_save_to_cpu)


class _WithoutOffload:
    """Builds the FSDP module without an offload policy: on a CPU the parameters are where they would go.

    verl offloads forward-only models (the reference policy) with pinned memory, which needs an accelerator
    (verl/workers/engine/fsdp/transformer_impl.py, _build_fsdp_module).
    """

    engine_config: Any

    def _build_fsdp_module(self, module: torch.nn.Module) -> torch.nn.Module:
        declared = self.engine_config
        self.engine_config = dataclasses.replace(declared, forward_only=False, offload_policy=False)
        try:
            return super()._build_fsdp_module(module)  # type: ignore[misc]
        finally:
            self.engine_config = declared


@EngineRegistry.register(model_type="language_model", backend=_BACKENDS, device="cpu")
class CpuLanguageModelEngine(_WithoutOffload, fsdp.FSDPEngineWithLMHead):
    """Actor and reference policy."""


@EngineRegistry.register(model_type="value_model", backend=_BACKENDS, device="cpu")
class CpuValueModelEngine(_WithoutOffload, fsdp.FSDPEngineWithValueHead):
    """Critic."""

    def _build_module(self) -> torch.nn.Module:
        """Build it with the attention that its configuration names.

        verl's loader asks for flash attention whatever the configuration says (verl/utils/model.py,
        load_valuehead_model), and its own _build_module imports that function by name each time: there is nothing
        to override, so it is swapped while a model is built.
        """
        original = verl_model.load_valuehead_model
        verl_model.load_valuehead_model = _load_value_model
        try:
            return super()._build_module()
        finally:
            verl_model.load_valuehead_model = original


def _load_value_model(
    local_path: str, torch_dtype: torch.dtype, model_config: Any, trust_remote_code: bool
) -> torch.nn.Module:
    return AutoModelForTokenClassification.from_pretrained(
        local_path, dtype=torch_dtype, config=model_config, trust_remote_code=trust_remote_code
    )
