"""How much memory of a GPU verl's trainer takes, phase by phase: measured, to hold an estimate against.

    python benchmarks/gpu_memory.py [--out FILE.yml] [ROW ...]     # an NVIDIA GPU, and verl

verl's own training worker trains models of the sizes of public ones, with random weights, on one GPU: two updates, log
probabilities with entropy, and the weights as they go to a rollout engine. torch counts what each phase holds at most.
There is no rollout engine, and attention is torch's (`sdpa`), which holds as much as flash attention where a micro
batch is one sequence, as here. Rows that fit beside each other run at the same time: they count only what is theirs.

It prints a row of YAML for each, in GiB: `job` in short names (micro: sequences of `mean` tokens in a micro batch),
`figures`: `allocated` and `reserved` are verl's own metrics `perf/max_memory_..._gb`.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from qwen_sizes import MODELS

GIB = 1 << 30
STEPS, SEQUENCES = 2, 3
DEFAULTS: dict[str, Any] = {
    "engine": "fsdp2", "dtype": "fp32", "tokens": 8192, "gc": True, "entropy": False, "compile": True, "fused": False,
    "lora": 0, "param_offload": False, "optim_offload": False, "offload_policy": False, "flash_ce": True,
}  # fmt: skip
ROWS: dict[str, dict[str, Any]] = {
    # needs: GiB that it may take; what else runs at the same time follows from it
    "3b": {"model": "qwen2.5-3b", "tokens": 4096, "needs": 70},
    "3b-offload": {
        "model": "qwen2.5-3b", "tokens": 4096, "param_offload": True, "optim_offload": True, "needs": 62,
    },
    "1.5b": {"model": "qwen2.5-1.5b", "needs": 38},
    "1.5b-fsdp1": {"model": "qwen2.5-1.5b", "engine": "fsdp", "needs": 38},
    "1.5b-entropy": {"model": "qwen2.5-1.5b", "entropy": True, "needs": 38},
    "1.5b-entropy-eager": {"model": "qwen2.5-1.5b", "entropy": True, "compile": False, "needs": 50},
    "1.5b-no-flash-ce": {"model": "qwen2.5-1.5b", "flash_ce": False, "needs": 45},
    "1.5b-16k": {"model": "qwen2.5-1.5b", "tokens": 16384, "needs": 50},
    "1.5b-16k-fused": {"model": "qwen2.5-1.5b", "tokens": 16384, "fused": True, "needs": 38},
    "1.5b-no-gc": {"model": "qwen2.5-1.5b", "tokens": 4096, "gc": False, "needs": 50},
    "1.5b-bf16": {"model": "qwen2.5-1.5b", "dtype": "bf16", "needs": 25},
    "0.5b": {"model": "qwen2.5-0.5b", "needs": 20},
    "0.5b-no-gc": {"model": "qwen2.5-0.5b", "tokens": 8192, "gc": False, "needs": 35},
    "3b-bf16": {"model": "qwen2.5-3b", "dtype": "bf16", "needs": 38},
    "3b-offload-policy": {"model": "qwen2.5-3b", "offload_policy": True, "needs": 25},
    "7b-lora": {"model": "qwen2.5-7b", "lora": 32, "tokens": 8192, "needs": 60},
    "7b-lora-bf16": {"model": "qwen2.5-7b", "lora": 32, "dtype": "bf16", "tokens": 8192, "needs": 45},
}  # fmt: skip
TINY = {"tiny": {"model": "tiny", "tokens": 64, "compile": False, "needs": 1}}


def write_models(folder: Path, names: list[str]) -> None:
    """Config, tokenizer, and random weights in bf16, which are made on the GPU, of each in a folder of its name."""
    import torch
    from transformers import AutoModelForCausalLM, Qwen2Config

    from cloudrl.verl_cpu.tiny_model import make_tiny_model

    tiny = Path(make_tiny_model(folder / "tokenizer"))
    for name in names:
        with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
            model = AutoModelForCausalLM.from_config(Qwen2Config(**MODELS[name]), dtype=torch.bfloat16)
        model.save_pretrained(folder / name)
        for file in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
            shutil.copy(tiny / file, folder / name / file)
        print(name, file=sys.stderr, flush=True)


class Meter:
    """What torch counts of this process on the GPU, in GiB; nothing without one."""

    def __init__(self) -> None:
        import torch

        self._cuda = torch.cuda if torch.cuda.is_available() else None
        self.figures: dict[str, float] = {}

    def begin(self) -> None:
        """Forget peaks."""
        if self._cuda:
            self._cuda.synchronize()
            self._cuda.reset_peak_memory_stats()

    def end(self, phase: str) -> None:
        """Keep the peaks since `begin`, the highest of each phase."""
        if self._cuda:
            self._cuda.synchronize()
            for name, value in (
                (phase, self._cuda.max_memory_allocated()), (f"{phase}_reserved", self._cuda.max_memory_reserved()),
            ):  # fmt: skip
                self.figures[name] = max(self.figures.get(name, 0.0), round(value / GIB, 3))

    def keep(self, name: str) -> None:
        """What is held now."""
        if self._cuda:
            self.figures[name] = round(self._cuda.memory_allocated() / GIB, 3)

    def outside(self) -> None:
        """What the driver counts of this process and torch's allocator does not: CUDA itself, NCCL, and libraries."""
        if not self._cuda:
            return
        try:
            import pynvml

            pynvml.nvmlInit()
            card = pynvml.nvmlDeviceGetHandleByIndex(0)
            used = {each.pid: each.usedGpuMemory for each in pynvml.nvmlDeviceGetComputeRunningProcesses(card)}
            mine = used.get(os.getpid())
        except Exception as error:  # noqa: BLE001 - it may be missing, or not say it in a container
            print(f"outside: {error!r}", file=sys.stderr)
            return
        if mine:
            self.figures["outside"] = round((mine - self._cuda.memory_reserved()) / GIB, 3)


def worker_of(row: dict[str, Any], model: Path) -> Any:
    """The training worker of verl, of one rank."""
    from verl.trainer.config import CheckpointConfig
    from verl.workers.config import FSDPEngineConfig, FSDPOptimizerConfig, HFModelConfig, TrainingWorkerConfig
    from verl.workers.engine_workers import TrainingWorker

    lora = {"lora_rank": row["lora"], "lora_alpha": 16, "target_modules": "all-linear"} if row["lora"] else {}
    config = TrainingWorkerConfig(
        model_type="language_model",
        model_config=HFModelConfig(
            path=str(model),
            override_config={"attn_implementation": "sdpa"},
            use_remove_padding=True,
            enable_gradient_checkpointing=row["gc"],
            use_fused_kernels=row["fused"],
            fused_kernel_options={"impl_backend": "torch"},
            **lora,
        ),
        engine_config=FSDPEngineConfig(
            strategy=row["engine"],
            model_dtype=row["dtype"],
            param_offload=row["param_offload"],
            optimizer_offload=row["optim_offload"],
            offload_policy=row["offload_policy"],
            use_torch_compile=row["compile"],
            use_no_sync_for_gradient_accumulation=False,  # as verl's YAML has it
        ),
        optimizer_config=FSDPOptimizerConfig(lr=1e-6, total_training_steps=STEPS),
        checkpoint_config=CheckpointConfig(),
    )
    return TrainingWorker(config=config)


def batch_of(row: dict[str, Any], *, entropy: bool) -> Any:
    """Sequences of random tokens, all of one length, one in a micro batch."""
    import torch
    from tensordict.tensorclass import NonTensorData
    from verl.utils import tensordict_utils as tu
    from verl.utils.dataset.dataset_utils import DatasetPadMode

    tokens = row["tokens"]

    def nested(values: Any) -> Any:
        return torch.nested.nested_tensor([values() for _ in range(SEQUENCES)], layout=torch.jagged)

    data = tu.get_tensordict(
        tensor_dict={
            "input_ids": nested(lambda: torch.randint(300, 500, (tokens,))),
            "position_ids": nested(lambda: torch.arange(tokens)),
            "loss_mask": nested(lambda: torch.ones(tokens, dtype=torch.int64)),
        },
        non_tensor_dict={
            "use_remove_padding": True, "use_dynamic_bsz": False, "micro_batch_size_per_gpu": 1, "temperature": 1.0,
            "global_batch_size": SEQUENCES, "pad_mode": DatasetPadMode.NO_PADDING, "pad_token_id": 0,
            "use_fused_kernels": row["fused"], "calculate_entropy": entropy, "compute_loss": False,
        },
    )  # fmt: skip
    tu.assign_non_tensor(data, update_lr_scheduler=True, global_token_num=NonTensorData([tokens] * SEQUENCES))
    return data


def loss_of(row: dict[str, Any]) -> Any:
    """The loss of a data set of answers; with entropy as a policy's loss has it."""
    from verl.workers.utils.losses import sft_loss

    def loss(model_output: Any, data: Any, dp_group: Any = None) -> Any:
        value, metrics = sft_loss(None, model_output, data, dp_group)
        if row["entropy"]:
            value = value - 1e-3 * model_output["entropy"].values().mean()
        return value, metrics

    return loss


def measure(row: dict[str, Any], model: Path) -> dict[str, float]:
    """GiB by phase."""
    from verl.utils import tensordict_utils as tu

    meter = Meter()
    worker = worker_of(row, model)
    meter.begin()
    worker.reset()
    meter.end("load")
    meter.keep("after_fsdp")
    engine, optimizer_step = worker.engine, worker.engine.optimizer_step

    def step() -> Any:
        meter.end("backward")
        meter.begin()
        norm = optimizer_step()
        meter.end("optimizer")
        return norm

    engine.optimizer_step = step
    worker.set_loss_fn(loss_of(row))
    for _ in range(STEPS):
        meter.begin()
        metrics = tu.get(worker.train_batch(batch_of(row, entropy=row["entropy"])), "metrics")
        assert metrics["grad_norm"] > 0
    meter.keep("after_update")
    meter.begin()
    worker.infer_batch(batch_of(row, entropy=True))
    meter.end("log_probs")
    meter.begin()
    for _name, _tensor in engine.get_per_tensor_param()[0]:
        pass
    meter.end("weights")
    meter.outside()
    figures = meter.figures
    if figures:
        phases = ("backward", "optimizer")
        figures["allocated"] = max(figures[each] for each in phases)
        figures["reserved"] = max(figures[f"{each}_reserved"] for each in phases)
    return figures


def be_worker(row: dict[str, Any], model: Path) -> None:
    """Import what is needed, say so, and measure once it is this row's turn."""
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    import torch
    import verl.workers.engine_workers  # noqa: F401

    print("ready", flush=True)
    sys.stdin.readline()
    began = time.monotonic()
    figures = measure(row, model)
    print(json.dumps({"figures": figures, "seconds": round(time.monotonic() - began, 1)}), flush=True)
    torch.distributed.destroy_process_group()


class Worker:
    """The process of a row, which waits for its turn."""

    def __init__(self, name: str, row: dict[str, Any], model: Path, folder: Path) -> None:
        self.name, self.row, self.log = name, row, folder / f"{name}.log"
        environ = os.environ | {
            "DIST_INIT_METHOD": f"file://{folder / name}.meeting", "OMP_NUM_THREADS": "4", "HF_HUB_OFFLINE": "1",
            "VERL_DISABLE_FLASH_ATTN_CE": "0" if row["flash_ce"] else "1",
        }  # fmt: skip
        command = [sys.executable, "-W", "ignore", __file__, "--worker", json.dumps(row), str(model)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log.open("w"), text=True, env=environ
        )
        self.answer: dict[str, Any] | None = None
        self.is_begun = False

    def begin(self) -> None:
        """Its turn."""
        assert self.process.stdin is not None
        self.is_begun = True
        try:
            self.process.stdin.write("go\n")
            self.process.stdin.flush()
        except OSError:
            pass  # it has died, which `read` says

    def read(self) -> bool:
        """A line of it; False at its end."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if line.startswith("{"):
            self.answer = json.loads(line)
        if not line:
            self.process.wait()
        return bool(line)


def run(
    rows: dict[str, dict[str, Any]], models: subprocess.Popen[bytes], folder: Path, room: float
) -> Iterator[Worker]:
    """All rows, once the models are there, as many at the same time as there is room for, GiB; each when it is over."""
    waiting = [Worker(name, row, folder / "models" / row["model"], folder) for name, row in rows.items()]
    if models.wait():
        sys.exit("the models could not be written")
    running = list[Worker]()
    while waiting or running:
        for worker in list(waiting):
            if not running or sum(each.row["needs"] for each in running) + worker.row["needs"] <= room:
                waiting.remove(worker)
                running.append(worker)
                worker.begin()
        ready, _, _ = select.select([each.process.stdout for each in running], [], [], 5)
        for worker in [each for each in running if each.process.stdout in ready]:
            if not worker.read():
                running.remove(worker)
                if worker.answer is None:
                    print(worker.name, worker.log.read_text()[-1500:], file=sys.stderr, flush=True)
                yield worker


def gpu() -> tuple[str, float, float]:
    """Name, and GiB in all and free; a stand-in without one."""
    command = ["nvidia-smi", "--query-gpu=name,memory.total,memory.free", "--format=csv,noheader,nounits"]
    if shutil.which(command[0]) is None:
        return "no GPU", 0.0, 4.0
    name, total, free = subprocess.check_output(command, text=True).splitlines()[0].rsplit(",", 2)
    return name, float(total) / 1024, float(free) / 1024


def text_of(worker: Worker, card: str, total: float, versions: str) -> str:
    """A row in the shape of the truth set."""
    row = worker.row
    shown = {key: row[key] for key, value in DEFAULTS.items() if key not in ("tokens", "dtype") and row[key] != value}
    job = {
        "gpus": 1, "gpu_gib": round(total, 1), "sft": True, "prompt": row["tokens"] // 2,
        "response": row["tokens"] - row["tokens"] // 2, "mean": row["tokens"], "micro": 1, "mini": SEQUENCES,
        "batch": SEQUENCES, "engine": row["engine"], "gc": row["gc"], "dtype_bytes": 2 if row["dtype"] == "bf16" else 4,
    } | shown  # fmt: skip
    figures = (worker.answer or {}).get("figures")
    lines = [
        f"- id: measured-{worker.name}",
        f"  model: {row['model']}",
        f"  job: {json.dumps(job)}",
        "  verdict: fits" if figures is not None else "  verdict: failed",
        *([f"  figures: {json.dumps(figures)}"] if figures else []),
        f"  source: benchmarks/gpu_memory.py, {card}, {versions}",
        "  verl: '0.9.1'",
        "  score: true",
    ]
    return "\n".join(lines).replace('"', "") + "\n"


def versions() -> str:
    """Of what decides."""
    from importlib.metadata import version

    return ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "verl"))


def main() -> None:
    if sys.argv[1:2] == ["--worker"]:
        be_worker(json.loads(sys.argv[2]), Path(sys.argv[3]))
        return
    if sys.argv[1:2] == ["--models"]:
        write_models(Path(sys.argv[2]), sys.argv[3:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", help=", ".join(ROWS))
    parser.add_argument("--out", type=Path, help="also write the rows to this file, as they come")
    parser.add_argument("--leave", type=float, default=2.0, help="GiB of the free memory that are for others")
    args = parser.parse_args()
    chosen = {name: DEFAULTS | (ROWS | TINY)[name] for name in args.rows or ROWS}
    card, total, free = gpu()
    place = "/dev/shm" if shutil.disk_usage("/dev/shm").free > 40 * GIB else None
    with tempfile.TemporaryDirectory(dir=place) as name:
        folder = Path(name)
        names = sorted({row["model"] for row in chosen.values()})
        models = subprocess.Popen(
            [sys.executable, "-W", "ignore", __file__, "--models", str(folder / "models"), *names],
            env=os.environ | {"HF_HUB_OFFLINE": "1"},
        )
        text = ""
        for worker in run(chosen, models, folder, free - args.leave):
            row = text_of(worker, card, total, versions())
            print(row, end="", flush=True)
            text += row
            if args.out:
                args.out.write_text(text)


if __name__ == "__main__":
    main()
