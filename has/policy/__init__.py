"""Decisions: pure, time handed in, compiled once; the same code in the simulator and the live runtime.

Names load on first use, so that importing this package costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from has.policy.admission import Admission
    from has.policy.microbatch import MicroBatcher, gap_coefficient
    from has.policy.offload import DeficitRouter
    from has.policy.partition import SmPartitioner
    from has.policy.rate import RateEstimator

_LAZY = {
    "Admission": "admission",
    "DeficitRouter": "offload",
    "MicroBatcher": "microbatch",
    "RateEstimator": "rate",
    "SmPartitioner": "partition",
    "gap_coefficient": "microbatch",
}

__all__ = [
    "Admission",
    "DeficitRouter",
    "MicroBatcher",
    "RateEstimator",
    "SmPartitioner",
    "gap_coefficient",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(f"has.policy.{_LAZY[name]}"), name)
    raise AttributeError(f"module 'has.policy' has no attribute {name!r}")
