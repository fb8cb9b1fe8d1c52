"""A reward function, looked at by its source, and called where nothing speaks against it."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any

from cloudrl.errors import CloudrlError
from cloudrl.rewards.child import SECONDS, Candidate, python_paths, try_function
from cloudrl.rewards.rows import Row, answers_to
from cloudrl.rewards.scores import summary
from cloudrl.rewards.source import faults_of, find_function, missing_imports, reads_row
from cloudrl.rewards.trial import Trial
from cloudrl.rewards.verdict import Described, Fault, Level, import_faults, trial_faults


@dataclass(frozen=True)
class Examined:
    """What is known of a reward function.

    Attributes:
        named: the function, as messages name it.
        candidate: the function.
        rows: that were to be scored.
        faults: what is wrong with it, or to be looked at.
        trial: what came of calling it; None if it was not called.
        skipped: why it was not called, for brackets; empty if it was, or if a fault says it.
    """

    named: Described
    candidate: Candidate
    rows: tuple[Row, ...]
    faults: tuple[Fault, ...] = ()
    trial: Trial | None = None
    skipped: str = ""

    @property
    def errors(self) -> tuple[Fault, ...]:
        """What verl would fail with."""
        return tuple(fault for fault in self.faults if fault.level is Level.ERROR)

    @property
    def summary(self) -> str:
        """One sentence about its scores; empty without any."""
        return summary(self.named.function, self.named.file, self.trial) if self.trial is not None else ""

    def passed_with(self, row: Row) -> dict[str, Any]:
        """What verl passes with a row, but for the answer."""
        call, values = self.candidate.call, row.to_json()
        by_name = (values["data_source"], "...", values["ground_truth"], {**values["extra_info"], **call.added})
        passed = dict(zip(call.passed, ([value] for value in by_name) if call.is_batch else by_name, strict=False))
        return {**passed, **call.keywords}


def examine(
    candidate: Candidate,
    rows: Sequence[Row],
    *,
    shown: str,
    answers: Iterable[str] = (),
    isolated: bool = True,
    nodes_are_here: bool = False,
    may_install: bool = False,
    seconds: float = SECONDS,
) -> Examined:
    """Look at a function, and have it score answers to some rows.

    Args:
        candidate: the function; its file is Python.
        rows: to be scored.
        shown: the file, as the user has named it.
        answers: of the user's own, to be scored on each row.
        isolated: as for `try_function`. Where the kernel gives no isolation the function is not called.
        nodes_are_here: whether the nodes run this Python.
        may_install: whether job or cluster may install packages on the nodes.
        seconds: after which the call is ended.
    """
    tree = ast.parse(candidate.source)
    node = find_function(tree, candidate.call.function)
    named = Described(shown, candidate.call.function, node.lineno if node is not None else None)
    examined = Examined(named, candidate, tuple(rows), skipped=_not_called(candidate))
    faults = [
        Fault(fault.kind, Level.ERROR, f"{named.at(fault.line)}: {fault.text}", fault.line, fault.hint)
        for fault in faults_of(tree, candidate.call)
    ]
    beside = {PurePosixPath(name).parts[0].removesuffix(".py") for name in candidate.beside}
    missing = missing_imports(tree, python_paths(), beside)
    faults += import_faults(named, missing, nodes_are_here=nodes_are_here, may_install=may_install)
    if faults or examined.skipped:
        return replace(examined, faults=tuple(faults))
    try:
        trial = try_function(candidate, rows, answers_to(rows, answers), isolated=isolated, seconds=seconds)
    except CloudrlError as failure:
        return replace(examined, skipped=f"this machine offers no isolation for it: {failure.message}")
    return replace(examined, faults=trial_faults(named, trial, reads_row=reads_row(node)), trial=trial)


def _not_called(candidate: Candidate) -> str:
    call = candidate.call
    if call.has_router:
        return "it asks the reward model, which runs on the cluster only"
    if not call.is_known:
        return "it is not known how your reward manager calls it"
    return ""
