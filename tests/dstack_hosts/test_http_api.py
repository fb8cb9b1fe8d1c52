"""The HTTP dialect of dstack's Go side."""

import http.client
import json

import pytest

from dstack_hosts.standin.http_api import ApiError, serve, upload

pytestmark = pytest.mark.io


def file(request):
    name, content = upload(request)
    return {"name": name, "size": len(content)}


def busy(_request):
    raise ApiError(409, "already submitted")


ROUTES = [
    ("GET", "/api/echo", lambda request: {"query": request.query}),
    ("POST", "/api/things/([^/]+)", lambda request, name: {"name": name, **request.json()}),
    ("POST", "/api/nothing", lambda _: None),
    ("POST", "/api/file", file),
    ("GET", "/api/busy", busy),
]


@pytest.fixture(scope="module")
def port():
    server = serve(0, ROUTES)
    yield server.server_port
    server.shutdown()
    server.server_close()


def call(port, method, path, body=None, headers=None, *, chunked=False):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(method, path, body, headers or {}, encode_chunked=chunked)
        answer = connection.getresponse()
        return answer.status, answer.getheader("Content-Type"), answer.read()
    finally:
        connection.close()


def test_json_answers_say_that_they_are_json(port):
    status, kind, body = call(port, "GET", "/api/echo?timestamp=12")
    assert (status, kind, json.loads(body)) == (200, "application/json", {"query": {"timestamp": "12"}})


def test_an_empty_success_is_a_plain_line(port):
    status, kind, body = call(port, "POST", "/api/nothing", b"{}")
    assert (status, kind, body) == (200, "text/plain; charset=utf-8", b"\n")


def test_errors_are_plain_text_with_a_status(port):
    assert call(port, "GET", "/api/busy")[::2] == (409, b"already submitted\n")
    assert call(port, "GET", "/api/none")[0] == 404
    assert call(port, "GET", "/api/nothing")[0] == 404  # a POST


def test_parts_of_the_path_reach_the_handler(port):
    assert json.loads(call(port, "POST", "/api/things/abc", b'{"a": 1}')[2]) == {"name": "abc", "a": 1}


@pytest.mark.parametrize("body", [b"", b"{", b"[1]"])
def test_a_body_that_is_no_object_is_a_bad_request(port, body):
    assert call(port, "POST", "/api/things/abc", body)[0] == 400


def test_chunks_are_one_body(port):
    headers = {"Transfer-Encoding": "chunked"}
    status, _, body = call(port, "POST", "/api/things/abc", iter([b'{"a"', b": 2}"]), headers, chunked=True)
    assert (status, json.loads(body)) == (200, {"name": "abc", "a": 2})


def form(*fields, boundary="xyz"):
    parts = [
        f"--{boundary}\r\nContent-Disposition: form-data; {head}\r\n\r\n".encode() + data
        for head, data in fields
    ]
    return b"\r\n".join([*parts, f"--{boundary}--\r\n".encode()]), {
        "Content-Type": f"multipart/form-data; boundary={boundary}"
    }


def test_an_uploaded_file_has_its_name_and_all_its_bytes(port):
    body, headers = form(('name="archive"; filename="1f-2e"', b"\r\n\x00--\r\n"))
    assert json.loads(call(port, "POST", "/api/file", body, headers)[2]) == {"name": "1f-2e", "size": 7}


@pytest.mark.parametrize(
    "fields",
    [
        [('name="code"; filename="a"', b"1")],
        [('name="archive"', b"1")],
        [('name="archive"; filename="a"', b"1"), ('name="archive"; filename="b"', b"2")],
        [],
    ],
)
def test_another_form_is_a_bad_request(port, fields):
    body, headers = form(*fields)
    assert call(port, "POST", "/api/file", body, headers)[0] == 400
