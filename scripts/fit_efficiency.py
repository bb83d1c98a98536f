#!/usr/bin/env python
"""Fit the roofline's efficiency factors on kernel times that were measured, and write them with their errors.

    pip install 'has-epd[silicon]'
    python scripts/fit_efficiency.py            writes has/files/facts/efficiency.json

The times are the tables in aiconfigurator-core (Apache-2.0), which NVIDIA measured with vLLM's kernels. For each kind of
operation, c, s, w and start of the formula in `has/latency/roofline.py` minimise a soft-L1 loss of the logarithm of
computed over measured, every GPU counting alike: for each GPU alone, for all, and for all but one (which is what
`benchmarks/roofline_vs_silicon.py` judges that one by).
"""

from __future__ import annotations

import functools
import json
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

import numpy as np
import pandas as pd
import yaml
from scipy.optimize import least_squares

from has.files.facts import FOLDER
from has.latency.roofline import Factors, Gpu, attention_tiles, gemm_tiles, kernel_seconds

SYSTEMS = Path(str(files("aiconfigurator_core"))) / "systems"
TABLES = {
    "A100 80GB SXM": "a100_sxm",
    "H100 SXM": "h100_sxm",
    "H200 SXM": "h200_sxm",
    "L40S": "l40s",
    "B200 SXM": "b200_sxm",
    "RTX PRO 6000 Server": "rtx_pro_6000_server",
}
SAME_CHIP = {"RTX 6000 Ada": "L40S", "A100 40GB SXM": "A100 80GB SXM"}
START = {"compute": 0.75, "stream": 0.8, "fill": 0.3, "start_s": 4e-6}
PRIOR = 0.02
"""Weight of the pull to START, in units of log error: what a table says nothing about stays there."""


def gpu(name: str) -> Gpu:
    if name != "RTX PRO 6000 Server":
        return Gpu.from_facts(name)
    sheet = yaml.safe_load((SYSTEMS / "rtx_pro_6000_server.yaml").read_text())
    peak = {"bfloat16": sheet["gpu"]["bfloat16_tc_flops"], "fp8": sheet["gpu"]["fp8_tc_flops"]}
    link = float(sheet["node"]["intra_node_bw"])
    return Gpu(
        name, 188, int(sheet["gpu"]["mem_capacity"]), float(sheet["gpu"]["mem_bw"]), peak, link, "pcie"
    )


def table(system: str, family: str, name: str) -> tuple[pd.DataFrame, str] | None:
    found = sorted((SYSTEMS / "data" / system / family / "vllm").glob(f"*/{name}.parquet"))
    return (pd.read_parquet(found[-1]), found[-1].parent.name) if found else None


def gemms(data: pd.DataFrame, dtype: str) -> pd.DataFrame:
    rows = data[(data.gemm_dtype == dtype) & (data.m <= 16384)]
    rows = rows[rows.n.between(1024, 70000) & rows.k.between(1024, 20000)]
    rows = rows.groupby(["m", "n", "k"], as_index=False).latency.min()
    m, n, k = (rows[axis].to_numpy(float) for axis in "mnk")
    width = 1 if dtype == "fp8" else 2
    return pd.DataFrame(
        {
            "flops": 2 * m * n * k,
            "bytes": 2 * m * (n + k) + width * n * k,
            "tiles": gemm_tiles(m, n),
            "seconds": rows.latency * 1e-3,
        }
    )


def attentions(data: pd.DataFrame, kind: str) -> pd.DataFrame:
    data = data if "window_size" in data else data.assign(window_size=0)  # older tables have no windows
    rows = data[
        (data.attn_dtype == "bfloat16") & data.head_dim.isin([64, 72, 80, 128]) & (data.num_heads >= 4)
    ]
    if kind != "encoder":
        rows = rows[(rows.kv_cache_dtype == "bfloat16") & (rows.window_size == 0)]
    length = rows.step + 1 if kind == "decode" else rows.isl
    rows = rows.assign(length=length, kv=rows.num_key_value_heads if kind != "encoder" else rows.num_heads)
    rows = rows[
        (rows.length >= 64) & (rows.batch_size * rows.length <= (1 << 20 if kind == "decode" else 1 << 16))
    ]
    keys = ["batch_size", "length", "num_heads", "kv", "head_dim"]
    rows = rows.groupby(keys, as_index=False).latency.min()
    b, n, h, kv, d = (rows[key].to_numpy(float) for key in keys)
    queries = np.ones_like(n) if kind == "decode" else n
    return pd.DataFrame(
        {
            "flops": 4 * b * h * d * queries * n * SHARE[kind],
            "bytes": 4 * b * d * (queries * h + n * kv),
            "tiles": attention_tiles(b, h, queries),
            "seconds": rows.latency * 1e-3,
        }
    )


SHARE = {"context": 0.5, "encoder": 1.0, "decode": 0.0}
"""Share of all pairs that is computed; in decode reading the KV is all that counts."""


def reductions(data: pd.DataFrame, gpus: int) -> pd.DataFrame:
    rows = data[data.allreduce_dtype.isin(["bfloat16", "half"]) & (data.num_gpus == gpus)]
    rows = rows.groupby(["num_gpus", "message_size"], as_index=False).latency.min()
    rows = rows[rows.message_size.between(1 << 12, 1 << 26)]  # elements, of two bytes
    moved = 2 * (rows.num_gpus - 1) / rows.num_gpus * rows.message_size * 2
    return pd.DataFrame({"flops": 0.0, "bytes": moved, "tiles": 1.0, "seconds": rows.latency * 1e-3})


KINDS = {
    "gemm": ("gemm", "gemm_perf", lambda data: gemms(data, "bfloat16")),
    "gemm_fp8": ("gemm", "gemm_perf", lambda data: gemms(data, "fp8")),
    "context_attention": ("attention", "context_attention_perf", lambda data: attentions(data, "context")),
    "encoder_attention": (
        "encoder_attention",
        "encoder_attention_perf",
        lambda data: attentions(data, "encoder"),
    ),
    "decode_attention": ("attention", "generation_attention_perf", lambda data: attentions(data, "decode")),
} | {
    f"all_reduce_{gpus}_{link}": ("comm", "custom_allreduce_perf", functools.partial(reductions, gpus=gpus))
    for gpus in (2, 4, 8)
    for link in ("nvlink", "pcie")
}
DECLARED = {"compute": 1.0, "stream": 0.8, "fill": 0.0, "start_s": 3e-6}
"""Elementwise kernels: there is no table; both this estimate and aiconfigurator-core assume these figures."""


def computed(values: np.ndarray, rows: pd.DataFrame, card: Gpu, kind: str) -> np.ndarray:
    compute, stream, start_s = np.exp(values[:3])
    bandwidth = card.link if kind.startswith("all_reduce") else card.bandwidth
    peak = card.peak.get("fp8" if kind == "gemm_fp8" else "bfloat16", 1.0)
    factors = Factors(compute, stream, values[3], start_s)
    return kernel_seconds(rows.flops, rows.bytes, rows.tiles, peak, bandwidth, card.sms, factors)


def fit(kind: str, tables: dict[str, pd.DataFrame]) -> dict[str, float]:
    start = np.array([*np.log([START["compute"], START["stream"], START["start_s"]]), START["fill"]])

    def residuals(values: np.ndarray) -> np.ndarray:
        parts = [
            np.log(computed(values, rows, gpu(name), kind) / rows.seconds.to_numpy()) / np.sqrt(len(rows))
            for name, rows in tables.items()
        ]
        return np.concatenate([*parts, PRIOR * (values - start)])

    size = max(len(rows) for rows in tables.values())
    low = [np.log(0.02), np.log(0.02), np.log(1e-7), 0.0]
    high = [np.log(1.2), np.log(3.0), np.log(1e-3), 1.5]
    solved = least_squares(residuals, start, bounds=(low, high), loss="soft_l1", f_scale=0.1 / np.sqrt(size))
    compute, stream, start_s = np.exp(solved.x[:3])
    return {
        "compute": round(float(compute), 4),
        "stream": round(float(stream), 4),
        "fill": round(float(solved.x[3]), 4),
        "start_s": float(f"{start_s:.3g}"),
    }


def judged(kind: str, factors: dict[str, float], tables: dict[str, pd.DataFrame]) -> dict[str, float]:
    """Errors of computed against measured over the tables: median and 90th percentile, and the median's sign."""
    values = np.array([*np.log([factors["compute"], factors["stream"], factors["start_s"]]), factors["fill"]])
    errors = np.concatenate(
        [
            computed(values, rows, gpu(name), kind) / rows.seconds.to_numpy() - 1
            for name, rows in tables.items()
        ]
    )
    return {
        "error_p50": round(float(np.median(np.abs(errors))), 3),
        "error_p90": round(float(np.quantile(np.abs(errors), 0.9)), 3),
        "bias_p50": round(float(np.median(errors)), 3),
        "points": len(errors),
    }


def main() -> None:
    known = list(TABLES)
    alone: dict[str, dict[str, object]] = {name: {} for name in known}
    without: dict[str, dict[str, object]] = {name: {} for name in known}
    together: dict[str, object] = {}
    versions: dict[str, str] = {}
    for kind, (family, file, shape) in KINDS.items():
        tables = {}
        for name, system in TABLES.items():
            if kind.startswith("all_reduce") and not kind.endswith(gpu(name).link_kind):
                continue
            if (read := table(system, family, file)) is not None and len(rows := shape(read[0])):
                tables[name] = rows
                versions[f"{system}/{family}"] = f"vllm {read[1]}"
        together[kind] = (factors := fit(kind, tables)) | judged(kind, factors, tables)
        for name in known:
            rest = {other: rows for other, rows in tables.items() if other != name}
            factors = fit(kind, rest) if name in tables else together[kind]
            without[name][kind] = dict(factors)
            if name in tables:
                without[name][kind] = factors | judged(kind, factors, {name: tables[name]})
                own = fit(kind, {name: tables[name]})
                alone[name][kind] = own | judged(kind, own, {name: tables[name]})
        print(kind, together[kind])
        for name in tables:
            print("   ", name, "own", alone[name][kind], "without", without[name][kind])
    for kinds in (together, *without.values()):
        kinds["elementwise"] = DECLARED
    document = {
        "about": "efficiency factors of has/latency/roofline.py, written by scripts/fit_efficiency.py; errors are of"
        " computed against measured kernel times, `without` X: fitted on all but X, judged on X",
        "sources": {
            "kernels": f"aiconfigurator-core {version('aiconfigurator-core')} (Apache-2.0, NVIDIA), measured kernel times",
            "tables": versions,
            "elementwise": "assumed, no table: 80 % of bandwidth and 3 us a kernel, as aiconfigurator-core assumes",
        },
        "same_chip": SAME_CHIP,
        "all": together,
        "gpus": alone,
        "without": without,
    }
    (FOLDER / "efficiency.json").write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
