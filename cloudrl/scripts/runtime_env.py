"""The options of `ray job submit`: address, working directory, runtime environment."""

import json
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cloudrl.errors import SpecError
from cloudrl.protocol.secret_names import is_secret
from cloudrl.scripts.lines import Fate, Line
from cloudrl.scripts.sandbox import Call
from cloudrl.spec.yaml_core import load_yaml_1_1

_OPTIONS = {
    "address": "cloudrl knows its cluster; another one: --cluster NAME, or --address URL",
    "submission-id": "cloudrl submit --submission-id ID",
    "no-wait": "cloudrl submit --no-wait",
    "entrypoint-num-cpus": "not taken over: verl's driver runs on the head",
    "entrypoint-num-gpus": "not taken over: verl's driver needs none",
    "entrypoint-resources": "not taken over: verl's driver runs on the head",
}
_OF_VERL = "verl/trainer/runtime_env.yaml"
"""What verl's guides pass; what it has was read in verl v0.7.0."""


@dataclass(frozen=True)
class Submitted:
    """A call of `ray job submit`.

    Attributes:
        variables: Of its runtime environment, without secrets.
        secrets: Names of the secrets among them.
        working_dir: As it was given: a folder or a URL.
        others: Other fields of the runtime environment, as a file for `--runtime-env`.
        lines: What became of its options.
    """

    variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    secrets: tuple[str, ...] = ()
    working_dir: str | None = None
    others: Mapping[str, Any] = field(default_factory=dict)
    lines: tuple[Line, ...] = ()


def is_submit(call: Call) -> bool:
    """Whether this is `ray job submit`."""
    return call.program == "ray" and call.arguments[:2] == ("job", "submit")


def read_submit(call: Call) -> Submitted:
    """What its options say."""
    options, lines = _options(call.arguments[2:]), list[Line]()
    for name, why in _OPTIONS.items():
        if name in options:
            text = f"--{name}={options[name]}" if options[name] else f"--{name}"
            lines.append(Line(Fate.DROPPED, text, why, call.line))
    fields: dict[str, Any] = {}
    for name in ("runtime-env", "runtime-env-json"):
        if name in options:
            read, line = _fields(name, options[name], call)
            fields |= read
            lines.append(line)
    directory = options.get("working-dir") or fields.pop("working_dir", None)
    fields.pop("working_dir", None)
    fields["excludes"] = [each for each in fields.get("excludes") or [] if str(each).strip("/") != ".git"]
    given = fields.pop("env_vars", None)
    variables = {str(k): str(v) for k, v in given.items()} if isinstance(given, dict) else {}
    secrets = tuple(name for name in variables if is_secret(name))
    plain = {name: value for name, value in variables.items() if name not in secrets}
    others = {name: value for name, value in fields.items() if value not in ([], {}, None)}
    return Submitted(plain, secrets, directory if isinstance(directory, str) else None, others, tuple(lines))


def _fields(name: str, value: str, call: Call) -> tuple[dict[str, Any], Line]:
    shown = f"--{name}={value}" if len(value) <= 60 else f"--{name}=..."
    text = value if name.endswith("json") else call.attached.get("runtime-env")
    if text is None and value.endswith(_OF_VERL):
        why = "verl's own: it sends the folder (--working-dir DIR) and sets TORCH_NCCL_AVOID_RECORD_STREAMS=1 (--env)"
        return {}, Line(Fate.DROPPED, shown, why, call.line)
    if text is None:
        why = f"{posixpath.basename(value)} is not here; with the file: cloudrl submit ... --runtime-env FILE"
        return {}, Line(Fate.UNKNOWN, shown, why, call.line)
    try:
        read = json.loads(text) if name.endswith("json") else load_yaml_1_1(text, name)
    except (ValueError, SpecError):
        return {}, Line(Fate.WRONG, shown, "Ray cannot read it", call.line)
    if not isinstance(read, dict):
        return {}, Line(Fate.WRONG, shown, "it has no fields such as env_vars", call.line)
    why = "its variables are in the recipe, its working directory is --working-dir"
    return {str(key): each for key, each in read.items()}, Line(Fate.TAKEN, shown, why, call.line)


def _options(words: tuple[str, ...]) -> dict[str, str]:
    """Options up to the command."""
    found, waiting = dict[str, str](), list(words)
    while waiting:
        word = waiting.pop(0)
        if word == "--" or not word.startswith("--"):
            break
        name, equals, value = word[2:].partition("=")
        takes_value = name not in ("no-wait", "verify", "log-style", "delete-all")
        found[name] = value if equals else waiting.pop(0) if takes_value and waiting else ""
    return found
