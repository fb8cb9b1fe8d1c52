"""A Qwen2 of about 110,000 random parameters with tokenizer and chat template, written file by file.

The files are those that transformers would save, made here with the standard library: the bytes depend on the
seed alone, not on the versions of torch and transformers, and it takes a tenth of a second instead of the
several that importing them takes. `pretraining` makes more of those for which there is something to read (`texts`).
"""

from __future__ import annotations

import json
import random
import shutil
import struct
import sys
import tempfile
from array import array
from pathlib import Path

from cloudrl.verl_cpu.texts import READINGS

_HIDDEN, _INTERMEDIATE, _LAYERS, _HEADS, _KEY_VALUE_HEADS = 64, 128, 2, 4, 2
_HEAD = _HIDDEN // _HEADS
_CONTEXT = 512
_INITIAL_DEVIATION = 0.02  # Qwen2's initializer_range

_END_OF_TEXT, _END = "<|endoftext|>", "<|end|>"
_ROLES = ("<|system|>", "<|user|>", "<|assistant|>")
_SPECIAL = (_END_OF_TEXT, _END, *_ROLES)
_BYTES = 256  # a token each; after them come words that are a token as a whole

# A token a role, where Qwen's own format takes up to eleven: a question would be mostly that.
_CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def make_tiny_model(path: str | Path, *, kind: str = "tiny-qwen2", seed: int = 0) -> str:
    """Write the model into a folder that appears whole or not at all.

    Args:
        path: The folder; one that exists already is left as it is.
        kind: One of `READINGS`, which takes torch, transformers and some seconds; otherwise its weights are random.
        seed: Decides the weights.

    Returns:
        The absolute path of the folder.
    """
    path = Path(path).absolute()
    if path.is_dir():
        return str(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    staged = Path(tempfile.mkdtemp(dir=path.parent, prefix=".tiny-qwen2-"))
    reading = READINGS.get(kind)
    try:
        _write_files(staged, seed, () if reading is None else reading.words)
        if reading is not None:
            from cloudrl.verl_cpu.pretraining import pretrain

            pretrain(staged, reading, seed=seed)
        staged.chmod(0o755)  # mkdtemp makes folders that only their owner can enter
        staged.rename(path)
    except OSError:
        if not path.is_dir():  # else another process was faster, with the same bytes
            raise
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    return str(path)


def _write_files(folder: Path, seed: int, words: tuple[str, ...]) -> None:
    vocabulary = len(_SPECIAL) + _BYTES + len(words)
    texts = {
        "config.json": _config(vocabulary),
        "generation_config.json": {"eos_token_id": _id(_END), "pad_token_id": _id(_END_OF_TEXT)},
        "tokenizer.json": _tokenizer(words),
        "tokenizer_config.json": _tokenizer_config(),
    }
    for name, content in texts.items():
        text = json.dumps(content, indent=2, ensure_ascii=False, sort_keys=True)
        (folder / name).write_text(text + "\n", encoding="utf-8")
    (folder / "model.safetensors").write_bytes(_safetensors(seed, vocabulary))


def _id(special: str) -> int:
    return _SPECIAL.index(special)


def _config(vocabulary: int) -> dict[str, object]:
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "dtype": "float32",
        "hidden_size": _HIDDEN,
        "intermediate_size": _INTERMEDIATE,
        "num_hidden_layers": _LAYERS,
        "num_attention_heads": _HEADS,
        "num_key_value_heads": _KEY_VALUE_HEADS,
        "max_position_embeddings": _CONTEXT,
        "vocab_size": vocabulary,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": _id(_END),
        "pad_token_id": _id(_END_OF_TEXT),
    }


def _tokenizer(words: tuple[str, ...]) -> dict[str, object]:
    """The file format of the `tokenizers` library: byte-level BPE without merges."""
    symbols = [*_SPECIAL, *_byte_symbols()]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added = [
        *({"id": number, "content": text, "special": True, **flags} for number, text in enumerate(_SPECIAL)),
        *(
            {"id": number, "content": text, "special": False, **flags}
            for number, text in enumerate(words, len(symbols))
        ),
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": {symbol: number for number, symbol in enumerate(symbols)}, "merges": []},
    }


def _byte_symbols() -> list[str]:
    """The printable character that byte-level BPE writes for each byte (GPT-2, encoder.py, bytes_to_unicode)."""
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    moved = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(moved)) for byte in range(256)]


def _tokenizer_config() -> dict[str, object]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": _END,
        "pad_token": _END_OF_TEXT,
        "model_max_length": _CONTEXT,
        "chat_template": _CHAT_TEMPLATE,
    }


def _shapes(vocabulary: int) -> dict[str, tuple[int, ...]]:
    """Every parameter of the model by its name."""
    key_value = _KEY_VALUE_HEADS * _HEAD
    shapes: dict[str, tuple[int, ...]] = {
        "lm_head.weight": (vocabulary, _HIDDEN),
        "model.embed_tokens.weight": (vocabulary, _HIDDEN),
        "model.norm.weight": (_HIDDEN,),
    }
    for layer in range(_LAYERS):
        prefix = f"model.layers.{layer}."
        shapes |= {
            prefix + "input_layernorm.weight": (_HIDDEN,),
            prefix + "post_attention_layernorm.weight": (_HIDDEN,),
            prefix + "mlp.gate_proj.weight": (_INTERMEDIATE, _HIDDEN),
            prefix + "mlp.up_proj.weight": (_INTERMEDIATE, _HIDDEN),
            prefix + "mlp.down_proj.weight": (_HIDDEN, _INTERMEDIATE),
            prefix + "self_attn.q_proj.weight": (_HIDDEN, _HIDDEN),
            prefix + "self_attn.q_proj.bias": (_HIDDEN,),
            prefix + "self_attn.k_proj.weight": (key_value, _HIDDEN),
            prefix + "self_attn.k_proj.bias": (key_value,),
            prefix + "self_attn.v_proj.weight": (key_value, _HIDDEN),
            prefix + "self_attn.v_proj.bias": (key_value,),
            prefix + "self_attn.o_proj.weight": (_HIDDEN, _HIDDEN),
        }
    return dict(sorted(shapes.items()))


def _initial(name: str, shape: tuple[int, ...], source: random.Random) -> array[float]:
    """Qwen2's initial values: norms 1, biases 0, matrices normally distributed."""
    if len(shape) == 1:
        return array("f", [0.0 if name.endswith(".bias") else 1.0]) * shape[0]
    return array("f", (source.gauss(0.0, _INITIAL_DEVIATION) for _ in range(shape[0] * shape[1])))


def _safetensors(seed: int, vocabulary: int) -> bytes:
    """The weights as a safetensors file: the header's length, a JSON header, the values in little-endian."""
    source = random.Random(seed)  # noqa: S311 - weights are not a secret
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    body = bytearray()
    for name, shape in _shapes(vocabulary).items():
        values = _initial(name, shape, source)
        if sys.byteorder == "big":
            values.byteswap()
        start = len(body)
        body += values.tobytes()
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [start, len(body)]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the values start at a multiple of 8 bytes
    return struct.pack("<Q", len(text)) + text + bytes(body)
