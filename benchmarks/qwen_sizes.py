"""Shapes of public models, for random weights of their sizes: config.json of each on Hugging Face."""

from __future__ import annotations

from typing import Any

QWEN = {"vocab_size": 151936, "tie_word_embeddings": True, "max_position_embeddings": 32768}
MODELS: dict[str, dict[str, Any]] = {
    "qwen2.5-0.5b": {
        "hidden_size": 896, "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2,
        "intermediate_size": 4864, **QWEN,
    },
    "qwen2.5-1.5b": {
        "hidden_size": 1536, "num_hidden_layers": 28, "num_attention_heads": 12, "num_key_value_heads": 2,
        "intermediate_size": 8960, **QWEN,
    },
    "qwen2.5-3b": {
        "hidden_size": 2048, "num_hidden_layers": 36, "num_attention_heads": 16, "num_key_value_heads": 2,
        "intermediate_size": 11008, **QWEN,
    },
    "qwen2.5-7b": {
        "hidden_size": 3584, "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4,
        "intermediate_size": 18944, **QWEN, "vocab_size": 152064, "tie_word_embeddings": False,
    },
    "tiny": {
        "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "intermediate_size": 128, **QWEN, "vocab_size": 512,
    },
}  # fmt: skip
