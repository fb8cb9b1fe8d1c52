"""The folder of users' files: piece by piece, whole or not at all, and nothing twice."""

import contextlib
import cProfile
import errno
import hashlib
import io
import os
import stat
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cloudrl.node.uploads import SPARE_BYTES, ApiError, Store
from cloudrl.protocol.manifest import Manifest, Part

BODY = os.urandom(3_000_000)
NOTE = b"note"


def manifest_of(**files: bytes) -> Manifest:
    parts = [Part(f"model/{name}", len(body), hashlib.sha256(body).hexdigest()) for name, body in files.items()]
    return Manifest(tuple(sorted(parts, key=lambda part: part.path)))


MODEL = manifest_of(weights=BODY, note=NOTE, empty=b"")


def send(store: Store, name: str, body: bytes, offset: int = 0, manifest: Manifest = MODEL) -> None:
    store.write(manifest.address, f"model/{name}", offset, len(body), io.BytesIO(body))


def send_all(store: Store) -> None:
    send(store, "note", NOTE)
    send(store, "weights", BODY)


@contextlib.contextmanager
def refused(status: int, match: str) -> Iterator[None]:
    with pytest.raises(ApiError, match=match) as caught:
        yield
    assert caught.value.status == status


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "files")


def test_it_appears_with_its_last_byte(store: Store):
    assert store.begin(MODEL) == {"model/empty": 0, "model/note": 0, "model/weights": 0}
    send(store, "note", NOTE)
    send(store, "weights", BODY[:1_000_000])
    assert store.here(MODEL.address) == {"model/empty": 0, "model/note": 4, "model/weights": 1_000_000}
    assert store.manifest(MODEL.address) is None
    assert not (store.root / MODEL.address).exists()

    send(store, "weights", BODY[1_000_000:], 1_000_000)

    assert store.manifest(MODEL.address) == MODEL
    folder = store.root / MODEL.address / "model"
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {"weights": BODY, "note": NOTE, "empty": b""}
    assert sorted(path.name for path in store.root.iterdir()) == [MODEL.address, f"{MODEL.address}.json"]


def test_what_is_whole_is_not_written_again(store: Store):
    store.begin(MODEL)
    send_all(store)
    place = store.root / MODEL.address / "model" / "weights"
    before = place.stat()

    assert store.begin(MODEL)["model/weights"] == len(BODY)
    send(store, "weights", b"evil")

    assert (place.stat().st_ino, place.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert place.read_bytes() == BODY


def test_an_empty_file_alone(store: Store):
    empty = manifest_of(empty=b"")
    store.begin(empty)
    assert store.manifest(empty.address) == empty
    assert (store.root / empty.address / "model" / "empty").stat().st_size == 0


def test_a_transfer_that_broke_off_goes_on_in_another_process(store: Store):
    store.begin(MODEL)
    store.write(MODEL.address, "model/weights", 0, len(BODY), io.BytesIO(BODY[:2_500_000]))

    later = Store(store.root)

    assert later.here(MODEL.address) == {"model/empty": 0, "model/note": 0, "model/weights": 2_500_000}
    assert later.begin(MODEL)["model/weights"] == 2_500_000
    send(later, "weights", BODY[2_500_000:], 2_500_000)
    send(later, "note", NOTE)
    assert later.manifest(MODEL.address) == MODEL


@pytest.mark.parametrize(("offset", "count"), [(1, 3), (0, 5), (4, 1)])
def test_bytes_that_do_not_follow(store: Store, offset: int, count: int):
    store.begin(MODEL)
    with refused(409, "has 0 of 4 bytes"):
        send(store, "note", b"x" * count, offset)
    assert store.here(MODEL.address)["model/note"] == 0


def test_damaged_bytes_have_to_come_again(store: Store):
    store.begin(MODEL)
    with refused(422, "arrived damaged"):
        send(store, "note", b"nope")
    assert store.here(MODEL.address)["model/note"] == 0
    send(store, "note", NOTE)
    assert store.here(MODEL.address)["model/note"] == 4


@pytest.mark.parametrize("path", ["model/other", "other", "../model/note", "", "model"])
def test_what_was_not_announced(store: Store, path: str):
    store.begin(MODEL)
    for address, unknown in ((MODEL.address, path), ("0" * 32, "model/note")):
        with refused(404, "was not announced"):
            store.write(address, unknown, 0, 1, io.BytesIO(b"x"))
    assert store.here("0" * 32) is None


def test_no_room(tmp_path: Path):
    free = [SPARE_BYTES + 1_000_000]
    store = Store(tmp_path, free_bytes=lambda _folder: free[0])
    with refused(507, r"model: 3\.0 MB are to come.* has 1\.1 GB free"):
        store.begin(MODEL)
    assert store.here(MODEL.address) is None

    free[0] = SPARE_BYTES + MODEL.size_bytes
    assert store.begin(MODEL)
    send(store, "weights", BODY[:2_500_000])
    free[0] = SPARE_BYTES + 500_004
    assert store.begin(MODEL), "what is here already needs no room"


def test_a_second_sender_takes_over(store: Store):
    """The first one's connection is dead, and the agent does not know it yet."""
    store.begin(MODEL)

    class Interrupted(io.BytesIO):
        def read(self, count: int = -1) -> bytes:
            piece = super().read(count)
            if self.tell() > 2**20:
                send(store, "weights", BODY[2**20 : 2**20 + 5], 2**20)
            return piece

    with refused(409, "another sender"):
        store.write(MODEL.address, "model/weights", 0, len(BODY), Interrupted(BODY))

    size = store.here(MODEL.address)["model/weights"]
    assert size == 2**20 + 5
    send(store, "weights", BODY[size:], size)
    send(store, "note", NOTE)
    assert store.manifest(MODEL.address) == MODEL


def test_a_disk_that_is_full_after_all(store: Store):
    store.begin(MODEL)
    place = store.root / f".{MODEL.address}.part" / "arriving" / "model"
    place.mkdir(parents=True)
    (place / "note").symlink_to("/dev/full")
    with refused(507, "files: No space left"):
        send(store, "note", NOTE)


@pytest.mark.parametrize("name", ["weights", "weights/files"])
def test_a_disk_that_takes_nothing(store: Store, tmp_path: Path, name: str):
    (tmp_path / "weights").write_bytes(b"no folder")
    store.root = tmp_path / name
    for one in (store, Store(store.root)):
        with refused(507, "weights"):
            one.begin(MODEL)


def test_a_part_that_cannot_be_kept(store: Store):
    store.begin(MODEL)
    place = store.root / f".{MODEL.address}.part" / "checked" / "model"
    place.rename(store.root / "elsewhere")
    place.write_bytes(b"no folder")
    with refused(507, r"files: (File exists|Not a directory)"):
        send(store, "note", NOTE)


@pytest.mark.parametrize("error", [ConnectionResetError(), TimeoutError(), OSError(errno.EHOSTUNREACH, "x")])
def test_a_sender_whose_connection_breaks_is_no_matter_of_the_disk(store: Store, error: OSError):
    class Cut(io.BytesIO):
        def read(self, _count: int = -1) -> bytes:  # type: ignore[override]
            raise error

    store.begin(MODEL)
    with pytest.raises(type(error)):
        store.write(MODEL.address, "model/note", 0, 4, Cut())


def test_a_machine_that_went_down_at_the_last_moment(store: Store):
    """The files were in their place, and the manifest not yet."""
    (store.root / MODEL.address / "model").mkdir(parents=True)
    (store.root / MODEL.address / "model" / "weights").write_bytes(b"half")
    (store.root / f".{MODEL.address}.part").mkdir()
    (store.root / f".{MODEL.address}.part" / "manifest.json").write_text('{"parts": [[')

    store.begin(MODEL)
    send_all(store)

    assert store.manifest(MODEL.address) == MODEL
    assert (store.root / MODEL.address / "model" / "weights").read_bytes() == BODY


def test_a_machine_that_went_down_while_it_checked(store: Store):
    """All bytes were there, so none were sent or checked."""
    store.begin(MODEL)
    send(store, "note", NOTE)
    arriving = store.root / f".{MODEL.address}.part" / "arriving" / "model" / "weights"
    arriving.write_bytes(BODY[:-1] + b"?")

    again = Store(store.root)

    assert again.begin(MODEL) == {"model/empty": 0, "model/note": 4, "model/weights": 0}
    send(again, "weights", BODY)
    assert again.manifest(MODEL.address) == MODEL


def test_a_machine_that_went_down_before_the_last_moment(store: Store):
    """All parts were checked, and none was in its place yet."""
    store.begin(MODEL)
    coming = store.root / f".{MODEL.address}.part"
    for name, body in {"weights": BODY, "note": NOTE}.items():
        (coming / "checked" / "model" / name).write_bytes(body)

    Store(store.root).begin(MODEL)

    assert store.manifest(MODEL.address) == MODEL
    assert not coming.exists()


def calls_of(work: Callable[[], Any]) -> Counter[str]:
    """How often Python calls which functions, ours and those of the system."""
    profile, calls = cProfile.Profile(), Counter[str]()
    profile.runcall(work)
    for entry in profile.getstats():
        calls[getattr(entry.code, "co_name", str(entry.code))] += entry.callcount
    return calls


@pytest.mark.parametrize("count", [10, 400])
def test_the_work_for_many_files(store: Store, count: int):
    """Of 2000 files the announcement took 30 s, where clients wait 10."""
    bodies = {f"{index:05}": b"x" for index in range(count)}
    many = manifest_of(**bodies)
    announced = calls_of(lambda: store.begin(many))
    for name, body in list(bodies.items())[: count // 2]:
        send(store, name, body, manifest=many)
    sent = calls_of(lambda: send(store, f"{count // 2:05}", b"x", manifest=many))
    asked = calls_of(lambda: store.here(many.address))

    assert list(store.here(many.address).values()).count(1) == count // 2 + 1
    assert announced["address"] == 1, "JSON and SHA-256 of all that is announced"
    assert asked["from_json"] == sent["from_json"] == 0, "the manifest is read once"
    assert announced.total() < 500 + 40 * count
    assert asked.total() < 500 + 10 * count
    assert sent.total() < 1000, "however many others there are"


def test_others_on_the_node_can_read_it(store: Store):
    """Ray may run as another user than the one who owns the folder, and nothing in it is a secret."""
    old = os.umask(0o022)
    try:
        store.begin(MODEL)
        send_all(store)
    finally:
        os.umask(old)
    assert stat.S_IMODE((store.root / MODEL.address / "model" / "note").stat().st_mode) == 0o644
