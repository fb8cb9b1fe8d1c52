"""Publishes a merged checkpoint on the Hugging Face Hub; private unless asked otherwise."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cloudrl.checkpoints.card import Provenance, model_card
from cloudrl.checkpoints.handle import CheckpointHandle
from cloudrl.data.hub import http_errors
from cloudrl.errors import ConnectionFailed, InputError
from cloudrl.options.merge import DEFAULTS, MergeOptions
from cloudrl.private_files import make_folder
from cloudrl.shards.merge import ADAPTER_ALONE, dtype_name, wanted_type
from cloudrl.shards.progress import OnProgress, silent

if TYPE_CHECKING:
    from huggingface_hub import HfApi

CARD = "README.md"
_PASSING = (408, 425, 429)
"""Statuses of a Hub that is busy: the same again works later."""
_WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "*.bin", "*.bin.index.json", "adapter_config.json")
"""What an earlier upload may have left: loaders take whichever they find first. What is uploaded now is spared."""


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
    owner, slash, name = repo.partition("/")
    if not slash or not owner or not name or "/" in name:
        raise InputError(f"{repo!r} is not a repository", hint="It is OWNER/NAME, such as me/my-model")
    info = checkpoint.info
    weights = _in_words(options)
    saved = f"{checkpoint.source.name}\n{info.name}\n{info.modified_at}\n{weights}" + (
        f"\n{options.base}" if options.base else ""
    )
    digest = hashlib.sha256(saved.encode()).hexdigest()[:12]
    card = model_card(name, checkpoint.step, weights, known or Provenance(), is_adapter=options.lora == ADAPTER_ALONE)
    return PushPlan(checkpoint, repo, private, staging_root / f"{owner}--{name}-{digest}", card, options)


def _in_words(options: MergeOptions) -> str:
    name = dtype_name(options.dtype, options.lora)
    return f"LoRA adapter, {name}" if options.lora == ADAPTER_ALONE else name


def push(plan: PushPlan, *, api: HfApi | None = None, on_progress: OnProgress = silent) -> str:
    """Merge, upload, remove the merged model from this machine; returns the repository's URL.

    A call that was interrupted is repeated as it was: the merged model is still there, and of its files those that
    have arrived are not sent again: `upload_folder` sends what is missing, in several commits for a large folder. What
    it uploads it does not delete, though `delete_patterns` name it (huggingface_hub 1.33, hf_api.py).

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
    from huggingface_hub.errors import RepositoryNotFoundError

    api = api or HfApi()
    with _own_errors(plan.repo):
        with suppress(RepositoryNotFoundError):
            _refuse_other_visibility(plan, api.repo_info(plan.repo, repo_type="model").private)
        # refused now, not after an hour of merging
        url = str(api.create_repo(plan.repo, private=plan.private, repo_type="model", exist_ok=True))
    _merge(plan, on_progress)
    with _own_errors(plan.repo):
        api.upload_folder(
            repo_id=plan.repo, folder_path=plan.staging, repo_type="model", delete_patterns=list(_WEIGHTS),
            commit_message=f"{plan.checkpoint.info.name} ({plan.weights})",
        )  # fmt: skip
    _remove(plan.staging, url)
    return url


def _refuse_other_visibility(plan: PushPlan, private: bool | None) -> None:
    """A repository that is there stays as visible as it is."""
    if private is False and plan.private:
        raise InputError(
            f"{plan.repo} exists and is PUBLIC, so everybody would see this model",
            hint="To want that: --public. Else make it private on the Hub, or name another repository",
        )
    if private is True and not plan.private:
        raise InputError(
            f"{plan.repo} exists and is private, so --public would not let anybody see this model",
            # huggingface_hub 1.33 and 2.4, cli/repos.py: repo_settings
            hint=f"Make it public: hf repos settings {plan.repo} --public, or on "
            f"https://huggingface.co/{plan.repo}/settings. Else leave out --public",
        )


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


def _remove(staging: Path, url: str) -> None:
    """Under another name first: a later call must not upload what is left of it."""
    gone = staging.with_name(f".{staging.name}.gone")
    try:
        if gone.exists():
            shutil.rmtree(gone)
        staging.rename(gone)
        shutil.rmtree(gone)
    except OSError as error:
        raise InputError(
            f"the model is at {url}, and {error.filename or staging} cannot be removed: {error.strerror or error}",
            hint=f"Remove what is left in {staging.parent}",
        ) from error


@contextmanager
def _own_errors(repo: str) -> Iterator[None]:
    """What the Hub says, as our own errors."""
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        yield
    except HFValidationError as error:
        raise InputError(f"{repo!r} is not a repository: {_first_line(error)}") from error
    except (HfHubHTTPError, OSError, RuntimeError, *http_errors()) as error:
        # What happens to one of several files is wrapped (huggingface_hub 1.33, _commit_api.py: _upload_lfs_files);
        # hf_xet 1.8 raises RuntimeError itself.
        cause = error.__cause__ if isinstance(error, RuntimeError) and error.__cause__ else error
        if isinstance(cause, OSError) and cause.filename is not None:  # of this machine; the Hub's have none
            raise InputError(f"{cause.filename}: {cause.strerror}") from error
        answer = getattr(cause, "response", None)
        no_right = isinstance(cause, PermissionError)  # hf_xet.XetAuthenticationError
        if no_right or (answer is not None and answer.status_code < 500 and answer.status_code not in _PASSING):
            raise InputError(
                f"the Hub refuses {repo}: {_first_line(cause)}",
                hint="Log in with a token that may write there: hf auth login",
            ) from error
        raise ConnectionFailed(
            f"the Hub does not answer for {repo}: {_first_line(cause)}",
            hint="Run the same command again; it resumes where it stopped",
        ) from error


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
