"""A recipe as YAML: its file as it is, or what it becomes by another algorithm."""

from __future__ import annotations

import os

from cloudrl.recipes.files import load, path_of, read_mapping
from cloudrl.recipes.overlay import algorithm_path, with_algorithm
from cloudrl.spec import hydra_text
from cloudrl.spec.yaml_core import dump_mapping


def render_recipe(name_or_path: str | os.PathLike[str], algorithm: str | None = None) -> str:
    """A recipe's file with its comments; by another algorithm, a file that `load` reads as that job.

    Raises:
        SpecError: there is no such recipe or algorithm, or they do not go together.
    """
    path, shown = path_of(name_or_path), os.fspath(name_or_path)
    job = load(name_or_path)
    if algorithm is None:
        return path.read_text(encoding="utf-8")
    job = with_algorithm(job, algorithm)
    recipe, overlay = read_mapping(path, shown), read_mapping(algorithm_path(algorithm), algorithm)
    # A job holds Hydra's text; the values that it was made of stand in the two files.
    groups = (recipe.get("overrides", {}), overlay.get("overrides", {}), overlay.get("defaults", {}))
    values = [value for group in groups for value in group.values()] + [overlay.get("answers")]
    by_text = {hydra_text(value): value for value in values}
    head = f"# {shown} by the algorithm {algorithm}: {overlay['summary']}\n"
    overrides = {key: by_text[text] for key, text in job.overrides.items()}
    about = {"name": job.name, "summary": job.summary, "source": job.source}
    return head + dump_mapping({**recipe, **about, "overrides": overrides})
