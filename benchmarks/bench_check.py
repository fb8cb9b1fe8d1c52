"""Measures `cloudrl check` by verl 0.9.1's own verdict: `make check-truth`.

Shows both the same configurations - mutated ones, and verl's own example commands if a checkout is given - and prints
how often they agree, by kind of fault. Exit code 1: cloudrl refuses what verl accepts, or finds less than 99 % of what
verl refuses.

    python benchmarks/bench_check.py [--count 2000] [--seed 1] [--examples CHECKOUT ...] [--show] [--part 1/8]

A part has every eighth configuration, and one judge; the tables of all parts add up.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mutations import BASES, Case, cases, penalties
from parsed_once import parse_once
from verl_examples import commands

from cloudrl.verl import composition
from cloudrl.verl.release_files import source_of
from cloudrl.verl.rules import notes, problems
from cloudrl.verl.setting import Setting

RELEASE, GPUS, JUDGES = "0.9.1", 16, 2
TARGET = 0.99
UNTOLD = "hydra.searchpath"


def ours(name: str, overrides: Sequence[str], gpus: int) -> tuple[list[str], list[str]]:
    """What cloudrl refuses, and what it only notes."""
    composed = composition.compose(RELEASE, tuple(overrides), name)
    if composed.values is None:
        return [each.text for each in composed.problems], [composed.untold] if composed.untold else []
    setting = Setting(composed.values, gpus, base=composed.base, source=source_of(RELEASE))
    return [each.text for each in problems(setting)], list(notes(setting))


def judged(asked: Sequence[tuple[str, Sequence[str], int]], judges: int) -> list[Any]:
    """Verl's verdicts, from processes side by side."""
    probe = Path(__file__).parent / "verl_judge.py"
    running = []
    for part in range(judges):
        text = json.dumps({"cases": [list(each) for each in asked[part::judges]]})
        process = subprocess.Popen([sys.executable, str(probe)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   stderr=subprocess.DEVNULL, text=True)  # fmt: skip
        assert process.stdin is not None
        process.stdin.write(text)
        process.stdin.close()
        running.append(process)
    answers: list[Any] = [None] * len(asked)
    for part, process in enumerate(running):
        assert process.stdout is not None
        lines = [json.loads(line) for line in process.stdout if line.startswith(("null", "["))]
        process.wait()
        assert len(lines) == len(asked[part::judges]), f"the judge ended with {process.returncode}"
        answers[part::judges] = lines
    return answers


def leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{prefix}{key}.")
        elif key != "_target_":
            yield f"{prefix}{key}"


def table(rows: Mapping[str, collections.Counter[str]]) -> str:
    columns = ("both refuse", "both accept", "only verl refuses", "only cloudrl refuses", "cannot tell")
    width = max(map(len, rows))
    lines = [f"{'':{width}}  " + "  ".join(columns) + "  found"]
    for kind, counts in rows.items():
        refused = counts[columns[0]] + counts[columns[2]]
        share = f"{counts[columns[0]] / refused:6.1%}" if refused else "     -"
        lines.append(f"{kind:{width}}  " + "  ".join(f"{counts[each]:{len(each)}}" for each in columns) + f"  {share}")
    return "\n".join(lines)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--count", type=int, default=2000)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--examples", type=Path, nargs="+", default=[], help="checkouts of verl, for their examples")
    options.add_argument("--show", action="store_true", help="print where the two differ")
    options.add_argument("--part", default="1/1", help="which part of the configurations, such as 1/8")
    given = options.parse_args()
    parse_once()
    folder = tempfile.TemporaryDirectory()  # a cache of its own, so that each configuration is composed
    os.environ["XDG_CACHE_HOME"] = folder.name
    base = composition.compose(RELEASE, ()).base
    made = [*(Case("as it is", name, tuple(f"{key}={value}" for key, value in values.items()), ()) for name, values
              in BASES.items()), *cases(given.count, given.seed, tuple(leaves(base)))]  # fmt: skip
    asked = [("ppo_trainer", each.overrides, GPUS) for each in made]
    for script, name, words, gpus in commands(given.examples):
        made.append(Case("verl's examples", script, tuple(words), ()))
        asked.append((name, tuple(words), gpus))
    for case in penalties():  # at the end, so that a seed's parts stay the same
        made.append(case)
        asked.append(("ppo_trainer", case.overrides, GPUS))
    part, parts = map(int, given.part.split("/"))
    made, asked = made[part - 1 :: parts], asked[part - 1 :: parts]
    started = time.process_time()
    said = [ours(*each) for each in asked]
    took = time.process_time() - started
    rows: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for case, (refused, noted), verdict in zip(made, said, judged(asked, JUDGES if parts == 1 else 1), strict=True):
        who = {(True, True): "both refuse", (False, False): "both accept", (False, True): "only verl refuses"}
        column = who.get((bool(refused), verdict is not None), "only cloudrl refuses")
        if not refused and any(UNTOLD in note for note in noted):
            column = "cannot tell"
        for kind in (case.kind, "all"):
            rows[kind][column] += 1
        if given.show and column.startswith("only"):
            print(f"{column}: {case.kind}, {case.base}: {' '.join(case.changed)}")
            print(f"    {(verdict or refused)!s:.300}" + (f"  noted: {noted[:2]}" if noted else ""))
    rows["all"] = rows.pop("all")
    print(table(rows))
    print(f"cloudrl: {took / len(asked) * 1000:.0f} ms of CPU for each")
    refused = rows["all"]["both refuse"] + rows["all"]["only verl refuses"]
    return int(rows["all"]["only cloudrl refuses"] > 0 or rows["all"]["both refuse"] < TARGET * refused)


if __name__ == "__main__":
    sys.exit(main())
