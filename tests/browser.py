"""A real Chromium without a window, driven through its pipe: `python -m browser packages` for the Makefile.

The pipe speaks the DevTools protocol: JSON on descriptors 3 and 4, each message ended by a zero byte. As root Chromium
runs only without its sandbox; what it opens here are pages of the tests.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PACKAGE = "chromium-headless-shell"
_PROGRAMS = (PACKAGE, "chromium", "chromium-browser", "google-chrome")
_TIMEOUT_S = 60.0


def program() -> str | None:
    """The browser of this machine; None if absent."""
    return next(filter(None, map(shutil.which, _PROGRAMS)), None)


class Browser:
    """One page. `errors` are what the console and the page's policy have said against it.

    Args:
        folder: for its profile.
    """

    def __init__(self, folder: Path, *, width: int = 1400, height: int = 900, dark: bool = False) -> None:
        self.errors: list[str] = []
        self.requests: list[str] = []
        self._number, self._buffer = 0, b""
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        words = [
            str(program()), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
            "--disable-background-networking", "--remote-debugging-pipe", f"--user-data-dir={folder}", "about:blank",
        ]  # fmt: skip
        # the ends of the pipe are 3 and 4 in the browser; dash takes no number of two digits
        shell = ["bash", "-c", f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}', "bash", *words]
        self._process = subprocess.Popen(shell, pass_fds=(theirs_in, theirs_out), stderr=subprocess.DEVNULL)
        os.close(theirs_in)
        os.close(theirs_out)
        self._session: str | None = None
        [target] = [each for each in self.call("Target.getTargets")["targetInfos"] if each["type"] == "page"]
        self._session = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._session = None
            self.call("Browser.close")  # its processes end before it, and write to its folder no more
            self._process.wait(_TIMEOUT_S)
        finally:
            self._process.kill()
            self._process.wait()
            os.close(self._in)
            os.close(self._out)

    def open(self, url: str) -> float:
        """Open a page and wait until it is drawn; seconds until then."""
        began = time.monotonic()
        self.call("Page.navigate", url=url)
        self.wait("document.body && document.body.dataset.drawn")
        self.evaluate("new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")
        return time.monotonic() - began

    def wait(self, condition: str) -> None:
        """Until an expression is true."""
        ends_at = time.monotonic() + _TIMEOUT_S
        while not self.evaluate(f"Boolean({condition})"):
            assert time.monotonic() < ends_at, f"{condition} is never true; errors: {self.errors}"
            time.sleep(0.02)

    def evaluate(self, expression: str) -> Any:
        """The value of an expression, or of its promise."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def screenshot(self, path: Path, *, whole: bool = True) -> None:
        """A picture of the page."""
        image = self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(image["data"]))

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """A command of the protocol, and its answer."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        session = {} if self._session is None else {"sessionId": self._session}
        os.write(self._out, json.dumps({**message, **session}).encode() + b"\0")
        while (answer := self._receive()).get("id") != self._number:
            self._note(answer.get("method", ""), answer.get("params", {}))
        assert "error" not in answer, answer["error"]
        result: dict[str, Any] = answer["result"]
        return result

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], _TIMEOUT_S)
            content = os.read(self._in, 1 << 20) if ready else b""
            assert content, "the browser says nothing any more"
            self._buffer += content
        text, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        return message

    def _note(self, method: str, event: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(event["exceptionDetails"]))
        elif method == "Log.entryAdded" and event["entry"]["level"] in ("error", "warning"):
            self.errors.append(event["entry"]["text"])
        elif method == "Runtime.consoleAPICalled" and event["type"] in ("error", "warning", "assert"):
            self.errors.append(json.dumps(event["args"]))
        elif method == "Network.requestWillBeSent":
            self.requests.append(event["request"]["url"])


if __name__ == "__main__" and sys.argv[1:] == ["packages"]:
    print("" if program() else PACKAGE)
