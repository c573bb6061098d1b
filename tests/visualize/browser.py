"""Headless Chromium driven over its DevTools protocol, with the standard library alone."""

from __future__ import annotations

import base64
import json
import os
import shutil
import socket
import struct
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium on this machine (Debian: apt install chromium)"
)
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --hide-scrollbars --remote-debugging-port=0"
)


class Browser:
    """One page of a Chromium of its own; everything that it logs or asks a network for is kept.

    >>> # with Browser() as browser: browser.open(path); browser.run("document.title")
    """

    def __enter__(self) -> Browser:
        self.profile = tempfile.mkdtemp(prefix="candor-chromium-")
        self.process = subprocess.Popen(
            [str(CHROMIUM), *FLAGS.split(), f"--user-data-dir={self.profile}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.console: list[str] = []
        self.requests: list[str] = []
        self.dialogs: list[str] = []
        self.loaded = False
        self.number = 0
        try:
            self.socket = WebSocket(self._address())
            target = self.call("Target.createTarget", url="about:blank")["targetId"]
            attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
            self.session: str | None = attached["sessionId"]
            for domain in ("Page", "Runtime", "Log", "Network"):
                self.call(f"{domain}.enable")
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def open(self, path: Path, scripts: bool = True, width: int = 1280, height: int = 900) -> None:
        """Load a file and wait until it is there."""
        self.console.clear()
        self.requests.clear()
        self.dialogs.clear()
        self.call("Emulation.setScriptExecutionDisabled", value=not scripts)
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.loaded = False
        self.call("Page.navigate", url=path.as_uri())
        end = time.monotonic() + 60
        while not self.loaded:
            assert time.monotonic() < end, f"{path} did not load within 60 s"
            self._handle(self.socket.receive())

    def run(self, expression: str) -> Any:
        """Value of a JavaScript expression."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def key(self, key: str, code: int) -> None:
        """Press a key."""
        for kind in ("rawKeyDown", "char", "keyUp") if key == "Enter" else ("rawKeyDown", "keyUp"):
            text = {"text": "\r"} if kind == "char" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **text)

    def screenshot(self, path: Path, whole: bool = False) -> None:
        """A PNG of the window, or of the whole page."""
        picture = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(picture))

    def pdf(self, path: Path) -> None:
        """The page as it prints on A4."""
        sheet = self.call("Page.printToPDF", printBackground=False, preferCSSPageSize=True)["data"]
        path.write_bytes(base64.b64decode(sheet))

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One call of the protocol and its result."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if getattr(self, "session", None):
            message["sessionId"] = self.session
        self.socket.send(json.dumps(message))
        while True:
            answer = self.socket.receive()
            if answer.get("id") == self.number:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]
            self._handle(answer)

    def _handle(self, event: dict[str, Any]) -> None:
        method, parameters = event.get("method"), event.get("params", {})
        if method == "Page.loadEventFired":
            self.loaded = True
        elif method == "Runtime.consoleAPICalled":
            self.console.append(str(parameters["args"]))
        elif method == "Runtime.exceptionThrown":
            self.console.append(str(parameters["exceptionDetails"]))
        elif method == "Log.entryAdded":
            self.console.append(parameters["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        elif method == "Page.javascriptDialogOpening":
            self.dialogs.append(parameters["message"])
            self.socket.send(
                json.dumps(
                    {
                        "id": 10**6 + len(self.dialogs),
                        "method": "Page.handleJavaScriptDialog",
                        "params": {"accept": True},
                        "sessionId": self.session,
                    }
                )
            )

    def _address(self) -> str:
        port = Path(self.profile, "DevToolsActivePort")
        end = time.monotonic() + 60
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise RuntimeError(f"chromium ended with status {self.process.returncode}")
            lines = port.read_text().splitlines() if port.exists() else []
            if len(lines) == 2:
                return f"ws://127.0.0.1:{lines[0]}{lines[1]}"
            time.sleep(0.05)
        raise RuntimeError("chromium opened no debugging port within 60 s")

    def _end(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10)
        shutil.rmtree(self.profile, ignore_errors=True)


class WebSocket:
    """As much of RFC 6455 as the DevTools protocol needs: text messages, client side."""

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        self.stream = socket.create_connection((str(parts.hostname), int(parts.port or 80)), timeout=60)
        key = base64.b64encode(os.urandom(16)).decode()
        self.stream.sendall(
            f"GET {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        self.buffer = b""
        while b"\r\n\r\n" not in self.buffer:
            self.buffer += self.stream.recv(4096)
        head, self.buffer = self.buffer.split(b"\r\n\r\n", 1)
        assert b" 101 " in head.split(b"\r\n")[0], head

    def send(self, text: str) -> None:
        """Send one masked text frame."""
        payload, mask = text.encode(), os.urandom(4)
        size = len(payload)
        if size < 126:
            head = struct.pack("!BB", 0x81, 0x80 | size)
        elif size < 65536:
            head = struct.pack("!BBH", 0x81, 0x80 | 126, size)
        else:
            head = struct.pack("!BBQ", 0x81, 0x80 | 127, size)
        self.stream.sendall(head + mask + bytes(byte ^ mask[i % 4] for i, byte in enumerate(payload)))

    def receive(self) -> dict[str, Any]:
        """The next message; the frames of a long one are put together."""
        whole = b""
        while True:
            first, second = self._take(2)
            size = second & 0x7F
            if size == 126:
                size = struct.unpack("!H", self._take(2))[0]
            elif size == 127:
                size = struct.unpack("!Q", self._take(8))[0]
            payload = self._take(size)
            if first & 0x0F in (0, 1):
                whole += payload
                if first & 0x80:
                    return json.loads(whole)

    def _take(self, size: int) -> bytes:
        while len(self.buffer) < size:
            received = self.stream.recv(1 << 20)
            if not received:
                raise ConnectionError("chromium closed the connection")
            self.buffer += received
        taken, self.buffer = self.buffer[:size], self.buffer[size:]
        return taken
