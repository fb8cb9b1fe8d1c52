"""Whether a file of a checkpoint is whole, as far as its ends tell: some KB are read of each.

verl neither syncs nor renames what it saves. A node that loses power within half a minute after a save may keep files
of their full name that are empty or cut. torch and safetensors write what tells the end of a file at a fixed place:

==================================  ==========================================================================
`*_world_size_N_rank_N.pt`          a zip file: its directory is at the end (`cloudrl.saves.zip_directory`)
`data.pt`, `common.pt`, `*.bin`     the same, if it begins as a zip file does
`__R_N.distcp`                      zip files one after the other (torch 2.13, distributed/checkpoint/filesystem.py)
`.metadata`                         a pickle, which ends with a dot; it names the `.distcp` files
`*.safetensors`                     its header says how long it is
config and tokenizer                JSON
==================================  ==========================================================================

Files of other names are not judged: a user may keep anything beside a checkpoint.
"""

import json
import os
import re
import stat
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from cloudrl.saves.megatron_layout import DIST_FILE, MANIFEST, METADATA
from cloudrl.saves.names import FSDP_CONFIG, LORA_META, OF_LOADER, SHARD
from cloudrl.saves.zip_directory import NoDirectory, check_end
from cloudrl.units import size_text, sizes_text

EMPTY, CUT, NOT_JSON, UNREADABLE = "empty", "cut", "not_json", "unreadable"
"""What an inventory says of a file that is not whole; of other files it says nothing."""

_FOLDERS = re.compile(r"(model/|optimizer/|extra/)?(huggingface/|dist_ckpt/|lora_adapter/)?(adapter/)?")
"""Where verl writes, below a role (`cloudrl.saves.names`, `cloudrl.saves.megatron_layout`)."""
_JSON_OF_ROLE = frozenset({FSDP_CONFIG, "transformer_config.json", MANIFEST, LORA_META})
_JSON = re.compile(
    r"(config|generation_config|adapter_config|tokenizer|tokenizer_config|special_tokens_map|added_tokens|vocab"
    r"|preprocessor_config|processor_config|video_preprocessor_config|chat_template|metadata|.*\.index)\.json"
)
_TORCH = re.compile(r"common\.pt|(pytorch_model.*|adapter_model)\.bin")
_PART_FILE = re.compile(rb"__([0-9]{1,9}_[0-9]{1,9})\.distcp")
_PART = re.compile(r"[0-9]{1,9}_[0-9]{1,9}")
_PARSED_BYTES = 1 << 20
"""Of a longer JSON file, such as a tokenizer, only the ends are read."""
_MAX_HEADER_BYTES = 100 << 20  # safetensors 0.6, src/tensor.rs, MAX_HEADER_SIZE
_MAX_METADATA_BYTES = 64 << 20
_END_OF_ZIP = b"PK\5\6"
_END_BYTES = 22
_MOST_KNOWN = 200_000
_TRIED, _SLOW_S, _PATIENCE_S, _THREADS = 32, 0.001, 0.25, 16
"""After so many files, and so long, it is known whether each takes longer; then so many threads share the others."""


class Evidence(NamedTuple):
    """What was found in a file.

    Attributes:
        damage: `EMPTY`, `CUT`, `NOT_JSON`, `UNREADABLE`; "" for a whole file, and for one that is not judged.
        parts: Of Megatron's `.metadata` the `.distcp` files that it names, as `0_0`.
    """

    damage: str = ""
    parts: Tuple[str, ...] = ()


class LookedAt(NamedTuple):
    """A file of a checkpoint.

    Attributes:
        path: Of the file.
        name: Below the folder of its role, or of its step for what belongs to no role.
        info: Of the file.
    """

    path: str
    name: str
    info: os.stat_result


_Read = Callable[[int, int], bytes]
_NOTHING = Evidence()


class Inspector:
    """Looks into files, and remembers what it found until a file changes. Threads may share it.

    Args:
        follow_links: Whether a file may be a link.
        clock: Seconds that never run backwards.
    """

    def __init__(self, *, follow_links: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        self._links, self._clock = follow_links, clock
        self._known: Dict[int, Evidence] = {}

    def look_into(self, files: Sequence[LookedAt]) -> List[Evidence]:
        """Judge many files, in their order; on a volume that takes a while for each, several at once."""
        evidence: List[Evidence] = []
        began = self._clock()
        for file in files:
            if len(evidence) % _TRIED == 0 and self._clock() - began > max(_PATIENCE_S, len(evidence) * _SLOW_S):
                with ThreadPoolExecutor(_THREADS) as pool:
                    return evidence + list(pool.map(lambda file: self.look(*file), files[len(evidence) :]))
            evidence.append(self.look(*file))
        return evidence

    def look(self, path: str, name: str, info: os.stat_result) -> Evidence:
        """Judge a file; see `LookedAt`."""
        judge = _judge_of(name)
        if judge is None:
            return _NOTHING
        # one number for each: an agent may have to remember 60,000 files
        state = hash((path, info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns))
        if (cached := self._known.get(state)) is not None:
            return cached
        evidence = self._open(path, judge, info.st_size)
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known[state] = evidence
        return evidence

    def _open(self, path: str, judge: "_Judge", size: int) -> Evidence:
        # O_NONBLOCK: a pipe that has taken the file's place must not keep an inventory waiting
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if self._links else os.O_NOFOLLOW)
        try:
            descriptor = os.open(path, flags)
        except FileNotFoundError:
            return _NOTHING
        except OSError:
            return Evidence(UNREADABLE)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return _NOTHING
            return judge(size, lambda offset, length: _read(descriptor, offset, length))
        except _Short:
            return Evidence(CUT)
        except OSError:
            return Evidence(UNREADABLE)
        finally:
            os.close(descriptor)


class _Short(Exception):
    """A file ends before it should."""


def _read(descriptor: int, offset: int, length: int) -> bytes:
    content = os.pread(descriptor, length, offset)
    if len(content) < length:
        raise _Short
    return content


def _judge_of(name: str) -> Optional["_Judge"]:
    """What can tell whether a file of this name is whole."""
    folder, _, base = name.rpartition("/")
    if SHARD.fullmatch(name):
        return _zip
    if OF_LOADER.fullmatch(name):
        return _maybe_zip
    if DIST_FILE.fullmatch(base) or base == METADATA:
        return _metadata if base == METADATA else _distcp
    if not folder:
        return _json if base in _JSON_OF_ROLE else None
    return _judge_of_model_file(base) if _FOLDERS.fullmatch(f"{folder}/") else None


def _judge_of_model_file(base: str) -> Optional["_Judge"]:
    if base.endswith(".safetensors"):
        return _safetensors
    return _json if _JSON.fullmatch(base) else _maybe_zip if _TORCH.fullmatch(base) else None


def _zip(size: int, read: _Read) -> Evidence:
    if not size:
        return Evidence(EMPTY)
    try:
        check_end(size, read)
    except NoDirectory:
        return Evidence(CUT)
    return _NOTHING


def _maybe_zip(size: int, read: _Read) -> Evidence:
    """A file that torch writes as a zip file today: another form has no end that can be seen."""
    begins_as_zip = size and read(0, min(size, 4)) == b"PK\3\4"[:size]
    return _zip(size, read) if begins_as_zip or not size else _NOTHING


def _distcp(size: int, read: _Read) -> Evidence:
    """A rank that had nothing to write may leave an empty file: `.metadata` names those that have something."""
    if not size:
        return Evidence(EMPTY)
    end = read(size - _END_BYTES, _END_BYTES) if size > _END_BYTES else b""
    return _NOTHING if end.startswith(_END_OF_ZIP) and end.endswith(b"\0\0") else Evidence(CUT)


def _metadata(size: int, read: _Read) -> Evidence:
    if not size:
        return Evidence(EMPTY)
    if read(0, 1) != b"\x80" or read(size - 1, 1) != b".":
        return Evidence(CUT)
    if size > _MAX_METADATA_BYTES:
        return _NOTHING
    return Evidence(parts=tuple(sorted({match.decode() for match in _PART_FILE.findall(read(0, size))})))


def _safetensors(size: int, read: _Read) -> Evidence:
    if not size:
        return Evidence(EMPTY)
    if size < 8:
        return Evidence(CUT)
    (length,) = struct.unpack("<Q", read(0, 8))
    if length > min(_MAX_HEADER_BYTES, size - 8):
        return Evidence(CUT)
    try:
        header = json.loads(read(8, length))
        ends = [tensor["data_offsets"][1] for name, tensor in header.items() if name != "__metadata__"]
        wanted = 8 + length + max(ends, default=0)
    except (ValueError, RecursionError, AttributeError, KeyError, IndexError, TypeError):
        return Evidence(CUT)
    return _NOTHING if size == wanted else Evidence(CUT)


def _json(size: int, read: _Read) -> Evidence:
    if not size:
        return Evidence(EMPTY)
    if size > _PARSED_BYTES:
        ends = read(0, 64).lstrip()[:1] + read(size - 64, 64).rstrip()[-1:]
        return _NOTHING if ends == b"{}" else Evidence(NOT_JSON)
    try:
        value = json.loads(read(0, size))
    except (ValueError, RecursionError):
        return Evidence(NOT_JSON)
    return _NOTHING if isinstance(value, dict) else Evidence(NOT_JSON)


_Judge = Callable[[int, _Read], Evidence]


def read_parts(text: object) -> Tuple[str, ...]:
    """The parts of a `.metadata` that an inventory lists. Malformed entries are left out."""
    return tuple(part for part in str(text).split() if _PART.fullmatch(part))


_PHRASES = {"": "", NOT_JSON: "is not a JSON object", UNREADABLE: "cannot be read"}


def describe(
    damage: str, size_bytes: int, recorded_bytes: Optional[int] = None, usual_bytes: Optional[int] = None
) -> str:
    """What is wrong with a file, after its name in a sentence: `is cut: 13 of 26 MB`; "" for a whole one.

    Args:
        damage: As an inventory says it; a code of a later release counts as damage, too.
        size_bytes: Of the file.
        recorded_bytes: Its size in the record of its save; None without a record.
        usual_bytes: Of the files of other ranks, where they are whole.
    """
    if size_bytes == 0 and (damage or recorded_bytes):
        return "is empty"
    if recorded_bytes is not None and size_bytes != recorded_bytes:
        if size_bytes < recorded_bytes:
            return f"is cut: {sizes_text(size_bytes, recorded_bytes)}"
        now, then = size_text(size_bytes), size_text(recorded_bytes)
        if now == then:
            now, then = f"{size_bytes} bytes", f"{recorded_bytes}"
        return f"has {now}, and had {then} when its save was recorded"
    if damage == CUT and size_bytes == (recorded_bytes or usual_bytes):
        return "is damaged: it does not end as such a file does"
    if damage == CUT:
        others = f", and another rank's has {size_text(usual_bytes)}" if usual_bytes else ""
        return f"is cut: its end is missing after {size_text(size_bytes)}{others}"
    return _PHRASES.get(damage, "is damaged")
