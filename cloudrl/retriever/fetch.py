"""Downloads the indexes that Search-R1 has published, checks every byte, and joins their parts in place.

Joining takes no second copy: the first part becomes the index, the others move to its end, the last piece first, and
each piece is cut off when it has arrived. A download that was ended goes on where it was.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import sys
import zlib
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from cloudrl.errors import ConnectionFailed, InputError
from cloudrl.foreign import NOT_AS_EXPECTED, parse_object, read_file
from cloudrl.retriever.corpus import open_corpus
from cloudrl.retriever.lock import contents, locked
from cloudrl.retriever.opening import OnProgress, index_fingerprint
from cloudrl.retriever.published import PUBLISHED, Published
from cloudrl.retriever.record import Record, read_record, write_json
from cloudrl.retriever.vectors import open_vectors
from cloudrl.units import size_text

_STATE = ".fetch.json"
_PIECE_BYTES = 1 << 26
_MOVE_BYTES = 1 << 30
_CORPUS_REPO, _CORPUS_GZ, _CORPUS = "PeterJinGo/wiki-18-corpus", "wiki-18.jsonl.gz", "wiki-18.jsonl"
_GZIP_FACTOR = 4
"""How much larger a corpus is than its .gz at most; an estimate."""


@dataclass(frozen=True)
class _File:
    """A file of a repository, as the Hub describes it."""

    repo: str
    revision: str
    name: str
    size_bytes: int
    sha256: str


@dataclass
class _State:
    """What was decided, and what is done; written after each step.

    Attributes:
        files: the parts of the index in their order, then the corpus.
        verified: names of those that were downloaded and are what the Hub says.
        joined: so many parts are in the index.
    """

    path: Path
    files: list[_File] = field(default_factory=list)
    verified: list[str] = field(default_factory=list)
    joined: int = 0

    @classmethod
    def read(cls, path: Path) -> _State:
        try:
            metadata = parse_object(read_file(path))
            files = [_File(**fields) for fields in metadata["files"]]
            return cls(path, files, list(map(str, metadata["verified"])), int(metadata["joined"]))
        except FileNotFoundError:
            return cls(path)
        except NOT_AS_EXPECTED as error:
            raise InputError(
                f"{path} cannot be read: {error}", hint=f"Remove it, and fetch again: rm {path}"
            ) from error

    def save(self) -> None:
        files = [asdict(file) for file in self.files]
        write_json(self.path, {"files": files, "verified": self.verified, "joined": self.joined})


def fetch(
    name: str,
    folder: Path,
    *,
    on_progress: OnProgress = lambda *_: None,
    say: Callable[[str], object] = lambda _: None,
    move_bytes: int = _MOVE_BYTES,
) -> Record:
    """Make `folder` with the index, its corpus and `retriever.json`, which comes last.

    Args:
        name: one of `PUBLISHED`.
        folder: new, or one where this was begun.
        on_progress: gets the progress.
        say: gets a line for each thing done.
        move_bytes: of a part that are in two places at once.

    Raises:
        InputError: no such index, not enough room, or the folder has other files in it.
        ConnectionFailed: the Hub does not answer, or sends something else than it says.
    """
    if name not in PUBLISHED:
        raise InputError(f"no index {name!r} is published", hint=f"Known: {', '.join(PUBLISHED)}")
    published = PUBLISHED[name]
    if done := _complete(folder, published, say):  # it may be read-only
        return done
    with locked(folder, say):
        return _complete(folder, published, say) or _fetch(published, folder, on_progress, say, move_bytes)


def _complete(folder: Path, published: Published, say: Callable[[str], object]) -> Record | None:
    if done := read_record(folder):
        _check_same(folder, done.source, published)
        say(f"{folder} is complete")
    return done


def _fetch(
    published: Published, folder: Path, on_progress: OnProgress, say: Callable[[str], object], move_bytes: int
) -> Record:
    state = _State.read(folder / _STATE)
    if state.files:
        _check_same(folder, state.files[0].repo, published)
    else:
        if contents(folder):
            raise InputError(f"{folder} has other files in it", hint="Name a new folder: --to DIR")
        state.files = _list(published)
        _check_room(folder, state.files)
        state.save()
    *parts, packed = state.files
    index = _join(folder, published, parts, state, move_bytes, on_progress, say)
    corpus_path = folder / _CORPUS
    if not corpus_path.exists():
        path = _download(packed, folder, state, on_progress, say)
        _unpack(path, corpus_path, on_progress)
        path.unlink()
    corpus = open_corpus(corpus_path, on_progress=lambda done, total: on_progress("reading the corpus", done, total))
    record = Record(
        published.engine, index.name, index_fingerprint(index), _CORPUS, corpus.identity.sha256, len(corpus),
        published.dim, published.encoder, published.prefixes, published.repo,
    )  # fmt: skip
    record.write(folder)
    shutil.rmtree(folder / ".cache", ignore_errors=True)  # of huggingface_hub
    state.path.unlink()
    return record


def _check_same(folder: Path, source: str, published: Published) -> None:
    if source != published.repo:
        raise InputError(
            f"{folder} has an index of {source}, not of {published.repo}", hint="Name a new folder: --to DIR"
        )


def _list(published: Published) -> list[_File]:
    """What there is, as it is now: whatever is published meanwhile, all files are of one revision."""
    from huggingface_hub import HfApi

    api, files = HfApi(endpoint=_endpoint()), []
    for repo, start in ((published.repo, "part_"), (_CORPUS_REPO, _CORPUS_GZ)):
        try:
            info = api.dataset_info(repo, files_metadata=True)
        except _hub_errors() as error:
            raise _failure(repo, error) from error
        wanted = [sibling for sibling in info.siblings or () if sibling.rfilename.startswith(start)]
        siblings = sorted(wanted, key=lambda sibling: str(sibling.rfilename))
        if not siblings or not all(sibling.lfs for sibling in siblings):
            raise ConnectionFailed(f"{repo} on {_hub()} has not the files that Search-R1 has published there")
        files += [
            _File(repo, info.sha, sibling.rfilename, sibling.lfs.size, sibling.lfs.sha256) for sibling in siblings
        ]
    return files


def _check_room(folder: Path, files: list[_File]) -> None:
    *parts, packed = files
    needed = sum(part.size_bytes for part in parts) + (1 + _GZIP_FACTOR) * packed.size_bytes
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise InputError(f"this takes about {size_text(needed)} of disk, and {folder} has {size_text(free)} free")


def _join(
    folder: Path,
    published: Published,
    parts: list[_File],
    state: _State,
    move_bytes: int,
    on_progress: OnProgress,
    say: Callable[[str], object],
) -> Path:
    """The index, of all its parts."""
    index = folder / published.index
    whole = index.with_name(f".{index.name}.part")
    if index.exists():
        return index
    at = 0
    for number, part in enumerate(parts):
        if number >= state.joined:
            path = _download(part, folder, state, on_progress, say)
            if not number and not whole.exists():
                path.replace(whole)
            else:
                _append(path, whole, at, move_bytes, on_progress)
            state.joined = number + 1
            state.save()
        at += part.size_bytes
    if published.engine == "flat":
        open_vectors(whole)
    whole.replace(index)
    return index


def _append(path: Path, whole: Path, at: int, move_bytes: int, on_progress: OnProgress) -> None:
    """Move what is left of a part to where it belongs, its end first. Without the part all is there already."""
    if not path.exists():
        return
    total = left = path.stat().st_size
    with path.open("r+b", buffering=0) as source, whole.open("r+b", buffering=0) as target:
        while left:
            first = max(0, left - move_bytes)
            for start in range(first, left, _PIECE_BYTES):
                piece = os.pread(source.fileno(), min(_PIECE_BYTES, left - start), start)
                target.seek(at + start)
                target.write(piece)
            os.fsync(target.fileno())
            source.truncate(first)
            left = first
            on_progress(f"joining {path.name}", total - left, total)
    path.unlink()


def _download(file: _File, folder: Path, state: _State, on_progress: OnProgress, say: Callable[[str], object]) -> Path:
    """A file that is what the Hub says; of one that was verified once, what is still there."""
    from huggingface_hub import hf_hub_download

    path = folder / file.name
    if file.name in state.verified:
        return path
    say(f"{file.name}: {size_text(file.size_bytes)} from {_hub()}/datasets/{file.repo}")
    try:
        hf_hub_download(
            file.repo,
            file.name,
            repo_type="dataset",
            revision=file.revision,
            local_dir=folder,
            endpoint=_endpoint(),
        )
    except _hub_errors() as error:
        raise _failure(file.repo, error) from error
    digest = _sha256(path, on_progress)
    if (path.stat().st_size, digest) != (file.size_bytes, file.sha256):
        length = path.stat().st_size
        path.unlink()
        raise ConnectionFailed(
            f"{file.name} has {length:,} bytes with sha256 {digest}, and {_hub()} says {file.size_bytes:,} bytes with "
            f"{file.sha256}",
            hint="It was removed; type the same command to download it again",
        )
    state.verified.append(file.name)
    state.save()
    return path


def _sha256(path: Path, on_progress: OnProgress) -> str:
    digest, done, total = hashlib.sha256(), 0, path.stat().st_size
    with path.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            digest.update(piece)
            done += len(piece)
            on_progress(f"checking {path.name}", done, total)
    return digest.hexdigest()


def _unpack(packed: Path, path: Path, on_progress: OnProgress) -> None:
    part = path.with_name(f".{path.name}.part")
    total = packed.stat().st_size
    try:
        with packed.open("rb") as raw, gzip.open(raw) as source, part.open("wb") as target:
            while piece := source.read(_PIECE_BYTES):
                target.write(piece)
                on_progress(f"unpacking {packed.name}", min(raw.tell(), total), total)
            target.flush()
            os.fsync(target.fileno())
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(
            f"{packed} cannot be unpacked: {error}", hint=f"Remove {packed.parent} and fetch again"
        ) from error
    part.replace(path)


def _endpoint() -> str | None:
    return os.environ.get("HF_ENDPOINT")


def _hub() -> str:
    return _endpoint() or "https://huggingface.co"


def _hub_errors() -> tuple[type[Exception], ...]:
    """Of a request to the Hub.

    hf_xet raises RuntimeError when the network fails. Errors of huggingface_hub's HTTP client are not OSErrors: httpx
    from 1.0 on, httpx2 from 2.0 on.
    """
    from huggingface_hub.errors import HfHubHTTPError

    clients = (sys.modules[name].HTTPError for name in ("httpx", "httpx2") if name in sys.modules)
    return (HfHubHTTPError, OSError, RuntimeError, *clients)


def _failure(repo: str, error: Exception) -> ConnectionFailed:
    reason = " ".join(str(error).split())[:200]
    return ConnectionFailed(
        f"{repo} cannot be downloaded from {_hub()}: {reason}",
        hint="Type the same command to go on; HF_ENDPOINT names a mirror, HF_TOKEN is for what is private",
    )
