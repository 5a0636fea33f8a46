"""A headless Chromium, driven through its DevTools protocol."""

from __future__ import annotations

import base64
import itertools
import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from websockets.sync.client import ClientConnection, connect

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--use-fake-device-for-media-stream",
    "--use-fake-ui-for-media-stream",
    "--autoplay-policy=no-user-gesture-required",
    "--remote-debugging-port=0",
    "--window-size=1000,760",
)


class Page:
    """One page."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self.problems: list[str] = []
        for domain in ("Page", "Runtime", "Log"):
            self.command(f"{domain}.enable")

    def command(self, method: str, **params: Any) -> Any:
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": params}))
        while True:
            message = json.loads(self._socket.recv(timeout=30))
            if message.get("id") == number:
                assert "error" not in message, message["error"]
                return message["result"]
            self._note(message)

    def _note(self, event: dict[str, Any]) -> None:
        """Keep what the browser complains about: exceptions, and what the CSP blocked."""
        if event["method"] == "Runtime.exceptionThrown":
            self.problems.append(str(event["params"]["exceptionDetails"]))
        elif event["method"] == "Log.entryAdded" and event["params"]["entry"]["level"] == "error":
            self.problems.append(event["params"]["entry"]["text"])

    def open(self, url: str) -> None:
        self.command("Page.navigate", url=url)

    def evaluate(self, expression: str) -> Any:
        result = self.command(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def wait_for(self, expression: str, timeout_s: float = 20.0) -> None:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if self.evaluate(f"!!({expression})"):
                return
            time.sleep(0.02)
        state = self.evaluate("document.body.innerText")
        raise AssertionError(f"never came true: {expression}\n{state}\n{self.problems}")

    def key(self, kind: str, key: str) -> None:
        text = {"text": {" ": " ", "Enter": "\r"}.get(key, "")} if kind == "keyDown" else {}
        code = {" ": 32, "Enter": 13, "Escape": 27}[key]
        self.command(
            "Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, **text
        )

    def mouse(self, kind: str, selector: str) -> None:
        box = f"document.querySelector({selector!r}).getBoundingClientRect()"
        x, y = self.evaluate(f"(b => [b.x + b.width / 2, b.y + b.height / 2])({box})")
        self.command("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def screenshot(self, path: Path) -> None:
        data = self.command("Page.captureScreenshot", format="png")["data"]
        path.write_bytes(base64.b64decode(data))


@contextmanager
def open_page(folder: Path, microphone: Path, *, binary: str = "chromium") -> Iterator[Page]:
    """Start a browser whose microphone plays a WAV file once, from its first use."""
    command = [
        binary,
        *FLAGS,
        f"--user-data-dir={folder / 'profile'}",
        f"--use-file-for-fake-audio-capture={microphone}%noloop",
        "about:blank",
    ]
    with (folder / "chromium.log").open("wb") as log:
        browser = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        port = _debugging_port(folder / "profile" / "DevToolsActivePort")
        targets = httpx.get(f"http://127.0.0.1:{port}/json").json()
        url = next(t["webSocketDebuggerUrl"] for t in targets if t["type"] == "page")
        with connect(url, max_size=None) as socket:
            yield Page(socket)
    finally:
        browser.terminate()
        browser.wait(10)


def _debugging_port(file: Path) -> int:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if file.exists() and (lines := file.read_text().split()):
            return int(lines[0])
        time.sleep(0.05)
    raise AssertionError("the browser did not start")
