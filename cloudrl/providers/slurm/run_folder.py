"""The run folder of a job (`cloudrl.providers.slurm.script` has its layout), read where Slurm's commands are."""

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cloudrl.errors import ConnectionFailed
from cloudrl.foreign import NOT_AS_EXPECTED, parse_object, text_of
from cloudrl.protocol.outcome import Outcome, from_output
from cloudrl.providers.slurm.login import Login

_DEFAULT = "$HOME/.cloudrl/slurm"
_STATUS = " batch] ended with status "
"""In the script's own last line."""
_TAIL_BYTES = 20_000
_START = re.compile(r"(\d{1,9})\|(\d{0,11})\|(\d{0,11})\|(.*)")
_LATEST = 'cd {folder}/{job} 2>/dev/null && cd "$(ls | grep -x "[0-9]*" | sort -n | tail -n 1)"'
_STARTS = (
    "cd {folder}/{job} 2>/dev/null || exit 0; for each in $(ls | grep -x '[0-9]*' | sort -n); do "
    'printf "%s|%s|%s|%s\\n" "$each" "$(stat -c %Y "$each/key" "$each/head.json" 2>/dev/null | head -n 1)" '
    '"$(stat -c %Y "$each/status" 2>/dev/null)" '
    '"$(cat "$each"/nodes/*.failed "$each/status" 2>/dev/null | head -n 1)"; done'
)


def shell_word(run_dir: str | None) -> str:
    """The folder that all jobs share, as a shell there reads it; None or "" is that of the user's home."""
    return shlex.quote(run_dir) if run_dir else _DEFAULT


@dataclass(frozen=True)
class Head:
    """Rank 0 of the present start: address, and ports of its loopback."""

    ip: str
    agent: int
    dashboard: int


@dataclass(frozen=True)
class RunFolder:
    """The folder of one job.

    Attributes:
        folder: the shell's word for what all jobs share.
    """

    login: Login
    folder: str
    job_id: int

    def head(self) -> Head:
        """Where rank 0 is; the newest start counts.

        Raises:
            ConnectionFailed: it has written nothing yet.
        """
        text = self._in_latest("cat head.json 2>/dev/null")
        try:
            value = parse_object(text)
            return Head(text_of(value, "ip"), int(value["agent"]), int(value["dashboard"]))
        except NOT_AS_EXPECTED:
            raise ConnectionFailed(f"job {self.job_id} has not started an agent yet") from None

    def key(self) -> bytes:
        """The secret of the newest start.

        Raises:
            ConnectionFailed: the cluster has not started, or has ended.
        """
        key = self._in_latest("cat key 2>/dev/null").encode()
        if not key:
            raise ConnectionFailed(f"job {self.job_id} has no key: it has not started, or is over")
        return key

    def ending(self, log: str) -> tuple[Outcome | None, str, str]:
        """How the newest start has ended.

        Returns:
            The agent's words in the log of the job, why a node never had an agent, and the last line of the log, that
            with the exit status aside.
        """
        text = self._in_latest(
            f"cat nodes/*.failed 2>/dev/null; printf '\\0'; tail -c {_TAIL_BYTES} {shlex.quote(log)} 2>/dev/null"
        )
        reasons, _, output = text.partition("\0")
        lines = [line.strip() for line in output.splitlines() if line.strip() and _STATUS not in line]
        return from_output(output), reasons.strip().replace("\n", "; "), lines[-1] if lines else ""

    def starts(self) -> list[Mapping[str, Any]]:
        """Starts of the job before the newest one, oldest first, as `Status.previous_attempts` has them."""
        lines = self.login.shell(_STARTS.format(folder=self.folder, job=self.job_id)).splitlines()
        attempts: list[Mapping[str, Any]] = []
        for line in lines[:-1]:
            match = _START.fullmatch(line)
            if match is None:
                raise ConnectionFailed(f"job {self.job_id} has a run folder that is not a folder of cloudrl's")
            number, began, ended, reason = match.groups()
            attempts.append(
                {
                    "attempt": int(number) + 1,
                    "last_attempt": int(number) + 1,
                    "submitted_at": float(began or 0),
                    "ended_at": float(ended) if ended else None,
                    "reason": reason or "it was ended by Slurm",
                    "nodes": [],
                }
            )
        return attempts

    def _in_latest(self, command: str) -> str:
        enter = _LATEST.format(folder=self.folder, job=self.job_id)
        return self.login.shell(f"{enter} || exit 0; {command}; true")
