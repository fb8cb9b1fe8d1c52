"""How lists of ranks, nodes and hosts read to a person: `0-37, 40`, and never more than three lines."""

from typing import Dict, Iterable, List, Sequence, Tuple

LIMIT = 3 * 80
"""Characters: three lines of a terminal."""
_FEW = 3

Span = Tuple[int, int]
"""The first and the last of consecutive numbers."""


def spans(numbers: Iterable[int], limit: int = LIMIT) -> str:
    """Numbers in ascending order: `0-3, 7`; see `spans_text`."""
    runs: List[Span] = []
    for number in sorted(set(numbers)):
        if runs and runs[-1][1] == number - 1:
            runs[-1] = runs[-1][0], number
        else:
            runs.append((number, number))
    return spans_text(runs, limit)


def spans_text(runs: Sequence[Span], limit: int = LIMIT) -> str:
    """Spans as text of at most `limit` characters: those that do not fit are counted, `0, 2, 4 and 246 more`."""
    texts = [str(first) if first == last else f"{first}-{last}" for first, last in runs]
    return _shortened(texts, [last - first + 1 for first, last in runs], ", ", limit)


def ranks_text(ranks: Iterable[int], noun: str = "rank", limit: int = LIMIT) -> str:
    """With the noun: `rank 3`, `ranks 0-3, 7`."""
    numbers = set(ranks)
    return f"{noun}{'s' * (len(numbers) != 1)} {spans(numbers, limit)}"


def texts_by_rank(texts: Iterable[Tuple[int, str]], noun: str = "rank", limit: int = LIMIT) -> str:
    """What is said of ranks, of equal ones once: `rank 0: ready; ranks 1-3: fetch`, in the order of the first ranks."""
    ranks_of: Dict[str, List[int]] = {}
    for rank, text in sorted(texts):
        ranks_of.setdefault(text, []).append(rank)
    told = [f"{ranks_text(ranks, noun, limit // 2)}: {text}" for text, ranks in ranks_of.items()]
    return _shortened(told, [len(ranks) for ranks in ranks_of.values()], "; ", limit)


def names_text(names: Sequence[str], limit: int = LIMIT) -> str:
    """Names: `a, b and 246 more`."""
    return _shortened(names, [1] * len(names), ", ", limit)


def first_few(ranks: Iterable[int]) -> Tuple[List[int], List[int]]:
    """Those to name one by one, and the rest for one sentence; a rest has more than one."""
    ordered = sorted(ranks)
    few = _FEW if len(ordered) > _FEW + 1 else len(ordered)
    return ordered[:few], ordered[few:]


def _shortened(texts: Sequence[str], weights: Sequence[int], between: str, limit: int) -> str:
    """As many as fit, at least one, and how many more there are; each text stands for `weight` of them."""
    if len(between.join(texts)) <= limit:
        return between.join(texts)
    room, shown, length = limit - len(_more(sum(weights))), 0, 0
    while not shown or length + len(texts[shown]) <= room:
        length += len(texts[shown]) + len(between)
        shown += 1
    return between.join(texts[:shown]) + _more(sum(weights[shown:]))


def _more(count: int) -> str:
    return f" and {count} more" if count else ""


def missing_ranks(ranks: Sequence[int], count: int) -> str:
    """What ascending ranks lack of so many, for a message: `ranks 0-3, 7`; "" if they lack none."""
    gaps, following = [], 0
    for rank in (*(rank for rank in ranks if rank < count), count):
        if rank > following:
            gaps.append((following, rank - 1))
        following = rank + 1
    several = len(gaps) > 1 or any(first < last for first, last in gaps)
    return f"rank{'s' * several} {spans_text(gaps)}" if gaps else ""
