"""A corpus and an encoder made on the spot, for what searches."""

from __future__ import annotations

import json
from pathlib import Path

WORDS = [
    "paris", "berlin", "rome", "lima", "capital", "france", "germany", "italy", "peru", "river", "history", "army",
    "the", "of", "is",
]  # fmt: skip


def write_corpus(path: Path, passages: int = 40) -> list[str]:
    """Passages that all differ; returns their contents."""
    texts = [
        f'"{WORDS[n % 11]} {n}"\n' + " ".join(WORDS[(n * n + 3 * each) % len(WORDS)] for each in range(3 + n % 9))
        for n in range(passages)
    ]
    lines = [json.dumps({"id": str(n), "contents": text}) for n, text in enumerate(texts)]
    path.write_text("\n".join(lines) + "\n")
    return texts


def make_encoder(folder: Path) -> None:
    """A BERT of two layers with random weights, and its WordPiece tokenizer of words and letters."""
    import torch
    from transformers import BertConfig, BertModel, BertTokenizerFast

    letters = 'abcdefghijklmnopqrstuvwxyz0123456789:?"'
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, "query", "passage", *letters]
    pieces += [f"##{letter}" for letter in letters]
    tokenizer = BertTokenizerFast(vocab={piece: number for number, piece in enumerate(pieces)})
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=256, initializer_range=0.3,
    )  # fmt: skip
    tokenizer.save_pretrained(folder)
    BertModel(config).save_pretrained(folder)
