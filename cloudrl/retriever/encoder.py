"""Texts to vectors, as the encoder of Search-R1's server makes them (search_r1/search/retrieval_server.py, a14dc3a)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cloudrl.errors import InputError
from cloudrl.retriever.vectors import Floats

if TYPE_CHECKING:
    import torch

PREFIXES = {
    "e5": ("query: ", "passage: "),
    "bge": ("Represent this sentence for searching relevant passages: ", ""),
    "none": ("", ""),
}
"""What encoders were trained to see before a query and before a passage."""
MAX_TOKENS = 256
_BATCH_ON_CPU, _BATCH_ON_GPU = 32, 256


def prefixes_for(encoder: str) -> str:
    """Which of `PREFIXES` an encoder needs, by its name."""
    name = Path(encoder).name.lower()
    return next((kind for kind in PREFIXES if kind in name), "none")


class Encoder:
    """An encoder of transformers: mean pooling over at most 256 tokens, normalised unless it is DPR's or a T5.

    On a GPU it computes in float16, as Search-R1's does. Code that comes with a model is not run.

    Args:
        name: on the Hub, or a folder.
        prefixes: one of `PREFIXES`; by its name if it is "".
        device: of torch.

    Raises:
        InputError: it cannot be loaded, or its packages are not installed.
    """

    def __init__(self, name: str, *, prefixes: str = "", device: str = "cpu") -> None:
        try:
            import torch
            from transformers import AutoModel, AutoTokenizer
        except ImportError as error:
            raise InputError(
                f"an encoder needs the packages torch and transformers: {error}",
                hint="pip install torch transformers\nWithout an encoder: --engine bm25",
            ) from error
        self.name, self.prefixes = name, prefixes or prefixes_for(name)
        if self.prefixes not in PREFIXES:
            raise InputError(f"unknown prefixes {self.prefixes!r}", hint=f"Known: {', '.join(PREFIXES)}")
        try:
            self._tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
            model = AutoModel.from_pretrained(name, trust_remote_code=False)
        except (OSError, ValueError, ImportError) as error:
            reason = str(error).strip().splitlines()[0]
            raise InputError(
                f"the encoder {name} cannot be loaded: {reason}",
                hint="Name a folder, or a model on the Hub such as intfloat/e5-base-v2",
            ) from error
        self._model = model.eval().to(device=device, dtype=torch.float32 if device == "cpu" else torch.float16)
        self._device = device
        self._is_t5 = "T5" in type(model).__name__
        self._normalises = not self._is_t5 and "dpr" not in Path(name).name.lower()
        self._batch = _BATCH_ON_CPU if device == "cpu" else _BATCH_ON_GPU
        self._pad = self._tokenizer.pad_token_id or 0
        self.dim: int = model.config.hidden_size

    def encode_queries(self, texts: Sequence[str]) -> Floats:
        """One row for each."""
        return self._encode([PREFIXES[self.prefixes][0] + text for text in texts])

    def encode_passages(self, texts: Sequence[str]) -> Floats:
        """One row for each."""
        return self._encode([PREFIXES[self.prefixes][1] + text for text in texts])

    def _encode(self, texts: list[str]) -> Floats:
        import torch

        vectors = np.empty((len(texts), self.dim), np.float32)
        with torch.inference_mode():
            for rows, ids, mask in self._batches(texts):
                vectors[rows] = self._forward(ids, mask).cpu().numpy()
        return vectors

    def _batches(self, texts: list[str]) -> Iterator[tuple[list[int], torch.Tensor, torch.Tensor]]:
        """Texts of like length together, so that little is computed for padding."""
        import torch

        tokens = self._tokenizer(texts, max_length=MAX_TOKENS, truncation=True, return_attention_mask=False)
        all_ids = [torch.tensor(ids) for ids in tokens["input_ids"]]
        order = sorted(range(len(texts)), key=lambda row: len(all_ids[row]))
        for start in range(0, len(order), self._batch):
            rows = order[start : start + self._batch]
            padded = torch.nn.utils.rnn.pad_sequence([all_ids[row] for row in rows], True, self._pad)
            lengths = torch.tensor([len(all_ids[row]) for row in rows])
            mask = torch.arange(padded.shape[1])[None, :] < lengths[:, None]
            yield rows, padded.to(self._device), mask.long().to(self._device)

    def _forward(self, ids: torch.Tensor, mask: torch.Tensor) -> Any:
        import torch

        extra = {"decoder_input_ids": torch.zeros_like(ids[:, :1])} if self._is_t5 else {}
        hidden = self._model(input_ids=ids, attention_mask=mask, **extra).last_hidden_state.float()
        if self._is_t5:
            return hidden[:, 0]
        pooled = hidden.masked_fill(~mask[..., None].bool(), 0.0).sum(1) / mask.sum(1)[..., None]
        return torch.nn.functional.normalize(pooled, dim=-1) if self._normalises else pooled
