"""Exactly what is sent to Ray and to the agents, and how it is shown, with secrets masked."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import yaml

from cloudrl.errors import InputError
from cloudrl.jobs.redaction import redact, redact_words, secret_values
from cloudrl.jobs.working_dir import Entry, PackagePlan
from cloudrl.protocol.manifest import Manifest
from cloudrl.units import size_text
from cloudrl.verl.memory.report import MemoryReport
from cloudrl.verl.transfer_queue import uses_transfer_queue

_VERSION = 1


@dataclass(frozen=True)
class Upload:
    """One file or folder of the user's that is sent with the job."""

    text: str
    """As the user wrote it."""
    to: str
    """On the nodes: relative to the job's working directory in a package, absolute through the agents."""
    manifest: Manifest
    entries: tuple[Entry, ...] = field(default=(), repr=False, compare=False)
    """On this machine; names start with the name of the file or folder."""

    @property
    def by(self) -> Literal["package", "agents"]:
        """How it travels."""
        return "agents" if self.to.startswith("/") else "package"

    @property
    def way(self) -> str:
        """The same for messages."""
        return "in the package" if self.by == "package" else "through the agents"

    @property
    def size_bytes(self) -> int:
        """All its files together."""
        return self.manifest.size_bytes

    @property
    def packed(self) -> tuple[Entry, ...]:
        """What it adds to the package."""
        folder = self.to.rsplit("/", 1)[0]
        return tuple(replace(entry, name=f"{folder}/{entry.name}") for entry in self.entries if self.by == "package")

    def to_json(self) -> dict[str, Any]:
        """JSON-ready form: what the nodes have of it."""
        return {"text": self.text, "to": self.to, **self.manifest.to_json()}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Upload:
        """Read what `to_json` wrote.

        Raises:
            KeyError: A field is missing.
            ValueError: It names no files.
        """
        return cls(value["text"], value["to"], Manifest.from_json(value))


WITH_VERL = "with verl "
"""How a warning begins that would be a refusal if it were certain that verl is of that release."""


@dataclass(frozen=True)
class Remarks:
    """What planning says of a job that can be sent, one sentence each.

    Attributes:
        notes: what the user should know.
        warnings: what may end the job, waste money or lose its work.
        not_checked: what nothing here has looked at, with the reason in brackets.
    """

    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    not_checked: tuple[str, ...] = ()

    @property
    def is_refused_by_verl(self) -> bool:
        """Whether verl refuses the job, unless the job brings another verl."""
        return any(warning.startswith(WITH_VERL) for warning in self.warnings)

    @property
    def sentences(self) -> tuple[str, ...]:
        """Warnings first, then notes, and in one sentence what was not checked."""
        return tuple(line.partition(": ")[2] for line in self.lines)

    @property
    def lines(self) -> tuple[str, ...]:
        """The same, each with `warning` or `note` in front."""
        unknown = f"not checked before the job starts: {'; '.join(self.not_checked)}"
        notes = (f"note: {note}" for note in (*self.notes, *([unknown] if self.not_checked else [])))
        return (*(f"warning: {warning}" for warning in self.warnings), *notes)

    def to_json(self) -> dict[str, list[str]]:
        """JSON-ready form."""
        return {"notes": list(self.notes), "warnings": list(self.warnings), "not_checked": list(self.not_checked)}


@dataclass(frozen=True)
class DurablePlan:
    """What the agents have to know of a job to carry it through.

    Attributes:
        world_size: how many ranks train.
        total_steps: None where the job does not say.
        saves: whether it saves checkpoints.
        chooses_step: whether its command says from which step it goes on.
        training_nodes: how many nodes train; 0 where all do.
        is_placed: whether its command puts its ranks on nodes that it is given.
        keep: how many whole steps the agents keep; 0 for all.
        keep_every, keep_best: which they keep besides, as `DurableJob` has them.
        mirror: the address of the place where copies of its steps outlive the machines; "" for none.
        mirror_rate: the most bytes a second that a node sends there; 0 for half of its time.
    """

    world_size: int
    total_steps: int | None
    saves: bool
    chooses_step: bool = False
    training_nodes: int = 0
    is_placed: bool = False
    keep: int = 0
    keep_every: int = 0
    keep_best: str = ""
    mirror: str = ""
    mirror_rate: int = 0


@dataclass(frozen=True)
class Submission:
    """One job, ready to be sent. `request()` is what Ray gets, `render()` the same for reading.

    `to_json` and `from_json` are a round trip, for a journal from which the job can be sent once more. Of secrets only
    the names are part of it.
    """

    submission_id: str
    argv: tuple[str, ...]
    """The command before it becomes shell text."""
    runtime_env: Mapping[str, Any] = field(repr=False)
    metadata: Mapping[str, str]
    """What Ray keeps with the job: the run's name, its recipe, its checkpoint folder and its number of steps."""
    notes: tuple[str, ...] = ()
    """What the user should know, one sentence each."""
    warnings: tuple[str, ...] = ()
    """What may end the job, waste money or lose its work, one sentence each."""
    not_checked: tuple[str, ...] = field(default=(), compare=False)
    """What nothing here has looked at, with the reason in brackets."""
    uploads: tuple[Upload, ...] = ()
    """What the overrides name and this machine has."""
    secrets: Mapping[str, str | None] = field(default_factory=dict, repr=False)
    """Variables that reach the job's processes through the agents, and Ray never; None where only the name is here."""
    package: PackagePlan | None = field(default=None, repr=False, compare=False)
    """What is uploaded to Ray, from this machine; no part of the JSON form."""
    memory: MemoryReport | None = field(default=None, repr=False, compare=False)
    """Whether it fits; of this machine, no part of the JSON form."""
    durable: DurablePlan | None = field(default=None, compare=False)
    """What the agents have to know to carry it through; None for a job that is handed to Ray."""
    ray_session: str | None = field(default=None, compare=False)
    """Ray's own name for the start of the cluster that this was planned for; None asks for none."""

    @property
    def remarks(self) -> Remarks:
        """What planning has to say of it."""
        return Remarks(self.notes, self.warnings, self.not_checked)

    @property
    def name(self) -> str:
        """The run: its checkpoints and its experiment. Submitting the same name again continues it."""
        return self.metadata["job_name"]

    @property
    def uses_transfer_queue(self) -> bool:
        """Whether it cannot share a cluster with another such job; see `cloudrl.verl.transfer_queue`."""
        return uses_transfer_queue(self.entrypoint, self.metadata.get("cloudrl_verl"))

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
        redacted: dict[str, Any] = redact(shown, secret_values({**self._variables, **self.secrets}))
        return redacted

    def sent_before(self) -> dict[str, Any]:
        """What reaches the cluster before the request does, and what its agents are told; of secrets the names."""
        files = [
            {"path": item.text, "to": item.to, "by": item.by, "size_bytes": item.size_bytes} for item in self.uploads
        ]
        return {
            **({"files": files} if files else {}),
            **({"secrets": sorted(self.secrets)} if self.secrets else {}),
            **({"durable": asdict(self.durable)} if self.durable is not None else {}),
        }

    def render(self) -> str:
        """The request as YAML, secrets masked; `entrypoint`, one argument a line, is the same to a shell."""
        shown = self.redacted_request()
        words = shlex.split(shown["entrypoint"])
        first = next((index for index, word in enumerate(words) if "=" in word), len(words))
        lines = [shlex.join(words[:first]), *(shlex.quote(word) for word in words[first:])]
        shown["entrypoint"] = " \\\n  ".join(lines) + "\n"
        return self._comments() + yaml.dump(shown, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10_000)

    @property
    def absent(self) -> tuple[str, ...]:
        """Names of secrets whose values are not here."""
        return tuple(name for name, value in (*self._variables.items(), *self.secrets.items()) if value is None)

    def to_json(self) -> dict[str, Any]:
        """JSON-ready form, without the values of secrets.

        Raises:
            InputError: A secret is part of the command or of a field for Ray, and cannot be taken out.
        """
        secret_texts = secret_values({**self._variables, **self.secrets})
        shown = {
            name: value if redact({name: value}, secret_texts)[name] == value else None
            for name, value in self._variables.items()
        }
        rest = {**self.runtime_env, **({"env_vars": shown} if shown else {})}
        argv = list(self.argv)
        if redact_words(argv) != argv or redact([rest, argv], secret_texts) != [rest, argv]:
            raise InputError(
                f"job {self.submission_id} has a secret in its command or runtime environment, and cannot be journaled",
                hint="Give it as a variable, which the job's processes read: --env NAME",
            )
        return {
            "version": _VERSION,
            "submission_id": self.submission_id,
            "argv": argv,
            "runtime_env": rest,
            "metadata": dict(self.metadata),
            **self.remarks.to_json(),
            "uploads": [upload.to_json() for upload in self.uploads],
            "secrets": sorted(self.secrets),
        }

    @classmethod
    def from_json(cls, value: Any) -> Submission:
        """Read what `to_json` wrote; its secrets are absent.

        Raises:
            ValueError: This is not a submission, or one of another release.
        """
        try:
            fields = dict(value)
            if fields.pop("version") != _VERSION:
                raise ValueError(f"this submission is not of version {_VERSION}")
            texts = ("argv", "notes", "warnings", "not_checked")
            fields |= {name: tuple(fields[name]) for name in texts if name in fields}
            fields["uploads"] = tuple(Upload.from_json(upload) for upload in fields["uploads"])
            fields["secrets"] = dict.fromkeys(fields["secrets"])
            return cls(**fields)
        except (KeyError, TypeError) as failure:
            raise ValueError(f"this is not a submission: {failure!r}") from failure

    @property
    def _variables(self) -> Mapping[str, str | None]:
        return self.runtime_env.get("env_vars") or {}

    def _comments(self) -> str:
        lines = [f"#   {item.text} -> {item.to} ({size_text(item.size_bytes)}, {item.way})" for item in self.uploads]
        lines = ["# Files of this machine, where the job finds them:", *lines] if lines else []
        if self.secrets:
            lines.append(f"# Secrets, through the agents: {', '.join(sorted(self.secrets))}")
        if self.durable is not None:
            lines.append("# For the agents, which hand it to Ray, and again after a loss (--no-durable: once)")
        return "".join(f"{line}\n" for line in lines)


class _Dumper(yaml.SafeDumper):
    """Writes text with line breaks as a block."""


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


_Dumper.add_representer(str, _text)
