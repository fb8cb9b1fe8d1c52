"""The container that a cluster's nodes run: shell, working folder, credentials for its image.

Source of the rules: dstack 0.22.5, core/models/configurations.py (BaseRunConfiguration).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Annotated

from pydantic import PlainValidator

from cloudrl.errors import SpecError
from cloudrl.spec.base import Spec
from cloudrl.spec.fields import absolute_path, one_line
from cloudrl.spec.names import secret_name
from cloudrl.spec.nearest import did_you_mean

PYTHON_VERSIONS = ("3.10", "3.11", "3.12")
"""What dstack's own image offers and verl 0.9 runs on."""
_SHELLS = ("sh", "bash", "dash", "ash", "ksh", "zsh")
"""Shells that read the quotes that we write."""
_SECRET_TEXT = re.compile(r"\$\{\{\s*secrets\.([^}\s]*)\s*\}\}")


def python_version(value: object) -> str:
    """A Python that dstack's own image offers."""
    if value in PYTHON_VERSIONS:
        return str(value)
    wanted = "3.10" if value == 3.1 else str(value)  # YAML reads 3.10 as the number 3.1
    guess = (
        f"; did you mean {wanted!r}, in quotes?"
        if wanted in PYTHON_VERSIONS
        else did_you_mean(wanted, PYTHON_VERSIONS)
    )
    raise SpecError(f"{value!r} is not a Python version{guess}", hint=f"One of {', '.join(PYTHON_VERSIONS)}")


def shell_name(value: object) -> str:
    """`sh`, `bash`, or the absolute path of a shell that quotes as they do."""
    written = one_line(value)
    name = PurePosixPath(written).name
    if name not in _SHELLS:
        raise SpecError(
            f"{value!r} is not a shell that quotes as sh does{did_you_mean(name, ('sh', 'bash'))}",
            hint=f"sh, bash, or a path that ends in one of {', '.join(_SHELLS)}",
        )
    if written in ("sh", "bash"):
        return written
    return absolute_path(written)


def secret_in(value: object) -> str | None:
    """NAME, where the whole text is `${{ secrets.NAME }}`."""
    match = _SECRET_TEXT.fullmatch(value.strip()) if isinstance(value, str) else None
    return match[1] if match else None


def secret_text(name: str) -> str:
    """What dstack replaces by the secret's value."""
    return f"${{{{ secrets.{name} }}}}"


def _user_name(value: object) -> str:
    secret = secret_in(value)
    if secret is not None:
        return secret_text(secret_name(secret))
    written = one_line(value)
    if "$" in written:
        # server/services/jobs: what stands in ${{ }} is filled in here too
        raise SpecError(f"{value!r} has a $ in it", hint=f"A name, or '{secret_text('REGISTRY_USER')}'")
    return written


def _password(value: object) -> str:
    secret = secret_in(value)
    if secret is None:
        raise SpecError(
            "a password must not stand in the file",  # so it does not stand in the message either
            hint=f"dstack secret set REGISTRY_PASSWORD ..., and password: '{secret_text('REGISTRY_PASSWORD')}'",
        )
    return secret_text(secret_name(secret))


class RegistryAuth(Spec):
    """Who pulls a private image; the password is a secret of dstack, written `${{ secrets.NAME }}`."""

    username: Annotated[str, PlainValidator(_user_name)]
    password: Annotated[str, PlainValidator(_password)]

    @classmethod
    def parse(cls, value: object) -> RegistryAuth:
        """Read a mapping with `username` and `password`.

        Raises:
            SpecError: `value` is none, or the password is none of dstack's secrets. It is not repeated.
        """
        if isinstance(value, RegistryAuth):
            return value
        if not isinstance(value, Mapping):
            raise SpecError(
                "it is not a mapping of username and password",
                hint=f"username: me, password: '{secret_text('REGISTRY_PASSWORD')}'",
            )
        return cls.load(value)
