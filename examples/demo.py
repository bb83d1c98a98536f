"""The main job on this machine, start to end: `make demo`, or `python examples/demo.py`.

Profiles the bundled tiny-image model on virtual GPUs, searches for the best split of eight of them
with live trials, explains the answer, serves it and asks it a question about an image.

All it makes lies in results/demo/. Run it again and it reuses what is there; interrupt it, and the
next run goes on with the point or trial it was at.
"""

from __future__ import annotations

import base64
import json
import shlex
import signal
import socket
import struct
import subprocess
import sys
import time
import urllib.error
import urllib.request
import zlib
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
FOLDER = Path("results/demo")
PROFILE = FOLDER / "profile.parquet"
RUN = FOLDER / "run"
BEST = FOLDER / "best.yaml"
BY_HAND = [f"examples/deployments/{name}.yaml" for name in ("even", "encode-heavy", "decode-heavy")]
"""What people set up by hand; measured beside the baselines that every search has."""
READY_WITHIN_S = 60
STOPPED_WITHIN_S = 45


def main() -> int:
    began = time.monotonic()
    FOLDER.mkdir(parents=True, exist_ok=True)
    step("What this machine offers")
    has("doctor")
    step("How long each stage takes: encode, prefill and decode, alone and sharing a GPU")
    has("profile", "--device", "cpu", "--model", "tiny-image", "--quick", "--out", str(PROFILE))
    step("The best split of eight virtual GPUs, by live trials")
    search()
    step("Why this one")
    has("explain", str(BEST), "--rate", f"{yaml.safe_load(BEST.read_text())['rate']:.4g}")
    step("Serve it, and ask it about an image")
    serve_and_ask()
    step(f"Done in {(time.monotonic() - began) / 60:.1f} minutes; everything is in {FOLDER}")
    return 0


def search() -> None:
    """A finished run is reused, an unfinished one resumed."""
    by_hand = [word for path in BY_HAND for word in ("--baseline", path)]
    if BEST.exists() and (RUN / "best.yaml").exists():
        print(f"reusing the run in {RUN}", flush=True)
        has("report", str(RUN))
    elif (RUN / "manifest.json").exists():
        has("search", "--resume", str(RUN), "--out", str(BEST), *by_hand)
    else:
        has(
            *("search", "--gpus", "8", "--device", "cpu", "--on", "live", "--trials", "8"),
            *("--profile", str(PROFILE), "--run", str(RUN), "--out", str(BEST), *by_hand),
        )
    has("report", str(RUN), "--html", str(RUN / "report.html"), "--quiet")


def serve_and_ask() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = ["has", "deploy", str(BEST), "--port", str(port)]
    say(command)
    server = subprocess.Popen(command, cwd=ROOT)
    try:
        wait_until_ready(server, f"http://127.0.0.1:{port}")
        answer = ask(f"http://127.0.0.1:{port}", "What do you see?", gradient_png(224, 224))
        print(
            f"\nquestion: What do you see?   (with a generated 224x224 image)\nanswer:   {answer!r}",
            flush=True,
        )
        print(
            "          (the bundled model is tiny and random: its words mean nothing, their path is real)\n"
        )
    finally:
        server.send_signal(signal.SIGINT)
        status = server.wait(STOPPED_WITHIN_S)
    if status not in (0, 130):
        sys.exit(f"has deploy ended with status {status}")


def wait_until_ready(server: subprocess.Popen[bytes], url: str) -> None:
    end = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < end:
        if server.poll() is not None:
            sys.exit(f"has deploy ended with status {server.returncode} before it was ready")
        try:
            with urllib.request.urlopen(f"{url}/ready", timeout=2):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    sys.exit(f"{url}/ready did not answer within {READY_WITHIN_S} s")


def ask(url: str, question: str, png: bytes) -> str:
    image = f"data:image/png;base64,{base64.b64encode(png).decode()}"
    content = [{"type": "image_url", "image_url": {"url": image}}, {"type": "text", "text": question}]
    body = {"model": "tiny-image", "messages": [{"role": "user", "content": content}], "max_tokens": 16}
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as reply:
        return str(json.load(reply)["choices"][0]["message"]["content"])


def gradient_png(width: int, height: int) -> bytes:
    """An RGB image, red growing to the right and green downwards, as the bytes of a PNG file."""
    rows = b"".join(
        b"\0" + bytes(c for x in range(width) for c in (255 * x // width, 255 * y // height, 96))
        for y in range(height)
    )

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


def has(*arguments: str) -> None:
    """Run a command of HAS here; end the demo where it does not end well."""
    say(["has", *arguments])
    child = subprocess.Popen(["has", *arguments], cwd=ROOT)
    try:
        status = child.wait()
    except KeyboardInterrupt:
        status = (
            child.wait(STOPPED_WITHIN_S) or 130
        )  # the child was interrupted too, and is keeping what it finished
    if status == 130:
        print("\ninterrupted; what was finished is kept: run the demo again to go on", file=sys.stderr)
    # Status 1 means that no configuration met the SLO here; the least bad one is still served.
    if status not in (0, 1):
        sys.exit(status)


def step(title: str) -> None:
    print(f"\n== {title}", flush=True)


def say(command: list[str]) -> None:
    print(f"$ {shlex.join(command)}", flush=True)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
