"""`cloudrl reward`: reward functions of one's own."""

from typing import Annotated, Any

import typer

from cloudrl.cli import _output
from cloudrl.cli._options import JsonOption, declared_options, with_options
from cloudrl.cli._terminal import Terminal
from cloudrl.options.reward import RewardTestOptions

app = typer.Typer(help="Try a reward function on this machine.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def _reward() -> None:
    """A noun, though it has a single verb so far."""


@app.command("test")
@with_options(options=declared_options(RewardTestOptions))
def try_(
    file: Annotated[
        str, typer.Argument(metavar="FILE.py[:FUNCTION]", help="Reward function. Default FUNCTION: compute_score.")
    ],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Overrides of verl's configuration.")
    ] = None,
    *,
    options: dict[str, Any],
    as_json: JsonOption = False,
) -> None:
    """Call a reward function as verl does, on some rows: with the right answer, a wrong one and an empty one.

    It runs in a child process with bounds for time, memory and output, and sees no file, network or secret of this
    machine. `check`, `submit` and `run` do the same before they send a job. Exit code 2 if verl would fail with it.
    """
    from cloudrl.sdk.rewards import reward_test
    from cloudrl.spec import parse_typed

    with Terminal() as terminal, terminal.busy("calling the reward function"):
        tested = reward_test(file, parse_typed(overrides or ()), **options)
    if as_json:
        _output.as_json(tested.to_json())
    else:
        for remark in tested.remarks:
            _output.note(remark)
        if tested.rows:
            _output.table(("row", "ground truth", "right", "wrong", "empty", "form of the right answer"), tested.table)
        _output.data(_output.visible("\n".join(tested.lines)))
    tested.raise_for_errors()
