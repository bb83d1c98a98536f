"""Our gateway against a proxy that picks at random, on the same vLLM instances, under the same requests.

    HAS_VLLM=.engines/vllm/bin/vllm python benchmarks/engines/gateway.py --split 1,1,2

Fronts are processes of their own before the same instances. Requests are drawn once and sent open loop, in
turns (A B B A ...), so that a machine that slows down slows all. First at a quarter of the load the instances
carry, then at 80 %. The gateway runs what HAS itself chooses for that split and load from a profile of these
instances (`chosen`), and with one request a batch (`B=1`: what the gateway itself costs); with --batch N also
with that bound. Prints a table and, with --out, writes the figures as JSON.

Instances can be kept between runs: --hold starts them, prints what --attach takes, and waits for SIGINT.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from has.core.deployment import Deployment
from has.core.profile import Profile
from has.core.requests import Requests
from has.core.space import SearchSpace
from has.core.workload import Workload
from has.engine.sizes import sizes
from has.engine.vllm.fleet import Fleet
from has.engine.vllm.install import installed
from has.engine.vllm.profile import profile_engine
from has.engine.vllm.serve import attached
from has.engine.vllm.urls import Urls
from has.files.deployment import save_deployment
from has.files.profile import load_profile, save_profile
from has.search.run import search
from has.sim.draw import at_rate, draw_requests
from has.trial.url import bench_url
from tests.engine.tiny_vlm import make

HERE = Path(__file__).parent
SLO = {"ttft_ms": 5000.0, "tpot_ms": 500.0}
LOADS = {"25 %": 0.25, "80 %": 0.8}
FIRST_PORT = 8401
CONFIDENCE = (2.5, 97.5)


def workload() -> Workload:
    entry = {
        "modality": "image",
        "items": {"choice": {1: 0.7, 2: 0.3}},
        "media_tokens": {"choice": {64: 0.5, 16: 0.3, 256: 0.2}},
        "prompt_tokens": {"uniform": [20, 60]},
        "output_tokens": {"uniform": [8, 24]},
    }
    return Workload.model_validate(
        {"version": 1, "arrivals": {"process": "poisson", "rate": 1.0}, "requests": [entry], "slo": SLO}
    )


@dataclass(frozen=True)
class Split:
    """Instances of each role, and the model they serve."""

    encode: int
    prefill: int
    decode: int
    model: str

    def deployment(self, batch: int) -> Deployment:
        """Greedy: what waits when an encoder is idle goes, up to `batch`."""
        alloc = {"encode": self.encode, "prefill": self.prefill, "decode": self.decode}
        return Deployment.model_validate(
            {
                "version": 1,
                "model": self.model,
                "topology": "disaggregated",
                "gpus": sum(alloc.values()),
                "alloc": alloc,
                "encode_batch": batch,
                "prefill_offload": 1.0,
                "max_wait_ms": 0.0,
                "dispatch": "shortest_queue",
                "slo": SLO,
            }
        )

    def chosen(self, profile: Profile, rate: float) -> Deployment:
        """What `has search --rate` says for this split."""
        space = SearchSpace.model_validate(
            {
                "version": 1,
                "alloc": {
                    "encode": [self.encode, self.encode],
                    "prefill": [self.prefill, self.prefill],
                    "decode": [self.decode, self.decode],
                },
                "encode_batch": [1, 2, 4, 8],
                "prefill_offload": {"min": 1.0, "max": 1.0},
                "topologies": ["disaggregated"],
            }
        )
        gpus = self.encode + self.prefill + self.decode
        return search(gpus, profile, workload(), space=space, rate=rate, trials=4, seed=0).best


@contextmanager
def front(words: list[str], port: int) -> Iterator[str]:
    """A front on `port`, ready."""
    env = {**os.environ, "PYTHONPATH": str(HERE.parents[1])}
    process = subprocess.Popen(
        [sys.executable, *words, "--port", str(port)], stdout=subprocess.DEVNULL, env=env
    )
    url = f"http://127.0.0.1:{port}"
    try:
        until = time.monotonic() + 60
        while time.monotonic() < until and process.poll() is None:
            try:
                if httpx.get(f"{url}/v1/models", timeout=2, trust_env=False).status_code == 200:
                    break
            except httpx.HTTPError:
                pass
            time.sleep(0.2)
        else:
            raise SystemExit(f"{url} does not come up")
        yield url
    finally:
        process.terminate()
        process.wait(30)


def gateway(deployment: Deployment, urls: Urls, folder: str, port: int) -> Any:
    path = Path(folder) / f"{port}.yaml"
    save_deployment(deployment, path)
    attach = ",".join(f"{pool}={url}" for pool, _, url in urls.all())
    return front(["-m", "has", "deploy", str(path), "--engine", "vllm", "--attach", attach, "-q"], port)


def random_proxy(urls: Urls, port: int) -> Any:
    words = [str(HERE / "random_proxy.py")]
    for pool in ("encode", "prefill", "decode"):
        words += [f"--{pool}", ",".join(getattr(urls, pool))]
    return front(words, port)


def ttfts_ms(url: str, requests: Requests, seed: int) -> tuple[np.ndarray, float, int]:
    """TTFT of every request, NaN where none came; requests a second; and how many failed."""
    records = bench_url(url, requests, seed=seed).records
    done = records.first_token_ns >= 0
    ttft = np.where(done, (records.first_token_ns - records.requests.arrival_ns) / 1e6, np.nan)
    span_s = float(records.finish_ns.max() - records.requests.arrival_ns[0]) / 1e9
    return ttft, int(done.sum()) / span_s, int((~done).sum())


def capacity_of(urls: Urls, split: Split, folder: str) -> float:
    """Requests a second that the instances carry, behind whichever front gets more out of them."""
    base = draw_requests(workload(), rate=1.0, requests=40, seed=5)
    rates = []
    for port, opened in (
        (FIRST_PORT, gateway(split.deployment(4), urls, folder, FIRST_PORT)),
        (FIRST_PORT + 1, random_proxy(urls, FIRST_PORT + 1)),
    ):
        with opened as url:
            ttfts_ms(url, at_rate(base[:12], 3.0), 90 + port)  # warm
            rates.append(ttfts_ms(url, at_rate(base, 50.0), 190 + port)[1])
    return max(rates)


def compare(
    deployments: dict[str, Deployment], urls: Urls, requests: Requests, rounds: int, folder: str
) -> dict[str, Any]:
    """TTFT of each deployment and of the random proxy, over the same requests in turns."""
    seen: dict[str, list[np.ndarray]] = {}
    failed: dict[str, int] = {}
    with ExitStack() as fronts:
        where = {
            name: fronts.enter_context(gateway(deployment, urls, folder, FIRST_PORT + 1 + i))
            for i, (name, deployment) in enumerate(deployments.items())
        }
        where["random"] = fronts.enter_context(random_proxy(urls, FIRST_PORT))
        for url in where.values():
            ttfts_ms(url, at_rate(requests[:8], 3.0), 77)  # connections, code paths
        for turn in range(rounds):
            for name in list(where) if turn % 2 == 0 else list(reversed(where)):
                ttft, _, lost = ttfts_ms(where[name], requests, turn)
                seen.setdefault(name, []).append(ttft)
                failed[name] = failed.get(name, 0) + lost
    result: dict[str, Any] = {"failed": failed, "requests": rounds * len(requests)}
    flat = {name: np.concatenate(runs) for name, runs in seen.items()}
    result["ms"] = {
        name: [float(q) for q in np.nanpercentile(ttft, (50, 90, 99))] for name, ttft in flat.items()
    }
    for name in deployments:
        result[name] = ratios(flat[name], flat["random"])
    return result


def ratios(ours: np.ndarray, theirs: np.ndarray) -> dict[str, Any]:
    """p50, p90 and p99 over the other's, and the interval of the first by resampling requests (all fronts had the same)."""

    def of(index: np.ndarray) -> np.ndarray:
        return np.nanpercentile(ours[index], (50, 90, 99)) / np.nanpercentile(theirs[index], (50, 90, 99))

    rng = np.random.default_rng(0)
    drawn = np.array([of(rng.integers(0, len(ours), len(ours))) for _ in range(400)])
    low, high = np.percentile(drawn[:, 0], CONFIDENCE)
    return {"ratios": [float(r) for r in of(np.arange(len(ours)))], "p50_interval": [float(low), float(high)]}


def shown(load: str, name: str, deployment: Deployment, result: dict[str, Any]) -> str:
    p50, p90, p99 = result[name]["ratios"]
    low, high = result[name]["p50_interval"]
    wait = "" if deployment.max_wait_ms is None else f", waits at most {deployment.max_wait_ms:g} ms"
    return (
        f"{load} {name} (B {deployment.encode_batch}{wait}): TTFT over random's p50 {p50:.3f} ({low:.3f}-{high:.3f}),"
        f" p90 {p90:.3f}, p99 {p99:.3f}; ms {[round(v) for v in result['ms'][name]]} and"
        f" {[round(v) for v in result['ms']['random']]}; failed {result['failed'][name]} and {result['failed']['random']}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--split", default="1,1,2", help="encode, prefill, decode instances")
    parser.add_argument("--requests", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--batch", type=int, action="append", default=[], help="also with this B")
    parser.add_argument("--load", action="append", choices=LOADS, help="only at this load")
    parser.add_argument("--capacity", type=float, help="requests a second; measured if not given")
    parser.add_argument(
        "--profile", type=Path, help="of these instances; measured, and written here, if it is not there"
    )
    parser.add_argument("--model", help="a folder; default: a tiny Qwen2.5-VL that is made for it")
    parser.add_argument("--attach", help="role=URL,... of instances that --hold keeps")
    parser.add_argument("--hold", action="store_true", help="keep instances for --attach until SIGINT")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    encode, prefill, decode = map(int, asked.split.split(","))
    with tempfile.TemporaryDirectory() as folder:
        model = asked.model or str(make(Path(folder) / "qwen2_5-vl-tiny"))
        split = Split(encode, prefill, decode, model)
        plan = split.deployment(4)
        if asked.attach is not None:
            measure(asked, split, attached(asked.attach, plan), load_profile(asked.profile), folder)
            return
        fleet = Fleet(installed(), model, plan.gpus, say=lambda line: print(line, file=sys.stderr))
        try:
            profile = None
            if asked.profile is not None and asked.profile.is_file():
                profile = load_profile(asked.profile)
            profile = profile or profile_engine(installed(), model, fleet=fleet)
            if asked.profile is not None:
                save_profile(profile, asked.profile)
            urls = fleet.arrange(fleet.plan(plan, sizes(workload(), model)))
            if asked.hold:
                print(",".join(f"{pool}={url}" for pool, _, url in urls.all()), flush=True)
                ends = {signal.SIGINT, signal.SIGTERM}
                signal.pthread_sigmask(signal.SIG_BLOCK, ends)
                signal.sigwait(ends)
                return
            measure(asked, split, urls, profile, folder)
        finally:
            fleet.close()


def measure(asked: argparse.Namespace, split: Split, urls: Urls, profile: Profile, folder: str) -> None:
    capacity = asked.capacity or capacity_of(urls, split, folder)
    print(f"split {asked.split}: the instances carry {capacity:.2f} requests/s", flush=True)
    result: dict[str, Any] = {"capacity_rps": capacity, "split": asked.split}
    base = draw_requests(workload(), rate=1.0, requests=asked.requests, seed=3)
    for load in asked.load or LOADS:
        rate = LOADS[load] * capacity
        deployments = {"chosen": split.chosen(profile, rate), "B=1": split.deployment(1)}
        deployments |= {f"B={batch}": split.deployment(batch) for batch in asked.batch}
        result[load] = compare(deployments, urls, at_rate(base, rate), asked.rounds, folder)
        for name, deployment in deployments.items():
            result[load][name]["deployment"] = deployment.model_dump(
                mode="json", exclude_none=True, exclude={"evidence"}
            )
            print(shown(load, name, deployment, result[load]), flush=True)
    if asked.out is not None:
        asked.out.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
