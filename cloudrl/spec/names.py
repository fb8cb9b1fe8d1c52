"""Names: what dstack calls a cluster, a fleet or a volume, and who logs in where."""

from __future__ import annotations

import ipaddress
import re

from cloudrl.errors import SpecError
from cloudrl.spec.fields import one_line

# dstack 0.22.5, core/services/__init__.py: validate_dstack_resource_name
RESOURCE_NAME = re.compile(r"[a-z][a-z0-9-]{1,40}")
# dstack 0.22.5, core/models/unix.py: name or number, and the same for the group
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(:[A-Za-z0-9_][A-Za-z0-9_.-]*)?")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]*")
# A login may hold more than a local name, such as `ubuntu@tenant`; a leading dash would be an option of ssh.
_LOGIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@\\-]*")
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_SECRET = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,199}")
_SECRET_VARIABLE = re.compile(
    r"(^|_)(TOKEN|KEY|APIKEY|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?)(_|$)|SECRET", re.IGNORECASE
)
# google.auth reads a path there (google-auth, environment_vars.py: CREDENTIALS)
_FILE_VARIABLE = re.compile(r"(_(FILE|PATH|DIR)|^GOOGLE_APPLICATION_CREDENTIALS)$", re.IGNORECASE)
_SECRET_ITSELF = re.compile(r"hf_[A-Za-z0-9]{16,}|gh[a-z]_[A-Za-z0-9]{16,}|[A-Za-z]*[0-9a-f]{32,}")


def resource_name(value: object) -> str:
    """A name of something in dstack."""
    if isinstance(value, str) and RESOURCE_NAME.fullmatch(value):
        return value
    rule = "a letter, then letters, digits and dashes, all lower case, 2 to 41 characters"
    raise SpecError(f"{value!r} is not a name{_slug(value)}", hint=f"A name is {rule}")


def fleet_name(value: object) -> str:
    """A fleet: its name, or `project/name` for one that another project shares."""
    if isinstance(value, str) and value.count("/") == 1:
        project, name = value.split("/")
        if re.fullmatch(r"[A-Za-z0-9_-]+", project) and RESOURCE_NAME.fullmatch(name):
            return value
    return resource_name(value)


def image_name(value: object) -> str:
    """A container image."""
    if not _IMAGE.fullmatch(one_line(value)):
        raise SpecError(
            f"{value!r} is not the name of an image", hint="For example 'verlai/verl:vllm024.dev2'"
        )
    return str(value)


def unix_user(value: object) -> str:
    """Who the container runs as: `user` or `user:group`, names or numbers."""
    user = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(user, str) or not _USER.fullmatch(user):
        raise SpecError(f"{value!r} is not user or user:group", hint="For example 'root' or '1000:1000'")
    return user


def login(value: object) -> str:
    """Who logs in over SSH."""
    if not isinstance(value, str) or not _LOGIN.fullmatch(value):
        raise SpecError(f"{value!r} is not the name of a user", hint="For example 'ubuntu'")
    return value


def host_name(value: object) -> str:
    """A host name or an IP address, without user and port."""
    if isinstance(value, str) and (_HOST.fullmatch(value) or _is_ip(value)):
        return value
    raise SpecError(
        f"{value!r} is not a host name or an IP address{_split_host(value)}",
        hint="For example '192.168.0.10' or 'gpu-1.example.com'",
    )


def secret_name(value: object) -> str:
    """A secret of dstack that is a variable's name too, since that is what it becomes.

    dstack's own rule has dashes besides (server/services/secrets.py), which `${{ secrets.NAME }}` cannot hold
    (utils/interpolator.py).
    """
    if isinstance(value, str) and _SECRET.fullmatch(value) and not _SECRET_ITSELF.fullmatch(value):
        return value
    slug = re.sub(r"[^A-Za-z0-9]+", "_", str(value)).strip("_").upper()
    like_a_name = isinstance(value, str) and re.fullmatch(r"[A-Za-z]+([ .-][A-Za-z]+)+", value)
    meant = f"; did you mean {slug!r}?" if like_a_name else ""
    # what may be the secret itself is not repeated
    shown = repr(value) if meant or not isinstance(value, str) else "that"
    raise SpecError(
        f"{shown} is not the name of a secret{meant}",
        hint="Give the name only, such as 'HF_TOKEN'; its value goes to dstack: dstack secret set HF_TOKEN ...",
    )


def _slug(value: object) -> str:
    slug = re.sub(r"[^a-z0-9]+", "-", str(value).lower()).strip("-0123456789")[:41]
    return f"; did you mean {slug!r}?" if RESOURCE_NAME.fullmatch(slug) else ""


def is_secret(name: str) -> bool:
    """Whether a variable of that name holds a secret: HF_TOKEN, WANDB_API_KEY, AWS_SECRET_ACCESS_KEY."""
    return _SECRET_VARIABLE.search(name) is not None


def names_a_file(name: str) -> bool:
    """Whether a variable of that name says where a secret lies, and not what it is: HF_TOKEN_PATH, SSL_KEY_FILE."""
    return _FILE_VARIABLE.search(name) is not None


def _is_ip(value: str) -> bool:
    try:
        ipaddress.ip_address(value)
    except ValueError:
        return False
    return "%" not in value  # the name of an interface belongs to this machine


def _split_host(value: object) -> str:
    """What `user@host:port`, or an address with a scheme, should have been."""
    if not isinstance(value, str):
        return ""
    match = re.fullmatch(r"(?:ssh://)?(?:([^@\s]+)@)?([^@:\s/]+)(?::([0-9]+))?/?", value)
    if match is None or not _HOST.fullmatch(match[2]):
        return ""
    user, host, port = match.groups()
    parts = [f"hostname: {host}", *([f"user: {user}"] if user else []), *([f"port: {port}"] if port else [])]
    return f"; did you mean {{{', '.join(parts)}}}?"
