"""What becomes of the model that a run trains, looked at before anything is rented."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from cloudrl.errors import ConnectionFailed, InputError
from cloudrl.sdk.callbacks import Notice
from cloudrl.sdk.save_room import parameters_of
from cloudrl.units import size_text

if TYPE_CHECKING:
    from huggingface_hub import HfApi

_MERGED_BYTES = 2
"""Of each parameter in a merged model: bf16, the default of a merge."""
_LARGE = 14e9
"""Parameters from which a model takes long to come over a tunnel, while all GPUs are paid for."""


def refuse_small_disk(model: str | None, target: Path) -> None:
    """Refuse a folder on a disk that the merged model does not fit on, with both numbers.

    Nothing is refused where the size of the model is not known.

    Raises:
        InputError: there is too little room.
    """
    size = _merged_bytes(model)
    folder = next(path for path in (target.absolute(), *target.absolute().parents) if path.exists())
    free = shutil.disk_usage(folder).free
    if size is not None and size > free:
        raise InputError(
            f"the merged model {model} takes {size_text(size)}, and the disk of {target} has {size_text(free)} free",
            hint="A folder on another disk: --to DIR\nOr publish it from the cluster: --push ORG/NAME",
        )


def check_publication(repo: str, *, api: HfApi | None = None) -> None:
    """Refuse what would be refused after the training; a Hub that this machine does not reach is not asked.

    Args:
        repo: a private one, there or not.
        api: of the Hub; by default with the token of this machine.

    Raises:
        InputError: it is not the name of a repository, there is no token for the Hub on this machine, or one that may
            not write, or the repository is there and public.
    """
    from huggingface_hub import HfApi, get_token

    from cloudrl.checkpoints.publishing import Publication, refuse_in_advance
    from cloudrl.checkpoints.push import check_repository

    check_repository(repo)
    if not get_token():
        raise InputError(f"--push {repo}: this machine has no token for the Hub", hint="hf auth login")
    with suppress(ConnectionFailed):  # the head may reach it
        refuse_in_advance(Publication(repo, private=True, card="", message=""), api or HfApi())


def advise_push(model: str | None, target: str | os.PathLike[str]) -> Notice | None:
    """That a large model is better published from the cluster than brought here; None for a small one."""
    size = _merged_bytes(model)
    if size is None or size < _LARGE * _MERGED_BYTES:
        return None
    minutes = [f"{size / rate / 60:.0f}" for rate in (125e6, 12.5e6)]  # bytes a second
    text = (
        f"{target} gets {size_text(size)} over the tunnel at the end, while the whole cluster is paid for: "
        f"{minutes[0]} minutes at 1 Gbit/s, {minutes[1]} at 100 Mbit/s"
    )
    return Notice(text, "From the cluster to a private repository of the Hub in place of --to: --push ORG/NAME")


def _merged_bytes(model: str | None) -> int | None:
    parameters = parameters_of(model) if model is not None else None
    return None if parameters is None else int(_MERGED_BYTES * parameters)
