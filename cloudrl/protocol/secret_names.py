"""Which variables hold secrets, by their names."""

import re

_SECRET_VARIABLE = re.compile(
    r"(^|_)(TOKEN|KEY|APIKEY|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?)(_|$)|SECRET", re.IGNORECASE
)
# google.auth reads a path there (google-auth, environment_vars.py: CREDENTIALS)
_FILE_VARIABLE = re.compile(r"(_(FILE|PATH|DIR)|^GOOGLE_APPLICATION_CREDENTIALS)$", re.IGNORECASE)


def is_secret(name: str) -> bool:
    """Whether a variable of that name holds a secret: HF_TOKEN, WANDB_API_KEY, AWS_SECRET_ACCESS_KEY."""
    return _SECRET_VARIABLE.search(name) is not None


def names_a_file(name: str) -> bool:
    """Whether a variable of that name says where a secret lies, and not what it is: HF_TOKEN_PATH, SSL_KEY_FILE."""
    return _FILE_VARIABLE.search(name) is not None
