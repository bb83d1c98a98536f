"""Our gateway against a proxy that picks at random, on the same vLLM instances, under the same requests.

    HAS_VLLM=.engines/vllm/bin/vllm python benchmarks/engines/gateway.py --split 1,1,2

Fronts are processes of their own before the same instances. Requests are drawn once and sent open loop, in
turns (A B B A ...), so that a machine that slows down slows all. First at a quarter of the load the instances
carry, then at 80 %. The gateway runs what HAS itself chooses for that split and load from a profile of these
instances (`chosen`); with --batch N also with that bound. Prints a table, where the time to the first token went,
and, with --out, writes the figures as JSON.

What is chosen waits for no company at the encoder (`max_wait_ms: 0`): an engine batches by itself, and late-comers
join what runs.

Instances can be kept between runs: --hold starts them, prints what --attach takes, and waits for SIGINT.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from scipy.stats import sem
from scipy.stats import t as student

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
SLO = {"ttft_ms": 1000.0, "tpot_ms": 100.0}
GREEDY = {"max_wait_ms": 0.0, "dispatch": "shortest_queue"}
LOADS = {"25 %": 0.25, "80 %": 0.8}
FIRST_PORT = 8401
QUANTILES = (50, 90, 99)
CONFIDENCE = (2.5, 97.5)
FEWEST_ROUNDS = 3
STAGE = re.compile(
    r'has:stage_(?P<what>wait|service)_seconds_(?P<of>sum|count){.*stage="(?P<stage>\w+)"} (?P<value>.+)'
)


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

    def deployment(self, batch: int, wait_ms: float = 0.0, fanout: int = 1) -> Deployment:
        """Up to `batch` at an encoder; who finds it idle waits for company up to `wait_ms`; media of one request at up to
        `fanout` encoders.
        """
        alloc = {"encode": self.encode, "prefill": self.prefill, "decode": self.decode}
        return Deployment.model_validate(
            {
                "version": 1,
                "model": self.model,
                "topology": "disaggregated",
                "gpus": sum(alloc.values()),
                "alloc": alloc,
                "encode_batch": batch,
                "encode_fanout": fanout,
                "prefill_offload": 1.0,
                "slo": SLO,
                **GREEDY,
                "max_wait_ms": wait_ms,
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
        return search(
            gpus, profile, workload(), space=space, rate=rate, trials=4, seed=0, settings=GREEDY
        ).best


@dataclass(frozen=True)
class Front:
    """A front that serves at `url`; `stages` reads what the stages have taken so far: {stage: (times, seconds)}."""

    url: str
    pid: int
    stages: Callable[[], dict[str, tuple[float, float]]]

    @contextmanager
    def awake(self) -> Iterator[None]:
        """Fronts stand still while another is measured: a gateway looks after its instances also when it has no work."""
        os.kill(self.pid, signal.SIGCONT)
        try:
            yield
        finally:
            os.kill(self.pid, signal.SIGSTOP)

    @property
    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def machine_cpu_s() -> float:
    """CPU time of everything that runs here, of instances and fronts alike."""
    user, nice, system, *_ = map(int, Path("/proc/stat").read_text().split("\n")[0].split()[1:])
    return (user + nice + system) / os.sysconf("SC_CLK_TCK")


@contextmanager
def front(
    words: list[str], port: int, stages: Callable[[str], dict[str, tuple[float, float]]]
) -> Iterator[Front]:
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
        yield Front(url, process.pid, lambda: stages(url))
    finally:
        process.terminate()
        process.send_signal(signal.SIGCONT)
        process.wait(30)


def gateway(deployment: Deployment, urls: Urls, folder: str, port: int) -> Any:
    path = Path(folder) / f"{port}.yaml"
    save_deployment(deployment, path)
    attach = ",".join(f"{pool}={url}" for pool, _, url in urls.all())
    words = ["-m", "has", "deploy", str(path), "--engine", "vllm", "--attach", attach, "-q"]

    def stages(url: str) -> dict[str, tuple[float, float]]:
        """Waits and services of its own metrics."""
        found: dict[str, dict[str, float]] = defaultdict(dict)
        for line in httpx.get(f"{url}/metrics", trust_env=False).text.splitlines():
            match = STAGE.match(line)
            if match:
                found[f"{match['stage']} {match['what']}"][match["of"]] = float(match["value"])
        return {name: (of["count"], of["sum"]) for name, of in found.items()}

    return front(words, port, stages)


def random_proxy(urls: Urls, port: int) -> Any:
    words = [str(HERE / "random_proxy.py")]
    for pool in ("encode", "prefill", "decode"):
        words += [f"--{pool}", ",".join(getattr(urls, pool))]
    return front(words, port, lambda url: httpx.get(f"{url}/stages", trust_env=False).json())


def ttfts_ms(url: str, requests: Requests, seed: int) -> tuple[np.ndarray, float, int]:
    """TTFT of every request, NaN where none came; requests a second; and how many failed."""
    records = bench_url(url, requests, seed=seed).records
    done = records.first_token_ns >= 0
    ttft = np.where(done, (records.first_token_ns - records.requests.arrival_ns) / 1e6, np.nan)
    span_s = float(records.finish_ns.max() - records.requests.arrival_ns[0]) / 1e9
    return ttft, int(done.sum()) / span_s, int((~done).sum())


def capacities_of(urls: Urls, split: Split, folder: str) -> dict[str, float]:
    """Requests a second that the instances carry behind each of the fronts."""
    base = draw_requests(workload(), rate=1.0, requests=40, seed=5)
    rates = {}
    for name, port, opened in (
        ("gateway", FIRST_PORT, gateway(split.deployment(4), urls, folder, FIRST_PORT)),
        ("random", FIRST_PORT + 1, random_proxy(urls, FIRST_PORT + 1)),
    ):
        with opened as of:
            ttfts_ms(of.url, at_rate(base[:12], 3.0), 90 + port)  # warm
            rates[name] = ttfts_ms(of.url, at_rate(base, 50.0), 190 + port)[1]
    return rates


@dataclass
class Seen:
    """What one front did over all rounds."""

    ttft_ms: list[np.ndarray] = field(default_factory=list)
    failed: int = 0
    front_cpu_s: float = 0.0
    machine_cpu_s: float = 0.0
    stages: dict[str, list[float]] = field(default_factory=lambda: defaultdict(lambda: [0.0, 0.0]))

    @property
    def flat(self) -> np.ndarray:
        return np.concatenate(self.ttft_ms)

    def run(self, of: Front, requests: Requests, seed: int) -> None:
        before, front_s, machine_s = of.stages(), of.cpu_s, machine_cpu_s()
        ttft, _, lost = ttfts_ms(of.url, requests, seed)
        self.ttft_ms.append(ttft)
        self.failed += lost
        self.front_cpu_s += of.cpu_s - front_s
        self.machine_cpu_s += machine_cpu_s() - machine_s
        for name, (times, seconds) in of.stages().items():
            earlier = before.get(name, (0.0, 0.0))
            self.stages[name][0] += times - earlier[0]
            self.stages[name][1] += seconds - earlier[1]

    def figures(self) -> dict[str, Any]:
        requests = len(self.flat)
        return {
            "requests": requests,
            "failed": self.failed,
            "ttft_ms": [float(q) for q in np.nanpercentile(self.flat, QUANTILES)],
            "mean_ms": float(np.nanmean(self.flat)),
            "front_cpu_ms": 1e3 * self.front_cpu_s / requests,
            "machine_cpu_ms": 1e3 * self.machine_cpu_s / requests,
            "stages_ms": {name: 1e3 * s / n for name, (n, s) in sorted(self.stages.items()) if n},
        }


def compare(
    deployments: dict[str, Deployment], urls: Urls, rate: float, requests: int, rounds: int, folder: str
) -> dict[str, Any]:
    """Each deployment and the random proxy, over the same requests in turns; every round has requests of its own."""
    seen: dict[str, Seen] = defaultdict(Seen)
    with ExitStack() as fronts:
        where = {
            name: fronts.enter_context(gateway(deployment, urls, folder, FIRST_PORT + 1 + i))
            for i, (name, deployment) in enumerate(deployments.items())
        }
        where["random"] = fronts.enter_context(random_proxy(urls, FIRST_PORT))
        warm = draw_requests(workload(), rate=3.0, requests=10, seed=77)
        for of in where.values():
            with of.awake():
                ttfts_ms(of.url, warm, 77)  # connections, code paths
        for turn in range(rounds):
            drawn = draw_requests(workload(), rate=rate, requests=requests, seed=3 + turn)
            for name in list(where) if turn % 2 == 0 else list(reversed(where)):
                with where[name].awake():
                    seen[name].run(where[name], drawn, turn)
                told = [round(q) for q in np.nanpercentile(seen[name].ttft_ms[-1], QUANTILES)]
                print(f"round {turn + 1} {name}: TTFT p50, p90, p99 {told} ms", file=sys.stderr, flush=True)
    result = {name: one.figures() for name, one in seen.items()}
    for name in deployments:
        result[name] |= ratios(seen[name].ttft_ms, seen["random"].ttft_ms)
    return result


def ratios(ours: list[np.ndarray], theirs: list[np.ndarray]) -> dict[str, Any]:
    """p50, p90 and p99 over the other's: of all requests together, and the mean of the rounds' ratios, geometric.

    A machine that slows down for some rounds decides the tail of all requests together, so it is rounds that are resampled
    for its interval, whole and of both. That of `by_round` comes from how the rounds' ratios differ. Many short rounds
    share a slow minute out evenly, but a queue needs some time to grow.
    """

    def of(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.nanpercentile(a, QUANTILES) / np.nanpercentile(b, QUANTILES)

    a, b = np.concatenate(ours), np.concatenate(theirs)
    rng = np.random.default_rng(0)
    drawn = np.array(
        [
            of(np.concatenate([ours[i] for i in chosen]), np.concatenate([theirs[i] for i in chosen]))
            for chosen in rng.integers(0, len(ours), (1000, len(ours)))
        ]
    )
    rounds = np.array([of(x, y) for x, y in zip(ours, theirs, strict=True)])
    mean = np.log(rounds).mean(axis=0)
    half = sem(np.log(rounds), axis=0) * student.ppf(CONFIDENCE[1] / 100, len(rounds) - 1)
    return {
        "ratios": of(a, b).tolist(),
        "intervals": np.percentile(drawn, CONFIDENCE, axis=0).T.tolist(),
        "rounds": rounds.tolist(),
        "by_round": np.exp([mean, mean - half, mean + half]).T.tolist(),
    }


def shown(load: str, name: str, deployment: Deployment, result: dict[str, Any]) -> str:
    ours, theirs = result[name], result["random"]
    named = [f"p{q}" for q in QUANTILES]
    ratio, rounds = (
        ", ".join(
            f"{q} {value:.3f} ({low:.3f}-{high:.3f})" for q, (value, low, high) in zip(named, of, strict=True)
        )
        for of in (
            [(value, *span) for value, span in zip(ours["ratios"], ours["intervals"], strict=True)],
            ours["by_round"],
        )
    )
    lines = [
        f"{load}, {name} (B {deployment.encode_batch}): TTFT over random's {ratio}; by round {rounds}",
    ]
    for who, figures in ((name, ours), ("random", theirs)):
        stages = ", ".join(f"{stage} {ms:.0f}" for stage, ms in figures["stages_ms"].items())
        lines.append(
            f"  {who}: {[round(v) for v in figures['ttft_ms']]} ms, mean {figures['mean_ms']:.0f}; CPU a request"
            f" {figures['front_cpu_ms']:.1f} ms of its own, {figures['machine_cpu_ms']:.0f} in all; {stages};"
            f" {figures['failed']} of {figures['requests']} without text"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--split", default="1,1,2", help="encode, prefill, decode instances")
    parser.add_argument("--requests", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument(
        "--batch",
        action="append",
        default=[],
        metavar="B[:MS]",
        help="also with this B, waiting for company so long",
    )
    parser.add_argument("--fanout", type=int, default=1, help="encode_fanout of what --batch names")
    parser.add_argument(
        "--no-choice", action="store_true", help="only with the B of --batch; no profile is needed"
    )
    parser.add_argument("--load", action="append", choices=LOADS, help="only at this load")
    parser.add_argument("--capacity", type=float, help="requests a second; measured if not given")
    parser.add_argument(
        "--profile", type=Path, help="of these instances; measured, and written here, if it is not there"
    )
    parser.add_argument("--model", help="a folder; default: a tiny Qwen2.5-VL that is made for it")
    parser.add_argument(
        "--tower",
        default="2,128",
        metavar="LAYERS,WIDTH",
        help="of the vision tower of the model that is made",
    )
    parser.add_argument("--attach", help="role=URL,... of instances that --hold keeps")
    parser.add_argument("--hold", action="store_true", help="keep instances for --attach until SIGINT")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    if asked.attach is not None and not asked.no_choice and asked.profile is None:
        parser.error("--attach needs --profile or --no-choice")
    if asked.no_choice and asked.profile is not None:
        parser.error("--profile is for what is chosen: not with --no-choice")
    if asked.rounds < FEWEST_ROUNDS:
        parser.error(f"--rounds: at least {FEWEST_ROUNDS}, for an interval from how rounds differ")
    encode, prefill, decode = map(int, asked.split.split(","))
    with tempfile.TemporaryDirectory() as folder:
        layers, width = map(int, asked.tower.split(","))
        model = asked.model or str(
            make(Path(folder) / "qwen2_5-vl-tiny", printable=True, tower=(layers, width))
        )
        split = Split(encode, prefill, decode, model)
        plan = split.deployment(4)
        if asked.attach is not None:
            known = load_profile(asked.profile) if asked.profile is not None else None
            measure(asked, split, attached(asked.attach, plan), known, folder)
            return
        fleet = Fleet(installed(), model, plan.gpus, say=lambda line: print(line, file=sys.stderr))
        try:
            profile = None if asked.no_choice else profiled(asked.profile, model, fleet)
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


def profiled(path: Path | None, model: str, fleet: Fleet) -> Profile:
    """The profile at `path`, else one that is measured now, and written there if that was named."""
    if path is not None and path.is_file():
        return load_profile(path)
    profile = profile_engine(installed(), model, fleet=fleet)
    if path is not None:
        save_profile(profile, path)
    return profile


def measure(
    asked: argparse.Namespace, split: Split, urls: Urls, profile: Profile | None, folder: str
) -> None:
    result: dict[str, Any] = {"split": asked.split, "capacities_rps": {}}
    capacity = asked.capacity
    if capacity is None:
        result["capacities_rps"] = capacities_of(urls, split, folder)
        capacity = max(result["capacities_rps"].values())
        print(
            f"split {asked.split}: the instances carry, in requests/s, {result['capacities_rps']}", flush=True
        )
    for load in asked.load or LOADS:
        rate = LOADS[load] * capacity
        deployments = {} if profile is None else {"chosen": split.chosen(profile, rate)}
        for text in asked.batch:
            batch, _, wait_ms = text.partition(":")
            deployments[f"B={text}"] = split.deployment(int(batch), float(wait_ms or 0), asked.fanout)
        result[load] = compare(deployments, urls, rate, asked.requests, asked.rounds, folder)
        for name, deployment in deployments.items():
            result[load][name]["deployment"] = deployment.model_dump(
                mode="json", exclude_none=True, exclude={"evidence"}
            )
            print(shown(load, name, deployment, result[load]), flush=True)
        if asked.out is not None:
            asked.out.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
