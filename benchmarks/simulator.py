"""How fast is the simulator: requests a second of the compiled kernel, beside its plain-Python twin.

    python benchmarks/simulator.py [--requests N] [--rounds N]

The workload is the shipped one for images; the profile has every kind of row that the rules know
(SM shares, batches, tokens, interference both ways, preprocess, both transfers) and the deployments
are one of each topology. Time is the process's own, on one core; the best of the rounds counts.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np

from has.core.deployment import Deployment
from has.core.figures import figures
from has.core.profile import Profile
from has.core.stage import MODALITIES
from has.files.shipped import shipped
from has.files.workload import load_workload
from has.sim.draw import draw_requests
from has.sim.simulator import Simulator

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "sim"))

RATE = 14.0
TWIN_REQUESTS = 1500


def profile_rows() -> list[dict[str, object]]:
    """Made up, in the shape of a 7B model on a large GPU."""
    rows: list[dict[str, object]] = []

    def add(stage: str, sm: int, batch: int, tokens: int, latency: float, beside: str = "none") -> None:
        rows.append(
            {
                "stage": stage,
                "sm_percent": sm,
                "batch": batch,
                "tokens": tokens,
                "latency_s": latency,
                "beside": beside,
            }
        )

    for sm in (10, 20, 40, 60, 80, 100):
        for batch in (1, 2, 4, 8):
            for tokens in (256, 1024, 4096):
                encode = (0.02 + 3e-5 * batch * tokens) * max(1.0, (40 + 8 * batch) / sm)
                add("encode", sm, batch, tokens, encode)
                add("encode", sm, batch, tokens, 1.1 * encode, "prefill")
            for tokens in (256, 1024, 4096, 8192):
                prefill = (0.01 + 4e-5 * batch * tokens + 1e-9 * batch * tokens**2) * (1 + 50 / sm) / 1.5
                add("prefill", sm, batch, tokens, prefill)
                add("prefill", sm, batch, tokens, 1.1 * prefill, "encode")
    for batch in (1, 4, 16, 64, 256):
        for tokens in (256, 1024, 4096, 16384):
            add("decode", 100, batch, tokens, 0.015 + 1e-4 * batch + 4e-8 * batch * tokens)
    for tokens in (64, 4096):
        add("preprocess", 100, 1, tokens, 0.01 + 2e-5 * tokens)
        add("embedding_transfer", 100, 1, tokens, 1e-4 + 1e-6 * tokens)
        add("kv_transfer", 100, 1, tokens, 1e-4 + 3e-6 * tokens)
    return rows


def profile_data() -> dict[str, object]:
    metadata = {
        "version": 1,
        "device": "made-up",
        "model": "tiny-image",
        "source": "roofline",
        "memory_bytes": 80 * 10**9,
        "kv_bytes_per_token": 100_000,
        "weights_bytes": {"encoder": 10**9, "lm": 16 * 10**9},
    }
    return {"metadata": metadata, "rows": profile_rows()}


def deployments() -> dict[str, dict[str, object]]:
    base: dict[str, object] = {
        "version": 1,
        "model": "tiny-image",
        "gpus": 8,
        "slo": {"ttft_ms": 2000.0, "tpot_ms": 50.0},
        "rate": RATE,
        "max_wait_ms": 500.0,
    }
    table = [{"batch": b, "encode_sm": x} for b, x in ((1, 40.0), (2, 60.0), (4, 80.0))]
    split = base | {
        "topology": "disaggregated",
        "alloc": {"encode": 3, "prefill": 1, "decode": 4},
        "encode_batch": 4,
        "prefill_offload": 0.5,
        "sm_table": table,
    }
    return {
        "3E1P4D, s = 0.5": split,
        "3E1P4D, s = 1": split | {"prefill_offload": 1.0},
        "3E1P4D, s = 0.5, bounded queue": split | {"max_queue": 500},
        "3E5PD": base | {"topology": "e_pd", "alloc": {"encode": 3, "prefill_decode": 5}, "encode_batch": 4},
        "8M": base | {"topology": "monolithic", "alloc": {"all": 8}},
        "384E128P512D, s = 0.5": split
        | {"gpus": 1024, "alloc": {"encode": 384, "prefill": 128, "decode": 512}, "rate": RATE * 128},
    }


def main() -> None:
    from twin import Twin

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--requests", type=int, default=30_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()

    workload = load_workload(shipped("workloads") / "image.yaml")
    data = profile_data()
    simulator = Simulator(Profile.model_validate(data))
    requests = draw_requests(workload, rate=RATE, requests=options.requests, seed=1, model="tiny-image")
    few = requests[:TWIN_REQUESTS]
    rows = [
        {
            "arrival_s": int(few.arrival_ns[i]) / 1e9,
            "modality": MODALITIES[few.modality[i]],
            "media_tokens": int(few.media_tokens[i]),
            "prompt_tokens": int(few.prompt_tokens[i]),
            "output_tokens": int(few.output_tokens[i]),
        }
        for i in range(len(few))
    ]
    print(f"{options.requests} requests of {workload.name} at {RATE:g}/s; twin on {len(rows)}")
    print(f"{'deployment':32} {'kernel M/s':>11} {'with figures':>13} {'twin k/s':>9} {'ratio':>7}")
    for name, fields in deployments().items():
        deployment = Deployment.model_validate(fields)
        # As many requests for each GPU as the small ones have.
        prepared = simulator.prepare(requests, 1)
        if deployment.rate and deployment.rate > RATE:
            prepared = prepared.at_rate(deployment.rate)
        records = simulator.run(deployment, prepared)  # compiles, where nothing is cached
        kernel, scored = [], []
        for _ in range(options.rounds):
            start = time.process_time()
            records = simulator.run(deployment, prepared)
            kernel.append(time.process_time() - start)
            figures(records, deployment.slo)
            scored.append(time.process_time() - start)
        if deployment.gpus > 100:  # the twin looks at every worker for every event
            print(f"{name:32} {options.requests / float(np.min(kernel)) / 1e6:11.2f}")
            continue
        start = time.process_time()
        Twin(fields, data, rows, seed=1).run()
        twin = len(rows) / (time.process_time() - start)
        rate = options.requests / float(np.min(kernel))
        full = options.requests / float(np.min(scored))
        print(f"{name:32} {rate / 1e6:11.2f} {full / 1e6:13.2f} {twin / 1e3:9.2f} {rate / twin:7.0f}")


if __name__ == "__main__":
    main()
