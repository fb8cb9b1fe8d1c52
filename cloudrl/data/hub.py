"""Raw rows from the Hugging Face Hub, or from the cache of `datasets`. Standard library only at import time."""

import os
import sys
from typing import Any, Callable, Iterable, Mapping, Optional, Tuple, Type

from cloudrl.data.parquet import package, silent
from cloudrl.errors import CloudrlError, ConnectionFailed, InputError


def download(
    name: str, hub_id: str, config: Optional[str] = None, *, say: Callable[[str], None] = silent
) -> Mapping[str, Iterable[Mapping[str, Any]]]:
    """All splits of a data set, each a table on disk; only the rows being read are in memory.

    Args:
        name: What the user calls it, for messages.
        hub_id: `owner/name`.
        config: The Hub's configuration (subset), where there are several.
        say: Is told where the rows come from.

    Raises:
        InputError: The Hub has no such data set or configuration, or this token may not read it, or it is not in
            the cache and the variables forbid to download it.
        ConnectionFailed: The download failed (without a network: after about 25 s, in which `datasets` tries
            again and again). The message is one line with the remedy in it, since the agent quotes the last
            line that its child wrote.
    """
    datasets, errors = package("datasets"), package("datasets.exceptions")
    say(f"{name}: {hub_id} from {_hub()}, or from the cache")
    try:
        tables: Mapping[str, Iterable[Mapping[str, Any]]] = datasets.load_dataset(hub_id, config)
    except errors.DatasetNotFoundError as error:
        raise InputError(
            f"data set {name}: {hub_id} is not on {_hub()}, or may not be read ({_one_line(error)})",
            hint="Is it spelled right? If it is private or gated, set HF_TOKEN",
        ) from error
    except (OSError, ValueError, RuntimeError, errors.DatasetsError, *http_errors()) as error:
        raise _failure(name, hub_id, error) from (None if _offline() else error)
    return tables


def _failure(name: str, hub_id: str, error: Exception) -> CloudrlError:
    what, reason = f"data set {name}: {hub_id}", _one_line(error)
    if "Config name is missing" in reason or reason.startswith("BuilderConfig"):
        return InputError(f"{what} has several configurations ({reason})", hint="Name one as config (--config NAME)")
    if _offline():
        return InputError(
            f"{what} is not in the cache, and {_offline()} forbids to download it ({reason})",
            hint=f"export {_offline().partition('=')[0]}=0\nOr give a folder of its rows as source",
        )
    return ConnectionFailed(
        f"{what} could not be downloaded from {_hub()} ({reason}). Does the node reach it? Set HF_ENDPOINT for a "
        "mirror, HF_TOKEN if it refuses, or give a folder of its rows as source"
    )


def _offline() -> str:
    """The variable that keeps `datasets` from the network, with its value; empty when none does."""
    for variable in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        value = os.environ.get(variable, "")
        if value.upper() in ("1", "ON", "YES", "TRUE"):  # huggingface_hub 1.33, constants.py
            return f"{variable}={value}"
    return ""


def http_errors() -> Tuple[Type[Exception], ...]:
    """Of the HTTP client of huggingface_hub, which are not OSErrors: httpx from 1.0 on, httpx2 from 2.0 on."""
    return tuple(sys.modules[name].HTTPError for name in ("httpx", "httpx2") if name in sys.modules)


def _hub() -> str:
    return os.environ.get("HF_ENDPOINT") or "https://huggingface.co"


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:160]
