"""Options that mean the same wherever they stand, declared once, and blocks of them that several commands share."""

import functools
import inspect
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from cloudrl.errors import InputError
from cloudrl.providers.registry import PROVIDERS, known_names


def _recipe_names() -> list[str]:
    from cloudrl import recipes

    return recipes.names()


def _complete(names: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """What the shell is offered for a word that has only begun."""
    return lambda incomplete: [name for name in names() if name.startswith(incomplete)]


def option(metavar: str, text: str, *names: str) -> Any:
    """An option with a value: as help shows the value, what it is, and its names unless they follow the parameter's."""
    return typer.Option(*names, metavar=metavar, help=text)


ClusterOption = Annotated[
    str | None,
    typer.Option(
        "--cluster", "-c", metavar="NAME", autocompletion=_complete(known_names),
        help="Cluster to use; not needed if there is only one. PROVIDER/NAME if two providers have one of that name.",
    ),
]  # fmt: skip
ClusterArgument = Annotated[
    str | None, typer.Argument(metavar="CLUSTER", autocompletion=_complete(known_names), help="Same as --cluster.")
]
AddressOption = Annotated[
    str | None, option("URL", "Dashboard of any Ray cluster, such as http://localhost:8265.", "--address")
]
OnOption = Annotated[
    str | None,
    typer.Option(
        "--on", metavar="PROVIDER", autocompletion=_complete(lambda: PROVIDERS),
        help=f"Where to start the cluster: {' or '.join(PROVIDERS)}.",
    ),
]  # fmt: skip
RecipeArgument = Annotated[
    str, typer.Argument(metavar="RECIPE", autocompletion=_complete(_recipe_names), help="Recipe name, or a YAML file.")
]
AlgorithmOption = Annotated[str | None, option("NAME", "Use another algorithm: dapo, rloo, gspo, ...")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Print what would be sent, with secrets masked, and start nothing.")
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Answer yes to questions.")]
OutputOption = Annotated[Path | None, option("FILE", "Write YAML for `dstack apply`.", "--output", "-o")]
ProjectOption = Annotated[str | None, option("NAME", "dstack project, if not the default one.")]
GpuOption = Annotated[str | None, option("SPEC", "GPUs per node: 80GB..:8, amd:MI300X:8, none.")]
FileOption = Annotated[
    Path | None, option("FILE", "Read fields from a YAML file; options override them.", "--file", "-f")
]
SetOption = Annotated[list[str] | None, option("PATH=YAML", "Set any other field. Repeatable.", "--set")]
EnvOption = Annotated[
    list[str] | None, option("K[=V]", "Environment variable; K alone copies this shell's. Repeatable.", "--env", "-e")
]


def cluster_name(name: ClusterArgument = None, cluster: ClusterOption = None) -> str | None:
    """The cluster that a command was given, as its argument or by `--cluster`.

    Raises:
        InputError: it was given two.
    """
    if name is not None and cluster is not None and name != cluster:
        raise InputError(f"{name} and --cluster {cluster} name two clusters", hint="Pass only one of them")
    return name if name is not None else cluster


def explicit(**values: Any) -> dict[str, Any]:
    """Those that were given; the others are left to their fields' own defaults."""
    return {name: value for name, value in values.items() if value is not None}


def declared_fields(options: dict[str, Any]) -> dict[str, Any]:
    """The fields that options declare, over those of the file that is among them, with the values of `--set`.

    Args:
        options: field -> value, and the values of `-f` and `--set` under `file` and `set`.
    """
    from cloudrl import recipes

    fields = {name: value for name, value in options.items() if name not in ("file", "set")}
    return recipes.merge_fields(fields, options.get("file"), options.get("set") or ())


def with_options(**blocks: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: the function gets each argument that is named here from a block of options.

    The parameters of the block stand in the command's help where that argument stands in its signature; what the
    block makes of their values is the argument. Blocks and function must not share a name of a parameter.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def with_blocks(**values: Any) -> Any:
            made = {
                name: block(**{key: values.pop(key) for key in inspect.signature(block).parameters})
                for name, block in blocks.items()
            }
            return function(**values, **made)

        own = inspect.signature(function, eval_str=True)
        parameters = [
            parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for name, each in own.parameters.items()
            for parameter in (
                inspect.signature(blocks[name], eval_str=True).parameters.values() if name in blocks else [each]
            )
        ]
        with_blocks.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
        with_blocks.__annotations__ = {each.name: each.annotation for each in parameters}
        return with_blocks

    return decorate
