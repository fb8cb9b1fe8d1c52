"""Data, models and artifacts, while Ray starts: rank 0 prepares the data, everybody has the others.

What needs the image's packages runs in children under the image's Python, from the same file as the agent.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from pathlib import Path
from typing import Callable, Dict, Iterable, List, Mapping, Optional

from cloudrl.child_process import Child, self_command
from cloudrl.data.request import folder_name, parse_request
from cloudrl.node.download import hub_cache, progress_file
from cloudrl.node.failure import NodeFailed
from cloudrl.node.subcommands import ChildResult
from cloudrl.protocol import routes
from cloudrl.protocol.client import AgentClient
from cloudrl.protocol.failures import ApiError, ErrorCode, Failure, FailureKind
from cloudrl.protocol.options import MADE_ON_NODES, AgentOptions
from cloudrl.protocol.progress import Fetching
from cloudrl.protocol.services import Artifact
from cloudrl.protocol.wire import from_json

# what these two draw would fill a log; our own lines say how far it is (read by both when they are imported)
_NO_BARS = {"HF_DATASETS_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
_AGAIN_AFTER_S = 5.0
_LOOK_S, _LINE_CHARACTERS = 1.0, 120


def models_dir(model: str, data_dir: Path, env: Mapping[str, str]) -> Path:
    """The folder into which a model is put; the marker of a shared folder is written there."""
    return data_dir / "models" if model in MADE_ON_NODES else hub_cache(env)


def artifacts_dir(data_dir: Path) -> Path:
    """The folder in which each artifact has its own."""
    return data_dir / "artifacts"


class Fetcher:
    """Runs the children for one node; each call blocks until its child has ended.

    One that blames the network is started once more, within the same time.

    Args:
        on_progress: called every second with the name of what comes and how far it is, and with None at its end.

    Raises from every method:
        NodeFailed: the child failed or took too long, with the last lines of its log; transient if the network is to
            blame, permanent otherwise.
    """

    def __init__(
        self,
        options: AgentOptions,
        rank: int,
        env: Mapping[str, str],
        *,
        sleep: Callable[[float], None] = time.sleep,
        on_progress: Callable[[str, Optional[Fetching]], None] = lambda _name, _progress: None,
    ) -> None:
        self._options, self._rank, self._env, self._sleep = options, rank, env, sleep
        self._on_progress = on_progress

    def prepare_data(self, text: str) -> Dict[str, str]:
        """Make {train,test}.parquet of a `--data` argument; returns the files with their SHA-256."""
        name = parse_request(text).name
        folder = self._options.data_dir / folder_name(name)
        self._run_own(FailureKind.DATA, name, text, folder, {**_NO_BARS, **self._env})
        return {file.name: sha256(file) for file in sorted(folder.glob("*.parquet"))}

    def fetch_model(self, model: str) -> str:
        """Download (or make) a model on this node and return its folder."""
        folder = models_dir(model, self._options.data_dir, self._env)
        return self._run_own(FailureKind.MODEL, model, model, folder, self._env).path

    def make_artifact(self, artifact: Artifact) -> str:
        """Run the command of an artifact in its folder, and return that."""
        folder = artifacts_dir(self._options.data_dir) / artifact.name
        folder.mkdir(parents=True, exist_ok=True)
        command = ["/bin/sh", "-c", artifact.command]
        self._run(FailureKind.ARTIFACT, artifact.name, command, {**_NO_BARS, **self._env}, folder)
        return str(folder)

    def _run_own(self, kind: FailureKind, name: str, subject: str, to: Path, env: Mapping[str, str]) -> ChildResult:
        file = self._log(kind, name).with_suffix(".json")
        return self._run(kind, name, self_command(kind.value, subject, f"--to={to}", f"--result={file}"), env)

    def _log(self, kind: FailureKind, name: str) -> Path:
        return self._options.run_dir / f"{kind}-{folder_name(name)}.log"

    def _run(
        self, kind: FailureKind, name: str, command: List[str], env: Mapping[str, str], cwd: Optional[Path] = None
    ) -> ChildResult:
        log = self._log(kind, name)
        file = log.with_suffix(".json")
        timeout_s = self._options.fetch_timeout_s
        deadline = time.monotonic() + timeout_s
        for is_last in (False, True):
            file.unlink(missing_ok=True)
            progress_file(file).unlink(missing_ok=True)
            child = Child(command, log=log, env=env, cwd=cwd)
            status = self._await(child, name, progress_file(file), deadline)
            if status is None:
                child.end()
                reason = f"not finished after {timeout_s:.0f} s"
                result = ChildResult(reason=reason, code="timeout", transient=True)
                break
            result = ChildResult.read(file, child)
            if status == 0:
                return result
            if is_last or not result.transient:
                break
            self._sleep(_AGAIN_AFTER_S)
        reason, code, transient = f"{kind} {name}: {result.reason}", result.code, result.transient
        failure = Failure(kind, self._rank, reason, child.tail(), transient=transient, subject=name, code=code)
        raise NodeFailed(failure)

    def _await(self, child: Child, name: str, progress: Path, deadline: float) -> Optional[int]:
        """Wait for a child and report how far it is; its exit status, None if it still runs at the deadline."""
        status = None
        while status is None and time.monotonic() < deadline:
            self._on_progress(name, read_progress(progress, child))
            status = child.wait(min(_LOOK_S, max(0.0, deadline - time.monotonic())))
        self._on_progress(name, None)
        return status


def read_progress(file: Path, child: Child) -> Fetching:
    """What a child has counted; of one that counts nothing, the last line that it wrote."""
    try:
        return from_json(Fetching, json.loads(file.read_text()))
    except (OSError, ValueError):
        lines = [line.strip() for line in child.tail(1).splitlines()]
        return Fetching(lines[-1][:_LINE_CHARACTERS] if lines else "")


def sha256(path: Path) -> str:
    """Hex digest of a file's content."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for chunk in iter(lambda: file.read(1 << 20), b""):
            digest.update(chunk)
    return digest.hexdigest()


def pull(head: AgentClient, folder: str, file: str, announced: str, *, to: Path) -> None:
    """Copy a prepared data file, of which the head has announced the SHA-256; it appears whole or not at all.

    Raises:
        ApiError: the bytes are not those that the head has announced, or it has none.
        OSError, http.client.HTTPException: the connection broke, or this node's disk.
    """
    to.parent.mkdir(parents=True, exist_ok=True)
    part = to.with_name(f".{to.name}.{secrets.token_hex(8)}.part")
    digest = hashlib.sha256()
    request = head.request(routes.DATA_FILE, name=folder, file=file)
    try:
        with head.open(request) as answer, part.open("wb") as out:
            for chunk in iter(lambda: answer.stream.read(1 << 20), b""):
                digest.update(chunk)
                out.write(chunk)
        if digest.hexdigest() != announced:
            reason = f"{folder}/{file} from {head.url} is damaged: its SHA-256 is not the announced one"
            raise ApiError(ErrorCode.DAMAGED, reason)
        part.replace(to)
    finally:
        part.unlink(missing_ok=True)


def split_paths(data_dir: Path, name: str, files: Iterable[str]) -> Dict[str, str]:
    """{"train": path, "test": path} of one prepared data set."""
    return {Path(file).stem: str(data_dir / folder_name(name) / file) for file in files}
