"""The options that describe a data set, for every command that takes one. Names are those of `cloudrl.DataSet`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cloudrl.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cloudrl.spec import DataSet

SourceOption = Annotated[
    str | None, typer.Option(metavar="PLACE", help="Data: where its raw rows lie, owner/name or a path.")
]
PromptOption = Annotated[
    str | None, typer.Option(metavar="FIELD", help="Data: column of the prompt; dots lead into nested ones.")
]
AnswerOption = Annotated[str | None, typer.Option(metavar="FIELD", help="Data: column of the answer.")]
SystemOption = Annotated[
    str | None, typer.Option(metavar="TEXT", help="Data: system message before each prompt.")
]
ConfigOption = Annotated[str | None, typer.Option(metavar="NAME", help="Data: the Hub's configuration.")]
SplitOption = Annotated[str | None, typer.Option(metavar="NAME", help="Data: split to train on.")]
TestSplitOption = Annotated[str | None, typer.Option(metavar="NAME", help="Data: split to test on.")]
TestRowsOption = Annotated[
    int | None, typer.Option(metavar="N", help="Data: hold out N rows of the training split for testing.")
]
DataSourceOption = Annotated[
    str | None, typer.Option(metavar="NAME", help="Data: what verl picks its reward function by.")
]
SkipBadOption = Annotated[
    bool, typer.Option("--skip-bad", help="Data: leave out rows with an empty prompt or answer.")
]


def fields(
    source: SourceOption = None,
    prompt_field: PromptOption = None,
    answer_field: AnswerOption = None,
    system: SystemOption = None,
    config: ConfigOption = None,
    split: SplitOption = None,
    test_split: TestSplitOption = None,
    test_rows: TestRowsOption = None,
    data_source: DataSourceOption = None,
    skip_bad: SkipBadOption = False,
) -> dict[str, Any]:
    """The block of options that describes one data set, as fields of it."""
    return {
        "source": source, "prompt_field": prompt_field, "answer_field": answer_field, "system": system,
        "config": config, "split": split, "test_split": test_split, "test_rows": test_rows,
        "data_source": data_source, "skip_bad": skip_bad,
    }  # fmt: skip


_SUFFIXES = (".jsonl", ".json", ".csv", ".parquet")


def described(data: Sequence[str], fields: Mapping[str, Any], *, local: bool) -> list[str | DataSet]:
    """What `--data` names, with the fields on the one data set that they can be meant for.

    Args:
        data: As given, in order.
        fields: Of `DataSet`; those that were not given are None or False.
        local: Whether the nodes are this machine, so that its paths may be relative.

    Raises:
        InputError: Fields are given, and no data set or several that are not built in.
        SpecError: A field has a value that it cannot have.
    """
    from cloudrl.spec import DataSet
    from cloudrl.spec.data import BUILT_IN

    data = [here(name) for name in data] if local else list(data)
    given = {name: value for name, value in fields.items() if value is not None and value is not False}
    if not given:
        return [*data]
    if local and "source" in given:
        given["source"] = here(given["source"])
    candidates = [name for name in data if name not in BUILT_IN] or list(data)
    if len(candidates) != 1:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        which = f"one of {', '.join(candidates)}" if candidates else "a data set, and there is no --data"
        raise InputError(
            f"{options} describes {which}",
            hint="Several are described in Python: cloudrl.Cluster(data=[cloudrl.DataSet(name=..., ...), ...])",
        )
    return [DataSet.load({"name": name, **given}) if name in candidates else name for name in data]


def here(place: str) -> str:
    """A path of this machine made absolute; anything else as it is.

    As in a shell, `./x`, `../x` and `~/x` are paths, and so is `x.jsonl` or the like where it exists.
    """
    path = Path(place).expanduser()
    if (
        place.startswith(("./", "../", "~"))
        or place in (".", "..")
        or (path.suffix in _SUFFIXES and path.exists())
    ):
        return str(path.resolve())
    return place
