"""Builds a corpus and its index in a folder. A build that was ended goes on where it was, with the same result."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cloudrl.errors import InputError
from cloudrl.foreign import Malformed, parse_object, read_file
from cloudrl.retriever.bm25 import build_bm25, import_bm25s
from cloudrl.retriever.corpus import Corpus, open_corpus
from cloudrl.retriever.encoder import Encoder
from cloudrl.retriever.engine import ENGINES, import_faiss
from cloudrl.retriever.lock import contents, locked
from cloudrl.retriever.opening import OnProgress, index_fingerprint
from cloudrl.retriever.passages import WORDS, find_files, read_passages
from cloudrl.retriever.record import NAME, Record, read_record, write_json
from cloudrl.retriever.vectors import create_vectors, open_vectors
from cloudrl.units import size_text

CORPUS = "corpus.jsonl"
INDEXES = {"flat": "flat.index", "bm25": "bm25", "faiss": "faiss.index"}
DEFAULT_ENCODER = "intfloat/e5-base-v2"
_STATE = ".build.json"
_CHUNK = 1024
"""Passages that are sorted by length and encoded together. A build goes on at a multiple of it."""
_SAVE_EVERY_S = 10.0


@dataclass(frozen=True)
class BuildOptions:
    """What to build.

    Attributes:
        sources: files or folders with passages or texts.
        engine: that is to search it.
        encoder: on the Hub, or a folder; for bm25 none is used.
        prefixes: see `encoder.PREFIXES`; by the encoder's name if "".
        words: a passage has at most, where texts are cut.
        factory: for faiss, the kind of index.
        by_content: sources are compared by their content, not by path or date.
    """

    sources: tuple[Path, ...]
    engine: str = "flat"
    encoder: str = DEFAULT_ENCODER
    prefixes: str = ""
    words: int = WORDS
    factory: str = "HNSW64"
    by_content: bool = False


def build(
    options: BuildOptions,
    folder: Path,
    *,
    device: str = "cpu",
    replace: bool = False,
    on_progress: OnProgress = lambda *_: None,
    say: Callable[[str], object] = lambda _: None,
) -> Record:
    """Make `folder` with `corpus.jsonl`, the index, and `retriever.json`, which comes last.

    Args:
        options: what to build.
        folder: new, empty, or with a build of the same that has not ended.
        device: of torch, for the encoder.
        replace: remove what a build of other sources or options has left there; one that is not of `build` stays.
        on_progress: gets the progress.
        say: gets a line about what is reused of an earlier build.

    Raises:
        InputError: a source cannot be read, an encoder or package is missing or unusable, or the folder has other files
            in it.
    """
    if options.engine not in ENGINES:
        raise InputError(f"there is no engine {options.engine!r}", hint=f"Known: {', '.join(ENGINES)}")
    files = [file for file in find_files(options.sources) if folder.absolute() not in file.absolute().parents]
    source = _identity(options, files)
    with locked(folder, say):
        if replace:
            _remove_other(folder, source)
        if (done := read_record(folder)) and done.source == source:
            say(f"{folder} is up to date")
            return done
        encoder = _encoder(options, device)
        state = _State.begin(folder, source)
        corpus = _corpus(folder, files, options.words, on_progress)
        if encoder is None:
            record = _bm25(folder, corpus, source)
        else:
            record = _vectors(folder, corpus, options, encoder, state, on_progress, say)
        record.write(folder)
        (folder / _STATE).unlink()
    return record


def _remove_other(folder: Path, source: str) -> None:
    done, state = read_record(folder), folder / _STATE
    begun = _State.read(state).source if state.exists() else done and done.source
    there = contents(folder)
    own = [path for path in there if not path.is_symlink()]
    if begun not in (None, source) and (not own or is_of_build(own)):
        remove(there)


def remove(paths: Iterable[Path]) -> None:
    """Remove files, folders, and links, but not what these lead to; last what says that they are of a build."""
    for content in sorted(paths, key=lambda path: path.name in (NAME, _STATE)):
        shutil.rmtree(content) if content.is_dir() and not content.is_symlink() else content.unlink()


def is_of_build(paths: Iterable[Path]) -> bool:
    """Whether all of this was made by one, ended or not."""
    names, made = {path.name for path in paths}, (NAME, _STATE, CORPUS, f"{CORPUS}.offsets", *INDEXES.values())
    unfinished = tuple(f".{name}" for name in made)
    return bool(names & {NAME, _STATE}) and all(name in made or name.startswith(unfinished) for name in names)


def _encoder(options: BuildOptions, device: str) -> Encoder | None:
    """None for bm25. A missing package or an unusable encoder is found before hours of work."""
    if options.engine == "bm25":
        import_bm25s()
        return None
    place = Path(options.encoder)
    name = str(place.absolute()) if place.is_dir() else options.encoder  # it is served from another folder
    encoder = Encoder(name, prefixes=options.prefixes, device=device)
    if options.engine == "faiss":
        _empty_index(options.factory, encoder.dim)
    return encoder


def _identity(options: BuildOptions, files: list[Path]) -> str:
    """Equal for what gives the same result."""
    sources: list[tuple[str | int, ...]]
    if options.by_content:
        sources = [(file.name, hashlib.sha256(file.read_bytes()).hexdigest()) for file in files]
    else:
        sources = [(str(file.absolute()), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    fields = {**asdict(options), "sources": sources}
    return hashlib.sha256(json.dumps(fields).encode()).hexdigest()[:16]


@dataclass
class _State:
    """How far a build is: so many rows are on the disk."""

    folder: Path
    source: str
    rows: int

    @classmethod
    def read(cls, path: Path) -> _State:
        try:
            return cls(path.parent, **parse_object(read_file(path)))
        except (Malformed, TypeError) as error:
            raise InputError(
                f"{path} cannot be read: {error}", hint=f"Remove it, and build again: rm {path}"
            ) from error

    @classmethod
    def begin(cls, folder: Path, source: str) -> _State:
        try:
            state = cls.read(folder / _STATE)
        except FileNotFoundError:
            if contents(folder):
                raise InputError(f"{folder} has other files in it", hint="Name a new folder: --to DIR") from None
            state = cls(folder, source, 0)
            state.save(0)
        if state.source != source:
            raise InputError(
                f"{folder} has an unfinished build of other sources or options, or they have changed since",
                hint=f"Remove it, or name a new folder: rm -r {folder}",
            )
        return state

    def save(self, rows: int) -> None:
        self.rows = rows
        write_json(self.folder / _STATE, {"source": self.source, "rows": rows})


def _corpus(folder: Path, files: list[Path], words: int, on_progress: OnProgress) -> Corpus:
    path, part = folder / CORPUS, folder / f".{CORPUS}.part"
    if not path.exists():
        total = sum(file.stat().st_size for file in files)
        with part.open("wb") as out:
            for number, line in enumerate(read_passages(files, words), start=1):
                out.write(line + b"\n")
                if number % _CHUNK == 0:
                    on_progress("writing the corpus", out.tell(), max(total, out.tell() + 1))
            out.flush()
            os.fsync(out.fileno())
        part.replace(path)
    return open_corpus(path, on_progress=lambda done, total: on_progress("reading the corpus", done, total))


def _bm25(folder: Path, corpus: Corpus, source: str) -> Record:
    path = folder / INDEXES["bm25"]
    if not path.exists():
        build_bm25(map(corpus.contents, range(len(corpus))), path)
    return _record(corpus, "bm25", path, source)


def _vectors(
    folder: Path,
    corpus: Corpus,
    options: BuildOptions,
    encoder: Encoder,
    state: _State,
    on_progress: OnProgress,
    say: Callable[[str], object],
) -> Record:
    path = folder / INDEXES["flat"]
    if not path.exists():
        if state.rows:
            say(f"going on after {state.rows:,} of {len(corpus):,} passages")
        _encode(corpus, encoder, path, state, on_progress)
    if options.engine == "faiss":
        path = _faiss_index(path, options.factory, on_progress)
    record = _record(corpus, options.engine, path, state.source)
    return Record(**{**asdict(record), "dim": encoder.dim, "encoder": encoder.name, "prefixes": encoder.prefixes})


def _record(corpus: Corpus, engine: str, path: Path, source: str) -> Record:
    return Record(
        engine, path.name, index_fingerprint(path), CORPUS, corpus.identity.sha256, len(corpus), source=source
    )  # fmt: skip


def _encode(corpus: Corpus, encoder: Encoder, path: Path, state: _State, on_progress: OnProgress) -> None:
    """Write all vectors; what is said to be there is on the disk."""
    part, width = path.with_name(f".{path.name}.part"), encoder.dim * 4
    if not (state.rows and part.exists()):
        state.save(0)
        needed, free = len(corpus) * width, shutil.disk_usage(path.parent).free
        if needed > free:
            raise InputError(
                f"the index takes {size_text(needed)}, and the disk of {path.parent} has {size_text(free)} free"
            )
        create_vectors(part, len(corpus), encoder.dim)
    rows = open_vectors(part).rows("r+")
    saved_at = time.monotonic()
    for start in range(state.rows, len(corpus), _CHUNK):
        stop = min(start + _CHUNK, len(corpus))
        rows[start:stop] = encoder.encode_passages([corpus.contents(row) for row in range(start, stop)])
        if time.monotonic() - saved_at > _SAVE_EVERY_S or stop == len(corpus):
            rows.flush()  # type: ignore[attr-defined]  # it is a memmap
            state.save(stop)
            saved_at = time.monotonic()
        on_progress("encoding", stop * width, len(corpus) * width)
    part.replace(path)


def _empty_index(factory: str, dim: int) -> Any:
    faiss = import_faiss()
    try:
        return faiss.index_factory(dim, factory, faiss.METRIC_INNER_PRODUCT)
    except RuntimeError as error:
        raise _faiss_failure(factory, error) from error


def _faiss_failure(factory: str, error: RuntimeError) -> InputError:
    return InputError(
        f"faiss cannot make an index {factory}: {str(error).strip().splitlines()[-1]}",
        hint="Name a kind of index as faiss writes it: --factory HNSW64",
    )


def _faiss_index(vectors: Path, factory: str, on_progress: OnProgress) -> Path:
    rows = open_vectors(vectors).rows()
    path = vectors.with_name(INDEXES["faiss"])
    part = path.with_name(f".{path.name}.part")
    index = _empty_index(factory, rows.shape[1])
    try:
        if not index.is_trained:
            index.train(rows)
        for start in range(0, len(rows), _CHUNK):
            index.add(rows[start : start + _CHUNK])
            on_progress("adding", min(start + _CHUNK, len(rows)) * rows.shape[1] * 4, rows.nbytes)
        import_faiss().write_index(index, str(part))
    except RuntimeError as error:
        raise _faiss_failure(factory, error) from error
    part.replace(path)
    return path
