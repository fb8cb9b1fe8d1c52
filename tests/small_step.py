"""Steps of a run, for tests; nothing is imported to have them."""

import io
import json
import shutil
import zipfile
from pathlib import Path
from typing import Any

FIXTURE = Path(__file__).parent / "shards" / "fixtures" / "torch-2.13.0" / "fsdp2"
CONFIG: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 6, "intermediate_size": 4,
    "num_attention_heads": 6, "num_key_value_heads": 1, "vocab_size": 13, "num_hidden_layers": 1,
    "tie_word_embeddings": False, "torch_dtype": "float32",
}  # fmt: skip


def write_step(run: Path, step: int) -> Path:
    """A real step of two ranks, 20 kB, saved by torch's FSDP2, named in the tracker; returns its folder."""
    folder = run / f"global_step_{step}"
    shutil.copytree(FIXTURE, folder / "actor")
    (folder / "actor" / "huggingface").mkdir()
    (folder / "actor" / "huggingface" / "config.json").write_text(json.dumps(CONFIG))
    (folder / "actor" / "huggingface" / "tokenizer.json").write_text("{}")
    (folder / "data.pt").write_bytes(b"data")
    (run / "latest_checkpointed_iteration.txt").write_text(str(step))
    return folder


def as_sft(step: Path) -> Path:
    """Lay a step out as verl's SFT trainer does: what its actor has is in the step itself."""
    shutil.copytree(step / "actor", step, dirs_exist_ok=True)
    shutil.rmtree(step / "actor")
    (step / "data.pt").rename(step / "data_0.pt")
    return step


def write_names(run: Path, step: int) -> None:
    """A complete step of one rank, for what looks at names and ends alone: its shard is the smallest zip file."""
    actor = run / f"global_step_{step}" / "actor"
    (actor / "huggingface").mkdir(parents=True)
    (actor / "huggingface" / "config.json").write_text("{}")
    (actor / "model_world_size_1_rank_0.pt").write_bytes(smallest_zip())
    (actor.parent / "data.pt").write_bytes(b"x")


def smallest_zip(content: bytes = b"x") -> bytes:
    """A file whose ends are those of a torch file."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("data.pkl", content)
    return buffer.getvalue()


def tree(folder: Path) -> dict[str, bytes]:
    """All files below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
