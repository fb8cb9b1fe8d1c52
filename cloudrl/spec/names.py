"""Names of clusters, images, users and secrets."""

import re
import unicodedata

from cloudrl.errors import SpecError
from cloudrl.spec.fields import matching
from cloudrl.spec.quoting import kind_of, quoted

# dstack 0.22.5, core/services/__init__.py: validate_dstack_resource_name
RESOURCE_NAME = re.compile(r"[a-z][a-z0-9-]{1,40}")
_SECRET = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,199}")
_SECRET_TEXT = re.compile(r"\$\{\{\s*secrets\.([^}\s]*)\s*\}\}")
_SECRET_ITSELF = re.compile(r"hf_[A-Za-z0-9]{16,}|gh[a-z]_[A-Za-z0-9]{16,}|[A-Za-z]*[0-9a-f]{32,}")


def resource_name(value: object) -> str:
    """A name of something in dstack."""
    if isinstance(value, str) and RESOURCE_NAME.fullmatch(value):
        return value
    rule = "a letter, then letters, digits and dashes, all lower case, 2 to 41 characters"
    raise SpecError(f"{quoted(value)} is not a name{_slug(value)}", hint=f"A name is {rule}")


image_name = matching(
    r"[A-Za-z0-9][A-Za-z0-9._/:@-]*", "the name of an image", "For example 'verlai/verl:vllm024.dev2'"
)
# dstack 0.22.5, core/models/unix.py: name or number, and the same for the group
_unix_user = matching(
    r"[A-Za-z0-9_][A-Za-z0-9_.-]*(:[A-Za-z0-9_][A-Za-z0-9_.-]*)?",
    "user or user:group",
    "For example 'root' or '1000:1000'",
)


def unix_user(value: object) -> str:
    """Who the container runs as: `user` or `user:group`, names or numbers."""
    return _unix_user(str(value) if isinstance(value, int) and value >= 0 else value)


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
    shown = repr(value) if meant else "that" if isinstance(value, str) else kind_of(value)
    raise SpecError(
        f"{shown} is not the name of a secret{meant}",
        hint="Give the name only, such as 'HF_TOKEN'; its value goes to dstack: dstack secret set HF_TOKEN VALUE",
    )


def _slug(value: object) -> str:
    plain = unicodedata.normalize("NFKD", str(value)).encode("ascii", "ignore").decode()
    slug = re.sub(r"[^a-z0-9]+", "-", plain.lower()).strip("-0123456789")[:41]
    return f"; did you mean {slug!r}?" if RESOURCE_NAME.fullmatch(slug) else ""


def secret_in(value: object) -> str | None:
    """NAME, where the whole text is `${{ secrets.NAME }}`."""
    match = _SECRET_TEXT.fullmatch(value.strip()) if isinstance(value, str) else None
    return match[1] if match else None


def secrets_in(value: object) -> list[str]:
    """Every NAME of which `${{ secrets.NAME }}` stands somewhere in the text."""
    return _SECRET_TEXT.findall(value) if isinstance(value, str) else []
