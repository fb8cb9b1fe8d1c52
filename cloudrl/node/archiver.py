"""Keeps this node's logs on the checkpoint volume, and on rank 0 what Ray says of jobs that have ended."""

from __future__ import annotations

import json
import shutil
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, Iterator, Mapping, Optional, Set, Tuple

from cloudrl.node.background import within
from cloudrl.node.log_copy import LogCopy, append_private, compressed
from cloudrl.node.masking import Masker
from cloudrl.node.ray import Dashboard
from cloudrl.protocol.ray_state import ENDED, RayState, kinds_of, shown
from cloudrl.protocol.wire import to_json
from cloudrl.saves.archive import AGENT, FOLDER, LOGS, NODE, SESSION, scan_archive, state_file
from cloudrl.saves.names import file_name

EVERY_S = 10.0
LAST_S = 2.0
"""At the end, before Ray ends and once more after it: dstack kills 10 s after its signal."""
_SHARE = 20
"""A slow volume, or a flood of output, takes one part in so many of this thread's time."""
_SESSIONS, _SESSIONS_BYTES = 20, 1 << 30
"""Of one rank, over all runs: so many sessions stay on a volume, and fewer where they are larger."""
_SPARED_S = 3600.0
"""A session to which something was added since then may be that of another cluster, which is up."""
_ANSWER_S = 5.0
_LONGEST_TEXT = 20_000
_LOOKS = 2
"""At a job that has ended: what its last workers died of comes to Ray's control store up to a second later."""


class Archiver:
    """One node's. The agent neither waits for the volume nor fails with it; `problem` says what is wrong.

    Args:
        checkpoints: the folder of the volume.
        run_id: whose logs they are.
        facts: of this node, for who reads its logs; `rank` is among them.
        own_logs: where the agent and what it starts write theirs.
        ray_logs: where Ray's are; None while it is not up.
        secrets: the values that are masked.
        dashboard: Ray's, on rank 0.
        say: told once of what goes wrong.
    """

    def __init__(
        self,
        checkpoints: Path,
        run_id: str,
        facts: Mapping[str, Any],
        *,
        own_logs: Path,
        ray_logs: Callable[[], Optional[Path]],
        secrets: Callable[[], Iterable[str]],
        dashboard: Optional[Dashboard],
        say: Callable[[str], None],
    ) -> None:
        self.root = checkpoints / FOLDER
        self._checkpoints, self._run, self._rank = checkpoints, file_name(run_id), facts["rank"]
        self._own_logs, self._ray_logs, self._secrets = own_logs, ray_logs, secrets
        self._facts, self._dashboard, self._say = facts, dashboard, say
        self._lock, self._ending = threading.Lock(), threading.Event()
        self._folder: Optional[Path] = None
        self._copy: Optional[LogCopy] = None
        self._looks: Dict[str, int] = {}
        self._problems: Dict[str, str] = {}
        self._seen: Set[str] = set()
        self._masker, self._secrets_lock = Masker(()), threading.Lock()

    @property
    def problem(self) -> str:
        """Why something cannot be kept, "" if all can."""
        return next(filter(None, self._problems.values()), "")

    def start(self) -> None:
        """From now on, until Ray is about to end."""
        threading.Thread(target=self._run_for_ever, daemon=True).start()

    def update(self, *, is_last: bool = False, wait_s: float = -1) -> bool:
        """Keep what is new.

        Args:
            is_last: nothing is going to be added to any line.
            wait_s: at most, for another thread that is at it.

        Returns:
            False if that thread was not done in time.
        """
        with self._telling("secrets"):
            self._known_masker()  # they may be forgotten while this thread waits
        if not self._lock.acquire(timeout=wait_s):
            return False
        try:
            with self._telling("logs"):
                if self._copy is None:
                    self._copy = self._begin()
                if self._copy is not None:
                    self._copy.copy(self._known_masker, is_last=is_last)
        finally:
            self._lock.release()
        return True

    def keep_states(self, *, is_last: bool = False) -> None:
        """Ask Ray for the state of jobs that have ended; with `is_last` also of those that have not."""
        if self._dashboard is None or self._folder is None:
            return
        with self._telling("state"):
            for job in self._dashboard.jobs() or ():
                name = str(job.get("submission_id") or job.get("job_id"))
                looks = self._looks.get(name, 0)
                if looks < _LOOKS and (is_last or job.get("status") in ENDED):
                    rows = _rows(self._dashboard, job.get("job_id"))
                    if rows is None:  # what is kept of it may be more
                        return
                    state = RayState(round(time.time(), 3), shown(job), **rows)
                    self._write(self._folder / state_file(name), to_json(state))
                    self._looks[name] = looks + 1

    def before_ray_ends(self) -> None:
        """Ask it a last time; it may not answer any more."""
        self._ending.set()
        within(LAST_S, self._look_a_last_time)

    def finish(self) -> None:
        """Ray has ended: keep the last lines, too."""
        within(LAST_S, lambda: self.update(is_last=True))

    def listing(self, run: Optional[str], *, own: bool = False) -> Dict[str, Any]:
        """The pieces of a run on this node's volume, up to now, for a client; of the present run for None.

        Args:
            run: its id.
            own: only those of this rank: who asks has the others from another node, which shares the volume.
        """
        run = self._run if run is None else file_name(run)
        if not self.update(wait_s=_ANSWER_S):
            return {"problem": "the volume does not answer", "run": run, "pieces": []}
        pieces = scan_archive(self._checkpoints, run, self._rank if own else None)
        return {"problem": self.problem, "run": run, "pieces": pieces}

    def _run_for_ever(self) -> None:
        pause_s = EVERY_S
        while not self._ending.wait(pause_s):
            began = time.monotonic()
            self.update()
            pause_s = max(EVERY_S, (_SHARE - 1) * (time.monotonic() - began))
            self.keep_states()

    def _look_a_last_time(self) -> None:
        self.update()
        self.keep_states(is_last=True)

    def _begin(self) -> Optional[LogCopy]:
        """Once Ray is up: the session has its name."""
        logs = self._ray_logs()
        if logs is None or not SESSION.fullmatch(logs.parent.name):
            return None
        folder = self.root / self._run / f"rank-{self._rank}" / logs.parent.name
        self._prune(folder)
        self._write(folder / NODE, self._facts)
        self._folder = folder
        return LogCopy(folder, {LOGS: logs, AGENT: self._own_logs})

    def _prune(self, present: Path) -> None:
        """Old sessions of this rank go. No other rank's: several nodes may share the volume, and several clusters."""
        left, spared = _SESSIONS_BYTES, time.time() - _SPARED_S
        old = [path for path in self.root.glob(f"*/rank-{self._rank}/*") if path != present]
        # the name of a session begins with the time of its start
        for number, path in enumerate(sorted(old, key=lambda session: session.name, reverse=True), 2):
            stats = [file.lstat() for file in (path, *path.rglob("*.gz"))]
            left -= sum(info.st_size for info in stats[1:])
            if (number > _SESSIONS or left < 0) and max(info.st_mtime for info in stats) < spared:
                shutil.rmtree(path, ignore_errors=True)

    def _write(self, path: Path, value: Any) -> None:
        """A file of one piece, which appears whole; at the end two threads may be at it."""
        text = json.dumps(_bounded(self._known_masker().mask_all(value)), default=str).encode()
        piece = path.with_name(f"{path.name}.0.gz")
        part = piece.with_suffix(f".{threading.get_ident()}.part")
        with suppress(FileNotFoundError):
            part.unlink()
        append_private(part, compressed(text))
        part.replace(piece)

    def _known_masker(self) -> Masker:
        """Of all secrets that there ever were: those of jobs are forgotten before the last lines are kept."""
        with self._secrets_lock:
            seen = self._seen.union(self._secrets())
            if seen != self._seen:
                self._seen, self._masker = seen, Masker(seen)
            return self._masker

    @contextmanager
    def _telling(self, part: str) -> Iterator[None]:
        """A volume that is full or cannot be written ends no training, and nothing ends this thread."""
        try:
            yield
            self._problems[part] = ""
        except Exception as error:  # noqa: BLE001
            text = str(error) if isinstance(error, OSError) else repr(error)
            if not self.problem:
                self._say(f"warning: logs cannot be kept in {self.root}: {text}")
            self._problems[part] = getattr(error, "strerror", None) or text


def _rows(dashboard: Dashboard, job_id: Optional[str]) -> Optional[Dict[str, Tuple[Any, ...]]]:
    """All that Ray says of a job; None where it does not answer one of the questions."""
    rows = {}
    for kind in kinds_of(job_id):
        answer = dashboard.rows(kind, job_id)
        if answer is None:
            return None
        rows[kind] = answer
    return rows


def _bounded(value: Any) -> Any:
    """The same with the middle of long texts left out: tracebacks of tracebacks."""
    if isinstance(value, str) and len(value) > _LONGEST_TEXT:
        half = _LONGEST_TEXT // 2
        return f"{value[:half]}\n[cloudrl: {len(value) - 2 * half} characters were not kept]\n{value[-half:]}"
    if isinstance(value, dict):
        return {key: _bounded(item) for key, item in value.items()}
    return tuple(map(_bounded, value)) if isinstance(value, (list, tuple)) else value
