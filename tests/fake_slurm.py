"""Slurm's commands as far as a job script needs them: steps are processes of this machine."""

import os
import secrets
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import IO

_COMMANDS = {
    # exec: the step has the number of srun itself
    "srun": """
        echo $$ >>"$FAKE_SLURM/steps"
        printf '%s\\n' "$*" >>"$FAKE_SLURM/srun"
        while [ "${1#--}" != "$1" ]; do shift; done
        export SLURMD_NODENAME="node$4" SLURM_STEP_GPUS="${SLURM_JOB_GPUS:-}"
        exec "$@"
        """,
    "scontrol": """
        case $1-$2 in
          show-hostnames) for n in $(seq 0 $((SLURM_JOB_NUM_NODES - 1))); do echo "node$n"; done ;;
          show-node) echo "   NodeAddr=0.0.0.0 NodeHostName=$3 Version=22.05.8" ;;
          show-job) echo "   PreemptEligibleTime=2026-11-22T10:00:00 PreemptTime=${PREEMPTED:-None}" ;;
          requeue-*) [ -z "${NO_REQUEUE:-}" ] || exit 1; echo "$2" >>"$FAKE_SLURM/requeued" ;;
        esac
        """,
    "scancel": """
        echo "$*" >>"$FAKE_SLURM/scancel"
        for pid in $(cat "$FAKE_SLURM/steps"); do kill -TERM "$pid" 2>/dev/null; done
        true
        """,
    # the end of this job, or the state of another one: running, unless a file says otherwise
    "squeue": """
        case "$*" in *%T*) : ;; *) echo 2030-01-01T00:00:00; exit ;; esac
        for word; do
          case $word in --jobs=*) cat "$FAKE_SLURM/state-${word#--jobs=}" 2>/dev/null || echo RUNNING ;; esac
        done
        """,
    # the address of this machine, which no filter drops
    "getent": 'case $2 in 0.0.0.0) echo "0.0.0.0  STREAM $2" ;; *) exit 2 ;; esac',
}


class FakeSlurm:
    """One job of one script.

    Args:
        folder: for everything, the home of the user included.
        nodes: how many the job has.
    """

    def __init__(self, folder: Path, nodes: int = 1) -> None:
        self.folder, self.home = folder, folder / "home"
        self.job = secrets.randbelow(10**8) + 10**6  # its folders in /tmp are told from those of other tests by it
        commands = folder / "bin"
        commands.mkdir()
        self.home.mkdir()
        for name, text in _COMMANDS.items():
            (commands / name).write_text(f"#!/bin/bash\n{text}\n")
            (commands / name).chmod(0o755)
        self.env = {
            "PATH": f"{commands}:{os.environ['PATH']}", "HOME": str(self.home), "FAKE_SLURM": str(folder),
            "SLURM_JOB_ID": str(self.job), "SLURM_JOB_NUM_NODES": str(nodes), "SLURM_JOB_NODELIST": "node[0-9]",
            "SLURM_CPUS_ON_NODE": "4",
        }  # fmt: skip

    def start(
        self, script: str, env: Mapping[str, str] | None = None, *, output: IO[str] | None = None
    ) -> subprocess.Popen[str]:
        """Start it; its output comes as one text, or goes to a file, as Slurm has it."""
        path = self.folder / "script.sh"
        path.write_text(script)
        return subprocess.Popen(
            ["bash", str(path)], env={**self.env, **(env or {})}, stdout=output or subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip

    def run(self, script: str, env: Mapping[str, str] | None = None) -> tuple[int, str]:
        """Run it to its end: status and output."""
        job = self.start(script, env)
        try:
            output, _ = job.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            os.killpg(job.pid, signal.SIGKILL)
            output, _ = job.communicate()
            raise AssertionError(f"the script has not ended:\n{output}") from None
        return job.returncode, output

    @property
    def requeued(self) -> bool:
        """Whether it was queued again."""
        return (self.folder / "requeued").exists()

    def run_dir(self, restart: int = 0) -> Path:
        """The run folder of the job."""
        return self.home / f".cloudrl/slurm/{self.job}/{restart}"
