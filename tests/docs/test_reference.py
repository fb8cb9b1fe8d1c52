"""The reference has every public name, field and option, with the defaults, exit codes and limits of the code."""

import ast
import inspect
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from command_tree import commands
from pydantic_core import PydanticUndefined

import cloudrl
from cloudrl import spec
from cloudrl.cli._commands import GROUPS
from cloudrl.jobs import JobHandle
from cloudrl.jobs.uploads import SMALL_BYTES
from cloudrl.node.job_secrets import MAX_BYTES
from cloudrl.options import retriever as options
from cloudrl.options.data import DataSetOptions
from cloudrl.options.declaration import declared
from cloudrl.options.job import JobKeywords, SubmitOptions
from cloudrl.options.machines import ClusterOptions, FleetOptions, NetworkVolumeOptions, PreparedOptions
from cloudrl.protocol.backoff import Backoff
from cloudrl.protocol.options import AgentOptions
from cloudrl.providers.dstack.fleet import IDLE_DURATION, Fleet
from cloudrl.providers.local.plan import LocalSection
from cloudrl.providers.model import UP_TIMEOUT_S
from cloudrl.providers.registry import section_options
from cloudrl.providers.slurm.section import SlurmSection
from cloudrl.retriever.build import BuildOptions
from cloudrl.retriever.opening import Source
from cloudrl.retriever.server import ServeOptions
from cloudrl.retriever.sharing import read_sharing
from cloudrl.sdk import retriever
from cloudrl.spec.base import Spec
from cloudrl.transport.ray_client import PACKAGE_LIMIT_BYTES

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("options", "options-by-command", "python", "fields", "reference")
TEXT = "".join((DOCS / f"{name}.md").read_text() for name in PAGES)
BEGIN, END = "<!-- Written by `make reference`. -->\n", "<!-- End. -->\n"
SHARED = {
    "Options of a job": ("check", "submit", "run", "slurm script"),
    "Options of a cluster": ("task create", "up", "check", "run", "slurm script"),
}
MANY = 20
VERBS = {
    "| `cloudrl.RunningCluster`": cloudrl.RunningCluster,
    "| `cloudrl.Cluster`": cloudrl.Cluster,
    "A job": JobHandle,
}


def section(title: str) -> str:
    """The text below a heading, or below the title of a page up to its first heading."""
    heading = rf"^##? (?:Reference: )?{re.escape(title)}\n(.*?)(?=^##? |\Z)"
    [text] = re.findall(heading, without_code(TEXT), re.MULTILINE | re.DOTALL)
    return text


def without_code(text: str) -> str:
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def rows(title: str) -> list[list[str]]:
    """The cells of the tables below a heading, without their heads."""
    lines = [line for line in section(title).splitlines() if re.match(r"\| [^|-]", line)]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def code(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def default(spec: type[Spec], name: str) -> str:
    """As the page would say it; nothing where it is empty."""
    value: Any = spec.model_fields[name].default
    if value is PydanticUndefined:
        return "needed"
    if isinstance(value, tuple):
        value = " ".join(value)
    return "" if value in (None, "", {}) else f"`{value}`"


def shown(option: Any) -> str:
    """An option as it is typed."""
    names = [*option.opts, *option.secondary_opts]
    value = "" if option.is_flag else f" {option.metavar}"
    return ", ".join(f"`{name}{value if index == 0 else ''}`" for index, name in enumerate(names)).replace("|", "\\|")


def option_users() -> dict[tuple[str, str], list[str]]:
    """Option as it is typed, and its help -> the commands that have it."""
    users: dict[tuple[str, str], list[str]] = defaultdict(list)
    for path, command in commands():
        for option in command.params:
            if option.param_type_name == "option":
                users[shown(option), option.help].append(" ".join(path))
    return users


def shared_options() -> Iterator[str]:
    """The options of a job, and those of a cluster."""
    for title, group in SHARED.items():
        yield f"## {title}\n\n{of(group)}:\n\n| option | |\n|---|---|\n"
        for (name, text), those in option_users().items():
            if set(those) >= set(group):
                yield f"| {name} | {text} |\n"
        yield "\n" * (title != list(SHARED)[-1])


def other_options() -> Iterator[str]:
    """All others, by the group of their commands in `cloudrl --help`."""
    tables: dict[str, list[str]] = {title: [] for title in ("Several groups", *GROUPS)}
    group_of = {name: title for title, entries in GROUPS.items() for name in entries}
    for (name, text), users in sorted(option_users().items(), key=lambda each: -len(each[1])):
        covered = {each for group in SHARED.values() if set(users) >= set(group) for each in group}
        those = [each for each in users if each not in covered]
        groups = {group_of[each.split()[0]] for each in those}
        if those:
            tables[groups.pop() if len(groups) == 1 else "Several groups"].append(
                f"| {name} | {of(those)} | {text} |\n"
            )
    titled = [
        f"## {title}\n\n| option | of | |\n|---|---|---|\n{''.join(rows)}" for title, rows in tables.items() if rows
    ]
    yield "\n".join(titled)


def of(those: Collection[str]) -> str:
    return "most commands" if len(those) > MANY else ", ".join(f"`{each}`" for each in those)


def field_table(spec: type[Spec], *options: type) -> Iterator[str]:
    """The fields of something declared: by the text below them, or the help of their option."""
    by_field = {each.field: each for block in options for each in declared(block)}
    texts = docstrings(spec)
    yield f"| field | default |{' option |' * bool(options)} |\n|---|---|{'---|' * bool(options)}---|\n"
    for name in spec.model_fields:
        flag, text = "", texts.get(name, "")
        if name in by_field:
            flag, text = f"`{by_field[name].names[0]}`", text or by_field[name].option.help
        cells = [f"`{name}`", default(spec, name), *([flag] if options else []), text]
        yield "".join(f"| {cell} ".replace("  ", " ") for cell in cells) + "|\n"


def docstrings(spec: type[Spec]) -> dict[str, str]:
    """Field -> the text below it, also of those that only type checkers see."""
    module = ast.parse(inspect.getsource(sys.modules[spec.__module__]))
    [own] = [each for each in module.body if isinstance(each, ast.ClassDef) and each.name == spec.__name__]
    statements = [inner for each in own.body for inner in (each.body if isinstance(each, ast.If) else [each])]
    return {
        ast.unparse(field.target): inspect.cleandoc(ast.literal_eval(below.value)).replace("\n", " ")
        for field, below in pairwise(statements)
        if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr)
    }


TABLES = {
    "options": [shared_options],
    "options-by-command": [other_options],
    "fields": [
        partial(field_table, spec.Cluster, ClusterOptions, PreparedOptions),
        partial(field_table, Fleet, FleetOptions),
        partial(field_table, spec.Job),
    ],
}
"""Page -> the tables that are written into it, in order."""


@pytest.mark.parametrize("name", TABLES)
def test_the_tables_are_those_of_the_declarations(name: str, golden: Callable[[Path, str], None]) -> None:
    page = DOCS / f"{name}.md"
    first, *parts = page.read_text().split(BEGIN)
    ends = [part.split(END)[1] for part in parts]
    tables = ["".join(table()) for table in TABLES[name]]
    golden(page, first + "".join(f"{BEGIN}{table}{END}{end}" for table, end in zip(tables, ends, strict=True)))


def test_keywords_and_fields_are_the_same() -> None:
    fields, keywords = get_type_hints(SubmitOptions), get_type_hints(JobKeywords)
    assert {**keywords, **{name: fields[name] for name in ("overrides", "data", "track")}} == fields


@pytest.mark.parametrize(
    ("options", "spec"),
    [
        (ClusterOptions, cloudrl.Cluster),
        (PreparedOptions, cloudrl.Cluster),
        (FleetOptions, cloudrl.Fleet),
        (NetworkVolumeOptions, cloudrl.NetworkVolume),
        (DataSetOptions, cloudrl.DataSet),
        (section_options()["local"], LocalSection),
        (section_options()["slurm"], SlurmSection),
    ],
)
def test_an_option_gives_the_value_of_a_field(options: type, spec: type[Spec]) -> None:
    assert {each.field for each in declared(options)} <= set(spec.model_fields)


@pytest.mark.parametrize(
    ("options", "taken_by"),
    [
        (options.IndexOptions, BuildOptions),
        (options.DeviceOptions, retriever.build),
        (options.SourceOptions, Source),
        (options.ServeOptions, ServeOptions),
        (options.SharingOptions, read_sharing),
        (options.AskOptions, retriever.ask),
        (options.LoadOptions, retriever.bench),
    ],
)
def test_an_option_of_the_retriever_gives_a_value_that_is_taken(options: type, taken_by: Any) -> None:
    assert {each.field for each in declared(options)} <= set(inspect.signature(taken_by).parameters)


def test_every_public_name_is_there_and_no_other() -> None:
    errors = [f"cloudrl.{name}" for row in rows("Errors") for name in code(row[0])]
    said = [re.split(r"[^\w.]", each)[0] for row in rows("Python") for each in code(row[0])]
    assert {f"cloudrl.{name}" for name in cloudrl.__all__} == {*said, *errors}


def test_every_error_has_its_exit_code() -> None:
    listed = {code(row[0])[0]: int(row[1]) for row in rows("Errors")[1:]}
    public = {name: getattr(cloudrl, name) for name in cloudrl.__all__ if name in vars(cloudrl.errors)}
    assert listed == {name: each.exit_code for name, each in public.items()}


def test_the_fields_of_the_other_parts_are_there() -> None:
    said = {code(row[0])[0]: code(row[1]) for row in rows("Other parts")}
    parts = {"Artifact", "DataSet", "NetworkVolume", "Search", "Service", "Volume"}
    assert said == {name: list(getattr(cloudrl, name).model_fields) for name in parts}


@pytest.mark.parametrize("start", VERBS)
def test_the_verbs_are_there(start: str) -> None:
    [text] = [part for part in re.split(r"\n\n|\n(?=\|)", section("Python")) if part.startswith(start)]
    verbs = [found[1] for each in code(text) if (found := re.match(r"\.(\w+)", each))]
    assert len(verbs) > 2
    assert [verb for verb in verbs if not hasattr(VERBS[start], verb)] == []


def test_the_limits_are_those_of_the_code() -> None:
    options, text = AgentOptions.from_argv([]), section("Limits")
    assert f"{PACKAGE_LIMIT_BYTES // 2**20} MiB, as Ray's" in text
    assert f"above {SMALL_BYTES // 2**20} MiB" in text
    assert f"{MAX_BYTES // 2**10} KiB together" in text
    assert f"given back after {IDLE_DURATION.replace('h', ' h')}," in text
    assert f"given up after {options.lost_after_s:g} s" in text
    assert f"try for {Backoff.give_up_s:g} s" in text
    assert f"`up` waits {UP_TIMEOUT_S / 3600:g} h" in text
    deadlines = {row[2]: row[1].split()[0] for row in rows("Limits") if len(row) == 3}
    for phase in ("join", "setup", "ray", "fetch"):
        assert deadlines[f"`--{phase}-timeout-s`"] == f"{getattr(options, f'{phase}_timeout_s'):g}"
