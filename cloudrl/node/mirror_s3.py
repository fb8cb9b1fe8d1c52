"""A mirror in S3-compatible storage: AWS, MinIO, Ceph, R2, CoreWeave and others.

Each body is signed with its SHA-256, so the storage refuses what has changed on its way. A large file goes in parts; an
upload that broke off goes on with the parts that are there. Each object has its CRC-32 beside it, as metadata.
"""

from __future__ import annotations

import hashlib
import http.client
import io
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import BinaryIO, Dict, Iterable, Iterator, List, Mapping, Optional, Tuple, cast

from cloudrl.node.mirror_folder import Pace
from cloudrl.node.s3_calls import Answer, S3Calls, S3Error, error_of
from cloudrl.protocol.mirrors import MirrorUrl

_PART_BYTES, _MOST_PARTS = 32 << 20, 9000
"""S3 takes 10,000 parts of 5 MiB and more, all of one size but the last."""
_CRC = "x-amz-meta-cloudrl-crc32"
_READ_TRIES = 8
_UPLOAD_TRIES = 3


class S3Store:
    """A bucket, or a folder in it, as a store of files by their keys; see `FolderStore`.

    Args:
        url: of the mirror.
        calls: to its bucket.
        part_bytes: of a part, at least.
    """

    def __init__(self, url: MirrorUrl, calls: S3Calls, *, part_bytes: int = _PART_BYTES) -> None:
        self._prefix = f"{url.prefix}/" if url.prefix else ""
        self._calls, self._part_bytes = calls, part_bytes

    def begin(self) -> None:
        """A bucket is made by its owner: nothing is to be done."""

    def put(self, key: str, content: bytes) -> None:
        """Write a small file. Raises: OSError: it cannot be written."""
        self._calls.call("PUT", self._prefix + key, body=content)

    def get(self, key: str, limit_bytes: int) -> Optional[bytes]:
        """A small file; None if absent. Raises: OSError: it cannot be read, or is larger."""
        try:
            content = self._calls.call("GET", self._prefix + key).body
        except S3Error as error:
            if error.status == http.client.NOT_FOUND and error.code != "NoSuchBucket":
                return None
            raise
        if len(content) > limit_bytes:
            raise OSError(f"{key} is larger than {limit_bytes} bytes")
        return content

    def names(self, prefix: str) -> Dict[str, int]:
        """Key -> bytes of the objects in a folder. Raises: OSError: it cannot be listed."""
        found: Dict[str, int] = {}
        query = {"list-type": "2", "prefix": self._prefix + prefix, "delimiter": "/"}
        while True:
            root = self._calls.call("GET", query=query).xml
            for row in root.iter("Contents"):
                key, size = row.findtext("Key", ""), row.findtext("Size", "0")
                if key.startswith(self._prefix + prefix) and size.isdecimal():
                    found[key[len(self._prefix) :]] = int(size)
            following = root.findtext("NextContinuationToken", "")
            if root.findtext("IsTruncated") != "true" or not following:
                return found
            query = {**query, "continuation-token": following}

    def remove(self, keys: Iterable[str]) -> None:
        """Remove objects, and what uploads of them have left. Raises: OSError: one cannot be removed."""
        for key in keys:
            try:
                self._calls.call("DELETE", self._prefix + key)
            except S3Error as error:  # AWS says 204 of one that is absent, other storage does not
                if error.status != http.client.NOT_FOUND:
                    raise
            for upload in self._uploads(self._prefix + key):
                self._abort(self._prefix + key, upload)

    def open(self, key: str) -> BinaryIO:
        """Open an object for reading; a connection that breaks is taken up. Raises: OSError: it cannot be read."""
        head = self._calls.call("HEAD", self._prefix + key).headers
        size = head.get("content-length", "")
        if not size.isdecimal():
            raise OSError(f"the storage does not tell the size of {key}")
        reader = _Reader(self._calls, self._prefix + key, int(size), head.get("etag", ""))
        return cast("BinaryIO", io.BufferedReader(reader, 1 << 20))

    def upload(self, key: str, source: BinaryIO, size_bytes: int, crc32: int, pace: Pace) -> None:
        """Have a file there, whole and compared. Raises: OSError: it is not there."""
        key = self._prefix + key
        if self._is_there(key, size_bytes, crc32):
            return
        metadata = {_CRC: str(crc32)}
        part_bytes = max(self._part_bytes, -(-size_bytes // _MOST_PARTS))
        if size_bytes <= part_bytes:
            self._calls.call("PUT", key, body=_read(source, size_bytes), headers=metadata, pace=pace)
        else:
            self._upload_parts(key, source, size_bytes, part_bytes, metadata, pace)
        if not self._is_there(key, size_bytes, crc32):
            raise OSError(f"{key} is not in the mirror as it was sent")

    def warning(self, of_node: Iterable[Path]) -> str:
        """A bucket does not go with a machine."""
        del of_node
        return ""

    # -- in parts -------------------------------------------------------------------------------------------

    def _upload_parts(
        self, key: str, source: BinaryIO, size: int, part_bytes: int, metadata: Mapping[str, str], pace: Pace
    ) -> None:
        for number in range(_UPLOAD_TRIES):
            upload, there = self._begun(key)
            if not upload:
                root = self._calls.call("POST", key, {"uploads": ""}, headers=metadata).xml
                upload = root.findtext("UploadId", "")
            try:
                source.seek(0)
                tags = list(self._send_parts(key, upload, there, _Parts(source, size, part_bytes), pace))
                self._complete(key, upload, tags)
            except S3Error as error:
                # the parts are not those that were sent, or the upload has gone: all of them again
                if error.code not in ("InvalidPart", "InvalidPartOrder", "NoSuchUpload", "EntityTooSmall"):
                    raise
                if self._is_there(key, size, int(metadata[_CRC])):
                    return  # it was put together, and the answer was lost
                self._abort(key, upload)
                if number + 1 == _UPLOAD_TRIES:
                    raise
            else:
                return

    def _send_parts(
        self, key: str, upload: str, there: Mapping[int, Tuple[int, str]], parts: "_Parts", pace: Pace
    ) -> Iterator[str]:
        """The ETag of each part, of those that are there and equal as well."""
        for number, content in enumerate(parts, 1):
            known = there.get(number)
            digest = hashlib.new("md5", content, usedforsecurity=False).hexdigest()
            if known is not None and known == (len(content), digest):
                pace(0)
                yield f'"{digest}"'
                continue
            query = {"partNumber": str(number), "uploadId": upload}
            tag = self._calls.call("PUT", key, query, body=content, pace=pace).headers.get("etag", "")
            if not tag:
                raise OSError(f"the storage gives part {number} of {key} no ETag")
            yield tag

    def _complete(self, key: str, upload: str, tags: List[str]) -> None:
        root = ET.Element("CompleteMultipartUpload")
        for number, tag in enumerate(tags, 1):
            part = ET.SubElement(root, "Part")
            ET.SubElement(part, "PartNumber").text = str(number)
            ET.SubElement(part, "ETag").text = tag

        def check(answer: Answer) -> None:
            # the head of the answer is sent before the parts are put together (AWS, CompleteMultipartUpload)
            if answer.xml.tag == "Error":
                code = answer.xml.findtext("Code", "")
                raise error_of(200, answer.body, f"the parts of {key}") if code else S3Error(500, "", key)

        self._calls.call("POST", key, {"uploadId": upload}, body=ET.tostring(root), check=check)

    def _begun(self, key: str) -> Tuple[str, Dict[int, Tuple[int, str]]]:
        """The upload of a key that broke off, and number -> (bytes, MD5) of its parts; "" without one."""
        uploads = list(self._uploads(key))
        for stale in uploads[:-1]:
            self._abort(key, stale)
        if not uploads:
            return "", {}
        parts: Dict[int, Tuple[int, str]] = {}
        query = {"uploadId": uploads[-1]}
        while True:
            try:
                root = self._calls.call("GET", key, query).xml
            except S3Error as error:
                if error.code == "NoSuchUpload":
                    return "", {}
                raise
            for row in root.iter("Part"):
                number, size = row.findtext("PartNumber", ""), row.findtext("Size", "")
                if number.isdecimal() and size.isdecimal():
                    parts[int(number)] = int(size), row.findtext("ETag", "").strip('"')
            following = root.findtext("NextPartNumberMarker", "")
            if root.findtext("IsTruncated") != "true" or not following:
                return uploads[-1], parts
            query = {**query, "part-number-marker": following}

    def _uploads(self, key: str) -> Iterator[str]:
        """Ids of uploads of a key that have not ended, the oldest first."""
        root = self._calls.call("GET", query={"uploads": "", "prefix": key}).xml
        rows = [row for row in root.iter("Upload") if row.findtext("Key") == key]
        for row in sorted(rows, key=lambda row: row.findtext("Initiated", "")):
            yield row.findtext("UploadId", "")

    def _abort(self, key: str, upload: str) -> None:
        try:
            self._calls.call("DELETE", key, {"uploadId": upload})
        except S3Error as error:
            if error.status != http.client.NOT_FOUND:
                raise

    def _is_there(self, key: str, size_bytes: int, crc32: int) -> bool:
        try:
            head = self._calls.call("HEAD", key).headers
        except S3Error as error:
            if error.status == http.client.NOT_FOUND:
                return False
            raise
        return head.get("content-length") == str(size_bytes) and head.get(_CRC) == str(crc32)


class _Parts:
    """The parts of a file, one after the other."""

    def __init__(self, source: BinaryIO, size_bytes: int, part_bytes: int) -> None:
        self._source, self._size_bytes, self._part_bytes = source, size_bytes, part_bytes

    def __iter__(self) -> Iterator[bytes]:
        for start in range(0, self._size_bytes, self._part_bytes):
            yield _read(self._source, min(self._part_bytes, self._size_bytes - start))


def _read(source: BinaryIO, count: int) -> bytes:
    content = source.read(count)
    if len(content) != count:
        raise OSError("a file has become shorter while it was copied")
    return content


class _Reader(io.RawIOBase):
    """An object, from where it broke off if it does."""

    def __init__(self, calls: S3Calls, key: str, size_bytes: int, tag: str) -> None:
        self._calls, self._key, self._size, self._tag = calls, key, size_bytes, tag
        self._at = 0
        self._connection: Optional[http.client.HTTPConnection] = None
        self._answer: Optional[http.client.HTTPResponse] = None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if whence != io.SEEK_SET:
            raise OSError("only from the beginning")
        self._drop()
        self._at = offset
        return offset

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        failures = 0
        while self._at < self._size:
            try:
                if self._answer is None:
                    self._ask()
                assert self._answer is not None  # noqa: S101  just asked for
                piece = self._answer.read(min(len(buffer), self._size - self._at))
                if not piece:
                    raise http.client.IncompleteRead(b"")
            except S3Error as error:
                self._drop()
                failures += 1
                if not error.may_pass or failures >= _READ_TRIES:
                    raise
            except (OSError, http.client.HTTPException) as error:
                self._drop()
                failures += 1
                if failures >= _READ_TRIES:
                    raise OSError(f"{self._key} broke off at {self._at} bytes: {error}") from error
            else:
                buffer[: len(piece)] = piece
                self._at += len(piece)
                return len(piece)
            self._calls.pause(failures)
        return 0

    def close(self) -> None:
        self._drop()
        super().close()

    def _ask(self) -> None:
        headers = {"Range": f"bytes={self._at}-", **({"If-Match": self._tag} if self._tag else {})}
        self._connection, self._answer = self._calls.send("GET", self._key, {}, b"", headers)
        is_part = self._answer.status == http.client.PARTIAL_CONTENT
        if not is_part and (self._answer.status != http.client.OK or self._at):
            raise self._calls.error_of(self._answer, self._answer.read(64 << 10), f"GET {self._key}")

    def _drop(self) -> None:
        if self._answer is not None:
            self._answer.close()
        if self._connection is not None:
            self._connection.close()
        self._connection = self._answer = None
