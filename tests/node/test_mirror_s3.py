"""A mirror in S3-compatible storage, on a stand-in that checks signatures and fails as real ones do."""

import io
import os
import re
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_s3 import ACCESS, SECRET, FakeS3, serve

from cloudrl.errors import InputError
from cloudrl.node.mirror_copier import MirrorCopier
from cloudrl.node.mirror_s3 import S3Store
from cloudrl.node.mirror_stores import open_store
from cloudrl.node.s3_calls import S3Calls, S3Error, place_of
from cloudrl.node.s3_signature import Keys, encoded_path, signed_headers
from cloudrl.protocol.mirrors import MirrorUrl, parse_mirror

EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
HOST = {"Host": "examplebucket.s3.amazonaws.com"}
PART = 1000


@pytest.mark.parametrize(
    ("method", "path", "query", "headers", "digest", "signature"),
    [
        ("GET", "/test.txt", {}, {"Range": "bytes=0-9"}, EMPTY,
         "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"),
        ("PUT", "/test$file.text", {},
         {"Date": "Fri, 24 May 2013 00:00:00 GMT", "x-amz-storage-class": "REDUCED_REDUNDANCY"},
         "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072",
         "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd"),
        ("GET", "/", {"lifecycle": ""}, {}, EMPTY,
         "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"),
        ("GET", "/", {"max-keys": "2", "prefix": "J"}, {}, EMPTY,
         "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"),
    ],
)  # fmt: skip
def test_signatures_are_those_that_aws_has_published(method, path, query, headers, digest, signature) -> None:
    """Amazon S3 API Reference, "Examples: Signature Calculations"."""
    keys = Keys(ACCESS, SECRET)

    signed = signed_headers(
        keys, "us-east-1", method, encoded_path(path), query, {**HOST, **headers}, digest, "20130524T000000Z"
    )

    assert signed["Authorization"].endswith(f"Signature={signature}")
    assert SECRET not in repr(keys)


@pytest.fixture
def fake() -> Iterator[FakeS3]:
    with serve() as served:
        yield served


def _store(fake: FakeS3) -> S3Store:
    url = parse_mirror("s3://runs/team a/x+y")
    calls = S3Calls(place_of(url, fake.environment), sleep=lambda _: None)
    return S3Store(url, calls, part_bytes=PART)


def _upload(store: S3Store, content: bytes) -> None:
    store.upload("night/a=b/data.pt", io.BytesIO(content), len(content), zlib.crc32(content), lambda _: None)


KEY = "team a/x+y/night/a=b/data.pt"
CONTENT = os.urandom(4500)


def test_files_are_written_listed_read_and_removed(fake: FakeS3) -> None:
    fake.token, fake.page = "session-token", 2
    store = _store(fake)
    for number in range(5):
        store.put(f"night/.cloudrl/{number} &.json", b"{}")
    store.put("night/.cloudrl/below/6.json", b"{}")

    assert store.names("night/.cloudrl/") == {f"night/.cloudrl/{number} &.json": 2 for number in range(5)}
    assert store.get("night/.cloudrl/3 &.json", 10) == b"{}"
    assert store.get("absent", 10) is None
    store.remove(["night/.cloudrl/3 &.json", "absent"])
    assert store.get("night/.cloudrl/3 &.json", 10) is None


@pytest.mark.parametrize("size", [0, 10, PART, 4500])
def test_what_is_uploaded_is_read_again(fake: FakeS3, size: int) -> None:
    store = _store(fake)

    _upload(store, CONTENT[:size])
    calls = len(fake.requests)
    _upload(store, CONTENT[:size])

    assert len(fake.requests) == calls + 1, "what is there is not sent again"
    with store.open("night/a=b/data.pt") as file:
        assert file.read() == CONTENT[:size]
    assert fake.uploads == {}


@pytest.mark.parametrize(
    ("method", "target", "failure"),
    [
        ("PUT", "partNumber=2", "503"), ("PUT", "partNumber=2", "cut"), ("POST", "uploadId", "error in 200"),
        ("POST", "uploads=", "503"), ("HEAD", "", "503"), ("GET", "data.pt", "cut answer"), ("GET", "data.pt", "503"),
    ],
)  # fmt: skip
def test_failures_that_pass_are_survived(fake: FakeS3, method: str, target: str, failure: str) -> None:
    store = _store(fake)
    fake.failures = [(method, target, failure)] * 3

    _upload(store, CONTENT)

    with store.open("night/a=b/data.pt") as file:
        assert file.read() == CONTENT
    assert fake.failures == []


def test_an_upload_that_broke_off_goes_on_with_the_parts_that_are_there(fake: FakeS3) -> None:
    fake.page, fake.failures = 2, [("PUT", "partNumber=4", "503")] * 8
    with pytest.raises(S3Error, match="SlowDown"):
        _upload(_store(fake), CONTENT)
    [upload] = fake.uploads
    fake.uploads[upload][2][2] = b"another".ljust(PART)
    before = len(fake.requests)

    _upload(_store(fake), CONTENT)

    sent = [path for method, path in fake.requests[before:] if method == "PUT"]
    assert [path.partition("partNumber=")[2][0] for path in sent] == ["2", "4", "5"]
    assert fake.objects[KEY][0] == CONTENT


def test_parts_that_the_storage_does_not_know_again_are_sent_once_more(fake: FakeS3) -> None:
    fake.wrong_tags = 1

    _upload(_store(fake), CONTENT)

    assert fake.objects[KEY][0] == CONTENT
    assert fake.uploads == {}


def test_parts_that_are_left_go_with_their_object(fake: FakeS3) -> None:
    fake.failures = [("PUT", "partNumber=4", "503")] * 8
    with pytest.raises(S3Error):
        _upload(_store(fake), CONTENT)

    _store(fake).remove(["night/a=b/data.pt"])

    assert fake.uploads == {}


def test_what_does_not_pass_is_told_at_once_and_no_secret_is(fake: FakeS3) -> None:
    environment = {**fake.environment, "AWS_SECRET_ACCESS_KEY": "a-wrong-secret"}
    with pytest.raises(OSError, match=r"SignatureDoesNotMatch \(403\)") as raised:
        open_store("s3://runs/x", environment).put("a", b"")

    assert len(fake.requests) == 1
    assert "a-wrong-secret" not in str(raised.value)
    with pytest.raises(OSError, match="NoSuchBucket"):
        open_store("s3://absent/x", fake.environment).get("a", 10)
    with pytest.raises(InputError, match="no AWS_SECRET_ACCESS_KEY"):
        open_store("s3://runs/x", {"AWS_ACCESS_KEY_ID": ACCESS})


@pytest.mark.parametrize(("ahead_s", "said"), [(1230.0, "20 min [23][0-9] s behind"), (-7290.0, "2 h 01 min ahead of")])
def test_a_clock_that_is_off_is_told_with_the_difference(
    fake: FakeS3, tmp_path: Path, ahead_s: float, said: str
) -> None:
    fake.ahead_s = ahead_s

    check = MirrorCopier(tmp_path, fake.environment).check("s3://runs/x", "token", writes=True)

    assert re.search(rf"the clock of the node is {said} the storage's; PUT .*RequestTimeTooSkewed", check.error)
    assert "sudo timedatectl set-ntp true" in check.hint
    with pytest.raises(S3Error, match=f"{said} the storage's; HEAD"):  # an answer to HEAD has no body, so no code
        _store(fake).open("night/a=b/data.pt")


@pytest.mark.parametrize(("ahead_s", "is_odd"), [(200.0, False), (400.0, True), (-880.0, True)])
def test_a_wrong_key_is_not_blamed_on_the_clock(fake: FakeS3, tmp_path: Path, ahead_s: float, is_odd: bool) -> None:
    fake.ahead_s = ahead_s
    assert MirrorCopier(tmp_path, fake.environment).check("s3://runs/x", "token", writes=True).is_seen

    wrong = {**fake.environment, "AWS_SECRET_ACCESS_KEY": "another"}
    check = MirrorCopier(tmp_path, wrong).check("s3://runs/x", "token", writes=True)

    assert "clock" not in check.error
    assert "SignatureDoesNotMatch" in check.error
    keys, *clock = check.hint.splitlines()
    assert "`secrets:`" in keys
    side = "behind" if ahead_s > 0 else "ahead of"
    said = (
        rf"If not they, the clock of the node is \d+ min( \d+ s)? {side} the storage's: sudo timedatectl set-ntp true"
    )
    assert [re.fullmatch(said, line) is not None for line in clock] == [True] * is_odd
    with pytest.raises(S3Error) as raised:  # an answer to HEAD has no code
        open_store("s3://runs/x", wrong).open("data.pt")
    assert "clock" not in str(raised.value)


def test_the_bucket_is_named_as_the_endpoint_wants_it() -> None:
    keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    own = {**keys, "AWS_ENDPOINT_URL": "https://store.example.com:9000"}

    def named(url: MirrorUrl, environment: dict[str, str]) -> tuple[str, str]:
        place = place_of(url, environment)
        return place.host, place.base

    assert named(parse_mirror("s3://runs/x"), {**keys, "AWS_REGION": "eu-west-1"}) == (
        "runs.s3.eu-west-1.amazonaws.com", "",
    )  # fmt: skip
    assert named(parse_mirror("s3://my.runs/x"), keys) == ("s3.us-east-1.amazonaws.com", "/my.runs")
    assert named(parse_mirror("s3://runs"), own) == ("store.example.com:9000", "/runs")
    assert named(parse_mirror("s3://runs?style=virtual"), own) == ("runs.store.example.com:9000", "")


@pytest.mark.parametrize("text", ["s3://", "s3://key:secret@runs", "s3://runs/../x", "s3://runs?a=b", "s3://Runs"])
def test_an_address_of_no_bucket_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="--mirror"):
        parse_mirror(text)
