"""Records of a run -> its figures, the mapping that `has simulate --json`, a trial and a bench share.

Warm-up: requests that arrive less than `warmup_s` after the first arrival are left out, and their
span is left out of the duration; a stage's work counts from that instant on. What has nothing to
average is None.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from has.core.records import COMPLETED, NEVER, REFUSED, ROUTES, Records, StageLoad
from has.core.requests import Requests
from has.core.slo import Slo
from has.errors import InputError

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

PERCENTILES = (50, 90, 99)


def met(records: Records, slo: Slo) -> Bools:
    """Which requests completed within both bounds (at <=); a request's own SLO goes before `slo`.

    TPOT = (last token - first token)/(L-1); a request of one token needs only TTFT.
    """
    requests = records.requests
    ttft_s, tpot_s = requests.bounds_s(slo)
    # A bound in decimal milliseconds is a whole number of ns (or nearly so): rounding makes <= exact.
    in_time = records.first_token_ns - requests.arrival_ns <= np.rint(ttft_s * 1e9)
    gaps = requests.output_tokens - 1
    in_pace = records.finish_ns - records.first_token_ns <= np.rint(tpot_s * 1e9 * gaps)
    result: Bools = (
        (records.status == COMPLETED) & (records.first_token_ns != NEVER) & in_time & (in_pace | (gaps == 0))
    )
    return result


def attainment(records: Records, slo: Slo, warmup_s: float = 0.0) -> float | None:
    """Share of requests that met the SLO, alone (what a rate scan asks for again and again)."""
    kept = kept_after(records, warmup_s)
    return float(np.mean(met(records, slo)[kept])) if kept.any() else None


def kept_after(records: Records, warmup_s: float) -> Bools:
    """Which requests arrived `warmup_s` or more after the first."""
    arrival = records.requests.arrival_ns
    result: Bools = arrival >= _window_start(arrival, warmup_s)
    return result


def check_warmup(requests: Requests, warmup_s: float) -> None:
    """InputError where the warm-up outlasts the arrivals: no request would be left to count."""
    if not 0 <= warmup_s < math.inf:
        raise InputError(
            "not a length of time",
            where="argument",
            field="warmup_s",
            value=warmup_s,
            allowed="seconds, 0 or more",
            mend="a warm-up of 0 counts every request",
        )
    arrival = requests.arrival_ns
    span_s = (int(arrival[-1]) - int(arrival[0])) / 1e9 if len(arrival) else math.inf
    # In full: a rounded bound might itself be refused. And far beyond it there are no nanoseconds.
    if warmup_s > span_s + 1 or (len(arrival) and _window_start(arrival, warmup_s) > int(arrival[-1])):
        raise InputError(
            f"leaves no request to count: all {len(arrival)} arrive within {span_s} s",
            where="argument",
            field="warmup_s",
            value=warmup_s,
            allowed=f"at most {span_s}, the time from the first arrival to the last",
            mend="a shorter warm-up, or more requests",
        )


def figures(records: Records, slo: Slo, warmup_s: float = 0.0) -> dict[str, Any]:
    """The figures of a run; sets nothing in `records`."""
    requests = records.requests
    arrival = requests.arrival_ns
    since = _window_start(arrival, warmup_s)
    kept = arrival >= since
    count = int(np.sum(kept))
    done = kept & (records.status == COMPLETED)
    completed = int(np.sum(done))
    ok = int(np.sum(met(records, slo)[kept]))
    until = int(records.finish_ns[done].max()) if completed else since
    duration_s = (until - since) / 1e9
    span_s = float(arrival[kept][-1] - arrival[kept][0]) / 1e9 if count else 0.0

    answered = done & (records.first_token_ns != NEVER)
    paced = answered & (requests.output_tokens > 1)
    ttft = records.first_token_ns[answered] - arrival[answered]
    tpot = (records.finish_ns[paced] - records.first_token_ns[paced]) / (requests.output_tokens[paced] - 1)
    result: dict[str, Any] = {
        "requests": count,
        "completed": completed,
        "failed": count - completed,
        "refused": int(np.sum(kept & (records.status == REFUSED))),
        "duration_s": duration_s,
        "offered_rps": (count - 1) / span_s if span_s > 0 else None,
        "throughput_rps": completed / duration_s if duration_s > 0 else None,
        "goodput_rps": ok / duration_s if duration_s > 0 else None,
        "attainment": ok / count if count else None,
        "ttft_ms": _spread(ttft),
        "tpot_ms": _spread(tpot),
        "e2e_ms": _spread(records.finish_ns[done] - arrival[done]),
        "stages": {
            name: _stage(name, load, records, kept, since, until) for name, load in records.stages.items()
        },
    }
    if "prefill_local" in records.stages:
        result["routed"] = {name: int(np.sum(kept & (records.route == i))) for i, name in enumerate(ROUTES)}
    return result


def _window_start(arrival: Ints, warmup_s: float) -> int:
    return int(arrival[0]) + round(warmup_s * 1e9) if len(arrival) else 0


def _spread(times_ns: Floats | Ints, *, most: bool = False) -> dict[str, float | None]:
    """Mean and percentiles (linear interpolation) in ms, `max` too where asked."""
    names = ["mean", *(f"p{q}" for q in PERCENTILES), *(["max"] if most else [])]
    if len(times_ns) == 0:
        return dict.fromkeys(names, None)
    values = np.percentile(times_ns, PERCENTILES)
    spread = [np.mean(times_ns), *values, *([np.max(times_ns)] if most else [])]
    return {name: float(value) / 1e6 for name, value in zip(names, spread, strict=True)}


def _stage(
    name: str, load: StageLoad, records: Records, kept: Bools, since: int, until: int
) -> dict[str, Any]:
    window_ns = until - since
    inside = load.start_ns >= since
    starts, ends = load.start_ns[inside], load.end_ns[inside]
    size = load.together[inside] if len(load.together) else load.size[inside]
    busy_ns: float
    if len(load.start_ns):
        within = np.clip(load.end_ns, since, until) - np.clip(load.start_ns, since, until)
        busy_ns = float(np.sum(within * load.part if len(load.part) else within))
    else:
        busy_ns = float(load.busy_ns)
    result: dict[str, Any] = {
        "utilisation": busy_ns / (load.workers * window_ns) if load.workers and window_ns > 0 else None,
    }
    if name == "decode":
        if len(load.repeats):
            repeats = load.repeats[inside]
            steps, sequences = int(np.sum(repeats)), int(np.sum(repeats * size))
        else:
            steps, sequences = load.steps, load.step_seqs
        result |= {"batches": steps, "mean_batch": sequences / steps if steps else None}
        service = _between(records.decode_start_ns, records.finish_ns, kept)
    else:
        result |= {"batches": len(size), "mean_batch": float(np.mean(size)) if len(size) else None}
        service = ends - starts
    if name == "encode":
        full = load.full[inside] if len(load.full) else np.empty(0, np.bool_)
        result["full_share"] = float(np.mean(full)) if len(full) else None
    result["wait_ms"] = _spread(_wait(name, load, records, kept), most=True)
    result["service_ms"] = _spread(service, most=True)
    return result


def _wait(name: str, load: StageLoad, records: Records, kept: Bools) -> Ints:
    """From being ready for a stage until its service starts, over the requests that got there."""
    arrival = records.requests.arrival_ns
    if name == "preprocess":
        who = np.flatnonzero(records.preprocessed_ns != NEVER)
        if len(who) != len(load.start_ns):
            return np.empty(0, np.int64)
        result: Ints = (load.start_ns - arrival[who])[kept[who]]
        return result
    if name == "encode":
        if np.all(records.encode_start_ns == NEVER) and "prefill" in records.stages:
            # A worker of all stages encodes a request in the iteration that starts its prefill.
            media = kept & records.requests.is_media
            return _between(records.prefill_ready_ns, records.prefill_start_ns, media)
        ready = np.where(records.preprocessed_ns == NEVER, arrival, records.preprocessed_ns)
        return _between(ready, records.encode_start_ns, kept)
    if name == "decode":
        return _between(records.decode_ready_ns, records.decode_start_ns, kept)
    if name in ("prefill_local", "prefill_remote"):
        kept = kept & (records.route == ROUTES.index(name.removeprefix("prefill_")))
    return _between(records.prefill_ready_ns, records.prefill_start_ns, kept)


def _between(start: Ints, end: Ints, who: Bools) -> Ints:
    there = who & (start != NEVER) & (end != NEVER)
    result: Ints = end[there] - start[there]
    return result
