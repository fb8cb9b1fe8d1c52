"""`cloudrl recipes`: what there is to submit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from cloudrl.cli import _output
from cloudrl.cli._options import AlgorithmOption, JsonOption, RecipeArgument

if TYPE_CHECKING:
    from cloudrl.spec import Job

app = typer.Typer(help="What there is to submit.", no_args_is_help=True, rich_markup_mode=None)


@app.command("list")
def list_(as_json: JsonOption = False) -> None:
    """The recipes, and the algorithms that those for the current verl can be switched to."""
    from cloudrl import recipes

    jobs = [recipes.load(name) for name in recipes.names()]
    algorithms = [recipes.algorithm(name) for name in recipes.algorithms()]
    if as_json:
        _output.as_json(
            {
                "recipes": [_about(job) for job in jobs],
                "algorithms": [each.model_dump(include={"name", "summary", "source"}) for each in algorithms],
            }
        )
        return
    _output.table(
        ("recipe", "made for", "summary"), [(job.name, _made_for(job), job.summary) for job in jobs]
    )
    _output.data("")
    _output.table(("algorithm", "summary"), [(each.name, each.summary) for each in algorithms])
    _output.hint("cloudrl recipes show ppo --algorithm dapo")


@app.command()
def show(
    name: RecipeArgument,
    algorithm: AlgorithmOption = None,
    as_json: JsonOption = False,
) -> None:
    """A recipe as it is written, with what its numbers are for and where they come from."""
    from cloudrl import recipes

    if not as_json:
        _output.data(recipes.render_recipe(name, algorithm))
        return
    job = recipes.load(name)
    if algorithm is not None:
        job = recipes.with_algorithm(job, algorithm)
    entry = {"entrypoint": list(job.entrypoint), "env": dict(job.env), "overrides": dict(job.overrides)}
    _output.as_json({**_about(job), **entry})


def _about(job: Job) -> dict[str, Any]:
    """What one chooses a recipe by."""
    return {
        "name": job.name,
        "summary": job.summary,
        "source": job.source,
        "verl": job.verl,
        "device": job.device,
        "nodes": job.nodes,
        "gpu": job.gpu,
        "rollout": job.rollout,
        "data": list(job.data),
        "model": job.model,
    }


def _made_for(job: Job) -> str:
    if job.device == "cpu":
        return "CPUs"
    nodes = "any" if job.nodes is None else str(job.nodes)
    return nodes if job.gpu is None else f"{nodes} x {job.gpu}"
