"""Search-R1's retrieval server on a CPU, by its own algorithm: search_r1/search/retrieval_server.py, a14dc3a.

Each request is encoded and searched by itself, in one of the threads of FastAPI; the index is read into faiss, and the
corpus into a table of `datasets`. Left out is what only a GPU has, and a progress bar a request.
"""

from __future__ import annotations

import argparse
from typing import Any

import datasets
import faiss
import numpy as np
import torch
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from transformers import AutoModel, AutoTokenizer

BATCH = 512
MAX_TOKENS = 256


class QueryRequest(BaseModel):
    """The body of `POST /retrieve`."""

    queries: list[str]
    topk: int | None = None
    return_scores: bool = False


class Retriever:
    """Encoder, index and corpus."""

    def __init__(self, index: str, corpus: str, encoder: str) -> None:
        self.index = faiss.read_index(index)
        self.corpus = datasets.load_dataset("json", data_files=corpus, split="train")
        self.tokenizer = AutoTokenizer.from_pretrained(encoder)
        self.model = AutoModel.from_pretrained(encoder).eval()

    @torch.no_grad()
    def encode(self, queries: list[str]) -> np.ndarray:
        """One row for each."""
        inputs = self.tokenizer(queries, max_length=MAX_TOKENS, padding=True, truncation=True, return_tensors="pt")
        hidden = self.model(**inputs, return_dict=True).last_hidden_state
        mask = inputs["attention_mask"]
        hidden = hidden.masked_fill(~mask[..., None].bool(), 0.0)
        vectors = torch.nn.functional.normalize(hidden.sum(dim=1) / mask.sum(dim=1)[..., None], dim=-1)
        return vectors.numpy().astype(np.float32, order="C")

    def search(self, queries: list[str], k: int) -> list[list[dict[str, Any]]]:
        """What is found for each."""
        results = []
        for start in range(0, len(queries), BATCH):
            scores, rows = self.index.search(self.encode(queries[start : start + BATCH]), k=k)
            for each, its_scores in zip(rows.tolist(), scores.tolist(), strict=True):
                found = [self.corpus[row] for row in each]
                results.append([{"document": d, "score": s} for d, s in zip(found, its_scores, strict=True)])
        return results


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("index", "corpus", "encoder"):
        parser.add_argument(name)
    parser.add_argument("--port", type=int, required=True)
    args = parser.parse_args()
    retriever = Retriever(args.index, args.corpus, args.encoder)
    app = FastAPI()

    @app.post("/retrieve")
    def retrieve(request: QueryRequest) -> dict[str, Any]:
        found = retriever.search(request.queries, request.topk or 3)
        if not request.return_scores:
            return {"result": [[hit["document"] for hit in hits] for hits in found]}
        return {"result": found}

    uvicorn.run(app, host="127.0.0.1", port=args.port, log_level="warning")


if __name__ == "__main__":
    main()
