"""Config and tokenizer of a model, from a folder or from the Hugging Face Hub; never its weights."""

from pathlib import Path

from cloudrl.data.hub import http_errors
from cloudrl.errors import ConnectionFailed, InputError
from cloudrl.saves.names import is_small

_PATTERNS = ("*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken")
_NAME = "Name a folder with config.json, or a model of the Hub: OWNER/NAME"
_INDEX_FILES = ("*.safetensors.index.json", "*.bin.index.json")


def read_base(base: str) -> dict[str, bytes]:
    """What is beside the weights of a model.

    Args:
        base: A folder, or a name on the Hub such as `Qwen/Qwen3-8B`, which is downloaded or taken from the cache.

    Raises:
        InputError: It is neither, or has no config, or there is no package to download it.
        ConnectionFailed: The Hub does not answer.
    """
    try:
        folder = Path(base).expanduser()
        is_folder = folder.is_dir()
    except (OSError, RuntimeError) as error:  # a name that is too long, an unknown user's home
        raise InputError(
            f"--base {base:.80} is not a folder: {getattr(error, 'strerror', error)}", hint=_NAME
        ) from error
    if not is_folder:
        if base.count("/") != 1 or base.startswith((".", "/", "~")):
            raise InputError(f"--base {base} is not a folder", hint=_NAME)
        folder = _download(base)
    try:
        names = {path for pattern in _PATTERNS for path in folder.glob(pattern)}
        names -= {path for pattern in _INDEX_FILES for path in folder.glob(pattern)}
        files = {path.name: path.read_bytes() for path in sorted(names) if is_small(path.name, path.stat().st_size)}
    except OSError as error:
        raise InputError(f"{error.filename or folder} cannot be read: {error.strerror or error}") from error
    if "config.json" not in files:
        raise InputError(f"{folder} has no config.json", hint=_NAME)
    return files


def _too_large(name: str) -> list[str]:
    """Files of a model on the Hub not needed beside weights: their sizes are asked for before anything comes."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import DryRunError

    try:
        files = snapshot_download(
            name, allow_patterns=list(_PATTERNS), ignore_patterns=list(_INDEX_FILES), dry_run=True
        )
    except DryRunError:  # without the Hub, what is in the cache is all that there is
        return []
    return [file.filename for file in files if not is_small(file.filename, file.file_size)]


def _download(name: str) -> Path:
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError, RepositoryNotFoundError
    except ImportError as error:
        raise InputError(
            f"--base {name} cannot be downloaded: {error}",
            hint="Name a folder with its config.json, or there: pip install huggingface_hub",
        ) from error

    try:
        wanted = {"allow_patterns": list(_PATTERNS), "ignore_patterns": [*_INDEX_FILES, *_too_large(name)]}
        return Path(snapshot_download(name, **wanted))
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise InputError(
            f"--base {name} is not a folder and no model of the Hub that may be read",
            hint="If it is private or gated, set HF_TOKEN",
        ) from error
    except (HfHubHTTPError, OSError, ValueError, RuntimeError, *http_errors()) as error:  # hf_xet: RuntimeError
        reason = " ".join(str(error).split())[:160]
        raise ConnectionFailed(
            f"--base {name} could not be downloaded ({reason})", hint="Or name a folder with its config.json"
        ) from error
