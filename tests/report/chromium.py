"""Headless Chromium of the distribution, driven over its own protocol on two pipes: no further package, no port."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
PATIENCE_S = 60.0


def chromium_path() -> str:
    """Where it is; skips aloud where it is not."""
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip("no Chromium here: apt-get install chromium")
    return found


class Browser:
    """One tab. Collects what goes wrong in it: console errors, exceptions, and every address asked for."""

    def __init__(self) -> None:
        self._home = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()
        flags = (
            "--headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run --hide-scrollbars "
            f"--disable-background-networking --remote-debugging-pipe --user-data-dir={self._home.name}"
        )
        self._process = subprocess.Popen(
            ["bash", "-c", f"exec {chromium_path()} {flags} about:blank 3<&{to_read} 4>&{to_write}"],
            pass_fds=(to_read, to_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(to_read)
        os.close(to_write)
        self._left, self._number, self._session = b"", 0, ""
        self.faults: list[str] = []
        self.asked: list[str] = []

    def __enter__(self) -> Self:
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(t for t in targets if t["type"] == "page")
        attached = self.call("Target.attachToTarget", targetId=page["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._read)
        os.close(self._write)
        self._home.cleanup()

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """One command and its answer."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            told = self._next()
            if told.get("id") == self._number:
                assert "error" not in told, told
                return dict(told["result"])

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._left:
            chunk = os.read(self._read, 1 << 20)
            assert chunk, "the browser ended"
            self._left += chunk
        message, _, self._left = self._left.partition(b"\0")
        told: dict[str, Any] = json.loads(message)
        self._note(told.get("method"), told.get("params", {}))
        return told

    def _note(self, method: str | None, params: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            self.faults.append(json.dumps(params["exceptionDetails"])[:500])
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.faults.append(json.dumps(params["args"])[:500])
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.faults.append(params["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.asked.append(params["request"]["url"])

    def size(self, width: int, height: int, *, mobile: bool = False) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=mobile,
        )  # fmt: skip

    def open(self, file: Path) -> None:
        """Load a file and wait until it is whole."""
        self.faults.clear()
        self.asked.clear()
        self.call("Page.navigate", url=file.resolve().as_uri())
        self.wait_for("document.readyState === 'complete'")

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression."""
        told = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in told, told
        return told["result"].get("value")

    def wait_for(self, script: str) -> None:
        """Ask until the expression holds."""
        end = time.monotonic() + PATIENCE_S
        while not self.run(script):
            assert time.monotonic() < end, f"never: {script}"
            time.sleep(0.02)

    def picture(self, file: Path, *, whole: bool = False) -> None:
        """A screenshot; `whole`: of the page's whole length."""
        told = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        file.write_bytes(base64.b64decode(told["data"]))
