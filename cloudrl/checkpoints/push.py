"""Publishes a merged checkpoint on the Hugging Face Hub; private unless asked otherwise."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cloudrl.checkpoints.card import Provenance, model_card
from cloudrl.checkpoints.handle import CheckpointHandle
from cloudrl.checkpoints.publishing import CARD, Publication, make_repository, remove_staging, upload
from cloudrl.errors import InputError
from cloudrl.options.merge import DEFAULTS, MergeOptions
from cloudrl.private_files import make_folder
from cloudrl.shards.merge import ADAPTER_ALONE, dtype_name, wanted_type
from cloudrl.shards.progress import OnProgress, silent

if TYPE_CHECKING:
    from huggingface_hub import HfApi


@dataclass(frozen=True)
class PushPlan:
    """What is going to be published.

    Attributes:
        staging: Where the merged model is until it is uploaded; the same for a repeated call, which goes on.
        card: README.md.
        options: Of the merge.
    """

    checkpoint: CheckpointHandle
    repo: str
    private: bool
    staging: Path
    card: str
    options: MergeOptions

    def render(self) -> str:
        """For `--dry-run`."""
        seen = "private" if self.private else "PUBLIC"
        beside = f" with config and tokenizer of {self.options.base}" if self.options.base is not None else ""
        target = f"{self.repo} ({seen}, {self.weights})"
        return f"# {self.checkpoint} -> {target}, merged in {self.staging}{beside}\n{self.card}"

    @property
    def publication(self) -> Publication:
        """What the Hub gets beside the weights."""
        return Publication(self.repo, self.private, self.card, f"{self.checkpoint.info.name} ({self.weights})")

    @property
    def weights(self) -> str:
        """What is published, in words."""
        return _in_words(self.options)


def plan_push(
    checkpoint: CheckpointHandle,
    repo: str,
    staging_root: Path,
    *,
    private: bool = True,
    options: MergeOptions = DEFAULTS,
    known: Provenance | None = None,
) -> PushPlan:
    """Decide without doing anything.

    Raises:
        InputError: The name of the repository is not valid, or `dtype` or `lora` is unknown.
    """
    wanted_type(options.dtype, options.lora)
    owner, name = check_repository(repo)
    info = checkpoint.info
    weights = _in_words(options)
    saved = f"{checkpoint.source.name}\n{info.name}\n{info.modified_at}\n{weights}" + (
        f"\n{options.base}" if options.base else ""
    )
    digest = hashlib.sha256(saved.encode()).hexdigest()[:12]
    card = model_card(name, checkpoint.step, weights, known or Provenance(), is_adapter=options.lora == ADAPTER_ALONE)
    return PushPlan(checkpoint, repo, private, staging_root / f"{owner}--{name}-{digest}", card, options)


def check_repository(repo: str) -> tuple[str, str]:
    """Owner and name of a repository.

    Raises:
        InputError: it is not one.
    """
    owner, slash, name = repo.partition("/")
    if not slash or not owner or not name or "/" in name:
        raise InputError(f"{repo!r} is not a repository", hint="It is OWNER/NAME, such as me/my-model")
    return owner, name


def _in_words(options: MergeOptions) -> str:
    name = dtype_name(options.dtype, options.lora)
    return f"LoRA adapter, {name}" if options.lora == ADAPTER_ALONE else name


def push(plan: PushPlan, *, api: HfApi | None = None, on_progress: OnProgress = silent) -> str:
    """Merge, upload, remove the merged model from this machine; returns the repository's URL.

    A call that was interrupted is repeated as it was: the merged model is still there, and of its files those that
    have arrived are not sent again.

    Args:
        plan: What `plan_push` made.
        api: Of the Hub; by default with the token that `hf auth login` or HF_TOKEN gives.
        on_progress: Called with bytes of the merge.

    Raises:
        InputError: The Hub refuses, the repository is there and not as visible as the plan wants, or this machine's
            disk fails.
        ConnectionFailed: It does not answer.
        CheckpointError: The checkpoint cannot be merged.
    """
    from huggingface_hub import HfApi

    api, publication = api or HfApi(), plan.publication
    url = make_repository(publication, api)  # refused now, not after an hour of merging
    _merge(plan, on_progress)
    upload(publication, plan.staging, api)
    remove_staging(plan.staging, url)
    return url


def _merge(plan: PushPlan, on_progress: OnProgress) -> None:
    """Have model and card in the staging folder; a model that an earlier call has left there is taken as it is."""
    try:
        if not plan.staging.exists():
            make_folder(plan.staging.parent)
            plan.checkpoint.merge(plan.staging, **asdict(plan.options), on_progress=on_progress)
        (plan.staging / CARD).write_text(plan.card, encoding="utf-8")
    except OSError as error:
        raise InputError(
            f"{error.filename or plan.staging} cannot be written: {error.strerror or error}",
            hint="It is merged below CLOUDRL_HOME, which is ~/.cloudrl unless you set it",
        ) from error
