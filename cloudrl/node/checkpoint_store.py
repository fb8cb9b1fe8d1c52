"""The checkpoints of this node, as its agent shows them: what there is, bytes of it, and which step goes.

There are two roots: `checkpoints`, the folder that jobs of this cluster write to, and `ray_tmp`, Ray's folder, of which
only those files are shown that earlier jobs have left in their working directories.
"""

import contextlib
import os
import threading
from pathlib import Path
from typing import Any, BinaryIO, Callable, Collection, Dict, List, Mapping, Optional

from cloudrl.node.files import marker_path, remove_marker, write_marker
from cloudrl.node.save_recorder import SaveRecorder
from cloudrl.node.shard_worker_client import ShardWorkerClient
from cloudrl.protocol.routes import CHECKPOINTS, RAY_TMP
from cloudrl.saves.below import Refused, open_below
from cloudrl.saves.removal import purge, runs_with_rest, tombstone
from cloudrl.saves.scan import IN_WORKING_DIR, folder_identity, scan, scan_working_dirs
from cloudrl.saves.wholeness import Inspector

_LIVES_S = 60.0
"""An older marker was left by a node that was killed, in a volume that another rank has now."""
_RENEW_EVERY_S = 10.0


class CheckpointStore:
    """One node's.

    Args:
        folder: Of the cluster's checkpoints.
        ray_root: Ray's folder on this node.
        run_id: The cluster's.
        rank: This node's.
        child: Calculates.
        say: Told of what goes wrong out of sight.
        renew_every_s: Between two signs of life in the folder.
    """

    def __init__(
        self,
        folder: Path,
        ray_root: Path,
        *,
        run_id: str,
        rank: int,
        child: ShardWorkerClient,
        say: Callable[[str], None] = lambda _text: None,
        renew_every_s: float = _RENEW_EVERY_S,
    ) -> None:
        self.folder, self.ray_root, self.child = folder, ray_root, child
        self._run_id, self._rank, self._say, self._renew_every_s = run_id, rank, say, renew_every_s
        self._marker_id = f"{run_id}-{rank}"
        self._marker = ""
        self._inspector = Inspector()
        self._lock, self._closed = threading.Lock(), threading.Event()

    def start(self) -> None:
        """From now on nodes that share the folder can tell, and finished saves are written down.

        What a removal has left that was cut short, by the end of its cluster for one, is removed.
        """
        self.mark()
        for work in (self._record_saves, self._heartbeat, self._purge_all):
            threading.Thread(target=work, daemon=True).start()

    def mark(self) -> None:
        """Leave this node's marker in the folder, for the others that have it."""
        self._marker = write_marker(self.folder, self._marker_id)

    def is_on_all(self, nodes: int) -> bool:
        """Whether every other node renews its marker in this node's folder, so that all save into one."""
        with contextlib.suppress(OSError):  # a volume that fails now
            return nodes > 1 and set(range(nodes)) <= set(self._living())
        return False

    def close(self) -> None:
        """Leave nothing in the folder but what is meant to stay, and no thread that looks at it."""
        self._closed.set()
        self.child.close()
        with self._lock:
            if self._marker:
                remove_marker(self.folder, self._marker_id)
            self._marker = ""

    def inventory(self, *, without: Optional[Collection[int]] = None) -> Dict[str, Any]:
        """Both roots; two nodes have the same folder if each sees the other's marker, or one kernel says so.

        Args:
            without: a folder that a node of lower rank, not one of these, has marked as its own is not listed: its
                marker stands in place of what is there. None lists it in any case.
        """
        markers = self._all_markers()
        ours = None if without is None else self._lister(markers, without)
        if ours is None:
            texts = [text for text in map(_text, markers.values()) if text]
            ours = {"markers": texts, "runs": scan(self.folder, inspector=self._inspector)}
        left = scan_working_dirs(self.ray_root, inspector=self._inspector)
        ray_tmp: Dict[str, Any] = {"markers": [], "runs": left}
        roots = ((CHECKPOINTS, self.folder, self._marker, ours), (RAY_TMP, self.ray_root, "", ray_tmp))
        return {
            "locations": [
                {"root": name, "folder": str(folder), "identity": folder_identity(folder), "marker": marker, **content}
                for name, folder, marker, content in roots
            ]
        }

    def _lister(self, markers: Mapping[int, Path], without: Collection[int]) -> Optional[Dict[str, Any]]:
        """The node of the lowest rank that has this folder, too; None where this one is that, or cannot tell."""
        others = [rank for rank in markers if rank < self._rank and rank not in without]
        text = _text(markers[min(others)]) if others and self._marker and self._rank in markers else ""
        return {"same_as": {"rank": min(others), "marker": text}} if text else None

    def open(self, root: str, path: str) -> BinaryIO:
        """Open a file of a root.

        Raises:
            Refused: the number is not in the list.
            FileNotFoundError: it does not exist.
        """
        return open_below(self._folder(root, path), path)

    def remove(self, root: str, path: str) -> None:
        """Remove one step, `RUN/global_step_10`, of a root.

        Raises:
            Refused: it is not a step.
            FileNotFoundError: it does not exist.
        """
        folder = self._folder(root, path)
        parent = tombstone(folder, path)
        # of hundreds of GB: seconds
        threading.Thread(target=self._purge, args=(folder, parent), daemon=True).start()

    def _folder(self, root: str, path: str) -> Path:
        if root == CHECKPOINTS:
            return self.folder
        if not IN_WORKING_DIR.fullmatch(path):
            raise Refused(path)
        return self.ray_root

    def _record_saves(self) -> None:
        """Until the end; of several nodes with the same folder one does."""
        recorder = SaveRecorder(self.folder, say=self._say, inspector=self._inspector)
        while not self._closed.wait(recorder.pause_s):
            with contextlib.suppress(OSError):  # a volume that hangs or is full; no training ends for its sake
                if self._is_leader():
                    recorder.scan_once()
                else:
                    recorder.reset()

    def _purge_all(self) -> None:
        for run in runs_with_rest(self.folder):
            self._purge(self.folder, run)

    def _purge(self, root: Path, run: str) -> None:
        try:
            purge(root, run)
        except FileNotFoundError:
            pass  # the whole run has gone
        except (OSError, Refused) as error:
            self._say(f"warning: what was pruned of {root / run} still takes space: {error}")

    def _heartbeat(self) -> None:
        """Renew the marker until the end, by itself: a look for saves takes long on a slow volume."""
        while not self._closed.wait(self._renew_every_s):
            with self._lock, contextlib.suppress(OSError):  # a volume that hangs or is full
                if self._marker:
                    if not self._own_marker.exists():
                        self._own_marker.write_text(self._marker)
                    os.utime(self._own_marker)

    def _is_leader(self) -> bool:
        """Whether no living node of a lower rank has this folder."""
        return all(rank >= self._rank for rank in self._living())

    def _living(self) -> List[int]:
        """The ranks whose markers here are renewed, this node's among them.

        Raises:
            OSError: a marker cannot be looked at.
        """
        # by the clock of the folder's own file system
        since = self._own_marker.stat().st_mtime - _LIVES_S
        return [rank for rank, path in self._all_markers().items() if path.stat().st_mtime > since]

    @property
    def _own_marker(self) -> Path:
        return marker_path(self.folder, self._marker_id)

    def _all_markers(self) -> Dict[int, Path]:
        """Rank -> its marker, of the nodes of this run that have left one here; in the order of ranks."""
        prefix, markers = marker_path(self.folder, f"{self._run_id}-").name, {}
        with contextlib.suppress(OSError):
            for path in self.folder.iterdir():
                rank = path.name[len(prefix) :]
                if path.name.startswith(prefix) and rank.isascii() and rank.isdecimal():
                    markers[int(rank)] = path
        return dict(sorted(markers.items()))


def _text(marker: Path) -> str:
    """What a marker says, "" for one that has just gone."""
    try:
        return marker.read_text()
    except OSError:
        return ""
