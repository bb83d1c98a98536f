"""Our gateway against a proxy that picks at random, on the same vLLM instances, under the same requests.

    HAS_VLLM=.engines/vllm/bin/vllm python benchmarks/engines/gateway.py --split 1,1,2

Both are processes of their own before the same instances. Requests are drawn once and sent open loop,
in turns (A B B A ...), so that a machine that slows down slows both. First at a quarter of the load the
instances carry, then at 80 %. Prints a table and, with --out, writes the figures as JSON.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from has.core.deployment import Deployment
from has.core.requests import Requests
from has.core.workload import Workload
from has.engine.sizes import sizes
from has.engine.vllm.fleet import Fleet
from has.engine.vllm.install import installed
from has.files.deployment import save_deployment
from has.sim.draw import at_rate, draw_requests
from has.trial.url import bench_url
from tests.engine.tiny_vlm import make

HERE = Path(__file__).parent
SLO = {"ttft_ms": 5000.0, "tpot_ms": 500.0}


def workload() -> Workload:
    entry = {
        "modality": "image",
        "items": {"choice": {1: 0.7, 2: 0.3}},
        "media_tokens": {"choice": {64: 0.5, 16: 0.3, 256: 0.2}},
        "prompt_tokens": {"uniform": [20, 60]},
        "output_tokens": {"uniform": [8, 24]},
    }
    return Workload.model_validate(
        {"version": 1, "arrivals": {"process": "poisson", "rate": 1.0}, "requests": [entry]}
    )


def wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until and process.poll() is None:
        try:
            if httpx.get(f"{url}/v1/models", timeout=2, trust_env=False).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.2)
    raise SystemExit(f"{url} does not come up")


def ttfts_ms(url: str, requests: Requests, seed: int) -> tuple[np.ndarray, float, int]:
    """TTFT of every answered request, requests a second, and how many failed."""
    run = bench_url(url, requests, seed=seed)
    records = run.records
    done = records.first_token_ns >= 0
    ttft = (records.first_token_ns - records.requests.arrival_ns)[done] / 1e6
    span_s = float(records.finish_ns.max() - records.requests.arrival_ns[0]) / 1e9
    return ttft, int(done.sum()) / span_s, int((~done).sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--split", default="1,1,2", help="encode, prefill, decode instances")
    parser.add_argument("--requests", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--capacity", type=float, help="requests a second; measured if not given")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    encode, prefill, decode = map(int, asked.split.split(","))
    with tempfile.TemporaryDirectory() as folder:
        model = str(make(Path(folder) / "qwen2_5-vl-tiny"))
        deployment = Deployment.model_validate(
            {
                "version": 1,
                "model": model,
                "topology": "disaggregated",
                "gpus": encode + prefill + decode,
                "alloc": {"encode": encode, "prefill": prefill, "decode": decode},
                "encode_batch": asked.batch,
                "prefill_offload": 1.0,
                "max_wait_ms": 0.0,
                "dispatch": "shortest_queue",
                "slo": SLO,
            }
        )
        save_deployment(deployment, f"{folder}/d.yaml")
        fleet = Fleet(installed(), model, deployment.gpus, say=lambda line: print(line, file=sys.stderr))
        fronts: list[subprocess.Popen[bytes]] = []
        try:
            urls = fleet.arrange(fleet.plan(deployment, sizes(workload(), model)))
            attached = ",".join(
                f"{pool}={url}" for pool in ("encode", "prefill", "decode") for url in getattr(urls, pool)
            )
            ours = [
                sys.executable,
                "-m",
                "has",
                "deploy",
                f"{folder}/d.yaml",
                "--engine",
                "vllm",
                "--attach",
                attached,
                "--port",
                "8401",
                "-q",
            ]
            theirs = [sys.executable, str(HERE / "random_proxy.py"), "--port", "8402"]
            for pool in ("encode", "prefill", "decode"):
                theirs += [f"--{pool}", ",".join(getattr(urls, pool))]
            fronts = [
                subprocess.Popen(ours, stdout=subprocess.DEVNULL),
                subprocess.Popen(theirs, env=_with_path()),
            ]
            where = {"gateway": "http://127.0.0.1:8401", "random": "http://127.0.0.1:8402"}
            for url, process in zip(where.values(), fronts, strict=True):
                wait_for(url, process)
            result = compare(where, asked)
        finally:
            for process in fronts:
                process.terminate()
            for process in fronts:
                process.wait(30)
            fleet.close()
    if asked.out is not None:
        asked.out.write_text(json.dumps(result, indent=1))


def _with_path() -> dict[str, str]:
    import os

    return {**os.environ, "PYTHONPATH": str(HERE.parents[1])}


def compare(where: dict[str, str], asked: argparse.Namespace) -> dict[str, Any]:
    base = draw_requests(workload(), rate=1.0, requests=asked.requests, seed=3)
    capacity = asked.capacity
    if capacity is None:
        rates = []
        for url in where.values():
            ttfts_ms(url, at_rate(base[:12], 3.0), 90)  # warm
            rates.append(ttfts_ms(url, at_rate(base[:40], 50.0), 91)[1])
        capacity = max(rates)
    print(f"split {asked.split}, B {asked.batch}: the instances carry {capacity:.2f} requests/s")
    result: dict[str, Any] = {"capacity_rps": capacity, "split": asked.split, "batch": asked.batch}
    for name, load in (("25 %", 0.25), ("80 %", 0.8)):
        requests = at_rate(base, load * capacity)
        seen: dict[str, list[np.ndarray]] = {front: [] for front in where}
        failed = dict.fromkeys(where, 0)
        for turn in range(asked.rounds):
            order = list(where) if turn % 2 == 0 else list(reversed(where))
            for front in order:
                ttft, _, lost = ttfts_ms(where[front], requests, turn)
                seen[front].append(ttft)
                failed[front] += lost
        figures = {
            f: [float(q) for q in np.percentile(np.concatenate(t), (50, 90, 99))] for f, t in seen.items()
        }
        ratios = [a / b for a, b in zip(figures["gateway"], figures["random"], strict=True)]
        print(
            f"{name} of it: TTFT gateway over random: p50 {ratios[0]:.3f}, p90 {ratios[1]:.3f}, p99 {ratios[2]:.3f};"
            f" ms {figures['gateway']} and {figures['random']}; failed {failed}",
            flush=True,
        )
        result[name] = {"ms": figures, "ratios": ratios, "failed": failed}
    return result


if __name__ == "__main__":
    main()
