"""From what a script has done to recipes and a cluster, with what became of each line."""

import posixpath
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cloudrl.protocol.data_sets import BUILT_IN
from cloudrl.scripts.containers import container_fields, read_container
from cloudrl.scripts.counterparts import data_folder, downloaded_model, prepared_data
from cloudrl.scripts.fates import ending_lines, is_cut, line_of, other_file, other_lines, training_lines, variable_lines
from cloudrl.scripts.lines import Fate, Line, in_order
from cloudrl.scripts.observe import Observed
from cloudrl.scripts.on_slurm import on_slurm, on_slurm_lines, with_checkpoints
from cloudrl.scripts.overrides import Files, Overrides, take_overrides
from cloudrl.scripts.programs import (
    Kind,
    Program,
    is_dotted_override,
    read_program,
    split_arguments,
)
from cloudrl.scripts.runtime_env import Submitted, is_submit, read_submit
from cloudrl.scripts.sandbox import Call
from cloudrl.scripts.taken import Source, Taken, cluster_name
from cloudrl.scripts.variables import names_amd, sort_variables
from cloudrl.spec import Job


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
    lines += variable_lines(source, [each.call for each in taken] or list(calls[-1:]), observed.given)
    lines += other_lines(calls, source, observed)
    for variable, used in observed.unset.items():
        why = f"it has no value; give it one: --env {variable}=VALUE"
        lines.append(
            Line(Fate.WRONG, f"${variable} in {', '.join(used[:3])}", why, line_of(rf"\${{?{variable}\b", source))
        )
    if source.same_machines:
        lines += on_slurm_lines(cluster)
    lines += ending_lines(observed, source, taken[-1].call if taken else None)
    return tuple(taken), cluster, in_order(lines)


def _take(observed: Observed, source: Source, name: str, call: Call, program: Program) -> tuple[Taken, list[Line]]:
    submitted = _submitted(call, observed.recording.calls)
    options, words, others = split_arguments(program.arguments)
    lost, cut = _lost(call, observed.recording.calls), is_cut(others)
    if cut:  # verl would refuse the command as it stands, so the recipe is what is meant
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
        **({"gpu": _gpus(overrides.fields["gpu"], [call])} if "gpu" in overrides.fields else {}),
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
        fields, Job.load(fields), call, shown_dir, submitted.others, secrets, overrides.cluster, () if cut else lost
    )
    return taken, [*training_lines(source, taken, program, others, overrides, lost), *submitted.lines]


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
    files = replace(files, mounted=source.mounted)
    given = submitted.working_dir or source.working_dir
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


def _cluster(source: Source, taken: Sequence[Taken], calls: Sequence[Call]) -> dict[str, Any]:
    """Fields of the cluster: what stands beside the script, else what its trainings need, all of them together."""
    nodes = max((each.job.nodes or 1 for each in taken), default=1)
    fields: dict[str, Any] = {"name": cluster_name(source.name), "nodes": nodes}
    if gpus := [each.fields["gpu"] for each in taken if "gpu" in each.fields]:
        fields["gpu"] = max(gpus, key=lambda gpu: int(gpu.rpartition(":")[2]))
    fields |= _prepared(taken, calls)
    env: dict[str, str] = {}
    for each in taken:
        fields |= each.cluster
        env |= sort_variables(each.call.env, same_machines=source.same_machines).cluster
    fields |= {"env": env} if env else {}
    containers = [each for each in (source.container, *map(read_container, calls)) if each is not None]
    fields |= container_fields(containers, same_machines=source.same_machines)
    fields |= {**source.cluster, "slurm": {**fields.get("slurm", {}), **source.cluster.get("slurm", {})}}
    if not fields["slurm"]:
        del fields["slurm"]
    if "gpu" in source.cluster:
        fields["gpu"] = _gpus(fields["gpu"], [each.call for each in taken])
    if "volumes" in fields:
        fields["volumes"] = with_checkpoints(fields["volumes"], fields.get("checkpoints"))
    return on_slurm(fields, calls) if source.same_machines else fields


def _prepared(taken: Sequence[Taken], calls: Sequence[Call]) -> dict[str, Any]:
    """Data and models that trainings name or the script fetches."""
    data = [name for each in taken for name in each.fields.get("data", [])]
    models = [each.job.model for each in taken if each.job.model]
    for call in calls:
        program = read_program(call)
        if program is not None and (name := prepared_data(program)) in BUILT_IN and name is not None:
            data.append(name)
        if (model := downloaded_model(call)) is not None:
            models.append(model[0])
    lists = {"data": list(dict.fromkeys(data)), "models": list(dict.fromkeys(models))}
    return {name: values for name, values in lists.items() if values}


def _gpus(gpu: str, calls: Sequence[Call]) -> str:
    """A number of GPUs with its vendor, where variables of a training say that it is AMD."""
    return f"amd:{gpu}" if gpu.isdecimal() and any(names_amd(call.env) for call in calls) else gpu


def _source(source: Source, call: Call) -> str:
    return f"{source.shown}, line {call.line}" if call.line and not other_file(call, source) else source.shown


def _relative(path: str, here: Path) -> str:
    relative = posixpath.relpath(path, here)
    return relative if relative.startswith(".") else f"./{relative}"
