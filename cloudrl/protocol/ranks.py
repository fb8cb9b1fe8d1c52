"""How lists of ranks and nodes read to a person: `0-37, 40`, and never more than three lines."""

from typing import Iterable, List, Sequence, Tuple

LIMIT = 3 * 80
"""Characters: three lines of a terminal."""

Span = Tuple[int, int]
"""The first and the last of consecutive numbers."""


def spans(numbers: Iterable[int], limit: int = LIMIT) -> str:
    """Numbers in ascending order: `0-3, 7`; see `spans_text`."""
    found: List[Span] = []
    for number in sorted(set(numbers)):
        if found and found[-1][1] == number - 1:
            found[-1] = found[-1][0], number
        else:
            found.append((number, number))
    return spans_text(found, limit)


def spans_text(found: Sequence[Span], limit: int = LIMIT) -> str:
    """Spans as text of at most `limit` characters: those that do not fit are counted, `0, 2, 4 and 246 more`."""
    texts = [str(first) if first == last else f"{first}-{last}" for first, last in found]
    if len(", ".join(texts)) <= limit:
        return ", ".join(texts)
    total = sum(last - first + 1 for first, last in found)
    room = limit - len(f" and {total} more")
    shown, length = 0, 0
    while shown < len(texts) and length + len(texts[shown]) <= room:
        length += len(texts[shown]) + len(", ")
        shown += 1
    shown = max(shown, 1)
    rest = sum(last - first + 1 for first, last in found[shown:])
    return f"{', '.join(texts[:shown])}{f' and {rest} more' if rest else ''}"


def ranks_text(ranks: Iterable[int], noun: str = "rank") -> str:
    """With the noun: `rank 3`, `ranks 0-3, 7`."""
    numbers = set(ranks)
    return f"{noun}{'s' * (len(numbers) != 1)} {spans(numbers)}"


def texts_by_rank(texts: Iterable[Tuple[int, str]], noun: str = "rank") -> List[str]:
    """What is said of ranks, those of which the same is said together: `ranks 1-3: fetch`, in the order of ranks."""
    ranks_of: "dict[str, List[int]]" = {}
    for rank, text in sorted(texts):
        ranks_of.setdefault(text, []).append(rank)
    return [f"{ranks_text(ranks, noun)}: {text}" for text, ranks in ranks_of.items()]
