"""`cloudrl data`: the built-in data sets, and preparing one on this machine."""

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from cloudrl.cli import _output
from cloudrl.cli._options import JsonOption, declared_options, option, with_options
from cloudrl.cli._terminal import Terminal
from cloudrl.options.data import DataSetOptions

app = typer.Typer(help="List data sets, and prepare them on this machine.", no_args_is_help=True, rich_markup_mode=None)


@app.command("list")
def list_(as_json: JsonOption = False) -> None:
    """List the built-in data sets. Name any other by owner/name on the Hub, or by its path."""
    from cloudrl.data.rewards import reward_of
    from cloudrl.protocol.data_sets import BUILT_IN

    data_sets: list[dict[str, Any]] = [
        {
            "name": data_set.name,
            "source": data_set.hub_id,
            "rows": data_set.rows,
            "data_source": data_set.load().DATA_SOURCE,
            "reward": data_set.reward or reward_of(data_set.load().DATA_SOURCE),
        }
        for data_set in BUILT_IN.values()
    ]
    if as_json:
        _output.as_json(data_sets)
        return
    for each in data_sets:
        each["rows"] = " + ".join(f"{count} {split}" for split, count in each["rows"].items())
        each["source"] = each["source"] or BUILT_IN[each["name"]].origin
    rows = [(row["name"], row["source"], row["rows"], row["reward"] or "none") for row in data_sets]
    _output.table(("name", "source", "rows", "verl's reward"), rows)
    _output.hint("cloudrl data prepare owner/name --prompt-field question --answer-field answer --to ./data")


@app.command()
@with_options(options=declared_options(DataSetOptions))
def prepare(
    place: Annotated[
        str, typer.Argument(metavar="NAME|HUB_ID|PATH", help="Built-in name, owner/name on the Hub, or a path.")
    ],
    to: Annotated[Path, option("DIR", "Folder for train.parquet and test.parquet.")],
    *,
    options: dict[str, Any],
    as_json: JsonOption = False,
) -> None:
    """Write train.parquet and test.parquet in verl's format, as a node would. Prints overrides that use them.

    To send them to the nodes: cloudrl data prepare gsm8k --to ./data, then cloudrl submit grpo --data ./data
    """
    from cloudrl.sdk.data import prepare_data
    from cloudrl.spec import hydra_text, override_argument
    from cloudrl.verl.keys import TRAIN_FILES, VAL_FILES

    if not _output.is_interactive():  # `datasets` and the Hub's client read this when they are imported
        for library in ("HF_DATASETS", "HF_HUB"):
            os.environ.setdefault(f"{library}_DISABLE_PROGRESS_BARS", "1")
    with Terminal() as terminal:
        paths = prepare_data({"name": place, **options}, to, on_progress=terminal)
    if as_json:
        _output.as_json(paths)
        return
    for key, part in ((TRAIN_FILES, "train"), (VAL_FILES, "test")):
        _output.data(override_argument(key, hydra_text(_sent_along(paths[part]))))


def _sent_along(path: str) -> str:
    """As a job's option means a file of this machine: an absolute path is one of the nodes."""
    relative = os.path.relpath(path)
    return relative if relative.startswith("..") else f"./{relative}"
