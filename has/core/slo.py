"""What a request must achieve to count."""

from __future__ import annotations

from has.core.noun import Noun, PositiveFloat, Share


class Slo(Noun):
    """Bounds on TTFT and TPOT (milliseconds, met at <=) and the share of requests to meet both."""

    ttft_ms: PositiveFloat
    tpot_ms: PositiveFloat
    attainment: Share = 0.9

    @property
    def ttft_s(self) -> float:
        return self.ttft_ms / 1e3

    @property
    def tpot_s(self) -> float:
        return self.tpot_ms / 1e3
