"""Writes tests/shards/fixtures/megatron: small checkpoints of Megatron, saved by verl's own manager on this CPU.

    pip install --no-deps --target /tmp/megatron megatron-core==0.16.1 mbridge==0.15.1
    PYTHONPATH=/tmp/megatron .venv/bin/python tests/shards/make_megatron.py [CASE ...]

verl's `MegatronCheckpointManager` (0.9.1) and megatron-core run as they are, over gloo; what insists on CUDA is patched
(`_on_cpu`). Transformer Engine needs a GPU, so Megatron's own layers stand in, with its keys (`_with_keys_of_te`). The
files of megatron-core 0.18.0 and 0.19.2, whose wheels are for Python 3.12, were made from unpacked wheels, with a
stand-in for triton, which they import and do not use here.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tarfile
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

sys.path.insert(0, str(Path(__file__).parents[1]))
from megatron_cases import CASES, Case
from megatron_values import values

FIXTURES = Path(__file__).parent / "fixtures" / "megatron"
TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def make(name: str, target: Path) -> None:
    """Write the fixture of a case."""
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        save(CASES[name], here)
        with tarfile.open(target, "w:xz") as archive:
            for path in sorted(here.rglob("*")):
                if path.relative_to(here).parts[0] != "base":
                    archive.add(path, path.relative_to(here), recursive=False, filter=_anonymous)


def _anonymous(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    info.mtime = 0
    return info


def save(case: Case, folder: Path) -> None:
    """Write names, config and the step of a case; `base` is the model as transformers has it."""
    import megatron.core
    import megatron.core.models.gpt  # once, before the processes are forked: the imports take most of the time
    import verl.utils.checkpoint.megatron_checkpoint_manager  # noqa: F401

    if megatron.core.__version__ != case.version:
        raise SystemExit(f"megatron-core {megatron.core.__version__} is installed, and this needs {case.version}")
    _save_base(case, folder)
    mp.start_processes(_rank, (case, folder), case.world, start_method="fork")


def _save_base(case: Case, folder: Path) -> None:
    import transformers
    from safetensors.torch import load_file, save_file

    moe = {
        "Qwen3Moe": {"moe_intermediate_size": 6, "num_experts": 4, "num_experts_per_tok": 2},
        "Mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    }.get(case.family, {})
    head = {} if case.family == "Qwen2" else {"head_dim": case.head_dim}
    config = getattr(transformers, f"{case.family}Config")(
        vocab_size=case.vocab, hidden_size=16, intermediate_size=24, num_hidden_layers=case.layers,
        num_attention_heads=4, num_key_value_heads=case.kv, max_position_embeddings=32, tie_word_embeddings=case.tied,
        torch_dtype=TYPES[case.dtype], bos_token_id=1, eos_token_id=2, **head, **moe,
    )  # fmt: skip
    base = folder / "base"
    getattr(transformers, f"{case.family}ForCausalLM")(config).to(TYPES[case.dtype]).save_pretrained(base)
    shapes = {name: list(tensor.shape) for name, tensor in load_file(base / "model.safetensors").items()}
    if case.is_critic:
        shapes.pop("lm_head.weight", None)
        shapes["score.weight"] = [1, 16]
    save_file(_tensors(shapes, case), base / "model.safetensors", {"format": "pt"})
    (folder / "names.json").write_text(json.dumps({"dtype": case.dtype, "shapes": shapes}, indent=0))
    (folder / "config.json").write_bytes((base / "config.json").read_bytes())


def _tensors(shapes: dict[str, list[int]], case: Case) -> dict[str, torch.Tensor]:
    return {
        name: torch.frombuffer(bytearray(values(name, shape, case.dtype)), dtype=TYPES[case.dtype]).reshape(shape)
        for name, shape in shapes.items()
    }


def _on_cpu() -> None:
    """All in Megatron's way to a file that insists on CUDA."""
    torch.cuda.current_device = lambda: torch.device("cpu")
    torch.cuda.synchronize = lambda *_, **__: None
    torch.cuda.set_device = lambda *_, **__: None
    torch.cuda.Stream = type("Stream", (), {"__init__": lambda *_, **__: None})  # a token dispatcher makes one
    torch.Tensor.cuda = lambda tensor, *_, **__: tensor  # tied embeddings are made equal between stages


def _with_keys_of_te() -> None:
    """Transformer Engine's modules have an `_extra_state`, an empty tensor without FP8 (2.16, module/base.py)."""
    from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
    from megatron.core.transformer.dot_product_attention import DotProductAttention

    for kind in (ColumnParallelLinear, RowParallelLinear, DotProductAttention, torch.nn.RMSNorm):
        kind.get_extra_state = lambda module: None if hasattr(module, "is_plain") else torch.empty(0, dtype=torch.uint8)
        kind.set_extra_state = lambda *_: None


def _rank(rank: int, case: Case, folder: Path) -> None:
    _on_cpu()
    _with_keys_of_te()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(case.world), LOCAL_RANK=str(rank))
    dist.init_process_group("gloo", init_method=f"file://{folder}/base/meeting", rank=rank, world_size=case.world)
    from megatron.core import mpu
    from safetensors.torch import load_file
    from transformers import AutoConfig

    mpu.initialize_model_parallel(
        tensor_model_parallel_size=case.tp, pipeline_model_parallel_size=case.pp,
        virtual_pipeline_model_parallel_size=case.vpp, expert_model_parallel_size=case.ep,
        expert_tensor_parallel_size=case.etp,
    )  # fmt: skip
    config = AutoConfig.from_pretrained(folder / "base")
    weights = load_file(folder / "base" / "model.safetensors")
    stages = _build(config, case)
    for stage in stages:
        _fill(stage.module, weights, case)
    _manager(stages, config, case, folder)
    dist.barrier()
    dist.destroy_process_group()


def _build(config: Any, case: Case) -> list[torch.nn.Module]:
    """The stages of this rank: one, or one for each virtual stage."""
    from megatron.core import mpu
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec

    made = _transformer_config(config, case)
    stages = []
    for number in range(case.vpp or 1):
        vp = number if case.vpp else None
        if case.vpp:
            mpu.set_virtual_pipeline_model_parallel_rank(number)
        spec = get_gpt_decoder_block_spec(made, use_transformer_engine=False, normalization="RMSNorm", vp_stage=vp)
        for layer in spec.layer_specs if made.num_moe_experts else ():  # TE has this norm by itself
            layer.submodules.sharded_state_dict_keys_map.pop("pre_mlp_layernorm.", None)
        last = mpu.is_pipeline_last_stage(ignore_virtual=False, vp_stage=vp)
        model = GPTModel(
            config=made, transformer_layer_spec=spec, vocab_size=case.padded_vocab, max_sequence_length=32,
            pre_process=mpu.is_pipeline_first_stage(ignore_virtual=False, vp_stage=vp), post_process=last,
            share_embeddings_and_output_weights=case.tied and not case.is_critic, position_embedding_type="rope",
            parallel_output=True, vp_stage=vp,
        )  # fmt: skip
        if last and case.is_critic:  # as verl's LinearForLastLayer
            model.output_layer = torch.nn.Linear(16, 1, bias=False)
        elif last:
            model.output_layer.is_plain = True  # Megatron's own layer in both cases
        stages.append(torch.nn.ModuleDict({"module": model.to(TYPES[case.dtype])}))
        stages[-1].module = model  # verl unwraps one level, as of DDP
    return stages


def _transformer_config(config: Any, case: Case) -> Any:
    """What verl's bridges make of such a config, as far as it changes names or shapes."""
    from megatron.core.transformer import TransformerConfig

    experts = getattr(config, "num_experts", None) or getattr(config, "num_local_experts", None)
    moe = {} if not experts else {
        "num_moe_experts": experts, "moe_router_topk": 2, "moe_router_load_balancing_type": "none",
        "moe_ffn_hidden_size": getattr(config, "moe_intermediate_size", config.intermediate_size),
        "moe_token_dispatcher_type": "alltoall", "moe_grouped_gemm": False,
        "moe_layer_freq": [1] * case.layers if case.is_unstacked else 1,
    }  # fmt: skip
    return TransformerConfig(
        num_layers=case.layers, hidden_size=16, num_attention_heads=4, num_query_groups=case.kv,
        kv_channels=case.head_dim, ffn_hidden_size=24, normalization="RMSNorm", gated_linear_unit=True,
        activation_func=torch.nn.functional.silu, add_bias_linear=False, add_qkv_bias=case.family == "Qwen2",
        qk_layernorm=case.family.startswith("Qwen3"), params_dtype=TYPES[case.dtype], pipeline_dtype=TYPES[case.dtype],
        bf16=case.dtype == "bf16", fp16=case.dtype == "fp16", tensor_model_parallel_size=case.tp,
        pipeline_model_parallel_size=case.pp, virtual_pipeline_model_parallel_size=case.vpp,
        expert_model_parallel_size=case.ep, expert_tensor_parallel_size=case.etp, use_cpu_initialization=True,
        num_layers_in_first_pipeline_stage=case.first_stage, **moe,
    )  # fmt: skip


def _manager(stages: list[torch.nn.Module], config: Any, case: Case, folder: Path) -> None:
    """Save as verl's engine does."""
    from verl.trainer.config import CheckpointConfig
    from verl.utils.checkpoint.megatron_checkpoint_manager import MegatronCheckpointManager

    settings = SimpleNamespace(
        dist_ckpt_optim_fully_reshardable=False, distrib_optim_fully_reshardable_mem_efficient=False
    )
    contents, role = list(case.contents), "critic" if case.is_critic else "actor"
    MegatronCheckpointManager(
        config=SimpleNamespace(model=SimpleNamespace(path=str(folder / "base")), megatron=settings),
        checkpoint_config=CheckpointConfig(save_contents=contents, load_contents=contents),
        model_config=config, transformer_config=stages[0].module.config, role=role, model=stages,
        arch=config.architectures[0], hf_config=config, param_dtype=TYPES[case.dtype],
        share_embeddings_and_output_weights=case.tied, processing_class=None, optimizer=None, optimizer_scheduler=None,
        use_distributed_optimizer=True, use_dist_checkpointing=not case.is_default,
        bridge=_bridge(stages, config, case, folder) if case.is_default else None,
    ).save_checkpoint(str(folder / "global_step_1" / role), global_step=1)  # fmt: skip


def _bridge(stages: list[torch.nn.Module], config: Any, case: Case, folder: Path) -> Any:
    """mbridge, which writes a whole model; it asks for the names that modules of Transformer Engine have."""
    from mbridge import AutoBridge

    bridge = AutoBridge.from_config(config, dtype=TYPES[case.dtype])
    models = [_TeNames(stage.module) for stage in stages]
    bridge.safetensor_io = bridge._get_safetensor_io(str(folder / "base"))
    save_weights = bridge.save_weights
    bridge.save_weights = lambda _, path, **options: save_weights(models, path, **options)
    return bridge


class _TeNames:
    def __init__(self, model: torch.nn.Module) -> None:
        self.decoder, self._model = model.decoder, model

    def state_dict(self) -> dict[str, Any]:
        renamed = {}
        for name, value in self._model.state_dict().items():
            new = name.replace(".input_layernorm.", ".self_attention.linear_qkv.layer_norm_")
            renamed[new.replace(".pre_mlp_layernorm.", ".mlp.linear_fc1.layer_norm_")] = value
        return renamed

    def named_parameters(self) -> list[tuple[str, torch.nn.Parameter]]:
        names = {value.data_ptr(): name for name, value in self.state_dict().items() if isinstance(value, torch.Tensor)}
        return [(names[each.data_ptr()], each) for each in self._model.parameters()]


def _fill(model: torch.nn.Module, weights: dict[str, torch.Tensor], case: Case) -> None:
    """Set the parameters of this rank from the whole model."""
    from megatron.core import mpu

    for name, parameter in model.named_parameters():
        whole = _whole(name, model, weights, case)
        if ".experts." in name:
            rank, size = mpu.get_expert_tensor_parallel_rank(), mpu.get_expert_tensor_parallel_world_size()
        else:
            rank, size = mpu.get_tensor_model_parallel_rank(), case.tp
        if whole.shape != parameter.shape:
            if "linear_fc1" in name:
                whole = torch.cat([half.chunk(size)[rank] for half in whole.chunk(2)])
            else:
                pairs = zip(parameter.shape, whole.shape, strict=True)
                dim = next(at for at, (here, there) in enumerate(pairs) if here != there)
                whole = whole.chunk(size, dim)[rank]
        with torch.no_grad():
            parameter.copy_(whole)


PLAIN = {
    "input_layernorm": "input_layernorm", "pre_mlp_layernorm": "post_attention_layernorm",
    "self_attention.linear_proj": "self_attn.o_proj", "self_attention.q_layernorm": "self_attn.q_norm",
    "self_attention.k_layernorm": "self_attn.k_norm", "mlp.linear_fc2": "mlp.down_proj",
}  # fmt: skip


def _whole(  # noqa: PLR0911  a case for each kind
    name: str, model: torch.nn.Module, weights: dict[str, torch.Tensor], case: Case
) -> torch.Tensor:
    """What a parameter is a part of."""
    from megatron.core import mpu

    if name == "decoder.final_layernorm.weight":
        return weights["model.norm.weight"]
    if not name.startswith("decoder."):
        if name == "output_layer.weight" and case.is_critic:
            return weights["score.weight"]
        is_head = name == "output_layer.weight" and not case.tied
        rows = weights["lm_head.weight" if is_head else "model.embed_tokens.weight"]
        return torch.nn.functional.pad(rows, (0, 0, 0, case.padded_vocab - len(rows)))
    _, _, local, rest = name.split(".", 3)
    layer = f"model.layers.{model.decoder.layers[int(local)].layer_number - 1}."
    rest, _, kind = rest.rpartition(".")
    moe = "block_sparse_moe." if case.family == "Mixtral" else "mlp."
    gate, up, down = ("w1", "w3", "w2") if case.family == "Mixtral" else ("gate_proj", "up_proj", "down_proj")
    if rest == "self_attention.linear_qkv":
        parts = [weights[f"{layer}self_attn.{part}_proj.{kind}"] for part in "qkv"]
        return torch.cat([part.reshape(case.kv, -1, *part.shape[1:]) for part in parts], 1).flatten(0, 1)
    if found := re.fullmatch(r"mlp\.experts\.local_experts\.(\d+)\.linear_fc([12])", rest):
        expert = int(found[1]) + 4 // case.ep * mpu.get_expert_model_parallel_rank()
        halves = (gate, up) if found[2] == "1" else (down,)
        return torch.cat([weights[f"{layer}{moe}experts.{expert}.{half}.weight"] for half in halves])
    if rest == "mlp.linear_fc1":
        return torch.cat([weights[f"{layer}mlp.{half}.weight"] for half in (gate, up)])
    if rest == "mlp.router":
        return weights[f"{layer}{moe}gate.weight"]
    return weights[f"{layer}{PLAIN[rest]}.{kind}"]


if __name__ == "__main__":
    import megatron.core

    parser = argparse.ArgumentParser()
    parser.add_argument("cases", nargs="*", help="default: those of the megatron-core that is installed")
    parser.add_argument("--to", type=Path, default=FIXTURES)
    wanted = parser.parse_args()
    for each in wanted.cases or [name for name, case in CASES.items() if case.version == megatron.core.__version__]:
        make(each, wanted.to / f"{each}.tar.xz")
        print(each, (wanted.to / f"{each}.tar.xz").stat().st_size)
