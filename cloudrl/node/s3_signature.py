"""Signatures of requests to S3-compatible storage: AWS Signature Version 4, in headers. Pure.

Source: AWS, "Authenticating Requests: Using the Authorization Header (AWS Signature Version 4)", Amazon S3 API
Reference.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field
from typing import Dict, Mapping
from urllib.parse import quote

_ALGORITHM = "AWS4-HMAC-SHA256"


@dataclass(frozen=True)
class Keys:
    """Who signs.

    Attributes:
        token: of a session; "" for keys that last.
    """

    access_key: str
    secret_key: str = field(repr=False)
    token: str = field(default="", repr=False)


def encoded_path(path: str) -> str:
    """The path of a request, each byte but unreserved ones and `/` as %XX, once."""
    return quote(path, safe="/~")


def encoded_query(query: Mapping[str, str]) -> str:
    """The query of a request, sorted by name."""
    return "&".join(f"{quote(name, safe='~')}={quote(query[name], safe='~')}" for name in sorted(query))


def signed_headers(
    keys: Keys,
    region: str,
    method: str,
    path: str,
    query: Mapping[str, str],
    headers: Mapping[str, str],
    payload_sha256: str,
    date: str,
) -> Dict[str, str]:
    """The headers of a request with its signature.

    Args:
        keys: who signs.
        region: of the bucket.
        method: of the request.
        path: encoded.
        query: not encoded.
        headers: `Host` among them.
        payload_sha256: of the body, in hexadecimals.
        date: `20130524T000000Z`.
    """
    own = {"x-amz-content-sha256": payload_sha256, "x-amz-date": date}
    if keys.token:
        own["x-amz-security-token"] = keys.token
    signed = {**{name.lower(): " ".join(value.split()) for name, value in headers.items()}, **own}
    names = ";".join(sorted(signed))
    lines = [method, path, encoded_query(query), *(f"{name}:{signed[name]}" for name in sorted(signed)), "", names]
    request = "\n".join([*lines, payload_sha256])
    scope = f"{date[:8]}/{region}/s3/aws4_request"
    text = "\n".join([_ALGORITHM, date, scope, hashlib.sha256(request.encode()).hexdigest()])
    key = f"AWS4{keys.secret_key}".encode()
    for part in (date[:8], region, "s3", "aws4_request"):
        key = _hmac(key, part)
    signature = _hmac(key, text).hex()
    credential = f"Credential={keys.access_key}/{scope}"
    return {
        **headers,
        **own,
        "Authorization": f"{_ALGORITHM} {credential},SignedHeaders={names},Signature={signature}",
    }


def _hmac(key: bytes, text: str) -> bytes:
    return hmac.new(key, text.encode(), hashlib.sha256).digest()
