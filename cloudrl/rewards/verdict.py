"""What came of a reward function, in words: what verl would fail with, and what could not be told on this machine."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from cloudrl.rewards.child import CALLS_SHARE, MEMORY_BYTES, SECONDS
from cloudrl.rewards.rows import RIGHT, WRONG, YOURS, Answer
from cloudrl.rewards.scores import scores_by_row
from cloudrl.rewards.source import Import
from cloudrl.rewards.trial import Failure, Scored, Trial
from cloudrl.spec.yaml_core import load_value
from cloudrl.units import size_text
from cloudrl.verl.reward_calls import MANAGER, REMOTE

_SHOWN = 60
"""Characters of an answer in a sentence."""
_TOO_LARGE = "File too large"
"""What Python raises at the limit for the size of a file (strerror(EFBIG)), also that of the output."""


class Level(Enum):
    """How much it matters."""

    ERROR = "error"
    """verl would fail with it."""
    WARNING = "warning"
    """It is to be looked at: it may be meant, or be so with these rows alone."""
    NOTE = "note"
    """It could not be told here."""


@dataclass(frozen=True)
class Fault:
    """Something about a reward function.

    Attributes:
        kind: `signature`, `import`, `raises`, `return`, `number`, `nan`, `same`, `inverted`, `time`, `memory`,
            `exit`, `output`, `network`, `file`, `program`, `gpu` or `variable`.
        level: how much it matters.
        text: what it is, beginning with file and line.
        line: of the file; None if unknown.
        hint: what to do; "" if unknown.
    """

    kind: str
    level: Level
    text: str
    line: int | None = None
    hint: str = ""

    def to_json(self) -> dict[str, object]:
        """JSON-ready form."""
        return {
            "kind": self.kind, "level": self.level.value, "text": self.text, "line": self.line, "hint": self.hint,
        }  # fmt: skip


@dataclass(frozen=True)
class Described:
    """A reward function as messages name it.

    Attributes:
        file: as the user has named it.
        function: its name.
        line: of its definition; None if it is made in another way.
    """

    file: str
    function: str
    line: int | None = None

    def at(self, line: int | None) -> str:
        """`./reward.py:12`, or without the line."""
        line = line or self.line
        return f"{self.file}:{line}" if line else self.file


def image_modules() -> frozenset[str]:
    """Modules that the images for verl have."""
    path = Path(__file__).with_name("image_modules.yml")
    lists = load_value(path.read_text(encoding="utf-8"), path.name)
    return frozenset(name for text in lists.values() for name in text.split())


def import_faults(
    named: Described, missing: Sequence[Import], *, nodes_are_here: bool, may_install: bool
) -> Iterator[Fault]:
    """What the file imports and this Python does not have.

    Args:
        named: the function.
        missing: the modules.
        nodes_are_here: whether the nodes run this Python, so that they lack it, too.
        may_install: whether the job or the cluster may install it: packages, an image or commands of the user's.
    """
    known = frozenset[str]() if nodes_are_here else image_modules()
    for each in missing:
        where = f"{named.at(each.line)}: imports {each.module!r}"
        if each.module in known:
            text = f"{where}, which the image has and this Python does not: {named.function} was not called"
            yield Fault("import", Level.NOTE, text, each.line)
        elif may_install:
            text = f"{where}, which this Python does not have: {named.function} was not called"
            yield Fault("import", Level.WARNING, text, each.line, "Make sure that the nodes install it")
        elif nodes_are_here:
            hint = "Install it here, too: the nodes are this machine"
            yield Fault("import", Level.ERROR, f"{where}, which the nodes do not have", each.line, hint)
        else:  # an image may have more modules than are known here
            text = f"{where}, which is not in this Python, and as far as known not in the image"
            yield Fault("import", Level.WARNING, f"{text}: {named.function} was not called", each.line, _INSTALL_HINT)


_INSTALL_HINT = (
    "Have the nodes install it when you start the cluster: --setup 'pip install PACKAGE'\n"
    "Or for the job alone, with `pip: [PACKAGE]` in a file: --runtime-env FILE"
)


def trial_faults(named: Described, trial: Trial, *, reads_row: bool = True) -> tuple[Fault, ...]:
    """What a trial has shown.

    Args:
        named: the function.
        trial: what came of calling it.
        reads_row: whether it looks at more of a row than its ground truth, so that made-up rows may mislead it.
    """
    faults = list(_loading(named, trial)) or [*_ended(named, trial), *_calls(named, trial, reads_row)]
    if not any(fault.level is Level.ERROR for fault in faults):
        faults += _same(named, trial)
    return tuple(faults)


def _loading(named: Described, trial: Trial) -> Iterator[Fault]:
    if trial.not_loaded is not None:
        yield _raised(named, trial, trial.not_loaded, "when it is loaded", is_sure=True)
    elif trial.stage == "loading":
        where = named.at(trial.stuck_line)
        if trial.over == "time":
            is_known = trial.stuck_line is not None and not trial.is_importing
            is_own = is_known and not (trial.is_waiting or trial.asked_network)
            level = Level.ERROR if is_own else Level.WARNING
            text = f"{where}: the file was not loaded within {SECONDS:.0f} s, so that {named.function} was not called"
            yield Fault("time", level, text, trial.stuck_line)
        elif trial.over == "memory":
            yield _memory(f"{where}: loading the file")
        else:
            yield Fault("exit", Level.ERROR, f"{where}: the file ends the process when it is loaded ({_status(trial)})")


def _ended(named: Described, trial: Trial) -> Iterator[Fault]:
    if trial.stage == "done" or trial.last is None:
        return
    where, on = named.at(trial.stuck_line), f"on {_answer(trial, trial.last)}"
    if trial.over == "time":
        text = f"{where}: {named.function} did not return within {SECONDS * (1 - CALLS_SHARE):.0f} s {on}"
        hint = "verl waits for it without a limit: give it one"
        level = Level.WARNING if trial.asked_network or trial.is_waiting else Level.ERROR
        yield Fault("time", level, text, trial.stuck_line, hint)
    elif trial.over == "memory":
        yield _memory(f"{where}: {named.function} {on}")
    else:
        text = f"{where}: {named.function} ended the process ({_status(trial)}) {on}"
        yield Fault("exit", Level.ERROR, text, named.line, "It would end a worker of verl: raise an exception instead")


def _memory(what: str) -> Fault:
    return Fault("memory", Level.ERROR, f"{what} took more than {size_text(MEMORY_BYTES)} of memory", None)


def _status(trial: Trial) -> str:
    if trial.status is None:
        return "no exit status"
    return f"exit status {trial.status}" if trial.status >= 0 else f"signal {-trial.status}"


def _calls(named: Described, trial: Trial, reads_row: bool) -> Iterator[Fault]:
    """Each kind of failure once, at the first answer that shows it."""
    seen = set[tuple[object, ...]]()
    for scored in trial.scored:
        fault = _call(named, trial, scored, reads_row)
        if fault is not None and (fault.kind, fault.line) not in seen:
            seen.add((fault.kind, fault.line))
            yield fault


def _call(named: Described, trial: Trial, scored: Scored, reads_row: bool) -> Fault | None:
    row, on = trial.rows[scored.answer.row], f"on {_answer(trial, scored.answer)}"
    if scored.failure is not None:
        depends_on_row = row.is_made_up or trial.lacks_fields
        return _raised(named, trial, scored.failure, on, is_sure=not depends_on_row or _lacks_name(scored.failure))
    if not scored.problem:
        return None
    kind, what, hint = _problem(scored)
    has_scored = any(each.score is not None for each in trial.scored)
    may_give_up = scored.type == "NoneType" and not has_scored  # as no made-up ground truth has the form that it reads
    may_differ = row.is_made_up and (reads_row or may_give_up)
    level = Level.WARNING if may_differ or scored.network else Level.ERROR
    return Fault(kind, level, f"{named.at(scored.line)}: {named.function} returns {what} {on}", scored.line, hint)


def _problem(scored: Scored) -> tuple[str, str, str]:
    """Kind, what was returned, and what to do."""
    if scored.problem == "not_finite":
        return "nan", f"{scored.text}, which turns the weights into NaN,", "Return a finite number"
    if scored.problem == "no_score":
        return "number", f"a dict without 'score', with {scored.text},", "verl reads the number in `score`"
    if scored.problem == "no_list":
        return "number", f"{scored.text}", "verl's manager 'batch' reads a list with a score for each answer"
    if scored.type == "NoneType":
        return "return", "None", "Each branch needs a `return` with a number"
    hints = {"coroutine": "verl awaits a function only if it is `async def` itself", "str": "`return float(...)`"}
    return "number", f"{scored.text}, a {scored.type} and not a number,", hints.get(scored.type, _NUMBER_HINT)


_NUMBER_HINT = "Return a number, or a dict with a number as `score`"


def _raised(named: Described, trial: Trial, failure: Failure, when: str, *, is_sure: bool) -> Fault:
    """An exception; what may differ on the nodes is no error."""
    error = f"{failure.type}: {failure.text}" if failure.text else failure.type
    kind, level, what, hint = "raises", Level.ERROR if is_sure else Level.WARNING, f"raises {error} {when}", ""
    if failure.network:
        kind, level, what = "network", Level.NOTE, f"asks the network, which the test does not give it ({error})"
        hint = f"cloudrl reward test {named.file} --no-sandbox"
    elif failure.is_memory:
        kind, level, what = "memory", Level.ERROR, f"takes more memory than the test gives it {when}"
    elif _TOO_LARGE in failure.text:
        kind, level, what = "output", Level.ERROR, f"writes more than the test lets it {when}"
    elif (missing := _missing(trial, failure)) is not None:
        kind, level, what = missing[0], missing[1], f"{missing[2]}, {when}"
    elif failure.variable is not None:
        kind, level, hint = "variable", Level.WARNING, f"--env {failure.variable}"
        what = f"reads the variable {failure.variable}, which the job does not have, {when}"
    elif failure.module is not None:
        kind, level = "import", Level.WARNING
        what = f"imports {failure.module!r}, which this Python does not have, {when}"
    elif _lacks_name(failure):
        hint = "Import or define it in the file"
    elif _IN_A_THREAD in failure.text:
        hint = f"verl calls it in a thread: bound it without signals\nOr have workers call it: {MANAGER}={REMOTE}"
    return Fault(kind, level, f"{named.at(failure.line)}: {what}", failure.line, hint)


def _lacks_name(failure: Failure) -> bool:
    """Whether the file uses a name that it never defines, such as a module without its import: no row brings it."""
    return failure.type == "NameError"


def _missing(trial: Trial, failure: Failure) -> tuple[str, Level, str] | None:
    """A file, a program or a GPU that the test does not have and the nodes may have: kind, level, and what it is."""
    name = failure.missing_file
    if any(words in failure.text for words in _NO_GPU):
        return "gpu", Level.WARNING, f"asks for a GPU, which the test does not give it ({failure.text})"
    if name is None:
        return None
    if failure.is_program:
        return "program", Level.WARNING, f"starts {name}, which the test does not have and the nodes need"
    if posixpath.normpath(name) in trial.left_out:
        return "file", Level.NOTE, f"reads {name}, which is too large for the test"
    if name.startswith("/"):
        return "file", Level.WARNING, f"reads {name}, which the test does not see and the nodes need"
    return None


_NO_GPU = (
    "Torch not compiled with CUDA enabled",
    "Found no NVIDIA driver",
    "No CUDA GPUs are available",
    "No HIP GPUs",
)
"""What torch raises without a GPU (torch 2.9, torch/cuda/__init__.py: _lazy_init)."""
_IN_A_THREAD = "signal only works in main thread"


def _answer(trial: Trial, answer: Answer) -> str:
    """`row 2 with the right answer '#### 42'`."""
    row = trial.rows[answer.row]
    which = "a made-up row" if row.is_made_up else f"row {row.number}"
    if answer.kind in (RIGHT, WRONG):
        article = "the" if answer.kind == RIGHT else "a"
        return f"{which} with {article} {answer.kind} answer {_short(answer.text)}"
    return f"{which} with your answer" if answer.kind == YOURS else f"{which} with an empty answer"


def _short(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}...")


def _same(named: Described, trial: Trial) -> Iterator[Fault]:
    rows = [(each.right, each.wrong) for each in scores_by_row(trial) if None not in (each.right, each.wrong)]
    differences = [right - wrong for right, wrong in rows if right is not None and wrong is not None]
    if not differences or max(differences) > 0:
        return
    count = "the row" if len(rows) == 1 else f"all {len(rows)} rows"
    hint = f"Score an answer in the form that it expects: cloudrl reward test {named.file} --answer TEXT"
    if min(differences) < 0:
        what = f"{named.function} never scores the right answer higher than a wrong one"
        text = f"{named.at(None)}: {what}, on {count} tried"
        yield Fault("inverted", Level.WARNING, text, named.line, hint)
        return
    scores = {right for right, _ in rows}
    score = f"{rows[0][0]:g}" if len(scores) == 1 else "the same score"
    text = (
        f"{named.at(None)}: {named.function} gives {score} to the right answer and to a wrong one, on {count} tried: "
        "from answers of the same score nothing is learned"
    )
    yield Fault("same", Level.WARNING, text, named.line, hint)
