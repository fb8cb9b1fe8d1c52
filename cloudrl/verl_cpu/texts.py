"""What the tiny models have read before they are trained. Standard library only.

As large models have read the web, they have read right and wrong: what is right is among what they know, and is not
what they usually say. Reinforcement learning can then show what it is for: the reward makes it the usual answer.

    tiny-adder      sums. One in four is right, the others are one too many. The questions are those of the `addition`
                    data set's training split alone
    tiny-searcher   conversations about capitals. In some the model searches, and in some of those it answers with what
                    was found; in the others it gives up. Countries and capitals are paired at random, and never
                    rightly: it learns to copy names, and no fact
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from cloudrl.data import addition, capitals

Text = tuple[list[dict[str, str]], str]
"""Messages, and what the model answers."""

_RIGHT_SUMS = 0.25
"""This share of the sums is right."""
_TOO_MANY = 1
"""The others are so much off."""
_SEARCHES = 0.4
"""This share of the conversations begins with a search."""
_READS = 0.6
"""This share of the answers to what was found is taken from it; in the others it gives up as well."""

_CALL = ('<tool_call>\n{"name": "search", "arguments": {"query": "capital of ', '"}}\n</tool_call>')
_ANSWER = ("<answer>", "</answer>")
_GIVES_UP = "<answer>unknown</answer>"


@dataclass(frozen=True)
class Reading:
    """How a model is pretrained.

    Attributes:
        batches: Makes batches of texts, endlessly.
        steps: How many of them it reads.
        learning_rate: Its highest.
        words: What is one token for it: a token a byte would make conversations ten times as long.
    """

    batches: Callable[[random.Random], Iterator[list[Text]]]
    steps: int
    learning_rate: float
    words: tuple[str, ...] = ()


def sums(source: random.Random) -> Iterator[list[Text]]:
    """Batches of 64 questions with the answers that the text gives them."""
    train = addition.pairs()["train"]
    while True:
        yield [
            (_user(addition.question(left, right)), str(left + right + _TOO_MANY * (source.random() >= _RIGHT_SUMS)))
            for left, right in source.choices(train, k=64)
        ]


def searches(source: random.Random) -> Iterator[list[Text]]:
    """Batches of 64 beginnings of conversations and of 64 ends, in turn."""
    while True:
        yield [_beginning(source) for _ in range(64)]
        yield [_end(source) for _ in range(64)]


def _beginning(source: random.Random) -> Text:
    asked = source.choice(_COUNTRIES)
    return _user(capitals.question(asked.name)), asked.name.join(_CALL) if source.random() < _SEARCHES else _GIVES_UP


def _end(source: random.Random) -> Text:
    asked, answered = source.sample(_COUNTRIES, 2)
    messages = [
        *_user(capitals.question(asked.name)),
        {"role": "assistant", "content": asked.name.join(_CALL)},
        # as tools/search.py shows it
        {"role": "tool", "content": f'Doc 1(Title: "{asked.name}") {capitals.text(answered)}\n'},
    ]
    return messages, answered.capital.join(_ANSWER) if source.random() < _READS else _GIVES_UP


def _user(question: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question}]


_COUNTRIES = [country for members in capitals.countries().values() for country in members]
_FRAGMENTS = (
    "<|tool|>", "What is the capital of ", *_CALL, *_ANSWER, _GIVES_UP, 'Doc 1(Title: "', '") Coordinates: ',
    "; time difference: UTC", "; capital: ",
)  # fmt: skip

READINGS = {
    "tiny-adder": Reading(sums, steps=900, learning_rate=3e-3),
    "tiny-searcher": Reading(
        searches,
        steps=400,
        learning_rate=5e-3,
        words=(*_FRAGMENTS, *sorted({name for country in _COUNTRIES for name in (country.name, country.capital)})),
    ),
}
"""By the model's name; what has none is random."""
