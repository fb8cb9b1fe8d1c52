"""Which variables hold secrets, by their names, and which texts are some, by their form."""

import re

_SECRET_VARIABLE = re.compile(
    r"(^|_)(TOKEN|KEY|APIKEY|CREDENTIALS?)(_|$)|SECRET|PASSWORD|PASSWD|PASSPHRASE"
    r"|(API|ACCESS|AUTH|BEARER|REFRESH|HF|HUB)_?(KEY|TOKEN)S?(_|$)|(?-i:[a-z](Key|Token)$)"
    r"|_(PWD|PASS|AUTH)$|^PASS$|(^|_)(PAT|JWT|BEARER|AUTHORIZATION|COOKIE|CONNECTION_STRING)$",
    re.IGNORECASE,
)
"""Not PWD and OLDPWD, which every shell sets."""
# verl has many keys such as data.prompt_key and max_num_batched_tokens, so in overrides the rule is narrower.
_SECRET_KEY = re.compile(
    r"(api|access|secret|private|auth)_?key|(hf|hub|api|auth|access|bearer)_?token|(^|\.)token$|secret"
    r"|passw|passphrase|credential|_(pwd|pass|pat)$|(^|_)(bearer|jwt|authorization|cookie)$|(?-i:[a-z](Key|Token)$)",
    re.IGNORECASE,
)
_KEY_OR_TOKEN = re.compile(r"(?:\w*_)?([^\W_]+)_(?:key|token)", re.IGNORECASE)
_OF_DATA = re.compile(
    r"action|answer|args|audio|batch|bos|cache|call|chat|choice|chosen|class|cls|column|config|content|context|continuous|data|dict|"
    r"doc|document|dp|dtype|end|eos|extra|feature|field|file|filter|first|fn|foreign|format|function|gold|group|hash|id|image|"
    r"index|info|input|item|join|label|language|last|main|map|mask|message|messages|meta|metric|metrics|mode|model|"
    r"multimodal|name|next|option|output|pad|param|partition|passage|path|per|position|primary|prompt|query|"
    r"question|ranking|rejected|request|response|result|reward|role|route|row|sample|score|sep|shard|solution|sort|"
    r"source|special|split|start|state|stop|system|table|target|task|teacher|test|text|think|thinking|title|tool|"
    r"tools|train|truth|turn|type|uid|unique|unk|val|value|video|weight",
    re.IGNORECASE,
)
"""What stands before `_key` where it names a part of the data, such as verl's prompt_key, and before `_token`."""
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

MASK = "***"
_BY_FORM = re.compile(BY_FORM.pattern.decode())
_URL_LOGIN = re.compile(r"(:/{1,2}[^/\s:@]*:)(?!\*\*\*@)[^/\s]+@")
"""Also after `Path` has made one slash of two."""
_URL_TOKEN = re.compile(r"(https?:/{1,2})(?=[^/\s:@]*\d)[^/\s:@]{16,}@")
"""A token in place of a user's name, as for a private repository."""


def mask_by_form(text: str) -> str:
    """The same with `***` in place of what is a secret by its form: tokens, and passwords in URLs."""
    for pattern in (_URL_LOGIN, _URL_TOKEN):
        text = pattern.sub(rf"\g<1>{MASK}@", text)
    return _BY_FORM.sub(MASK, text)


_ASSIGNED = re.compile(r"""(?<![\w$])([A-Za-z_]\w*)=["']?(?![$"'/~]|\d+\b)[^\s"';&|)]""")
"""What a shell command gives a variable, but for other variables, paths and numbers."""
_VARIABLE = re.compile(r"\$\{?\w+\}?")


def command_with_secret(command: str) -> bool:
    """Whether the value of a secret stands in a shell command, where all users of a machine see it."""
    without_variables = _VARIABLE.sub("", command)
    if mask_by_form(without_variables) != without_variables:
        return True
    return any(is_secret(name) and not names_a_file(name) for name in _ASSIGNED.findall(command))


def is_secret(name: str) -> bool:
    """Whether a variable of that name holds a secret: HF_TOKEN, WANDB_API_KEY, AWS_SECRET_ACCESS_KEY."""
    return _SECRET_VARIABLE.search(name) is not None


def names_a_file(name: str) -> bool:
    """Whether a variable of that name says where a secret is, and not what it is: HF_TOKEN_PATH, SSL_KEY_FILE."""
    return _FILE_VARIABLE.search(name) is not None


def is_secret_override(key: str) -> bool:
    """Whether the override of a bare key holds a secret: `x.api_key`, `x.wandb_key`, `...env_vars.HF_TOKEN`."""
    *_, group, name = ("", *key.split("."))
    if group == "env_vars":
        return is_secret(name)
    named = None if group == "data" else _KEY_OR_TOKEN.fullmatch(name)
    return _SECRET_KEY.search(name) is not None or bool(named and not _OF_DATA.fullmatch(named[1]))
