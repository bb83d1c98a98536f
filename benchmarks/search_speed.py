"""How long a search takes, and what is lost by not looking at everything.

    python benchmarks/search_speed.py [--gpus 8] [--gpus 64] …    # `has search` in a process of its own
    python benchmarks/search_speed.py --gpus 8 --cores 1          # the same on one core
    python benchmarks/search_speed.py --gap 16 [--gap 24] …       # coarse to fine against every candidate
    python benchmarks/search_speed.py --gap 24 --smallest 8       # beginning with a copy of an eighth of that

The compiled kernel is cached first. CPU seconds are the child's own, on all cores; wall seconds mean
something on an idle machine only. Memory is the child's own peak (VmHWM; ru_maxrss begins with its
parent's). The gap is between the best of 30 finalists of either way, all judged on the same list.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from has.core.space import SearchSpace
from has.files.profile import load_profile
from has.files.shipped import shipped
from has.files.workload import load_workload
from has.search.coarse import SMALLEST, coarse_to_fine
from has.search.objective import Objective
from has.search.predict import Predictor
from has.search.problem import Problem
from has.search.prune import only_possible
from has.search.question import longer
from has.search.screen import ranked, screen
from has.search.space import enumerate_space
from has.sim.draw import draw_requests

CASES = {
    "image": ("h100-qwen2.5-vl-7b.parquet", "image.yaml"),
    "tiny-image": ("cpu-tiny-image.parquet", "tiny-image.yaml"),
}
FINALISTS = 30
AND_TELL_THE_PEAK = """
import atexit, re, sys
at = sys.argv.pop(1)
peak = lambda: re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1]
atexit.register(lambda: open(at, "w").write(peak()))
from has.cli.entry import main
main()
"""


def paths(case: str) -> tuple[Path, Path]:
    profile, workload = CASES[case]
    return shipped("profiles") / profile, shipped("workloads") / workload


def whole_search(gpus: int, case: str, cores: int | None) -> None:
    profile, workload = paths(case)
    with tempfile.TemporaryDirectory() as folder:
        peak = Path(folder) / "peak"
        command = [sys.executable, "-c", AND_TELL_THE_PEAK, str(peak)]
        if cores is not None:
            command = ["taskset", "-c", ",".join(map(str, range(cores))), *command]
        command += ["search", "--gpus", str(gpus), "--on", "simulated"]
        command += ["--profile", str(profile), "--workload", str(workload)]
        command += ["--run", f"{folder}/run", "--out", f"{folder}/best.yaml"]
        start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
        memory = int(peak.read_text()) / 1024
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    lines = (done.stdout + done.stderr).splitlines()
    told = [line.strip() for line in lines if "simulations" in line or "the largest rate that" in line]
    print(
        f"{case}, {gpus} GPUs: {cpu:.1f} s CPU, {wall:.1f} s wall, {memory:.0f} MiB; {'; '.join(told)}",
        flush=True,
    )


def gap(gpus: int, case: str, smallest: int) -> None:
    at, file = paths(case)
    profile, workload = load_profile(at), load_workload(file)
    rate = workload.arrivals.rate or 8.0
    count = 1000 * longer(gpus)
    space = SearchSpace(version=1)
    assert workload.slo is not None
    model = profile.metadata.model
    problem = Problem(
        gpus=gpus,
        profile=profile,
        workload=workload,
        objective=Objective("max-rate", (), workload.slo),
        requests=draw_requests(workload, rate=rate, requests=count, seed=0, model=model),
        base_rate=rate,
        settings={"model": model},
        batches=space.encode_batch,
    )
    few = problem.requests[: 300 * longer(gpus)]
    results = []
    for everything in (False, True):
        predictor, start = Predictor(problem), time.process_time()
        if everything:
            possible = only_possible(problem, enumerate_space(space, gpus)).kept
            scores = screen(predictor, possible, few, lambda _: None)
        else:
            scores = coarse_to_fine(space, gpus, predictor, few, smallest=smallest)
        finalists = {
            c: predictor.score(c, problem.requests).value
            for c in ranked(problem.objective, scores)[:FINALISTS]
        }
        best = max(finalists, key=lambda c: finalists[c])
        results.append((len(scores), time.process_time() - start, best.label, finalists[best]))
    (seen, quick, found, value), (whole, slow, true, most) = results
    print(
        f"{case}, {gpus} GPUs: coarse to fine {found} {value:.4g}/s ({seen} candidates, {quick:.1f} s CPU);"
        f" everything {true} {most:.4g}/s ({whole}, {slow:.1f} s); gap {100 * (1 - value / most):.2f} %",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--gpus", type=int, action="append", default=[])
    parser.add_argument("--gap", type=int, action="append", default=[])
    parser.add_argument("--case", choices=CASES, action="append", default=[])
    parser.add_argument("--cores", type=int)
    parser.add_argument("--smallest", type=int, default=SMALLEST)
    options = parser.parse_args()
    for case in options.case or CASES:
        for gpus in options.gpus:
            whole_search(gpus, case, options.cores)
        for gpus in options.gap:
            gap(gpus, case, options.smallest)


if __name__ == "__main__":
    main()
