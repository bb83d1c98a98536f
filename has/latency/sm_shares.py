"""How a stage slows down on a share of the SMs: forms that fit measured curves, with parameters that are not of this GPU.

    T(f) = start + compute · max(1, u/f) + stream · max(1, v/f)           f: share of the SMs, 0..1
    u = 1 - exp(-rows · width / (FILL · 1024 · SMs/108))                  share that the arithmetic fills
    beside another stage: T · (1 + γ · max(0, a + b - 1))                 a, b: shares of bandwidth in use
    no partition (streams): compute · max(1, u + u'·c') in place of compute, and the line above
                                                                          u', c': the other's u, and the share
                                                                          of its time that is arithmetic

Arithmetic that fills u of the SMs loses nothing until f falls below u; reading memory needs only v of them. Partitions
do not share out bandwidth, so two stages whose use of it adds up to more than all of it slow each other down. Without a
partition both hold the same SMs: thread blocks of both are placed as SMs come free, so arithmetic that together asks for
more than all of them is stretched for both alike.

No table of kernel times by SM share is public: the parameters come from a few published observations, `PARAMETERS` says
which, and how far off they may be. They go into every estimated profile.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from has.latency.roofline import Cost, Gpu

FILL_ROWS = 2300.0
BANDWIDTH_SHARE = 0.40
INTERFERENCE = 0.6

PARAMETERS: dict[str, Any] = {
    "form": "T(f) = start + compute·max(1, u/f) + stream·max(1, v/f); u = 1 - exp(-rows·width/(fill_rows·1024·SMs/108));"
    " beside another stage times 1 + interference·max(0, a + b - 1), a and b the shares of bandwidth in use;"
    " both on all SMs (streams): compute times max(1, u + u'·c'), u' the other's u, c' the arithmetic share of its time",
    "fill_rows": {
        "value": FILL_ROWS,
        "low": 1000.0,
        "high": 3500.0,
        "source": "SM activity of a vision encoder on an A100: 9 % at 225 x 225 pixels, 78 % at 1024 x 1024, 99 % at"
        " 3000 x 3000; one CLIP tile of 577 rows fills a quarter of a large GPU, five fill it",
    },
    "bandwidth_share": {
        "value": BANDWIDTH_SHARE,
        "low": 0.25,
        "high": 0.6,
        "source": "assumed: a quarter to a half of the SMs saturate the memory of recent GPUs",
    },
    "interference": {
        "value": INTERFERENCE,
        "low": 0.0,
        "high": 1.2,
        "source": "decode loses 0 to 30 % beside prefill",
    },
}


@dataclass(frozen=True, slots=True)
class Load:
    """What a stage asks of a GPU: its cost on all SMs, and how many rows of what width its matrices have."""

    cost: Cost
    rows: int
    width: int

    def fill(self, gpu: Gpu) -> float:
        """u: the share of the SMs that the arithmetic keeps busy."""
        return 1 - math.exp(-self.rows * self.width / (FILL_ROWS * 1024 * gpu.sms / 108))

    def seconds(self, gpu: Gpu, share: float) -> float:
        """T(f) for a share of the SMs in percent, alone."""
        f, cost = share / 100.0, self.cost
        return (
            cost.start_s
            + cost.link_s
            + cost.compute_s * max(1.0, self.fill(gpu) / f)
            + cost.stream_s * max(1.0, BANDWIDTH_SHARE / f)
        )

    def bandwidth_used(self, gpu: Gpu, share: float) -> float:
        """Share of the GPU's bandwidth in use meanwhile."""
        return self.cost.bytes / (gpu.bandwidth * self.seconds(gpu, share))

    def seconds_beside(self, gpu: Gpu, share: float, other: Load) -> float:
        """T(f) while `other` runs without pause on the rest of the SMs; at 100 % both hold all of them."""
        if share >= 100:
            return self._seconds_streams(gpu, other)
        used = self.bandwidth_used(gpu, share) + other.bandwidth_used(gpu, 100.0 - share)
        return self.seconds(gpu, share) * (1 + INTERFERENCE * max(0.0, used - 1.0))

    def _seconds_streams(self, gpu: Gpu, other: Load) -> float:
        asked = self.fill(gpu) + other.fill(gpu) * other.cost.compute_s / other.cost.seconds
        crowded = self.seconds(gpu, 100.0) + self.cost.compute_s * max(0.0, asked - 1.0)
        used = self.bandwidth_used(gpu, 100.0) + other.bandwidth_used(gpu, 100.0)
        return crowded * (1 + INTERFERENCE * max(0.0, used - 1.0))
