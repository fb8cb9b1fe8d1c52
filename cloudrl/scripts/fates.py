"""What became of each line of a script, in sentences."""

import posixpath
import re
from collections.abc import Iterable, Sequence

from cloudrl.scripts.containers import read_container
from cloudrl.scripts.counterparts import counterpart
from cloudrl.scripts.lines import Fate, Line
from cloudrl.scripts.observe import Observed
from cloudrl.scripts.overrides import Overrides
from cloudrl.scripts.programs import Kind, Program, is_dotted_override, read_program
from cloudrl.scripts.runtime_env import is_submit
from cloudrl.scripts.sandbox import Call, words_of
from cloudrl.scripts.taken import Source, Taken
from cloudrl.scripts.variables import Variables, sort_variables


def training_lines(
    source: Source, taken: Taken, program: Program, others: Sequence[str], overrides: Overrides, lost: Sequence[str]
) -> Iterable[Line]:
    """What became of a training: the command itself, its overrides, and what of it never reaches verl."""
    call, count = taken.call, len(taken.job.overrides)
    through = f"{' '.join(call.via)} " if call.via else ""
    text = f"{through}{' '.join(program.entrypoint[:3])} ..."
    yield Line(
        Fate.TAKEN,
        text,
        f"recipe {taken.job.name} with {count} override{'s' * (count != 1)}",
        call.line,
        other_file(call, source),
    )
    for finding in overrides.findings:
        number = line_of(re.escape(finding.key) + "=", source, start=call.line)
        yield Line(finding.fate, finding.value, finding.why, number, is_checked=finding.is_checked)
    if is_cut(others):
        why = (
            "the command ends there, because a space or a comment follows the backslash; Hydra refuses the argument of "
            "spaces that verl gets"
        )
        yield Line(Fate.WRONG, "\\ ", why, line_of(r".*\\[ \t]+(#.*)?$", source, start=call.line) or call.line)
    for word in dict.fromkeys(word for word in others if word.strip()):
        if program.is_main:
            yield Line(
                Fate.WRONG,
                word,
                "it is no override: Hydra would refuse it; left out",
                line_of(re.escape(word), source, start=call.line),
            )
    for word in lost:
        meant = "the recipe has it, as it is meant" if is_cut(others) else "to have it, add it to the recipe"
        why = f"it never reaches verl: the command ends before it; {meant}"
        yield Line(Fate.WRONG, word, why, line_of(re.escape(word.partition("=")[0]) + "=", source, start=call.line))


def variable_lines(source: Source, calls: Sequence[Call], given: Sequence[str]) -> Iterable[Line]:
    """What became of the variables of the first training, but those that cloudrl has `given` the script."""
    sent_by_ray = any("ray" in call.via for call in calls)
    for call in calls[:1]:
        env = {name: value for name, value in call.env.items() if name not in given}
        sorted_ones = sort_variables(env, same_machines=source.same_machines)
        yield from _sorted_lines(sorted_ones, source, sent_by_ray=sent_by_ray)


def _sorted_lines(variables: Variables, source: Source, *, sent_by_ray: bool) -> Iterable[Line]:
    def at(name: str) -> int | None:
        return line_of(rf"(?<![\w$]){name}=", source)

    late = "; with ray job submit it would not have reached the job" if sent_by_ray else ""
    for name in variables.job:
        yield Line(Fate.TAKEN, name, f"env of the recipe{late}", at(name))
    for name in variables.cluster:
        yield Line(Fate.TAKEN, name, "env of the cluster", at(name))
    for name in variables.secrets:
        yield Line(Fate.DROPPED, name, f"a secret stands in no file: cloudrl submit ... --env {name}", at(name))
    for name, why in variables.dropped.items():
        yield Line(Fate.DROPPED, name, why, at(name))
    if variables.python_path:
        yield Line(Fate.TAKEN, "PYTHONPATH", "--working-dir DIR; Python looks there first", at("PYTHONPATH"))
    for sentence in variables.wrong:
        yield Line(Fate.WRONG, "GPUs of a process", sentence, at("ROCR_VISIBLE_DEVICES") or at("CUDA_VISIBLE_DEVICES"))


def other_lines(calls: Sequence[Call], source: Source, observed: Observed) -> Iterable[Line]:
    """What became of the programs beside the trainings."""
    runners = {(name, call.line, call.file) for call in calls for name in call.via}
    for call in calls:
        program = read_program(call)
        if (program is not None and program.kind is Kind.TRAINING) or is_dotted_override(call.name):
            continue
        if (call.program, call.line, call.file) in runners and not is_submit(call) and read_container(call) is None:
            continue  # what it runs has a line of its own
        number, file = call.line, other_file(call, source)
        if is_submit(call):
            yield Line(Fate.TAKEN, "ray job submit", "cloudrl submit", number, file)
            continue
        if call.program == "tee":
            yield Line(
                Fate.DROPPED,
                words_of(("tee", *call.arguments[:1])),
                "cloudrl jobs logs has the whole log",
                number,
                file,
            )
            continue
        what = counterpart(call, program, same_machines=source.same_machines)
        if what is not None:
            yield Line(what.fate, words_of((call.program, *call.arguments)), what.why, number, file)
    for variable in observed.given:
        why = f"taken as {observed.play.env[variable]}: the script runs as on the first node"
        yield Line(Fate.DROPPED, f"${variable}", why, line_of(rf"\${{?{variable}\b", source))


def other_file(call: Call, source: Source) -> str:
    """The name of another file than the script."""
    name = posixpath.basename(call.file)
    return (
        "" if not name or name == posixpath.basename(source.shown) or source.shown.endswith((".yml", ".yaml")) else name
    )


def line_of(pattern: str, source: Source, start: int | None = None) -> int | None:
    """The number of the first line with a pattern, from a line on."""
    lines = source.text.splitlines()
    first = start - 1 if start is not None and start <= len(lines) else 0
    places = list(range(first, len(lines))) + list(range(first))
    for number in places:
        if re.search(pattern, lines[number]) and not lines[number].lstrip().startswith("#"):
            return number + 1
    return None


def is_cut(others: Sequence[str]) -> bool:
    """Whether a space or a comment stands behind a backslash: bash then makes an argument of spaces."""
    return any(not word.strip() for word in others)


def ending_lines(observed: Observed, source: Source, last: Call | None) -> Iterable[Line]:
    """What one should know of how the script ended after its `last` training, and of what it did not see."""
    recording = observed.recording
    if recording.over:
        why = f"the script was ended at its limit of {recording.over}; what it starts later is not here"
        yield Line(Fate.WRONG, "the end", why)
    if observed.play.present:
        why = "taken as there; the nodes need them"
        yield Line(Fate.DROPPED, "files that the script asks for", why)
    if recording.status not in (0, None) and (last is None or _starts_more(source, last)):
        said = (recording.output.strip().splitlines() or ["it said nothing"])[-1]
        where = "before any training" if last is None else f"after the training in line {last.line}"
        yield Line(Fate.WRONG, f"exit status {recording.status}", f"the script stopped {where}: {said[:200]}")
    if not observed.play.project.is_whole:
        why = "it has too many files; those in its deepest folders were not there for the script"
        yield Line(Fate.UNKNOWN, f"{observed.play.project.root.name}/", why)


def _starts_more(source: Source, last: Call) -> bool:
    """Whether the script would start a program after its last training."""
    lines = source.text.splitlines()[max((last.line or 1) - 1, 0) :]
    while lines and lines.pop(0).endswith("\\"):
        pass  # the command itself
    after = "\n".join(lines)
    return re.search(r"(?m)^\s*[^#\n]*(python3?\b.* -m |torchrun )", after) is not None
