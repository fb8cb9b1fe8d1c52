"""Frames of the log stream, and a real client on the other side."""

import io

import pytest
import websocket
from hypothesis import given
from hypothesis import strategies as st

from dstack_hosts.standin import http_api
from dstack_hosts.standin.websocket import BINARY, PING, Websocket, accept_key, decode_frame, encode_frame

pytestmark = pytest.mark.io


def test_accept_key_of_the_standard():
    assert accept_key("dGhlIHNhbXBsZSBub25jZQ==") == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="  # RFC 6455, section 1.3


@given(st.sampled_from([BINARY, PING]), st.binary(max_size=300))
def test_a_frame_comes_back(opcode, data):
    assert decode_frame(io.BytesIO(encode_frame(opcode, data))) == (opcode, data)


@pytest.mark.parametrize("size", [0, 125, 126, 65535, 65536])
def test_each_way_to_write_a_length(size):
    assert decode_frame(io.BytesIO(encode_frame(BINARY, bytes(size)))) == (BINARY, bytes(size))


def test_a_client_masks():
    masked = bytes([0x82, 0x83, 1, 2, 3, 4]) + bytes([ord("a") ^ 1, ord("b") ^ 2, ord("c") ^ 3])
    assert decode_frame(io.BytesIO(masked)) == (BINARY, b"abc")


def test_a_cut_frame_is_an_end_of_file():
    with pytest.raises(EOFError):
        decode_frame(io.BytesIO(encode_frame(BINARY, b"abc")[:-1]))


def test_a_real_client_gets_messages_and_answers_to_its_pings():
    def stream(request):
        socket = Websocket(request.handler)
        for word in (b"one", b"two"):
            socket.send(word)
        socket.gone.wait(10)
        return http_api.TAKEN

    server = http_api.serve(0, [("GET", "/logs_ws", stream)])
    try:
        client = websocket.create_connection(
            f"ws://127.0.0.1:{server.server_port}/logs_ws?start_time=", timeout=10
        )
        assert [client.recv(), client.recv()] == [b"one", b"two"]
        client.ping("x")
        assert client.recv_data(control_frame=True) == (websocket.ABNF.OPCODE_PONG, b"x")
        client.close()
    finally:
        server.shutdown()
        server.server_close()
