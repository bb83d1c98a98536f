"""A workload and a seed -> a list of requests.

`SeedSequence(seed).spawn(3)` seeds one PCG64 generator each for arrivals, sizes and dispatch, so that
the same seed gives the same sizes at every rate, and arrivals that are the same but for their pace.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from has.core.requests import Requests
from has.core.stage import MODALITIES
from has.core.workload import Distribution, RequestClass, Workload
from has.errors import InputError
from has.files.trace import load_trace

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

DEFAULT_REQUESTS = 3000
_Z99 = 2.3263478740408408
"""The 99th percentile of the standard normal: sigma of a lognormal is ln(p99/p50)/z."""
_NS = 1e9
LAST_ARRIVAL_S = 4e9
"""The simulator's clock ends at 2^62 ns, 146 years; this leaves the last request some time to be served."""


def generators(seed: int) -> list[np.random.Generator]:
    """Those of arrivals, sizes, dispatch."""
    return [np.random.Generator(np.random.PCG64(s)) for s in np.random.SeedSequence(seed).spawn(3)]


def draw_requests(
    workload: Workload,
    *,
    rate: float | None = None,
    requests: int | None = None,
    seed: int = 0,
    model: str | None = None,
) -> Requests:
    """`requests` of `workload` (default 3000; a trace is replayed whole) at `rate` (default: its own).

    A trace keeps its times, multiplied by `time_scale`, unless `rate` is given: then they are
    stretched so that the mean rate is that. `model` says how many tokens a picture, clip or recording
    makes, where sizes are given in pixels or seconds. Raises InputError without a rate, and where
    tokens cannot be told.
    """
    if requests is not None and requests < 1:
        raise InputError(
            "no requests", where="argument", field="requests", value=requests, allowed="at least 1"
        )
    if rate is not None and not (rate > 0 and math.isfinite(rate)):
        raise InputError("not a rate", where="argument", field="rate", value=rate, allowed="above 0")
    if workload.arrivals.process == "trace":
        return _replay(workload, rate, requests, model)
    count = requests or DEFAULT_REQUESTS
    arrivals, sizes, _ = generators(seed)
    arrival_ns = _arrivals(workload, rate, count, arrivals)
    return _mixture(workload, arrival_ns, sizes, model)


def at_rate(requests: Requests, rate: float) -> Requests:
    """Arrivals stretched about the first so that the mean rate, (N-1)/span, is `rate`."""
    mean = requests.mean_rate
    if mean is None:
        return requests
    arrival = requests.arrival_ns
    _check_end(arrival[0] / _NS + (arrival[-1] - arrival[0]) / _NS * (mean / rate), "argument", "rate", rate)
    stretched = arrival[0] + np.rint((arrival - arrival[0]) * (mean / rate)).astype(np.int64)
    return replace(requests, arrival_ns=stretched)


def _check_end(last_s: float, where: str, field: str, value: float) -> None:
    """Refuse arrivals that go on beyond the end of the simulator's clock."""
    if not last_s <= LAST_ARRIVAL_S:
        raise InputError(
            f"the last request would arrive after {LAST_ARRIVAL_S:g} s", where=where, field=field, value=value
        )


def media_share(workload: Workload) -> float | None:
    """Share of requests that carry media, by the mixture's weights; None for a trace (its list tells)."""
    if not workload.requests:
        return None
    weights = [entry.weight for entry in workload.requests]
    media = [
        w * (1 - _no_item(entry))
        for w, entry in zip(weights, workload.requests, strict=True)
        if entry.modality != "text"
    ]
    return sum(media) / sum(weights)


def _no_item(entry: RequestClass) -> float:
    """Probability that a media entry draws no item, which makes the request a text."""
    items = entry.items
    if items is None or (items.min or 0) >= 1:
        return 0.0
    if items.constant is not None:
        return float(round(items.constant) == 0)
    if items.choice is not None:
        return sum(w for v, w in items.choice.items() if round(v) == 0) / sum(items.choice.values())
    if items.empirical is not None:
        return sum(round(v) == 0 for v in items.empirical) / len(items.empirical)
    return 0.0


def _replay(workload: Workload, rate: float | None, count: int | None, model: str | None) -> Requests:
    assert workload.arrivals.file is not None
    trace = load_trace(workload.arrivals.file, model, token_rule=_token_rule())
    if len(trace) == 0:
        raise InputError("the trace holds no request", where=workload.arrivals.file, field="arrival_s")
    trace = trace[: count or len(trace)]
    if rate is not None:
        return at_rate(trace, rate)
    scale = workload.arrivals.time_scale
    _check_end(trace.arrival_ns[-1] / _NS * scale, "workload", "arrivals.time_scale", scale)
    scaled = np.rint(trace.arrival_ns * scale).astype(np.int64)
    return replace(trace, arrival_ns=scaled)


def _arrivals(workload: Workload, rate: float | None, count: int, generator: np.random.Generator) -> Ints:
    arrivals = workload.arrivals
    rate = rate or arrivals.rate
    if rate is None:
        raise InputError(
            "no rate: neither given, nor in the workload, nor in the deployment",
            where="workload",
            field="arrivals.rate",
            mend="give a rate (--rate, in requests per second)",
        )
    if arrivals.process == "constant":
        times = np.arange(count) / rate
    elif arrivals.process == "gamma":
        assert arrivals.cv is not None
        shape = arrivals.cv**-2
        times = np.cumsum(generator.standard_gamma(shape, count) / (shape * rate))
    else:
        times = np.cumsum(generator.standard_exponential(count) / rate)
    _check_end(times[-1], "argument", "rate", rate)
    return np.rint(times * _NS).astype(np.int64)


def _mixture(
    workload: Workload, arrival_ns: Ints, generator: np.random.Generator, model: str | None
) -> Requests:
    count = len(arrival_ns)
    weights = np.array([entry.weight for entry in workload.requests])
    which = generator.choice(len(weights), size=count, p=weights / weights.sum())
    columns: dict[str, Any] = {
        name: np.zeros(count, np.int64)
        for name in ("modality", "items", "media_tokens", "prompt_tokens", "output_tokens")
    }
    bounds = {name: np.full(count, np.nan) for name in ("ttft_slo_s", "tpot_slo_s")}
    for index, entry in enumerate(workload.requests):
        who = which == index
        n = int(who.sum())
        if entry.modality != "text":
            items = np.ones(n, np.int64) if entry.items is None else _whole(entry.items, n, generator, 0)
            columns["items"][who] = items
            columns["modality"][who] = np.where(items > 0, MODALITIES.index(entry.modality), 0)
            columns["media_tokens"][who] = _media_tokens(entry, items, generator, model)
        columns["prompt_tokens"][who] = _whole(entry.prompt_tokens, n, generator, 0)
        columns["output_tokens"][who] = _whole(entry.output_tokens, n, generator, 1)
        if entry.slo is not None:
            bounds["ttft_slo_s"][who] = entry.slo.ttft_s
            bounds["tpot_slo_s"][who] = entry.slo.tpot_s
    return Requests(arrival_ns=arrival_ns, **columns, **bounds)


def _media_tokens(
    entry: RequestClass, items: Ints, generator: np.random.Generator, model: str | None
) -> Ints:
    """Tokens of all items of each request: drawn per item, then summed."""
    total = int(items.sum())
    if entry.media_tokens is not None:
        tokens = _whole(entry.media_tokens, total, generator, 0)
    elif entry.image_px is not None:
        tokens = np.full(total, _tokens(model, image_px=entry.image_px))
    elif entry.video_s is not None:
        seconds = _draw(entry.video_s, total, generator)
        tokens = _each(seconds, lambda s: _tokens(model, video_s=s, fps=entry.fps))
    else:
        assert entry.audio_s is not None
        seconds = _draw(entry.audio_s, total, generator)
        tokens = _each(seconds, lambda s: _tokens(model, audio_s=s))
    running = np.concatenate([[0], np.cumsum(tokens)])
    ends = np.cumsum(items)
    result: Ints = running[ends] - running[ends - items]
    return result


def _each(values: Floats, rule: Callable[[float], int]) -> Ints:
    distinct, index = np.unique(values, return_inverse=True)
    result: Ints = np.array([rule(float(v)) for v in distinct], np.int64)[index]
    return result


def _tokens(model: str | None, **size: object) -> int:
    if model is None:
        raise InputError(
            "sizes in pixels or seconds need a model to say how many tokens they make",
            where="workload",
            field="requests",
            mend="name the model, or give media_tokens",
        )
    return _token_rule()(model, **size)


def _token_rule() -> Callable[..., int]:
    from has.models.tokens import media_tokens  # only workloads with sizes need models

    return media_tokens


def _whole(distribution: Distribution, count: int, generator: np.random.Generator, least: int) -> Ints:
    """Counts: rounded, at least `least`."""
    values = _draw(distribution, count, generator, whole=True)
    return np.maximum(np.rint(values), least).astype(np.int64)


def _draw(
    distribution: Distribution, count: int, generator: np.random.Generator, *, whole: bool = False
) -> Floats:
    d = distribution
    values: Floats
    if d.constant is not None:
        values = np.full(count, float(d.constant))
    elif d.uniform is not None:
        low, high = d.uniform
        if whole and float(low).is_integer() and float(high).is_integer():
            values = generator.integers(int(low), int(high), size=count, endpoint=True).astype(np.float64)
        else:
            values = generator.uniform(low, high, count)
    elif d.normal is not None:
        values = generator.normal(d.normal.mean, d.normal.sd, count)
    elif d.lognormal is not None:
        sigma = math.log(d.lognormal.p99 / d.lognormal.p50) / _Z99
        values = d.lognormal.p50 * np.exp(sigma * generator.standard_normal(count))
    elif d.choice is not None:
        weights = np.array(list(d.choice.values()), np.float64)
        values = generator.choice(np.array(list(d.choice), np.float64), size=count, p=weights / weights.sum())
    else:
        assert d.empirical is not None
        values = generator.choice(np.array(d.empirical, np.float64), size=count)
    if d.min is not None or d.max is not None:
        values = np.clip(values, d.min, d.max)
    return np.maximum(values, 0.0)
