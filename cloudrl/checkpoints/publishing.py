"""Upload of a merged model to the Hugging Face Hub: from this machine, or from the head, under the image's Python.

Needs huggingface_hub, which is imported where it is used, and nothing else beside the standard library.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cloudrl.data.hub import http_errors
from cloudrl.errors import ConnectionFailed, InputError

if TYPE_CHECKING:
    from huggingface_hub import HfApi

CARD = "README.md"
_PASSING = (408, 425, 429)
"""Statuses of a Hub that is busy: the same again works later."""
_WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "*.bin", "*.bin.index.json", "adapter_config.json")
"""What an earlier upload may have left: loaders take whichever they find first. What is uploaded now is spared."""


@dataclass(frozen=True)
class Publication:
    """What is published.

    Attributes:
        repo: OWNER/NAME.
        private: whether only its owner sees it.
        card: README.md.
        message: of the commit.
    """

    repo: str
    private: bool
    card: str
    message: str


def make_repository(publication: Publication, api: HfApi) -> str:
    """Make the repository, or take the one that is there; its URL.

    Raises:
        InputError: the Hub refuses, or the repository is there and not as visible as is wanted.
        ConnectionFailed: it does not answer.
    """
    from huggingface_hub.errors import RepositoryNotFoundError

    repo = publication.repo
    with own_errors(repo):
        with suppress(RepositoryNotFoundError):
            _refuse_other_visibility(publication, api.repo_info(repo, repo_type="model").private)
        return str(api.create_repo(repo, private=publication.private, repo_type="model", exist_ok=True))


def refuse_in_advance(publication: Publication, api: HfApi) -> None:
    """Refuse what `make_repository` would refuse, as far as that is known while nothing is made.

    Raises:
        InputError: the token is not valid, or may only read, or the repository is there and not as visible as is
            wanted.
        ConnectionFailed: the Hub does not answer.
    """
    from huggingface_hub.errors import RepositoryNotFoundError

    repo = publication.repo
    with own_errors(repo):
        auth = api.whoami().get("auth")
        token = auth.get("accessToken") if isinstance(auth, dict) else None
        if isinstance(token, dict) and token.get("role") == "read":
            raise InputError(
                f"the token of this machine may only read, and {repo} is to be written",
                hint="Log in with a token that may write there: hf auth login",
            )
        with suppress(RepositoryNotFoundError):
            _refuse_other_visibility(publication, api.repo_info(repo, repo_type="model").private)


def upload(publication: Publication, folder: Path, api: HfApi) -> None:
    """Send what the repository lacks of a folder; a call that was interrupted is repeated as it was.

    `upload_folder` sends what is missing, in several commits for a large folder. What it uploads it does not delete,
    though `delete_patterns` name it (huggingface_hub 1.33, hf_api.py).

    Raises:
        InputError: the Hub refuses, or the disk fails.
        ConnectionFailed: the Hub does not answer.
    """
    with own_errors(publication.repo):
        api.upload_folder(
            repo_id=publication.repo, folder_path=folder, repo_type="model", delete_patterns=list(_WEIGHTS),
            commit_message=publication.message,
        )  # fmt: skip


def _refuse_other_visibility(publication: Publication, private: bool | None) -> None:
    """A repository that is there stays as visible as it is."""
    if private is False and publication.private:
        raise InputError(
            f"{publication.repo} exists and is PUBLIC, so everybody would see this model",
            hint="Name another repository, or make this one private on the Hub\nShow the model to everybody: --public",
        )
    if private is True and not publication.private:
        raise InputError(
            f"{publication.repo} exists and is private, so --public would not let anybody see this model",
            # huggingface_hub 1.33 and 2.4, cli/repos.py: repo_settings
            hint=f"Make it public: hf repos settings {publication.repo} --public\nOr leave out --public",
        )


def remove_staging(staging: Path, url: str) -> None:
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
def own_errors(repo: str) -> Iterator[None]:
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
