"""The model card of a merged checkpoint: what it was trained with, as far as the cluster still says."""

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import yaml

from cloudrl.jobs.events import EventReader
from cloudrl.jobs.handle import job_handle
from cloudrl.jobs.local_files import HUB_ID
from cloudrl.jobs.redaction import redact_command
from cloudrl.spec.hydra import items, parse_overrides
from cloudrl.transport import Connection
from cloudrl.verl.charts import ALL_VALIDATION, CHARTS
from cloudrl.verl.keys import MODEL_PATH, TRAIN_FILES
from cloudrl.verl.metrics import Step

_SHOWN = {key for chart in CHARTS if chart.on_card for key in (*chart.keys, chart.fallback)}


@dataclass(frozen=True)
class Provenance:
    """Where a checkpoint comes from; None and empty if it is no longer known.

    Attributes:
        command: Of the job, secrets masked. A card has it only if a shell can read it.
        data: Names of the training sets.
        metrics: What verl reported at the step of the checkpoint, or last before it.
    """

    recipe: str | None = None
    command: str | None = None
    base_model: str | None = None
    data: tuple[str, ...] = ()
    total_steps: int | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    metrics_step: int | None = None


def provenance(connection: Connection, run: str, step: int) -> Provenance:
    """What the cluster says of the job that saved a step of a run: the newest job of that name.

    Raises:
        ConnectionFailed: It does not answer.
    """
    ray_job = next((job for job in reversed(connection.ray().list_jobs()) if job.trained(run)), None)
    if ray_job is None:
        return Provenance()
    job = job_handle(connection, ray_job.submission_id, ray_job.metadata)
    command = redact_command(ray_job.entrypoint)
    overrides = parse_overrides(dict(word.split("=", 1) for word in _words(command) if "=" in word))
    metrics: dict[str, float] = {}
    last = None
    for event in EventReader().read(job.logs()):
        if isinstance(event, Step) and event.step <= step:
            shown = {
                key: event.metrics[key] for key in event.metrics if key in _SHOWN or key.startswith(ALL_VALIDATION)
            }
            metrics |= {key: value for key, value in shown.items() if math.isfinite(value)}
            last = event.step
    model = overrides.get(MODEL_PATH)
    if model is not None and not HUB_ID.fullmatch(model):
        model = model.rstrip("/").rpartition("/")[2]
    # folders of prepared data are named after their data sets
    files = [path for path in items(overrides.get(TRAIN_FILES, "")) if path]
    data = [path.rpartition("/")[0].rpartition("/")[2] or path for path in files]
    return Provenance(
        recipe=ray_job.metadata.get("cloudrl_recipe"),
        command=command,
        base_model=model,
        data=tuple(dict.fromkeys(data)),
        total_steps=job.total_steps,
        metrics=dict(sorted(metrics.items())),
        metrics_step=last,
    )


def model_card(name: str, step: int, weights: str, provenance: Provenance, *, is_adapter: bool = False) -> str:
    """README.md of the repository, with the header that the Hub reads."""
    library = "peft" if is_adapter else "transformers"
    header: dict[str, object] = {"library_name": library, "pipeline_tag": "text-generation"}
    if provenance.base_model is not None and HUB_ID.fullmatch(provenance.base_model):
        header["base_model"] = provenance.base_model
    header["tags"] = ["reinforcement-learning", "verl", "cloudrl"]
    total = f" of {provenance.total_steps}" if provenance.total_steps is not None else ""
    rows = {
        "Step": f"{step}{total}",
        "Recipe": provenance.recipe,
        "Base model": provenance.base_model,
        "Data": ", ".join(provenance.data) or None,
        "Weights": weights,
    }
    lines = ["---", yaml.safe_dump(header, sort_keys=False).strip(), "---", "", f"# {name}", ""]
    lines += ["Trained with reinforcement learning by verl, merged from its shards by cloudrl.", ""]
    lines += ["| | |", "|---|---|", *(f"| {key} | {_cell(value)} |" for key, value in rows.items() if value)]
    if provenance.metrics:
        lines += ["", f"## Metrics at step {provenance.metrics_step}", "", "| metric | value |", "|---|---|"]
        lines += [f"| `{_cell(key)}` | {value:.4g} |" for key, value in provenance.metrics.items()]
    if words := _words(provenance.command or ""):
        lines += ["", "## Command", "", "```", *_wrapped(words), "```"]
    return "\n".join(lines) + "\n"


def _words(command: str) -> list[str]:
    """As a shell takes it apart; nothing if it cannot, since secrets in it could not be recognised."""
    try:
        return shlex.split(command)
    except ValueError:
        return []


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _wrapped(command: Sequence[str]) -> list[str]:
    """One override a line; still the same to a shell."""
    words = [shlex.quote(word) for word in command]
    first = next((index for index, word in enumerate(words) if "=" in word), len(words))
    lines = [" ".join(words[:first]), *(f"  {word}" for word in words[first:])]
    return [f"{line} \\" for line in lines[:-1]] + lines[-1:]
