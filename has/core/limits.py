"""How large the numbers people write may be: beyond these lie typing errors, and overflows."""

from __future__ import annotations

MOST_GPUS = 65_536
MOST_COUNT = 10**6
MOST_REQUESTS = 10**8
MOST_TOKENS = 2**40
MOST_SEED = 2**63 - 1
LEAST_RATE, MOST_RATE = 1e-9, 1e6
MOST = 1e12
"""Of what has no narrower bound; in milliseconds 32 years, which in nanoseconds fit 64 bits."""
