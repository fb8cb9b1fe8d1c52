"""From what a script has done to recipes and a cluster, with what became of each line."""

import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cloudrl.protocol.data_sets import BUILT_IN
from cloudrl.scripts.counterparts import counterpart, data_folder, downloaded_model, mounts, prepared_data
from cloudrl.scripts.lines import Fate, Line, in_order
from cloudrl.scripts.observe import Observed
from cloudrl.scripts.overrides import Files, Overrides, take_overrides
from cloudrl.scripts.programs import (
    Kind,
    Program,
    is_dotted_override,
    read_program,
    split_arguments,
)
from cloudrl.scripts.runtime_env import Submitted, is_submit, read_submit
from cloudrl.scripts.sandbox import Call, words_of
from cloudrl.scripts.variables import Variables, sort_variables
from cloudrl.spec import Job
from cloudrl.spec.hydra import parse_override


@dataclass(frozen=True)
class Taken:
    """One training.

    Attributes:
        fields: Of its recipe, as YAML holds them.
        job: The same.
        call: What started it.
        working_dir: The folder or URL that has to be sent with it, as it is named from here.
        runtime_env: What its runtime environment has beside variables and the working directory.
        secrets: Variables that it needs and no file holds.
        cluster: Fields of the cluster that its arguments say.
        lost: Overrides that the author wrote and that never reached verl.
    """

    fields: Mapping[str, Any]
    job: Job
    call: Call
    working_dir: str | None = None
    runtime_env: Mapping[str, Any] = field(default_factory=dict)
    secrets: tuple[str, ...] = ()
    cluster: Mapping[str, Any] = field(default_factory=dict)
    lost: tuple[str, ...] = ()


@dataclass(frozen=True)
class Source:
    """Where the script is from, and what is known of its cluster beside what it does.

    Attributes:
        name: Of the recipes.
        shown: What messages and files call it.
        here: What relative paths start from.
        text: Of the script, for the places of lines.
        cluster: Fields of the cluster that stand beside the script.
        lines: What became of what stands beside it.
        same_machines: Whether the cluster is going to be on the script's own machines.
    """

    name: str
    shown: str
    here: Path
    text: str
    cluster: Mapping[str, Any] = field(default_factory=dict)
    lines: tuple[Line, ...] = ()
    same_machines: bool = False


def take_over(observed: Observed, source: Source) -> tuple[tuple[Taken, ...], dict[str, Any], tuple[Line, ...]]:
    """Recipes, fields of the cluster, and what became of each line."""
    calls = observed.recording.calls
    found = [(call, program) for call in calls if (program := read_program(call)) and program.kind is Kind.TRAINING]
    distinct = {(call.arguments, call.cwd): (call, program) for call, program in found}
    lines, taken = [*source.lines], list[Taken]()
    for number, (call, program) in enumerate(distinct.values(), 1):
        name = source.name if len(distinct) == 1 else f"{source.name}-{number}"
        one, said = _take(observed, source, name, call, program)
        taken.append(one)
        lines += said
    cluster = _cluster(source, taken, calls)
    lines += _variable_lines(source, [each.call for each in taken] or list(calls[-1:]), observed.given)
    lines += _others(calls, source, observed)
    for variable, used in observed.unset.items():
        why = f"it has no value; give it one: --env {variable}=VALUE"
        lines.append(
            Line(Fate.WRONG, f"${variable} in {', '.join(used[:3])}", why, _line_of(rf"\${{?{variable}\b", source))
        )
    return tuple(taken), cluster, in_order(lines)


def _take(observed: Observed, source: Source, name: str, call: Call, program: Program) -> tuple[Taken, list[Line]]:
    submitted = _submitted(call, observed.recording.calls)
    options, words, others = split_arguments(program.arguments)
    lost, is_cut = _lost(call, observed.recording.calls), _is_cut(others)
    if is_cut:  # verl would refuse the command as it stands, so the recipe is what is meant
        words += lost
    files = _files(observed, source, call, program, submitted, options)
    overrides = take_overrides(words, files, is_main=program.is_main)
    if overrides.uses_project and files.working_dir is None:
        files = replace(files, working_dir=_sent(files))
        overrides = take_overrides(words, files, is_main=program.is_main)
    variables = sort_variables({**call.env, **submitted.variables}, same_machines=source.same_machines)
    entrypoint = _entrypoint(program, options, others, files, overrides)
    fields = {
        "name": name,
        "summary": f"Taken over from {source.shown}",
        "source": _source(source, call),
        **(
            {"entrypoint": list(entrypoint)}
            if entrypoint != ("python3", "-m", program.name) or not program.is_main
            else {}
        ),
        **overrides.fields,
        **({"env": dict(variables.job)} if variables.job else {}),
        "overrides": dict(overrides.values),
    }
    secrets = tuple(dict.fromkeys((*submitted.secrets, *variables.secrets, *overrides.secrets)))
    is_url = submitted.working_dir is not None and "://" in submitted.working_dir
    working_dir = submitted.working_dir if is_url else files.working_dir
    shown_dir = (
        None if working_dir is None else working_dir if "://" in working_dir else _relative(working_dir, source.here)
    )
    taken = Taken(
        fields, Job.load(fields), call, shown_dir, submitted.others, secrets, overrides.cluster, () if is_cut else lost
    )
    return taken, [*_training_lines(source, taken, program, others, overrides, lost), *submitted.lines]


def _submitted(call: Call, calls: Sequence[Call]) -> Submitted:
    """The `ray job submit` that a call came through."""
    if "ray" not in call.via:
        return Submitted()
    before = [each for each in calls if is_submit(each) and (each.line, each.file) == (call.line, call.file)]
    return read_submit(before[-1]) if before else Submitted()


def _files(
    observed: Observed, source: Source, call: Call, program: Program, submitted: Submitted, options: Sequence[str]
) -> Files:
    project = observed.play.project
    data, models = _made_folders(observed.recording.calls)
    files = Files(str(project.root), call.cwd, str(source.here), project.holds, data=data, models=models)
    given = submitted.working_dir
    if given is not None and "://" not in given:
        path = posixpath.normpath(posixpath.join(call.cwd, given))
        inside = project.holds(path) or path == str(project.root)
        return replace(files, working_dir=path if inside else None)
    has_config = any(files.place(word.partition("=")[2]) for word in options)
    is_here = bool(files.place(program.name) or files.place(program.name.replace(".", "/") + ".py"))
    python_path = sort_variables(call.env, same_machines=False).python_path
    brings_code = any(each == str(project.root) or files.place(each) for each in python_path)
    if has_config or brings_code or (not program.is_main and (is_here or not program.name.startswith("verl."))):
        return replace(files, working_dir=_sent(files))
    return files


def _made_folders(calls: Sequence[Call]) -> tuple[dict[str, str], dict[str, str]]:
    """Folders that the script fills with a data set or a model -> their names."""
    data, models = dict[str, str](), dict[str, str]()
    for call in calls:
        program = read_program(call)
        if program is not None and (name := prepared_data(program)) and (folder := data_folder(program)):
            data[posixpath.normpath(posixpath.join(call.cwd, folder))] = name
        model = downloaded_model(call)
        if model is not None and model[1]:
            models[posixpath.normpath(posixpath.join(call.cwd, model[1]))] = model[0]
    return data, models


def _sent(files: Files) -> str:
    """The folder to send: the current one of the call, if it is one of the project's."""
    inside = files.cwd == files.root or (files.cwd.startswith(f"{files.root}/") and files.exists(files.cwd))
    return files.cwd if inside else files.root


def _entrypoint(
    program: Program, options: Sequence[str], others: Sequence[str], files: Files, overrides: Overrides
) -> tuple[str, ...]:
    words = [_in_working_dir(word, files) for word in program.entrypoint]
    changed = list[str]()
    for word in options:
        name, equals, value = word.partition("=")
        path = files.place(value) if equals else None
        if path is not None and name in ("--config-path", "-cp") and files.working_dir:
            name = "--config-dir"  # relative to the working directory; --config-path is relative to the module
        changed.append(word if path is None else f"{name}={files.written(path, single=False)}")
    kept = [] if program.is_main else [word for word in others if word.strip()]
    return (*words, *changed, *kept, *overrides.words)


def _in_working_dir(word: str, files: Files) -> str:
    path = files.place(word) if "/" in word or word.endswith(".py") else None
    return word if path is None else files.written(path, single=False)


def _is_cut(others: Sequence[str]) -> bool:
    """Whether a space or a comment stands behind a backslash: bash then makes an argument of spaces."""
    return any(not word.strip() for word in others)


def _lost(call: Call, calls: Sequence[Call]) -> tuple[str, ...]:
    """Overrides of lines that no longer belong to the command: behind a comment or a pipe."""
    after = [each for each in calls if each.file == call.file and (each.line or 0) > (call.line or 0)]
    found = list[str]()
    for each in sorted(after, key=lambda other: other.line or 0):
        words = (each.name, *each.arguments)
        if is_dotted_override(each.name):
            found += [word for word in words if is_dotted_override(word)]
        elif each.program == "tee":
            found += [word for word in each.arguments if is_dotted_override(word)]
        elif read_program(each) is not None:
            break
    return tuple(dict.fromkeys(found))


def _training_lines(
    source: Source, taken: Taken, program: Program, others: Sequence[str], overrides: Overrides, lost: Sequence[str]
) -> Iterable[Line]:
    call, count = taken.call, len(taken.job.overrides)
    through = f"{' '.join(call.via)} " if call.via else ""
    text = f"{through}{' '.join(program.entrypoint[:3])} ..."
    yield Line(
        Fate.TAKEN,
        text,
        f"recipe {taken.job.name} with {count} override{'s' * (count != 1)}",
        call.line,
        _file(call, source),
    )
    for finding in overrides.findings:
        number = _line_of(re.escape(finding.key) + "=", source, start=call.line)
        yield Line(finding.fate, finding.value, finding.why, number)
    if _is_cut(others):
        why = (
            "the command ends there, because a space or a comment follows the backslash; Hydra refuses the argument of "
            "spaces that verl gets"
        )
        yield Line(Fate.WRONG, "\\ ", why, _line_of(r".*\\[ \t]+(#.*)?$", source, start=call.line) or call.line)
    for word in dict.fromkeys(word for word in others if word.strip()):
        if program.is_main:
            yield Line(
                Fate.WRONG,
                word,
                "it is no override: Hydra would refuse it; left out",
                _line_of(re.escape(word), source, start=call.line),
            )
    for word in lost:
        meant = "the recipe has it, as it is meant" if _is_cut(others) else "to have it, add it to the recipe"
        why = f"it never reaches verl: the command ends before it; {meant}"
        yield Line(Fate.WRONG, word, why, _line_of(re.escape(word.partition("=")[0]) + "=", source, start=call.line))


def _variable_lines(source: Source, calls: Sequence[Call], given: Sequence[str]) -> Iterable[Line]:
    sent_by_ray = any("ray" in call.via for call in calls)
    for call in calls[:1]:
        env = {name: value for name, value in call.env.items() if name not in given}
        sorted_ones = sort_variables(env, same_machines=source.same_machines)
        yield from _sorted_lines(sorted_ones, source, sent_by_ray=sent_by_ray)


def _sorted_lines(variables: Variables, source: Source, *, sent_by_ray: bool) -> Iterable[Line]:
    def at(name: str) -> int | None:
        return _line_of(rf"(?<![\w$]){name}=", source)

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


def _others(calls: Sequence[Call], source: Source, observed: Observed) -> Iterable[Line]:
    runners = {(name, call.line, call.file) for call in calls for name in call.via}
    for call in calls:
        program = read_program(call)
        if (program is not None and program.kind is Kind.TRAINING) or is_dotted_override(call.name):
            continue
        if (call.program, call.line, call.file) in runners and not is_submit(call) and not mounts(call):
            continue  # what it runs has a line of its own
        number, file = call.line, _file(call, source)
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
        what = counterpart(call, program)
        if what is not None:
            yield Line(what.fate, words_of((call.program, *call.arguments)), what.why, number, file)
    for variable in observed.given:
        why = f"taken as {observed.play.env[variable]}: the script runs as on the first node"
        yield Line(Fate.DROPPED, f"${variable}", why, _line_of(rf"\${{?{variable}\b", source))


def _cluster(source: Source, taken: Sequence[Taken], calls: Sequence[Call]) -> dict[str, Any]:
    """Fields of the cluster: what stands beside the script, else what its trainings need, all of them together."""
    nodes = max((each.job.nodes or 1 for each in taken), default=1)
    fields: dict[str, Any] = {"name": _slug(source.name), "nodes": nodes}
    if gpus := [each.fields["gpu"] for each in taken if "gpu" in each.fields]:
        fields["gpu"] = max(gpus, key=int)
    data, models = list[str](), list[str]()
    for each in taken:
        data += each.fields.get("data", [])
        models += [each.job.model] if each.job.model else []
        fields |= each.cluster
    for call in calls:
        program = read_program(call)
        if program is not None and (name := prepared_data(program)) in BUILT_IN and name is not None:
            data.append(name)
        if (model := downloaded_model(call)) is not None:
            models.append(model[0])
    env: dict[str, str] = {}
    for call in [each.call for each in taken]:
        env |= sort_variables(call.env, same_machines=source.same_machines).cluster
    extra = {"data": list(dict.fromkeys(data)), "models": list(dict.fromkeys(models)), "env": env}
    fields |= {name: value for name, value in extra.items() if value}
    given = dict(source.cluster)
    if "env" in given:
        given["env"] = {**given["env"], **env}
    return {**fields, **given}


def _source(source: Source, call: Call) -> str:
    return f"{source.shown}, line {call.line}" if call.line and not _file(call, source) else source.shown


def _file(call: Call, source: Source) -> str:
    """The name of another file than the script."""
    name = posixpath.basename(call.file)
    return (
        "" if not name or name == posixpath.basename(source.shown) or source.shown.endswith((".yml", ".yaml")) else name
    )


def _line_of(pattern: str, source: Source, start: int | None = None) -> int | None:
    """The number of the first line with a pattern, from a line on."""
    lines = source.text.splitlines()
    first = start - 1 if start is not None and start <= len(lines) else 0
    places = list(range(first, len(lines))) + list(range(first))
    for number in places:
        if re.search(pattern, lines[number]) and not lines[number].lstrip().startswith("#"):
            return number + 1
    return None


def _relative(path: str, here: Path) -> str:
    relative = posixpath.relpath(path, here)
    return relative if relative.startswith(".") else f"./{relative}"


def _slug(name: str) -> str:
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:41].strip("-")
    return slug if re.fullmatch(r"[a-z][a-z0-9-]+", slug) else f"c-{slug or 'cluster'}"[:41]


def lost_fields(taken: Taken) -> dict[str, str]:
    """Overrides that never reached verl, by key."""
    return {key: str(value) for key, value in map(parse_override, taken.lost)}
