"""What happened to every request, whoever served it: the simulator, a live trial, a remote engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from has.core.requests import Requests

Ints = NDArray[np.int64]

NEVER = -1
"""Stands in a `_ns` or worker column where a stage does not apply or was not reached."""

ROUTES = ("local", "remote")
FAILED, COMPLETED, REFUSED = 0, 1, 2
"""Values of `Records.status`."""


@dataclass(slots=True)
class StageLoad:
    """Work one stage did. Encode and prefill list their batches; decode its steps in sum, and its runs if known.

    start_ns, end_ns  int64[K]  service of each batch
    size              int64[K]  requests in it
    full              bool[K]   launched because it was full (encode)
    repeats           int64[K]  steps of each run listed (decode; a run is steps with an unchanged batch)
    busy_ns           total time that workers of this stage were busy, over all workers
    steps, step_seqs  decode: number of steps, and the sum over steps of their batch
    together, part    float64[K]  where batches of a worker overlap (engines): requests it had meanwhile, in the
                      mean, and the part of its time that went to this one; empty: size, and all of it
    """

    workers: int
    start_ns: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    end_ns: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    size: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    full: NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, np.bool_))
    repeats: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    busy_ns: int = 0
    steps: int = 0
    step_seqs: int = 0
    together: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    part: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))


@dataclass(slots=True)
class Records:
    """Arrays of length N, in order of arrival; times in integer nanoseconds on the requests' clock.

    Columns are those of `--records` (see docs): `NEVER` where a stage does not apply.
    `route` indexes `ROUTES`; `status` is FAILED, COMPLETED or REFUSED; `met` is set by figures.
    """

    requests: Requests
    preprocessed_ns: Ints
    encode_worker: Ints
    encode_start_ns: Ints
    encode_end_ns: Ints
    batch: Ints
    route: Ints
    prefill_ready_ns: Ints
    prefill_worker: Ints
    prefill_start_ns: Ints
    first_token_ns: Ints
    decode_ready_ns: Ints
    decode_worker: Ints
    decode_start_ns: Ints
    finish_ns: Ints
    status: Ints
    stages: dict[str, StageLoad] = field(default_factory=dict)
    """Keys: preprocess, encode, prefill_local, prefill_remote, decode; or encode, prefill, decode."""

    @classmethod
    def empty(cls, requests: Requests) -> Records:
        """All columns `NEVER`, every request failed until it is said to have completed."""
        n = len(requests)
        columns: dict[str, Any] = {name: np.full(n, NEVER, np.int64) for name in COLUMNS}
        return cls(requests=requests, **columns, status=np.full(n, FAILED, np.int64))


COLUMNS = (
    "preprocessed_ns",
    "encode_worker",
    "encode_start_ns",
    "encode_end_ns",
    "batch",
    "route",
    "prefill_ready_ns",
    "prefill_worker",
    "prefill_start_ns",
    "first_token_ns",
    "decode_ready_ns",
    "decode_worker",
    "decode_start_ns",
    "finish_ns",
)
