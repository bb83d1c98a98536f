"""Random small cases for the agreement of kernel and twin: every option, and times that collide."""

from __future__ import annotations

import random

TOPOLOGIES = ("disaggregated", "e_pd", "monolithic")


SHORT = (1, 1, 2, 3, 5, 9)
LONG = (1, 40, 150, 333)


def case(seed: int, topology: str | None = None, outputs=SHORT):
    """(deployment, profile, rows of requests, seed of dispatch), as plain mappings."""
    rng = random.Random(seed)
    topology = topology or rng.choice(TOPOLOGIES)
    # On a coarse clock arrivals, services and timers meet at the same instants all the time.
    coarse = rng.random() < 0.6
    deployment = _deployment(rng, topology, coarse)
    profile = _profile(rng, topology, coarse)
    return deployment, profile, _requests(rng, coarse, outputs), rng.randrange(1000)


def _pick(rng, weighted):
    values, weights = zip(*weighted, strict=True)
    return rng.choices(values, weights)[0]


def _deployment(rng, topology, coarse):
    d = {
        "version": 1,
        "model": "m",
        "topology": topology,
        "slo": {"ttft_ms": 2000.0, "tpot_ms": 400.0},
        "dispatch": rng.choice(["random", "round_robin", "shortest_queue"]),
    }
    tp = rng.choice([1, 1, 1, 2])
    if topology == "monolithic":
        workers = rng.randint(1, 3)
        d |= {"gpus": workers * tp, "alloc": {"all": workers * tp}, "tensor_parallel": {"all": tp}}
    else:
        encode = rng.randint(1, 4)
        d["encode_batch"] = rng.choice([1, 2, 2, 3, 4])
        d["fill_probability"] = rng.choice([0.0, 0.125, 0.5, 0.6, 1.0])
        if rng.random() < 0.5:
            d["max_wait_ms"] = rng.choice([0.0, 250.0, 500.0, 1500.0, 733.0])
        if topology == "e_pd":
            workers = rng.randint(1, 3)
            d |= {
                "alloc": {"encode": encode, "prefill_decode": workers * tp},
                "tensor_parallel": {"prefill_decode": tp},
            }
        else:
            s = rng.choice([0.0, 0.3, 0.5, 1.0])
            span = rng.choice([1, 1, 2]) if s < 1 else 1
            prefill = 0 if s == 0 else rng.randint(1, 2) * tp
            decode = rng.randint(1, 3)
            encode = max(span, encode - encode % span)
            d |= {
                "alloc": {"encode": encode, "prefill": prefill, "decode": decode},
                "tensor_parallel": {"prefill": tp, "local_prefill": span},
                "prefill_offload": s,
                "offload_unit": rng.choice(["request", "token"]),
                "first_token": rng.choice(["prefill", "prefill", "decode"]),
                "sm_table": _sm_table(rng, d["encode_batch"]),
            }
            if rng.random() < 0.4:
                d["max_prefill_requests"] = rng.randint(1, 2)
        d["gpus"] = sum(d["alloc"].values())
    if rng.random() < 0.8:
        d["rate"] = rng.choice([0.5, 1.0, 2.0, 4.0])
    if rng.random() < 0.5:
        d["max_num_batched_tokens"] = rng.choice([40, 100, 150, 400])
    if rng.random() < 0.5:
        d["max_num_seqs"] = rng.randint(1, 4)
    if rng.random() < 0.4:
        d["kv_tokens"] = rng.choice([120, 260, 400, 700])
    if rng.random() < 0.3:
        d["max_queue"] = rng.randint(1, 6)
    if rng.random() < 0.5:
        d["preprocess_workers"] = rng.randint(1, 3)
    if rng.random() < 0.25 and topology != "monolithic":
        d["rate_estimate"] = "online"
    return d


def _sm_table(rng, bound):
    if rng.random() < 0.3:
        return "streams"
    batches = sorted({1, *rng.sample(range(1, bound + 1), rng.randint(1, bound))})
    # 100 leaves local prefill nothing; shares need not rise with the batch.
    return [{"batch": b, "encode_sm": rng.choice([20.0, 40.0, 50.0, 80.0, 100.0])} for b in batches]


def _profile(rng, topology, coarse):
    rows = []

    def grid(stage, shares, batches, tokens, scale, beside="none"):
        # Rising along every axis: a falling one would extrapolate below zero. Often nothing without tokens.
        eighths = rng.choice([0, 0, 1]) if tokens[0] == 0 else 2
        wild = rng.uniform(0.9, 1.1)
        for t in tokens:
            for b in batches:
                for sm in shares:
                    if coarse:
                        latency = (eighths * max(1, round(scale * 8)) + b - 1) * (1 if sm >= 60 else 2) / 8
                    else:
                        latency = wild * scale * (0.2 + 0.3 * b) * (0.3 + t / 100) * (0.4 + 60 / sm)
                    rows.append(
                        {
                            "stage": stage,
                            "beside": beside,
                            "sm_percent": sm,
                            "batch": b,
                            "tokens": t,
                            "latency_s": latency,
                        }
                    )
            eighths += rng.randint(0, 2)

    shares = rng.choice([[100], [50, 100], [20, 60, 100]])
    batches = rng.choice([[1], [1, 2], [1, 4]])
    tokens = rng.choice([[100], [0, 100], [50, 100, 200]])
    grid("encode", shares, batches, tokens, rng.choice([0.1, 0.5, 1.0]))
    grid("prefill", shares, batches, tokens, rng.choice([0.1, 0.3, 1.0]))
    if rng.random() < 0.35:
        grid("encode", shares, batches, tokens, rng.choice([0.2, 0.9]), beside="prefill")
    if rng.random() < 0.35:
        grid("prefill", shares, batches, tokens, rng.choice([0.2, 0.9]), beside="encode")
    grid("decode", [100], rng.choice([[1], [1, 3]]), tokens, rng.choice([0.02, 0.1, 0.25]))
    for stage, chance, scale in (
        ("preprocess", 0.4, 0.3),
        ("embedding_transfer", 0.5, 0.1),
        ("kv_transfer", 0.5, 0.1),
    ):
        if rng.random() < chance:
            grid(stage, [100], [1], rng.choice([[100], [0, 100]]), scale)
    metadata = {"version": 1, "device": "d", "model": "m", "source": "measured"}
    if rng.random() < 0.2:
        metadata |= {
            "memory_bytes": 3000,
            "kv_bytes_per_token": 5,
            "kv_heads": 1,
            "weights_bytes": {"encoder": 300, "lm": 400},
        }
    return {"metadata": metadata, "rows": rows}


def _requests(rng, coarse, outputs):
    count = rng.choice([1, 3, 8, 12, 16, 24])
    text = rng.choice([0.0, 0.3, 0.7])
    spread = rng.choice([0.2, 1.0, 4.0])
    now, rows = 0.0, []
    for _ in range(count):
        now += rng.choice([0, 0, 1, 1, 2, 3, 8]) * spread / 4 if coarse else rng.expovariate(1 / spread)
        media = rng.random() >= text
        rows.append(
            {
                "arrival_s": now,
                "modality": "image" if media else "text",
                "media_tokens": rng.choice([0, 20, 50, 100, 100]) if media else 0,
                "prompt_tokens": rng.choice([0, 10, 30, 100]),
                "output_tokens": rng.choice(outputs),
            }
        )
    return rows
