"""Vectors are those of Search-R1's encoder, whatever else is encoded with a text."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cloudrl.errors import InputError
from cloudrl.retriever.encoder import Encoder, prefixes_for

pytestmark = pytest.mark.io  # torch

TEXTS = ["capital of france", "", "rome", "the river of peru " * 100, "army " * 40, "\u00e9t\u00e9 \U0001f600", "rome"]


def reference(folder: Path, texts: list[str], prefix: str) -> np.ndarray:
    """As `Encoder.encode` of search_r1/search/retrieval_server.py (a14dc3a) does it, in float32 on a CPU."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    inputs = tokenizer(
        [prefix + text for text in texts], max_length=256, padding=True, truncation=True, return_tensors="pt"
    )
    with torch.no_grad():
        hidden = model(**inputs, return_dict=True).last_hidden_state
    mask = inputs["attention_mask"]
    pooled = hidden.masked_fill(~mask[..., None].bool(), 0.0).sum(dim=1) / mask.sum(dim=1)[..., None]
    return torch.nn.functional.normalize(pooled, dim=-1).numpy()


def test_it_encodes_as_the_reference(encoder_path: Path) -> None:
    encoder = Encoder(str(encoder_path))
    assert (encoder.prefixes, encoder.dim) == ("e5", 32)
    for encode, prefix in ((encoder.encode_queries, "query: "), (encoder.encode_passages, "passage: ")):
        found = encode(TEXTS)
        assert np.allclose(found, reference(encoder_path, TEXTS, prefix), atol=1e-6)
        assert not np.allclose(found, reference(encoder_path, TEXTS, ""), atol=1e-2)


def test_a_text_is_the_same_in_any_company(encoder_path: Path) -> None:
    encoder = Encoder(str(encoder_path))
    many = [*TEXTS, *(f"{text} {number}" for number in range(20) for text in TEXTS)]
    together = encoder.encode_queries(many)
    alone = np.concatenate([encoder.encode_queries([text]) for text in TEXTS])
    assert np.allclose(together[: len(TEXTS)], alone, atol=1e-6)
    assert np.array_equal(together[2], together[6])


@pytest.mark.parametrize(
    ("name", "prefixes"),
    [
        ("intfloat/e5-base-v2", "e5"), ("/models/E5", "e5"), ("BAAI/bge-large-en", "bge"), ("me/minilm", "none"),
        ("/e5/minilm", "none"),
    ],
)  # fmt: skip
def test_prefixes_by_name(name: str, prefixes: str) -> None:
    assert prefixes_for(name) == prefixes


def test_an_encoder_that_is_none(tmp_path: Path, encoder_path: Path) -> None:
    with pytest.raises(InputError, match=f"the encoder {tmp_path} cannot be loaded") as raised:
        Encoder(str(tmp_path))
    assert "intfloat/e5-base-v2" in str(raised.value.hint)
    with pytest.raises(InputError, match="unknown prefixes 'x'"):
        Encoder(str(encoder_path), prefixes="x")
