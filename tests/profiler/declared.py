"""The declared device without jitter, as a profile of it would come out on a host that never disturbs."""

from __future__ import annotations

from has.device.base import Work
from has.device.cpu import VirtualGpu
from has.device.nominal import Costs, Nominal
from has.profiler.plan import Point


def _table() -> Nominal:
    encode = Costs((1, 8), (64, 128), ((0.02, 0.04), (0.16, 0.32)))
    prefill = Costs((1, 8), (64, 128), ((0.0128, 0.0256), (0.1024, 0.2048)))
    decode = Costs((1, 8, 32), (64,), ((0.005,), (0.009,), (0.02,)))
    return Nominal("toy", 0.8, 0.2, {"encode": encode, "prefill": prefill, "decode": decode})


_GPU = VirtualGpu(_table())


def declared_s(point: Point) -> float:
    """Seconds of a point, what runs beside it included; of what is not paced a millisecond a token."""
    stage = str(point.stage)
    if stage not in ("encode", "prefill", "decode"):
        return 1e-3 * point.tokens
    running = {stage: Work(stage, point.batch, point.tokens, point.sm_percent)}
    _GPU.streams = point.companion is not None and point.sm_percent >= 100
    if point.companion is not None:
        other = point.companion
        rest = 100.0 if _GPU.streams else 100.0 - point.sm_percent
        running[str(other.stage)] = Work(str(other.stage), other.batch, other.tokens, rest)
    return _GPU.nominal.seconds(stage, point.batch, point.tokens) / _GPU._rates(running)[stage]
