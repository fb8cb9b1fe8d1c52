"""Exactly what is sent to Ray, and how it looks with the secrets masked."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import yaml

from cloudrl.jobs.environment import redact, secret_values
from cloudrl.jobs.redaction import redact_text, redact_words
from cloudrl.node.uploads import size_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cloudrl.jobs.uploads import UploadItem


@dataclass(frozen=True)
class Submission:
    """One job, ready to be sent. `request()` is what Ray gets, `render()` the same for reading."""

    submission_id: str
    name: str
    """The run: its checkpoints and its experiment. Submitting the same name again continues it."""
    argv: tuple[str, ...]
    """The command before it becomes shell text."""
    runtime_env: Mapping[str, Any] = field(repr=False)
    metadata: Mapping[str, str]
    checkpoint_dir: str
    """Absolute, on the nodes."""
    total_steps: int | None = None
    notes: tuple[str, ...] = ()
    """What the user should know, one sentence each."""
    files: tuple[UploadItem, ...] = ()
    """What the overrides name and this machine has."""
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Variables that reach the job's processes through the agents, and Ray never."""

    @property
    def entrypoint(self) -> str:
        """Shell text: Ray runs it with `/bin/sh -c` (Ray 2.60, job_supervisor.py: _exec_entrypoint)."""
        return shlex.join(self.argv)

    def request(self) -> dict[str, Any]:
        """The body of `POST /api/jobs/`."""
        return {
            "entrypoint": self.entrypoint,
            "submission_id": self.submission_id,
            "runtime_env": dict(self.runtime_env),
            "metadata": dict(self.metadata),
        }

    def redacted_request(self) -> dict[str, Any]:
        """The body with `***` in place of secrets."""
        shown = {**self.request(), "entrypoint": shlex.join(redact_words(self.argv))}
        secrets = secret_values({**(self.runtime_env.get("env_vars") or {}), **self.secrets})
        return {str(key): value for key, value in redact(shown, secrets).items()}

    def sent_before(self) -> dict[str, Any]:
        """What reaches the cluster before the request does; of secrets the names."""
        files = [
            {"path": item.text, "to": item.to, "by": item.by, "size_bytes": item.size_bytes}
            for item in self.files
        ]
        return {
            **({"files": files} if files else {}),
            **({"secrets": sorted(self.secrets)} if self.secrets else {}),
        }

    def render(self) -> str:
        """The request as YAML, secrets masked; `entrypoint`, one argument a line, is the same to a shell."""
        shown = self.redacted_request()
        words = shlex.split(shown["entrypoint"])
        first = next((index for index, word in enumerate(words) if "=" in word), len(words))
        lines = [shlex.join(words[:first]), *(shlex.quote(word) for word in words[first:])]
        shown["entrypoint"] = " \\\n  ".join(lines) + "\n"
        return self._comments() + yaml.dump(
            shown, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10_000
        )

    def _comments(self) -> str:
        lines = [
            f"#   {item.text} -> {item.to} ({size_text(item.size_bytes)}, "
            f"{'in the package' if item.by == 'package' else 'through the agents'})"
            for item in self.files
        ]
        lines = ["# Files of this machine, where the job finds them:", *lines] if lines else []
        if self.secrets:
            lines.append(f"# Secrets, through the agents: {', '.join(sorted(self.secrets))}")
        return "".join(f"{line}\n" for line in lines)


def redact_command(entrypoint: str) -> str:
    """The entry point of any job, with secrets masked; it is the same to a shell unless it has some."""
    try:
        words = shlex.split(entrypoint)
    except ValueError:
        return redact_text(entrypoint)
    shown = redact_words(words)
    return entrypoint if shown == words else shlex.join(shown)


class _Dumper(yaml.SafeDumper):
    """Writes text with line breaks as a block."""


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


_Dumper.add_representer(str, _text)
