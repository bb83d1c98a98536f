"""Which requests of a trace a search runs.

A trace is run for its bursts, so simulated trials, and all that judges a candidate in simulation,
replay it whole. Two things cannot:

- A list of more than `WHOLE` requests: a trial simulates it a dozen times, and so does every candidate of
  the shortlist. Of such a trace `STRETCHES` stretches of equal length are replayed, laid end to end in
  order of time: the quietest, the busiest, and those between at even ranks. Within a stretch every
  gap is what it was, and quiet and busy hours keep their shares of the time; what is lost is how long a
  rush lasts beyond its stretch. The busiest stands for a share of 1/`STRETCHES` of the time, which is
  more than its own: the answer errs to the safe side.
- A live trial, which lasts as long as its traffic. It replays the one stretch of its length that is most like the
  whole, in burstiness and sizes, at the trace's mean rate; so does the first look at every candidate.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from has.core.requests import Floats, Requests
from has.sim.draw import at_rate

WHOLE = 25_000
"""Requests up to which a trace is replayed whole: some 10 ms a simulation, an hour or more of most services."""
STRETCHES = 8
LEAST = 1e-3
TOLD = 0.02
"""How far the rate of the stretches may be from the whole's before it is said."""


@dataclass(frozen=True, slots=True)
class Played:
    """What a search over a trace runs.

    judged  what candidates are judged on in simulation, and what is said of the trace's sizes
    trial   what each trial replays (simulated: the same)
    look    a short list for looking at everything once
    words   what trials replay, for people
    """

    judged: Requests
    trial: Requests
    look: Requests
    words: str


def replay(trace: Requests, requests: int | None, *, live: bool, few: int, look: int) -> Played:
    """What to run of `trace`. `requests` of a trial, where they were asked for: a simulated one then
    takes the first so many, a live one as many (`few` by default). `look`: requests of a first look."""
    if live:
        judged = lasting(trace)
        trial, start_s = most_like(trace, requests or few)
        words = (
            f"each trial replays {len(trial)} of the trace's {len(trace)} requests, those from {start_s:.4g} s on,"
            f" which are most like the whole; what is simulated replays {_share(judged, trace)}"
        )
        return Played(judged, trial, most_like(judged, look)[0], words)
    judged = lasting(trace if requests is None else trace[:requests])
    words = f"each trial replays {_share(judged, trace)}"
    return Played(judged, judged, most_like(judged, look)[0], words)


def _share(judged: Requests, trace: Requests) -> str:
    if len(judged) == len(trace):
        return f"the whole trace, {len(trace)} requests"
    if np.array_equal(judged.arrival_ns, trace.arrival_ns[: len(judged)]):
        return f"the first {len(judged)} of the trace's {len(trace)} requests"
    each = judged.span_s / STRETCHES
    words = (
        f"{len(judged)} of the trace's {len(trace)} requests: {STRETCHES} stretches of {each:.4g} s, from the quietest"
        " to the busiest"
    )
    ours, whole = judged.mean_rate, trace.mean_rate
    if ours is None or whole is None or abs(ours / whole - 1) < TOLD:
        return words
    return f"{words}, which bring {ours / whole:.3g} times as many a second as the whole: rates are the whole's, goodput is theirs"


def lasting(trace: Requests, most: int = WHOLE) -> Requests:
    """`trace`, or of a longer one than `most` requests about as many, in stretches from the quietest to the busiest."""
    if len(trace) <= most:
        return trace
    arrival = trace.arrival_ns
    if arrival[-1] == arrival[0]:
        return trace[:most]
    windows = -(-len(trace) * STRETCHES // most)
    length = int(-(-(arrival[-1] - arrival[0] + 1) // windows))
    edges = arrival[0] + length * np.arange(windows + 1)
    ends = np.searchsorted(arrival, edges)
    ranked = np.argsort(np.diff(ends), kind="stable")
    chosen = np.sort(ranked[np.round(np.linspace(0, windows - 1, STRETCHES)).astype(int)])
    parts = []
    for place, window in enumerate(chosen):
        # One instant may hold more than all the rest: a burst without end adds cost and no knowledge.
        low, high = ends[window], min(ends[window + 1], ends[window] + max(1, most // 2))
        parts.append(_moved(trace[low:high], int(edges[0] + place * length - edges[window])))
    return _joined(parts)


def most_like(trace: Requests, count: int) -> tuple[Requests, float]:
    """The `count` consecutive requests whose gaps and sizes are most like the whole's, at its mean rate, and
    where they begin (s after the first)."""
    rate = trace.mean_rate
    if len(trace) <= count or count < 3 or rate is None:
        return trace[:count], 0.0
    starts = np.arange(0, len(trace) - count + 1, max(1, count // 8))
    seconds = trace.arrival_ns / 1e9
    off = np.zeros(len(starts))
    of_parts, of_all = (
        _traits(trace, seconds, starts, count),
        _traits(trace, seconds, np.array([0]), len(trace)),
    )
    for trait, whole in zip(of_parts, of_all, strict=True):
        off += np.abs(np.log((trait + LEAST) / (whole[0] + LEAST)))
    first = int(starts[np.argmin(off)])
    part = trace[first : first + count]
    return (part if part.mean_rate is None else at_rate(part, rate)), float(seconds[first] - seconds[0])


def _traits(trace: Requests, seconds: Floats, starts: Any, count: int) -> list[Floats]:
    """Rate, CV of the gaps, share with media, and mean tokens in and out of the `count` requests from each of
    `starts` on."""

    def sums(values: Any, n: int = count) -> Floats:
        running = np.concatenate([[0.0], np.cumsum(values, dtype=np.float64)])
        total: Floats = running[starts + n] - running[starts]
        return total

    gaps = np.diff(seconds)
    mean = np.maximum(sums(gaps, count - 1) / (count - 1), 1e-9)
    variance = np.maximum(sums(gaps**2, count - 1) / (count - 1) - mean**2, 0.0)
    sizes = (trace.is_media, trace.total_tokens, trace.output_tokens)
    return [1 / mean, np.sqrt(variance) / mean, *(sums(values) / count for values in sizes)]


def _moved(part: Requests, by_ns: int) -> Requests:
    return replace(part, arrival_ns=part.arrival_ns + by_ns)


def _joined(parts: list[Requests]) -> Requests:
    return Requests(**{f.name: np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(Requests)})
