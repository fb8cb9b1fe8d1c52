"""A client of the Debug Adapter Protocol over a connected socket, as editors are, for tests."""

import json
import socket
from collections.abc import Callable
from typing import Any


class DapClient:
    """Attaches with what `cloudrl debug` and VS Code ask for; answers and events are read in their order."""

    def __init__(self, connection: socket.socket, timeout_s: float = 60.0) -> None:
        self._connection, self._file, self._number = connection, connection.makefile("rb"), 0
        connection.settimeout(timeout_s)
        self._kept: list[dict[str, Any]] = []

    def attach(self, breakpoints: dict[str, list[int]] | None = None) -> None:
        """Until the process runs, and stops at what it waits at, or at `breakpoints`: file -> lines."""
        self.request("initialize", adapterID="cloudrl", pathFormat="path")
        attach = self.send("attach", justMyCode=False)
        self.event("initialized")
        for path, lines in (breakpoints or {}).items():
            found = self.request(
                "setBreakpoints", source={"path": path}, breakpoints=[{"line": line} for line in lines]
            )
            assert all(each["verified"] for each in found["breakpoints"]), found
        self.request("setExceptionBreakpoints", filters=["uncaught"])
        done = self.send("configurationDone")
        self.answer(attach)
        self.answer(done)

    def stopped(self) -> tuple[int, list[dict[str, Any]]]:
        """Wait until it stands; the thread and its stack."""
        thread = self.event("stopped")["threadId"]
        return thread, self.request("stackTrace", threadId=thread)["stackFrames"]

    def locals(self, frame: dict[str, Any]) -> dict[str, str]:
        scopes = self.request("scopes", frameId=frame["id"])["scopes"]
        found = self.request("variables", variablesReference=scopes[0]["variablesReference"])["variables"]
        return {each["name"]: each["value"] for each in found}

    def evaluate(self, expression: str, frame: dict[str, Any]) -> str:
        answer = self.request("evaluate", expression=expression, frameId=frame["id"], context="repl")
        return str(answer["result"])

    def go_on(self, thread: int) -> None:
        self.request("continue", threadId=thread)

    def close(self) -> None:
        """As when the laptop is shut."""
        self._file.close()
        self._connection.close()

    def request(self, command: str, **arguments: Any) -> dict[str, Any]:
        return self.answer(self.send(command, **arguments))

    def send(self, command: str, **arguments: Any) -> int:
        self._number += 1
        message = {"seq": self._number, "type": "request", "command": command, "arguments": arguments}
        body = json.dumps(message).encode()
        self._connection.sendall(b"Content-Length: %d\r\n\r\n" % len(body) + body)
        return self._number

    def answer(self, number: int) -> dict[str, Any]:
        message = self._next(lambda each: each["type"] == "response" and each["request_seq"] == number)
        assert message["success"], message
        return message.get("body") or {}

    def event(self, name: str) -> dict[str, Any]:
        return self._next(lambda each: each.get("event") == name).get("body") or {}

    def _next(self, is_wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The first one that is wanted; the others are kept in their order."""
        for message in self._kept:
            if is_wanted(message):
                self._kept.remove(message)
                return message
        while not is_wanted(message := self._read()):
            self._kept.append(message)
        return message

    def _read(self) -> dict[str, Any]:
        length = 0
        while line := self._file.readline().strip():
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        assert length, "the debugger has closed the connection"
        message: dict[str, Any] = json.loads(self._file.read(length))
        return message
