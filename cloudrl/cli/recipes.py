"""`cloudrl recipes`: what there is to submit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from cloudrl.cli import _output
from cloudrl.cli._options import AlgorithmOption, JsonOption, RecipeArgument

if TYPE_CHECKING:
    from cloudrl.spec import Job

app = typer.Typer(help="List and show recipes.", no_args_is_help=True, rich_markup_mode=None)

_ABOUT = {"name", "summary", "source", "verl", "device", "nodes", "gpu", "data", "model"}
"""What one chooses a recipe by, beside its rollout engine."""


@app.command("list")
def list_(as_json: JsonOption = False) -> None:
    """List recipes, and the algorithms that recipes for the current verl can use instead of their own."""
    from cloudrl import recipes

    jobs = [recipes.load(name) for name in recipes.names()]
    algorithms = [recipes.algorithm(name) for name in recipes.algorithms()]
    if as_json:
        about = [{**job.model_dump(include=_ABOUT), "rollout": job.rollout} for job in jobs]
        others = [algorithm.model_dump(include={"name", "summary", "source"}) for algorithm in algorithms]
        _output.as_json({"recipes": about, "algorithms": others})
        return
    _output.table(("recipe", "made for", "summary"), [(job.name, _made_for(job), job.summary) for job in jobs])
    _output.data("")
    _output.table(("algorithm", "summary"), [(algorithm.name, algorithm.summary) for algorithm in algorithms])
    _output.hint("cloudrl recipes show ppo --algorithm dapo")


@app.command()
def show(name: RecipeArgument, algorithm: AlgorithmOption = None, as_json: JsonOption = False) -> None:
    """Print a recipe's YAML, with comments on its numbers and their sources."""
    from cloudrl import recipes, sdk

    if as_json:
        job = sdk.recipe(name, algorithm=algorithm)
        fields = job.model_dump(include={*_ABOUT, "entrypoint", "env", "overrides"})
        _output.as_json({**fields, "rollout": job.rollout})
    else:
        _output.data(recipes.render_recipe(name, algorithm))


def _made_for(job: Job) -> str:
    if job.device == "cpu":
        return "CPUs"
    nodes = "any" if job.nodes is None else str(job.nodes)
    return nodes if job.gpu is None else f"{nodes} x {job.gpu}"
