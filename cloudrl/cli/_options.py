"""Options that mean the same wherever they stand, declared once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from cloudrl.cli._complete import cluster_names, provider_names, recipe_names
from cloudrl.errors import InputError

ClusterOption = Annotated[
    str | None,
    typer.Option(
        "--cluster", "-c", metavar="NAME", autocompletion=cluster_names,
        help="The cluster; not needed when there is one. dstack/NAME where two providers have one.",
    ),
]  # fmt: skip
ClusterArgument = Annotated[
    str | None,
    typer.Argument(metavar="CLUSTER", autocompletion=cluster_names, help="The same as --cluster."),
]
AddressOption = Annotated[
    str | None,
    typer.Option("--address", metavar="URL", help="Any Ray dashboard, for example http://localhost:8265."),
]
OnOption = Annotated[
    str | None,
    typer.Option(
        "--on", metavar="PROVIDER", autocompletion=provider_names, help="Where to start it: local or dstack."
    ),
]
RecipeArgument = Annotated[
    str,
    typer.Argument(
        autocompletion=recipe_names, help="A recipe by name (cloudrl recipes list), or a YAML file."
    ),
]
AlgorithmOption = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Another algorithm than the recipe's: dapo, rloo, gspo, ..."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Machine-readable.")]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Print what would be sent, secrets masked; nothing is started.")
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
OutputOption = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FILE", help="Write the YAML, for `dstack apply -f FILE`."),
]
ProjectOption = Annotated[
    str | None, typer.Option(metavar="NAME", help="Project on the dstack server; its default if not given.")
]
GpuOption = Annotated[
    str | None,
    typer.Option(
        metavar="SPEC", help="GPUs of each node, as dstack writes them: 80GB:8, amd:MI300X:8, none."
    ),
]
FileOption = Annotated[
    Path | None,
    typer.Option("--file", "-f", metavar="FILE", help="What is declared, as YAML; options win over it."),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PATH=YAML", help="Any other field of what is declared; may be repeated."),
]
EnvOption = Annotated[
    list[str] | None,
    typer.Option(
        "--env", "-e", metavar="K[=V]", help="Environment variable of jobs; K alone takes this shell's."
    ),
]


def one_name(argument: str | None, option: str | None) -> str | None:
    """The cluster that a command was given, as its argument or by `--cluster`.

    Raises:
        InputError: it was given two.
    """
    if argument is not None and option is not None and argument != option:
        raise InputError(f"{argument} and --cluster {option} are two clusters", hint="Give one of the two")
    return argument if argument is not None else option


def given(**values: Any) -> dict[str, Any]:
    """Those that were given; the others are left to their fields' own defaults."""
    return {name: value for name, value in values.items() if value is not None}


def no_gpus(text: str | None) -> str | int | None:
    """What `--gpu` says; `none` is a cluster without GPUs."""
    return 0 if text == "none" else text


def declared_fields(
    options: dict[str, Any],
    file: Path | None,
    assignments: list[str] | None,
    **defaults: Any,
) -> dict[str, Any]:
    """The fields that a file declares, with what options say in its place, and `--set` beyond them.

    Args:
        options: the fields that options were given for.
        file: `-f`.
        assignments: `--set`.
        defaults: for what neither says.

    Raises:
        InputError: an option has said already what `--set` says, or the file cannot be read.
        SpecError: `--set` is no pair, or no YAML.
    """
    from cloudrl.spec.base import assigned

    for each in assignments or ():
        path = each.partition("=")[0]
        if _stands_in(options, path.split(".")):
            raise InputError(f"--set {path}: {path} is given twice", hint=f"Leave out --set {path}=...")
    values = {**defaults, **(_read(file) if file is not None else {}), **options}
    return assigned(values, assignments or ())


def _read(file: Path) -> dict[str, Any]:
    """The fields that a YAML file declares.

    Raises:
        InputError: it cannot be read.
        SpecError: it is no mapping.
    """
    from cloudrl.spec.yaml_core import load_mapping

    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"-f {file}: {getattr(error, 'strerror', None) or error}") from error
    return load_mapping(text, str(file))


def _stands_in(values: object, path: list[str]) -> bool:
    if not path:
        return True
    return isinstance(values, dict) and path[0] in values and _stands_in(values[path[0]], path[1:])
