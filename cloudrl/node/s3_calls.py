"""One call to S3-compatible storage: signed, sent, its error read, and tried again where that may help."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import random
import re
import ssl
import time
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from email.utils import mktime_tz, parsedate_tz
from typing import Callable, Iterator, Mapping, Optional
from urllib.parse import urlsplit

from cloudrl.errors import InputError
from cloudrl.foreign import read_all
from cloudrl.node.s3_signature import Keys, encoded_path, encoded_query, signed_headers
from cloudrl.protocol.mirrors import S3_KEYS, MirrorUrl
from cloudrl.units import duration_text

_TRIES = 8
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0
_TIMEOUT_S = 60.0
_ANSWER_BYTES = 16 << 20
_PIECE_BYTES = 1 << 20
_AGAIN = (408, 429, 500, 502, 503, 504)
_AGAIN_CODES = ("SlowDown", "InternalError", "ServiceUnavailable", "RequestTimeout", "BadDigest", "IncompleteBody")
_CODE = re.compile(r"<Code>([A-Za-z0-9_.-]{1,80})</Code>")
_SKEWED = "RequestTimeTooSkewed"
_TOO_SKEWED_S, _ODD_SKEW_S = 900.0, 300.0
"""Storage refuses signatures that are 15 minutes off (AWS, S3 API Reference, "Error Responses"), some of it less."""
_CLOCK_HINT = (
    "Set the clock of the machine itself, a container has no other: sudo timedatectl set-ntp true\n"
    "With chrony, at once: sudo chronyc makestep"
)
_REGION = re.compile(r"<Region>([a-z0-9-]{1,40})</Region>")


class S3Error(OSError):
    """The storage refuses.

    Attributes:
        status: of HTTP.
        code: the storage's own word for why; "" without one.
        hint: what helps; "" if that is not known.
        more_hint: what may be why besides the keys.
    """

    def __init__(self, status: int, code: str, what: str, *, hint: str = "") -> None:
        super().__init__(f"{what}: {code or 'HTTP'} ({status})")
        self.status, self.code, self.hint, self.more_hint = status, code, hint, ""

    @property
    def may_pass(self) -> bool:
        """Whether the same call may work later."""
        return self.status in _AGAIN or self.code in _AGAIN_CODES


@dataclass(frozen=True)
class Place:
    """A bucket at an endpoint.

    Attributes:
        host: with its port, as in `Host`.
        base: before each key in a path: "" or `/BUCKET`.
    """

    host: str
    base: str
    region: str
    keys: Keys
    is_tls: bool
    ca_file: Optional[str] = None


def place_of(url: MirrorUrl, environment: Mapping[str, str]) -> Place:
    """Where a bucket is, by the variables that AWS's own tools read.

    Raises:
        InputError: keys are missing.
    """
    missing = [name for name in S3_KEYS if not environment.get(name)]
    if missing:
        raise InputError(
            f"the node has no {' and no '.join(missing)}", hint="Give them to the cluster, under `secrets:` in its file"
        )
    key_id, secret, token = (environment.get(name, "").strip() for name in (*S3_KEYS, "AWS_SESSION_TOKEN"))
    if not all(value.isascii() and value.isprintable() for value in (key_id, secret, token)):
        raise InputError(
            f"one of {', '.join(S3_KEYS)}, AWS_SESSION_TOKEN has characters that no key has",
            hint="Give them to the cluster anew, under `secrets:` in its file",
        )
    keys = Keys(key_id, secret, token)
    region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION") or "us-east-1"
    own = environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL")
    endpoint = urlsplit(own or f"https://s3.{region}.amazonaws.com")
    if endpoint.scheme not in ("http", "https") or not endpoint.netloc or "@" in endpoint.netloc:
        raise InputError("AWS_ENDPOINT_URL_S3 is not the URL of an endpoint", hint="For example https://s3.example.com")
    # a certificate for *.s3.amazonaws.com covers no bucket with a dot
    style = url.style or ("path" if own or "." in url.bucket else "virtual")
    path = endpoint.path.rstrip("/")
    host, base = (
        (endpoint.netloc, f"{path}/{url.bucket}") if style == "path" else (f"{url.bucket}.{endpoint.netloc}", path)
    )
    return Place(host, base, region, keys, endpoint.scheme == "https", environment.get("AWS_CA_BUNDLE"))


@dataclass(frozen=True)
class Answer:
    """An answer that was read."""

    headers: Mapping[str, str]
    body: bytes

    @property
    def xml(self) -> ET.Element:
        """Its body.

        Raises:
            OSError: it is not XML.
        """
        if b"<!DOCTYPE" in self.body or b"<!ENTITY" in self.body:
            raise OSError("the storage answers with XML that declares entities")
        try:
            root = ET.fromstring(self.body.strip())  # noqa: S314  without entities it cannot grow
        except ET.ParseError as error:
            raise OSError(f"the storage answers with what is not XML ({error})") from error
        for element in root.iter():
            element.tag = element.tag.rpartition("}")[2]
        return root


class S3Calls:
    """Calls to one bucket.

    Args:
        place: where it is.
        now: seconds since the epoch.
        sleep: waits that many seconds.
    """

    def __init__(
        self,
        place: Place,
        *,
        now: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._place, self._now, self._sleep = place, now, sleep

    def call(
        self,
        method: str,
        key: str = "",
        query: Optional[Mapping[str, str]] = None,
        *,
        body: bytes = b"",
        headers: Optional[Mapping[str, str]] = None,
        pace: Callable[[int], object] = lambda _: None,
        check: Callable[[Answer], object] = lambda _: None,
    ) -> Answer:
        """Call, and call again while that may help.

        Args:
            method: of the request.
            key: of the object; "" for the bucket.
            query: of the request.
            body: of the request.
            headers: besides those that are signed always.
            pace: called with the bytes of each piece of the body that was sent.
            check: raises `S3Error` for an answer of 200 that is an error.

        Raises:
            S3Error, OSError: it has not worked.
        """
        failure: OSError = OSError("not tried")
        for number in range(_TRIES):
            if number:
                self.pause(number)
            try:
                connection, answer = self.send(method, key, query or {}, body, headers or {}, pace)
                with contextlib.closing(connection), contextlib.closing(answer):
                    content = b"" if method == "HEAD" else read_all(answer, _ANSWER_BYTES)
                    _refuse_cut(answer, content, method)
                    read = Answer({name.lower(): value for name, value in answer.getheaders()}, content)
                    if answer.status >= 300:
                        raise self.error_of(answer, content, f"{method} {key or 'the bucket'}")
                    check(read)
                    return read
            except S3Error as error:
                if not error.may_pass:
                    raise
                failure = error
            except (OSError, http.client.HTTPException) as error:
                failure = OSError(f"{method} {key or 'the bucket'}: {error or type(error).__name__}")
                failure.__cause__ = error
        raise failure

    def error_of(self, answer: http.client.HTTPResponse, body: bytes, what: str) -> S3Error:
        """What an answer says is wrong, and how far the node's clock is off where that is why."""
        error = error_of(answer.status, body, what)
        date = parsedate_tz(answer.getheader("Date") or "")
        ahead_s = self._now() - mktime_tz(date) if date is not None else 0.0
        off = f"{duration_text(abs(ahead_s))} {'ahead of' if ahead_s > 0 else 'behind'}" if ahead_s else "not that of"
        clock = f"the clock of the node is {off} the storage's"
        is_refusal = answer.status in (http.client.BAD_REQUEST, http.client.FORBIDDEN)
        if error.code == _SKEWED or (is_refusal and not error.code and abs(ahead_s) > _TOO_SKEWED_S):
            return S3Error(error.status, error.code, f"{clock}; {what}", hint=_CLOCK_HINT)
        if is_refusal and abs(ahead_s) > _ODD_SKEW_S:
            error.more_hint = f"If not they, {clock}: sudo timedatectl set-ntp true"
        return error

    def pause(self, failures: int) -> None:
        """Wait after so many failures in a row."""
        longest = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** (failures - 1))
        self._sleep(longest * (0.5 + random.random()))  # noqa: S311  nodes must not call all at once

    def send(
        self,
        method: str,
        key: str,
        query: Mapping[str, str],
        body: bytes,
        headers: Mapping[str, str],
        pace: Callable[[int], object] = lambda _: None,
    ) -> "tuple[http.client.HTTPConnection, http.client.HTTPResponse]":
        """Send one request; the answer is to be read, and the connection to be closed.

        Raises:
            OSError, http.client.HTTPException: no answer.
        """
        place, path = self._place, encoded_path(f"{self._place.base}/{key}")
        date = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(self._now()))
        named = {"Host": place.host, **headers}
        digest = hashlib.sha256(body).hexdigest()
        signed = signed_headers(place.keys, place.region, method, path, query, named, digest, date)
        if method in ("PUT", "POST"):
            signed["Content-Length"] = str(len(body))
        connection = self._connection()
        try:
            target = path + (f"?{encoded_query(query)}" if query else "")
            connection.request(method, target, _pieces(body, pace) if body else None, signed)
            return connection, connection.getresponse()
        except BaseException:
            connection.close()
            raise

    def _connection(self) -> http.client.HTTPConnection:
        if not self._place.is_tls:
            return http.client.HTTPConnection(self._place.host, timeout=_TIMEOUT_S)
        context = ssl.create_default_context(cafile=self._place.ca_file or None)
        return http.client.HTTPSConnection(self._place.host, timeout=_TIMEOUT_S, context=context)


def error_of(status: int, body: bytes, what: str) -> S3Error:
    """What an answer says is wrong."""
    text = body.decode("utf-8", "replace")
    code, region = _CODE.search(text), _REGION.search(text)
    hint = f"; AWS_REGION should be {region[1]}" if region else ""
    return S3Error(status, code[1] if code else "", what + hint)


def _pieces(body: bytes, pace: Callable[[int], object]) -> Iterator[bytes]:
    view = memoryview(body)
    for start in range(0, len(body), _PIECE_BYTES):
        piece = view[start : start + _PIECE_BYTES]
        yield bytes(piece)
        pace(len(piece))


def _refuse_cut(answer: http.client.HTTPResponse, content: bytes, method: str) -> None:
    wanted = answer.getheader("Content-Length")
    if method != "HEAD" and wanted is not None and wanted.isdecimal() and len(content) < int(wanted):
        raise http.client.IncompleteRead(content, int(wanted) - len(content))
