"""Which variables hold secrets, by their names, and which texts are some, by their form."""

import re

_SECRET_VARIABLE = re.compile(
    r"(^|_)(TOKEN|KEY|APIKEY|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?)(_|$)|SECRET", re.IGNORECASE
)
# google.auth reads a path there (google-auth, environment_vars.py: CREDENTIALS)
_FILE_VARIABLE = re.compile(r"(_(FILE|PATH|DIR)|^GOOGLE_APPLICATION_CREDENTIALS)$", re.IGNORECASE)

FIRST = rb"(?:(?<!\w.)|(?<=[0-9;\[]m.)|(?<=\\[nrt].))"
"""Behind the first character of a word, or of one after a colour or a `\\n` of JSON; `re` is fastest with it there."""
BY_FORM = re.compile(
    rb"[hgsprA]" + FIRST +
    rb"(?:(?:(?<=h)f_|(?<=g)h[a-z]_|(?<=g)ithub_pat_|(?<=s)k-|(?<=[prs])k_(?:live|test)_)[A-Za-z0-9_-]{16,}"
    rb"|(?<=A)[KS]IA[A-Z0-9]{16})"
)  # fmt: skip
"""Tokens of the Hub, GitHub, OpenAI, Stripe and AWS, whatever they are called."""


def is_secret(name: str) -> bool:
    """Whether a variable of that name holds a secret: HF_TOKEN, WANDB_API_KEY, AWS_SECRET_ACCESS_KEY."""
    return _SECRET_VARIABLE.search(name) is not None


def names_a_file(name: str) -> bool:
    """Whether a variable of that name says where a secret lies, and not what it is: HF_TOKEN_PATH, SSL_KEY_FILE."""
    return _FILE_VARIABLE.search(name) is not None
