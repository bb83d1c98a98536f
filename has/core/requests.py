"""A drawn list of requests, as arrays: what the simulator replays and a load generator sends."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from has.core.slo import Slo
from has.core.stage import MODALITIES

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Requests:
    """N requests in order of arrival.

    arrival_ns     int64[N]   non-decreasing, nanoseconds
    modality       int64[N]   index into `MODALITIES`
    items          int64[N]   media items (0 for text)
    media_tokens   int64[N]   LM tokens of all items together (0 for text)
    prompt_tokens  int64[N]   text tokens
    output_tokens  int64[N]   >= 1
    ttft_slo_s     float64[N] the request's own TTFT bound, NaN where the run's SLO rules
    tpot_slo_s     float64[N] likewise for TPOT
    """

    arrival_ns: Ints
    modality: Ints
    items: Ints
    media_tokens: Ints
    prompt_tokens: Ints
    output_tokens: Ints
    ttft_slo_s: Floats
    tpot_slo_s: Floats

    def __len__(self) -> int:
        return len(self.arrival_ns)

    def __getitem__(self, index: Any) -> Requests:
        """A subset by slice, mask or index array."""
        return Requests(**{f.name: getattr(self, f.name)[index] for f in fields(self)})

    @property
    def is_media(self) -> NDArray[np.bool_]:
        return np.not_equal(self.modality, 0)

    @property
    def media_share(self) -> float:
        return float(np.mean(self.is_media)) if len(self) else 0.0

    @property
    def total_tokens(self) -> Ints:
        """Prompt and media tokens: what prefill sees."""
        return self.prompt_tokens + self.media_tokens

    @property
    def span_s(self) -> float:
        """First to last arrival."""
        return float(self.arrival_ns[-1] - self.arrival_ns[0]) / 1e9 if len(self) else 0.0

    @property
    def mean_rate(self) -> float | None:
        """(N-1)/span, or None where it has no meaning."""
        return (len(self) - 1) / self.span_s if len(self) > 1 and self.span_s > 0 else None

    def bounds_s(self, slo: Slo) -> tuple[Floats, Floats]:
        """The TTFT and the TPOT bound of each request, float64[N] in seconds: its own goes before that of `slo`."""
        ttft_s = np.where(np.isnan(self.ttft_slo_s), slo.ttft_s, self.ttft_slo_s)
        tpot_s = np.where(np.isnan(self.tpot_slo_s), slo.tpot_s, self.tpot_slo_s)
        return ttft_s, tpot_s

    @classmethod
    def from_rows(cls, rows: Iterable[Mapping[str, Any]]) -> Self:
        """From mappings with the columns of a trace: arrival_s, modality, [items], media_tokens, prompt_tokens, output_tokens."""
        rows = list(rows)

        def ints(values: Iterable[int]) -> Ints:
            return np.fromiter(values, np.int64, len(rows))

        modality = ints(MODALITIES.index(r["modality"]) for r in rows)
        nan = np.full(len(rows), np.nan)
        return cls(
            arrival_ns=ints(round(r["arrival_s"] * 1e9) for r in rows),
            modality=modality,
            items=ints(r.get("items") or (1 if r["modality"] != "text" else 0) for r in rows),
            media_tokens=ints(r["media_tokens"] for r in rows),
            prompt_tokens=ints(r["prompt_tokens"] for r in rows),
            output_tokens=ints(r["output_tokens"] for r in rows),
            ttft_slo_s=nan,
            tpot_slo_s=nan.copy(),
        )
