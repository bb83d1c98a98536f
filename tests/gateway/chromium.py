"""A headless Chromium, driven through a pipe: no driver, no port, no library."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

PATH = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Page:
    """One page `width` x `height` CSS pixels large. Calls are answered in order; a page that does not answer fails."""

    def __init__(self, width: int, height: int) -> None:
        assert PATH is not None
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        read, self._to = os.pipe()
        self._from, write = os.pipe()
        options = f"--headless=new --no-sandbox --disable-gpu --remote-debugging-pipe --user-data-dir={self._profile.name}"
        self._process = subprocess.Popen(
            ["bash", "-c", f"exec {PATH} {options} about:blank 3<&{read} 4>&{write}"],
            pass_fds=(read, write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(read)
        os.close(write)
        self._buffer = b""
        self._number = 0
        self._session: dict[str, Any] = {}
        targets = self.call("Target.getTargets")["targetInfos"]
        target = next(one["targetId"] for one in targets if one["type"] == "page")
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = {"sessionId": attached["sessionId"]}
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=True
        )

    def __enter__(self) -> Page:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._to)
        self._process.kill()
        self._process.wait()
        os.close(self._from)
        self._profile.cleanup()

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters, **self._session}
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self._buffer:
                data = os.read(self._from, 1 << 16)
                assert data, "the browser has ended"
                self._buffer += data
            line, _, self._buffer = self._buffer.partition(b"\0")
            answer = json.loads(line)
            if answer.get("id") == self._number:
                assert "error" not in answer, answer["error"]
                return answer["result"]

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)

    def value(self, expression: str) -> Any:
        """What JavaScript `expression` gives in the page."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def until(self, expression: str, seconds: float = 30.0) -> None:
        deadline = time.monotonic() + seconds
        while not self.value(expression):
            assert time.monotonic() < deadline, f"never true in the page: {expression}"
            time.sleep(0.02)

    def screenshot(self, path: Path) -> None:
        taken = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(taken["data"]))
