"""GPUs by name."""

import pytest

from cloudrl.verl.memory.cards import card_of, suggestion, vendor_of


@pytest.mark.parametrize(
    ("asked", "gib"),
    [
        ("80GB..:8", 79.1),
        ("H100:8", 79.1),
        ("A100:8", 39.4),  # it may be the smaller one
        ("A100:80GB:8", 79.25),
        ("H100,A100:80GB:4", 79.1),
        ("amd:MI300X:8", 191.5),
        ("24GB:2", 22.0),
        ("NVIDIA H100 80GB HBM3", 79.1),
        ("NVIDIA A100-SXM4-40GB", 39.4),
        ("NVIDIA GeForce RTX 4090", 23.6),
        ("NVIDIA RTX 6000 Ada Generation", 47.5),
        ("Tesla T4", 14.6),
        ("8", None),
        ("", None),
        ("Unheard:8", None),
        ("Unheard:32GB:8", 31.36),
    ],
)
def test_memory_that_can_be_used(asked: str, gib: float | None) -> None:
    assert card_of(asked).gib == gib


def test_what_the_tool_says_wins() -> None:
    assert card_of("NVIDIA H100 80GB HBM3", 81559).gib == pytest.approx(79.1, abs=0.1)
    assert card_of("", 24564).gib == pytest.approx(23.5, abs=0.1)


@pytest.mark.parametrize(
    ("asked", "bf16", "fp8"),
    [("T4", False, False), ("A100", True, False), ("H100", True, True), ("A100,H100", True, False), ("8", None, None)],
)
def test_formats(asked: str, bf16: bool | None, fp8: bool | None) -> None:
    card = card_of(asked)
    assert (card.has_bf16, card.has_fp8) == (bf16, fp8)


@pytest.mark.parametrize(
    ("gpu", "vendor"),
    [
        ("H100:8", "nvidia"), ("NVIDIA H100 80GB HBM3", "nvidia"), ("Tesla V100-SXM2-16GB", "nvidia"),
        ("MI300X:8", "amd"), ("amd:192GB:8", "amd"), ("AMD Instinct MI300X", "amd"), ("nvidia:80GB:8", "nvidia"),
        ("80GB..:8", None), ("8", None), ("", None), ("Something else", None), ("tpu:8", "google"),
    ],
)  # fmt: skip
def test_who_made_a_gpu(gpu: str, vendor: str | None) -> None:
    assert vendor_of(gpu) == vendor


@pytest.mark.parametrize(
    ("gpu", "meant"),
    [
        ("H10O:8", "H100"),
        ("RTX409:8", "RTX4090"),
        ("nvidia:V10O:8", "V100"),
        ("H100:8", ""),
        ("Unheard:8", ""),
        ("80GB", ""),
    ],
)
def test_a_name_that_is_nearly_right(gpu: str, meant: str) -> None:
    assert suggestion(gpu) == (f"; did you mean {meant!r}?" if meant else "")
