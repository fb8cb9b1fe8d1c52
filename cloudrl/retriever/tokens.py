"""The tokens of a server: of its clients, and of the nodes that share an index with it."""

import hmac
from pathlib import Path

from cloudrl.errors import InputError

TOKEN_HINT = "--token-file FILE\nOr in the environment: export CLOUDRL_RETRIEVER_TOKEN=..."  # noqa: S105 - no token


def read_token(file: Path, option: str) -> str:
    """The token in a file that `option` names.

    Raises:
        InputError: the file cannot be read, or is empty.
    """
    try:
        token = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{option} {file}: {getattr(error, 'strerror', None) or error}") from error
    if not token:
        raise InputError(f"{option} {file} is empty", hint=f"openssl rand -hex 32 > {file}")
    return token


def shows_token(authorization: str, token: str) -> bool:
    """Whether the header `Authorization` has the token; how long that takes does not say how much of it is right."""
    shown, expected = (text.encode(errors="surrogateescape") for text in (authorization, f"Bearer {token}"))
    return hmac.compare_digest(shown, expected)
