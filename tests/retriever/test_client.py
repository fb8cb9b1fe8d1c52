"""What clients have seen, summed up."""

from __future__ import annotations

from collections import Counter

from cloudrl.retriever.client import Load, Samples


def test_turns_of_the_same_clients_are_one_load() -> None:
    one = Samples(2, 1.0, [0.003], Counter({"503": 1}))
    other = Samples(2, 0.5, [0.001, 0.002], Counter({"503": 1, "error": 1}))
    assert (one + other).load == Load(2, 1.5, 3, 2.0, 2.0, 3.0, {"503": 2, "error": 1})


def test_nothing_was_answered() -> None:
    assert Samples(2, 1.0, [], Counter({"error": 4})).load == Load(2, 1.0, 0, 0.0, 0.0, 0.0, {"error": 4})
