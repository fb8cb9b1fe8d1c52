"""What a client of a pdb over a connection does in tests."""

import socket


def until_prompt(connection: socket.socket) -> str:
    """What has been said up to the next prompt."""
    said = b""
    while not said.endswith(b"(Pdb) "):
        piece = connection.recv(4096)
        assert piece, said
        said += piece
    return said.decode()
