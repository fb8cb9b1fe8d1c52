"""Indexes that others have published."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Published:
    """An index on the Hub, in `part_aa`, `part_ab`, ... (Search-R1 a14dc3a, docs/retriever.md, scripts/download.py).

    Attributes:
        disk_gb: for index and corpus, with room for the largest part of the download.
        memory_gb: of a machine that holds the index in its memory, with room for the rest.
        vectors_gb: the part of it that nodes can share.
    """

    repo: str
    index: str
    engine: str
    disk_gb: int
    memory_gb: int
    vectors_gb: int = 0
    encoder: str = "intfloat/e5-base-v2"
    prefixes: str = "e5"
    dim: int = 768


PUBLISHED = {
    "wiki-18": Published("PeterJinGo/wiki-18-e5-index", "e5_Flat.index", "flat", 100, 80, 65),
    "wiki-18-hnsw": Published("PeterJinGo/wiki-18-e5-index-HNSW64", "e5_HNSW64.index", "faiss", 110, 95),
}
