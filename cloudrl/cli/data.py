"""`cloudrl data`: the built-in data sets, and preparing one on this machine."""

from __future__ import annotations

import os
from pathlib import Path  # noqa: TC003 - Typer reads the annotations
from typing import Annotated

import typer

from cloudrl.cli import _data_options as options
from cloudrl.cli import _output

app = typer.Typer(
    help="List data sets, and prepare them on this machine.", no_args_is_help=True, rich_markup_mode=None
)


@app.command("list")
def list_(as_json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False) -> None:
    """The data sets that cloudrl knows by name. Any other is named by owner/name on the Hub, or by its path."""
    from cloudrl.data.catalog import BUILT_IN
    from cloudrl.data.rewards import reward_of

    known = [
        {
            "name": each.name,
            "source": each.hub_id,
            "rows": each.rows,
            "data_source": each.load().DATA_SOURCE,
            "reward": each.reward or reward_of(each.load().DATA_SOURCE),
        }
        for each in BUILT_IN.values()
    ]
    if as_json:
        _output.as_json(known)
        return
    rows = [
        (
            row["name"],
            row["source"] or "generated",
            " + ".join(f"{count} {split}" for split, count in row["rows"].items()),
            row["reward"] or "none",
        )
        for row in known
    ]
    _output.table(("name", "source", "rows", "verl's reward"), rows)
    _output.hint("cloudrl data prepare owner/name --prompt-field question --answer-field answer --to ./data")


@app.command()
def prepare(
    place: Annotated[
        str, typer.Argument(metavar="NAME|HUB_ID|PATH", help="A name, owner/name on the Hub, or a path.")
    ],
    to: Annotated[Path, typer.Option(metavar="DIR", help="Folder for train.parquet and test.parquet.")],
    source: options.SourceOption = None,
    prompt_field: options.PromptOption = None,
    answer_field: options.AnswerOption = None,
    system: options.SystemOption = None,
    config: options.ConfigOption = None,
    split: options.SplitOption = None,
    test_split: options.TestSplitOption = None,
    test_rows: options.TestRowsOption = None,
    data_source: options.DataSourceOption = None,
    skip_bad: options.SkipBadOption = False,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False,
) -> None:
    """Write train.parquet and test.parquet in verl's columns, as a node would; print where they are, as overrides.

    To send them to the nodes: cloudrl data prepare gsm8k --to ./data, then cloudrl submit grpo --data ./data
    """
    from cloudrl import data
    from cloudrl.spec import DataSet, hydra_text, override_argument

    declared = DataSet.load(
        {
            "name": options.here(place),
            "source": options.here(source) if source is not None else None,
            "prompt_field": prompt_field, "answer_field": answer_field, "system": system, "config": config,
            "split": split, "test_split": test_split, "test_rows": test_rows, "data_source": data_source,
            "skip_bad": skip_bad,
        }
    )  # fmt: skip
    _without_bars_in_logs()
    paths = data.prepare(declared.argument(), to, say=_output.note)
    if as_json:
        _output.as_json(paths)
        return
    _output.data(override_argument("data.train_files", hydra_text(paths["train"])))
    _output.data(override_argument("data.val_files", hydra_text(paths["test"])))


def _without_bars_in_logs() -> None:
    """Bars of `datasets` and the hub are for a terminal; both read this when they are imported."""
    if not _output.is_interactive():
        for library in ("HF_DATASETS", "HF_HUB"):
            os.environ.setdefault(f"{library}_DISABLE_PROGRESS_BARS", "1")
