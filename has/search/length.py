"""How long simulated traffic lasts: long enough for a queue that only grows to cost something.

A run of 1,000 requests at 300 requests/s is over in three seconds. Where TTFT may be two, nearly all of
them meet it on a deployment that carries 250. So a list is as long as its purpose asks for, in TTFT
bounds: over T bounds an offered load that is 1 + o times what is carried makes the last request wait
o·T bounds, and of all requests about 1 - 1/(o·T) wait longer than one.
"""

from __future__ import annotations

import math

SPAN = 150.0
"""TTFT bounds of traffic that what could be the answer is held to: a load that is .7 % too high already fails there."""
PROMISE_SPAN, PROMISE_MOST = 400.0, 1_000_000
"""Of traffic that a rate is held to before it is written, and its requests at the most: a thousand GPUs see half a
minute of it, and burst upon burst of a small cluster average out."""
TRIAL_SPAN = 50.0
"""Of a simulated trial at a given rate: 2 % too many requests fail."""
COARSE_SPAN = 10.0
"""Of a first look, and of confirmation runs beside a largest rate: 10 % too many fail."""
FEWEST, MOST = 3000, 60_000
"""Requests: enough for a percentile, few enough for a second or two of simulation."""


def requests_lasting(
    bounds: float, ttft_s: float, rate: float, fewest: int = FEWEST, most: int = MOST
) -> int:
    """How many requests at `rate` last so many TTFT bounds, `fewest` to `most`."""
    return max(fewest, min(most, math.ceil(bounds * ttft_s * rate)))
