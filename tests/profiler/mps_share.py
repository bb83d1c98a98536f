"""What stands where a process of a share on a GPU would: SMs by the percentage it was started with, times by a formula."""

from __future__ import annotations

import os
from typing import Any

import torch

from has.device.base import Span, Work
from has.profiler.cuda_mps import Share
from tests.profiler.cuda_fake import FACTS

SMS = 132
MOST_ROWS = 8192


def sms_of(percent: float) -> int:
    """Rounded up to whole pairs, as was seen of drivers."""
    return min(SMS, -(-int(percent * SMS / 100) // 2) * 2)


class Lane:
    """1 ms a token and request on all SMs, in proportion to the share below; a step takes 10 ms."""

    def __init__(self, name: str, share: float) -> None:
        self.name, self._share = name, share
        self._now_s = 0.0

    def run(self, fn: Any, work: Work) -> tuple[Any, Span]:
        seconds = (0.010 if work.stage == "decode" else 1e-3 * work.batch * work.tokens) / self._share
        begun, self._now_s = self._now_s, self._now_s + seconds
        return fn(), Span(begun, self._now_s, 1.0)


class Gpu:
    streams = False
    cold = True

    def __init__(self, share: float) -> None:
        self.lanes = {name: Lane(name, share) for name in ("encode", "prefill", "decode")}

    def clock(self) -> float:
        return max(lane._now_s for lane in self.lanes.values())

    def offer(self, share_percent: float) -> float:
        return 100.0

    def given(self, stage: str, share_percent: float) -> float:
        return 100.0

    def cancel(self, lane: str) -> None:
        pass


class Bench:
    kind = "image"
    facts = FACTS

    def prepare(self, stage: str, batch: int, tokens: int) -> Any:
        if batch * tokens > MOST_ROWS:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 GiB.")
        return lambda: None

    def moves(self, shared: Any) -> None:
        """Of the host's memory."""


def open_share(argument: str) -> Share:
    sms = sms_of(float(os.environ["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"]))
    return Share(sms, Gpu(sms / SMS), Bench)
