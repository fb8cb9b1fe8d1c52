"""Which variables hold secrets, by their names, and which texts are some, by their form."""

import re

_SECRET_VARIABLE = re.compile(
    r"(^|_)(TOKEN|KEY|APIKEY|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?)(_|$)|SECRET", re.IGNORECASE
)
# verl has many keys such as data.prompt_key and max_num_batched_tokens, so in overrides the rule is narrower.
_SECRET_KEY = re.compile(
    r"(api|access|secret|private|auth)_?key|(hf|hub|api|auth|access|bearer)_?token|(^|[._])token$|secret"
    r"|passw|passphrase|credential",
    re.IGNORECASE,
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


def is_secret_override(key: str) -> bool:
    """Whether the override of a bare key holds a secret: `x.api_key`, `...env_vars.HF_TOKEN`."""
    *_, group, name = ("", *key.split("."))
    return is_secret(name) if group == "env_vars" else _SECRET_KEY.search(name) is not None
