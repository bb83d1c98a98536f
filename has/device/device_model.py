"""The virtual GPU, declared: everything it does that plain computation on a CPU would not.

A virtual GPU computes for real, on a slice of S cores, and lets a result go when the GPU it stands for would
have. With C the CPU seconds of a work (measured, `nominal.py`), f the share of SMs it has and o its occupancy,
the share of SMs it can fill:

    o(work)    = least + (1 - least) · min(1, size / full)        size: batch · tokens; of decode: batch
    compute    T = C / (S · min(f, o))       encode, prefill: SMs it cannot fill stand idle, so a small batch takes
                                             nearly as long as a larger one, and slows down only below f = o
    bandwidth  T = C / S · max(1, o / f)     decode: memory bound; a few SMs saturate the memory

    beside another work, u = min(f, o) of each:
               T · (1 + oversubscribed · max(0, u + u' - 1) + shared · u')
               the first term acts when both hold the same SMs (streams), the second always: memory bandwidth
               and L2 are shared between disjoint partitions too

A compute-bound work uses S · min(f, o) of the CPU, so all works of a GPU together never use more than S.

None of this is read by the profiler, the search or the simulator: they learn it by measuring, as they would on
silicon. The figures are chosen to show what papers report of real GPUs (one small image fills a third of a GPU;
prefill near linear in its share; encode and prefill cost each other 10-40 %), not fitted to a card.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields
from typing import Literal


@dataclass(frozen=True, slots=True)
class StageModel:
    """How one stage fills a virtual GPU and suffers from a neighbour (formulas above)."""

    bound: Literal["compute", "bandwidth"]
    least: float
    full: float
    oversubscribed: float = 0.0
    shared: float = 0.0

    def occupancy(self, batch: int, tokens: float) -> float:
        size = batch * tokens if self.bound == "compute" else batch
        return self.least + (1.0 - self.least) * min(1.0, size / self.full)

    def rate(self, share: float, occupancy: float) -> float:
        """Progress per second, in units of the time the work takes alone with no SM idle. `share` in 0..1."""
        if self.bound == "compute":
            return min(share, occupancy)
        return min(1.0, share / occupancy)

    def slowdown(self, used: float, used_beside: float) -> float:
        """Factor on the duration from a neighbour that uses `used_beside` of the GPU; 0 is no neighbour."""
        return 1.0 + self.oversubscribed * max(0.0, used + used_beside - 1.0) + self.shared * used_beside


@dataclass(frozen=True, slots=True)
class DeviceModel:
    """A virtual GPU. `jitter` is the standard deviation of ln(duration); shares come in 1/sm_count."""

    name: str = "virtual-gpu-1"
    sm_count: int = 20
    memory_bytes: int = 128 * 2**20
    jitter: float = 0.01
    encode: StageModel = StageModel("compute", least=0.32, full=512, oversubscribed=1.25, shared=0.15)
    prefill: StageModel = StageModel("compute", least=0.85, full=256, oversubscribed=1.35, shared=0.25)
    decode: StageModel = StageModel("bandwidth", least=0.30, full=32)

    def stage(self, name: str) -> StageModel:
        model: StageModel = getattr(self, name)
        return model

    def offer(self, share_percent: float) -> float:
        """Percent really given: the nearest whole number of SMs, at least one (0 stays 0)."""
        if share_percent <= 0:
            return 0.0
        sms = int(share_percent * self.sm_count / 100 + 0.5)
        return 100.0 * min(self.sm_count, max(1, sms)) / self.sm_count

    def text(self) -> str:
        """The declaration in one readable line a field, as every profile carries it."""
        lines = []
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, StageModel):
                value = ", ".join(f"{f.name} {getattr(value, f.name)}" for f in fields(value))
            lines.append(f"{field.name}: {value}")
        return "\n".join(lines)

    def digest(self) -> str:
        return hashlib.sha256(self.text().encode()).hexdigest()[:12]


VIRTUAL_GPU = DeviceModel()
"""The virtual GPU that HAS ships."""
