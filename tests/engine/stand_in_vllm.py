"""A `vllm serve` that speaks the protocol and computes nothing: real processes, ports, logs and signals, in a tenth
of a second. Run as a program; `stand_in.py` installs it.

STAND_IN is JSON, role -> fault. A fault shows as the instance starts (`oom`, `killed`, `port`, `usage`, `silent`)
or, once the file STAND_IN_NOW exists, in its answers (`sick`: engine dead, server alive; `hang`: no answer at all;
`abort`: streams end after one token, as those of an instance do that is paused).
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

ARGV = sys.argv[1:]
MAX_MODEL_LEN = 4096


def value(flag: str) -> str:
    return ARGV[ARGV.index(flag) + 1] if flag in ARGV else "{}"


EC = json.loads(value("--ec-transfer-config"))
KV = json.loads(value("--kv-transfer-config")).get("kv_role")
ROLE = (
    "encode"
    if "--mm-encoder-only" in ARGV
    else {"kv_producer": "prefill", "kv_consumer": "decode"}.get(KV, "language")
)
FAULT = json.loads(os.environ.get("STAND_IN", "{}")).get(ROLE, "")
NOW = Path(os.environ.get("STAND_IN_NOW", "/nowhere"))
served = threading.Lock()
tokens = 0


def start() -> None:
    """What shows before the server listens."""
    print("INFO loading", flush=True)
    if FAULT == "oom":
        print(
            "Traceback (most recent call last):\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"
        )
        print("RuntimeError: Engine core initialization failed. See root cause above.")
        sys.exit(1)
    if FAULT == "usage":
        print("usage: vllm serve\nvllm serve: error: unrecognized arguments: --mm-encoder-only")
        sys.exit(2)
    if FAULT == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if FAULT == "port":
        print("zmq.error.ZMQError: Address already in use (addr='tcp://127.0.0.1:5600')", flush=True)
        time.sleep(600)
    if FAULT == "silent":
        print("INFO loading weights, 1 of 100", flush=True)
        time.sleep(600)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def answer(self, body: object, status: int = 200) -> None:
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        if self.path == "/health":
            self.answer("", 503 if FAULT == "sick" and NOW.exists() else 200)
        elif self.path == "/metrics":
            self.answer(
                f"vllm:generation_tokens_total {tokens}\nvllm:iteration_tokens_total_count {tokens}\n"
            )
        else:
            card = {"id": value("--served-model-name"), "max_model_len": MAX_MODEL_LEN}
            self.answer({"data": [card]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if FAULT != "abort" and FAULT and NOW.exists():
            if FAULT == "hang":
                time.sleep(600)
            self.answer({"error": {"message": "EngineCore encountered an issue"}}, 500)
        elif ROLE == "encode":
            self.answer({"ec_transfer_params": encoded(body)})
        elif body.get("stream"):
            self.stream(body)
        else:
            choice = {"message": {"content": "t0 "}, "finish_reason": "length"}
            kv = {"do_remote_prefill": True, "remote_request_id": "1"}
            self.answer({"choices": [choice], "usage": {"prompt_tokens": 77}, "kv_transfer_params": kv})

    def stream(self, body: dict[str, Any]) -> None:
        global tokens
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        for i in range(body["max_tokens"]):
            abort = i == 1 and FAULT == "abort" and NOW.exists()
            last = i == body["max_tokens"] - 1
            choice = {
                "delta": {} if abort else {"content": f"t{i} "},
                "token_ids": [] if abort else [i],
                "finish_reason": "abort" if abort else "length" if last else None,
            }
            self.wfile.write(f"data: {json.dumps({'choices': [choice]})}\n\n".encode())
            self.wfile.flush()
            if abort:
                break
            with served:
                tokens += 1
            time.sleep(float(os.environ.get("STAND_IN_STEP_S", "0")))
        self.close_connection = True


def encoded(body: dict[str, Any]) -> dict[str, Any]:
    """Handle and grid of each item, and the file an encoder leaves."""
    folder = Path(EC["ec_connector_extra_config"]["shared_storage_path"])
    names = [part["uuid"] for message in body["messages"] for part in message["content"]]
    for name in names:
        (folder / name).mkdir()
        (folder / name / "encoder_cache.safetensors").touch()
    return {
        n: {"item_indices": [i], "metadata": {"image_grid_thw": [1, 16, 16]}} for i, n in enumerate(names)
    }


if __name__ == "__main__":
    start()
    ThreadingHTTPServer((value("--host"), int(value("--port"))), Handler).serve_forever()
