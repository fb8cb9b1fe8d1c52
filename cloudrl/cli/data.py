"""`cloudrl data`: the built-in data sets, and preparing one on this machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from cloudrl.cli import _output
from cloudrl.cli._cluster_options import local_path
from cloudrl.cli._options import JsonOption, given

app = typer.Typer(
    help="List data sets, and prepare them on this machine.", no_args_is_help=True, rich_markup_mode=None
)


@app.command("list")
def list_(as_json: JsonOption = False) -> None:
    """The data sets that cloudrl knows by name. Any other is named by owner/name on the Hub, or by its path."""
    from cloudrl.data.rewards import reward_of
    from cloudrl.protocol.data_sets import BUILT_IN

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
    source: Annotated[
        str | None, typer.Option(metavar="PLACE", help="Where its raw rows lie, owner/name or a path.")
    ] = None,
    prompt_field: Annotated[
        str | None, typer.Option(metavar="FIELD", help="Column of the prompt; dots lead into nested ones.")
    ] = None,
    answer_field: Annotated[str | None, typer.Option(metavar="FIELD", help="Column of the answer.")] = None,
    system: Annotated[
        str | None, typer.Option(metavar="TEXT", help="System message before each prompt.")
    ] = None,
    config: Annotated[str | None, typer.Option(metavar="NAME", help="The Hub's configuration.")] = None,
    split: Annotated[str | None, typer.Option(metavar="NAME", help="Split to train on.")] = None,
    test_split: Annotated[str | None, typer.Option(metavar="NAME", help="Split to test on.")] = None,
    test_rows: Annotated[
        int | None, typer.Option(metavar="N", help="Hold out N rows of the training split for testing.")
    ] = None,
    data_source: Annotated[
        str | None, typer.Option(metavar="NAME", help="What verl picks its reward function by.")
    ] = None,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Leave out rows with an empty prompt or answer.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Write train.parquet and test.parquet in verl's columns, as a node would; print where they are, as overrides.

    To send them to the nodes: cloudrl data prepare gsm8k --to ./data, then cloudrl submit grpo --data ./data
    """
    from cloudrl import data
    from cloudrl.spec import DataSet, hydra_text, override_argument

    declared = DataSet.load(
        given(
            name=local_path(place), source=local_path(source) if source is not None else None,
            prompt_field=prompt_field, answer_field=answer_field, system=system, config=config, split=split,
            test_split=test_split, test_rows=test_rows, data_source=data_source, skip_bad=skip_bad,
        )
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
