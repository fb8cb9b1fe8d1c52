"""A stand-in for S3-compatible storage on loopback: it checks each signature by AWS's rules, and fails as real ones do.

Source of the rules: AWS, "Signature Calculations for the Authorization Header", Amazon S3 API Reference. They are
written down here once more, from the request as it came, so that a mistake of the client is not made twice.
"""

from __future__ import annotations

import hashlib
import hmac
import threading
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, unquote
from xml.sax.saxutils import escape

ACCESS, SECRET, REGION, BUCKET = "AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "us-east-1", "runs"


@dataclass
class FakeS3:
    """What the storage has, and what goes wrong.

    Attributes:
        failures: (method, what is in the target, what happens), each once: "503", "cut", "error in 200", "cut answer".
        page: rows of a list.
        wrong_tags: whether uploaded parts get tags that the storage does not know again.
        ahead_s: how far its clock is ahead of the node's; beyond 15 minutes it refuses, as AWS does.
    """

    objects: dict[str, tuple[bytes, dict[str, str]]] = field(default_factory=dict)
    uploads: dict[str, tuple[str, dict[str, str], dict[int, bytes]]] = field(default_factory=dict)
    failures: list[tuple[str, str, str]] = field(default_factory=list)
    requests: list[tuple[str, str]] = field(default_factory=list)
    page: int = 1000
    wrong_tags: int = 0
    ahead_s: float = 0.0
    port: int = 0
    token: str = ""

    @property
    def environment(self) -> dict[str, str]:
        """Of a node that uses it."""
        return {
            "AWS_ACCESS_KEY_ID": ACCESS, "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_ENDPOINT_URL_S3": f"http://127.0.0.1:{self.port}",
            **({"AWS_SESSION_TOKEN": self.token} if self.token else {}),
        }  # fmt: skip

    def failure(self, method: str, target: str) -> str:
        for row in self.failures:
            if row[0] == method and row[1] in target:
                self.failures.remove(row)
                return row[2]
        return ""


@contextmanager
def serve() -> Iterator[FakeS3]:
    fake = FakeS3()
    handler = type("Handler", (_Handler,), {"fake": fake})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    fake.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield fake
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _hmac(key: bytes, text: str) -> bytes:
    return hmac.new(key, text.encode(), hashlib.sha256).digest()


class _Handler(BaseHTTPRequestHandler):
    fake: FakeS3
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def date_time_string(self, timestamp: float | None = None) -> str:
        return super().date_time_string((time.time() if timestamp is None else timestamp) + self.fake.ahead_s)

    def _is_skewed(self) -> bool:
        signed = datetime.strptime(self.headers["x-amz-date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=timezone.utc)
        return abs(time.time() + self.fake.ahead_s - signed.timestamp()) > 900

    def _answer(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if not headers or "Content-Length" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
        self.close_connection = True

    def _refuse(self, status: int, code: str) -> None:
        self._answer(status, f"<?xml version='1.0'?><Error><Code>{code}</Code></Error>".encode())

    def _signature_is_right(self, body: bytes) -> bool:
        scheme, _, rest = self.headers.get("Authorization", "").partition(" ")
        given = dict(part.strip().split("=", 1) for part in rest.split(","))
        access, day, region, service, end = given["Credential"].split("/")
        path, _, query = self.path.partition("?")
        pairs = sorted(query.split("&")) if query else []
        names = given["SignedHeaders"].split(";")
        lines = [f"{name}:{' '.join((self.headers.get(name) or '').split())}\n" for name in names]
        sent = {name.lower() for name in self.headers if name.lower().startswith("x-amz-")} | {"host"}
        digest = hashlib.sha256(body).hexdigest()
        text = "\n".join([self.command, path, "&".join(pairs), "".join(lines), given["SignedHeaders"], digest])
        date = self.headers["x-amz-date"]
        to_sign = f"{scheme}\n{date}\n{day}/{region}/s3/aws4_request\n{hashlib.sha256(text.encode()).hexdigest()}"
        key = _hmac(_hmac(_hmac(_hmac(b"AWS4" + SECRET.encode(), day), region), service), end)
        return (
            scheme == "AWS4-HMAC-SHA256"
            and (access, region, service, end) == (ACCESS, REGION, "s3", "aws4_request")
            and date.startswith(day)
            and sent <= set(names)
            and names == sorted(names)
            and self.headers["x-amz-content-sha256"] == digest
            and (self.headers.get("x-amz-security-token") or "") == self.fake.token
            and hmac.compare_digest(_hmac(key, to_sign).hex(), given["Signature"])
        )

    def _handle(self) -> None:
        fake, length = self.fake, int(self.headers.get("Content-Length") or 0)
        fake.requests.append((self.command, self.path))
        failure = fake.failure(self.command, self.path)
        if failure == "cut":
            self.rfile.read(length // 2)
            self.connection.close()
            self.close_connection = True
            return
        body = self.rfile.read(length)
        if failure == "503":
            self._refuse(503, "SlowDown")
            return
        if not self._signature_is_right(body):
            self._refuse(403, "SignatureDoesNotMatch")
            return
        if self._is_skewed():
            self._refuse(403, "RequestTimeTooSkewed")
            return
        path, _, query_text = self.path.partition("?")
        query = dict(parse_qsl(query_text, keep_blank_values=True))
        bucket, _, key = unquote(path)[1:].partition("/")
        if bucket != BUCKET:
            self._refuse(404, "NoSuchBucket")
        elif "uploadId" in query or "uploads" in query:
            self._multipart(key, query, body, failure)
        elif not key:
            self._list(query)
        else:
            self._object(key, body, failure)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _handle  # noqa: N815  names of http.server

    def _list(self, query: dict[str, str]) -> None:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter")
        keys = [key for key in sorted(self.fake.objects) if key.startswith(prefix)]
        keys = [key for key in keys if not delimiter or delimiter not in key[len(prefix) :]]
        keys = [key for key in keys if key > query.get("continuation-token", "")]
        page, rest = keys[: self.fake.page], keys[self.fake.page :]
        rows = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{len(self.fake.objects[key][0])}</Size></Contents>"
            for key in page
        )
        more = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if rest else ""
        text = f"<IsTruncated>{'true' if rest else 'false'}</IsTruncated>{more}{rows}"
        namespace = "http://s3.amazonaws.com/doc/2006-03-01/"
        self._answer(200, f'<ListBucketResult xmlns="{namespace}">{text}</ListBucketResult>'.encode())

    def _object(self, key: str, body: bytes, failure: str) -> None:
        objects = self.fake.objects
        if self.command == "PUT":
            metadata = {
                name.lower(): value for name, value in self.headers.items() if name.lower().startswith("x-amz-meta")
            }
            objects[key] = body, metadata
            self._answer(200, headers={"ETag": f'"{hashlib.md5(body).hexdigest()}"'})
        elif self.command == "DELETE":
            objects.pop(key, None)
            self._answer(204)
        elif key not in objects:
            self._refuse(404, "NoSuchKey")
        else:
            content, metadata = objects[key]
            start = int((self.headers.get("Range") or "bytes=0-")[6:].rstrip("-"))
            rest = content[start:]
            headers = {"ETag": '"tag"', "Content-Length": str(len(rest)), **metadata}
            if failure == "cut answer":
                rest = rest[: len(rest) // 2]
            self._answer(206 if "Range" in self.headers else 200, rest, headers)

    def _multipart(self, key: str, query: dict[str, str], body: bytes, failure: str) -> None:
        fake, upload = self.fake, query.get("uploadId", "")
        if "uploads" in query and self.command == "POST":
            metadata = {
                name.lower(): value for name, value in self.headers.items() if name.lower().startswith("x-amz-meta")
            }
            name = f"upload-{len(fake.requests)}"
            fake.uploads[name] = key, metadata, {}
            self._answer(200, f"<Result><UploadId>{name}</UploadId></Result>".encode())
        elif "uploads" in query:
            rows = (
                f"<Upload><Key>{escape(one)}</Key><UploadId>{name}</UploadId><Initiated>{name}</Initiated></Upload>"
                for name, (one, _, _) in fake.uploads.items()
                if one.startswith(query.get("prefix", ""))
            )
            self._answer(200, f"<Result>{''.join(rows)}</Result>".encode())
        elif upload not in fake.uploads:
            self._refuse(404, "NoSuchUpload")
        elif self.command == "PUT":
            fake.uploads[upload][2][int(query["partNumber"])] = body
            tag = hashlib.md5(body).hexdigest()
            if fake.wrong_tags:
                fake.wrong_tags, tag = fake.wrong_tags - 1, "0" * 32
            self._answer(200, headers={"ETag": f'"{tag}"'})
        elif self.command == "GET":
            after = int(query.get("part-number-marker", "0"))
            parts = sorted(number for number in fake.uploads[upload][2] if number > after)
            page, rest = parts[: fake.page], parts[fake.page :]
            rows = (
                f"<Part><PartNumber>{number}</PartNumber><Size>{len(fake.uploads[upload][2][number])}</Size>"
                f'<ETag>"{hashlib.md5(fake.uploads[upload][2][number]).hexdigest()}"</ETag></Part>'
                for number in page
            )
            more = (
                f"<IsTruncated>true</IsTruncated><NextPartNumberMarker>{page[-1]}</NextPartNumberMarker>"
                if rest
                else ""
            )
            self._answer(200, f"<Result>{more}{''.join(rows)}</Result>".encode())
        elif self.command == "DELETE":
            del fake.uploads[upload]
            self._answer(204)
        else:
            self._complete(key, upload, body, failure)

    def _complete(self, key: str, upload: str, body: bytes, failure: str) -> None:
        if failure == "error in 200":
            self._refuse(200, "InternalError")
            return
        _, metadata, parts = self.fake.uploads[upload]
        rows = [(int(part.findtext("PartNumber", "0")), part.findtext("ETag")) for part in ET.fromstring(body)]
        if any(tag != f'"{hashlib.md5(parts[number]).hexdigest()}"' for number, tag in rows):
            self._refuse(400, "InvalidPart")
            return
        self.fake.objects[key] = b"".join(parts[number] for number, _ in rows), metadata
        del self.fake.uploads[upload]
        self._answer(200, b"<CompleteMultipartUploadResult/>")
