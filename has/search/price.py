"""What GPUs cost: from the user, else from the shipped facts, each price with its source.

    usd/h                  Σ over pools of GPUs · price of the pool's GPU
    usd per 10⁶ output     usd/h / (goodput · mean output tokens · 3600) · 10⁶
    tokens

Tokens of requests that missed the SLO are not counted: an overloaded deployment is not cheap.
A fact that is a range of list prices stands for its middle; facts marked unverified are no price.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from has.core.deployment import POOLS, Deployment
from has.errors import HasError, InputError
from has.files import facts
from has.latency.lookup import LatencyModel
from has.search.pools import POOL_NAMES, same_gpu

Given = float | Mapping[str, float] | None
"""Dollars per GPU and hour: one for all, by GPU name, or not given."""


@dataclass(frozen=True, slots=True)
class Price:
    usd_per_gpu_hour: float
    source: str

    def as_json(self) -> dict[str, Any]:
        return {"usd_per_gpu_hour": self.usd_per_gpu_hour, "source": self.source}


def price_of(device: str, given: Given) -> Price | None:
    """Of one GPU of `device`; None where nobody says."""
    if isinstance(given, int | float):
        return Price(float(given), "given")
    for name, usd in (given or {}).items():
        if same_gpu(name, device):
            return Price(float(usd), "given")
    return _fact(device)


def pool_prices(latency: LatencyModel, given: Given) -> dict[str, float]:
    """Pool → dollars per GPU and hour, to compare deployments by; empty where GPUs are only counted.

    That is where no price is given and all pools are alike, for then the order is the same; and where
    a GPU has no price that is known. Raises InputError for a price of a GPU that no pool has, and where some
    prices are given and others are nowhere to be had.
    """
    devices = {pool: latency.on(pool).metadata.device for pool in POOL_NAMES}
    if isinstance(given, Mapping):
        for name in given:
            if not any(same_gpu(name, device) for device in devices.values()):
                raise InputError(
                    "no pool has this GPU",
                    where="argument",
                    field="price",
                    value=name,
                    allowed=", ".join(dict.fromkeys(devices.values())),
                )
    if given is None and not latency.pools:
        return {}
    prices = {pool: price_of(device, given) for pool, device in devices.items()}
    missing = list(dict.fromkeys(devices[pool] for pool, price in prices.items() if price is None))
    if missing and given is not None:
        raise InputError(
            f"no price of {', '.join(missing)} is given or known",
            where="argument",
            field="price",
            value=given,
            mend=f"give it too: --price '{missing[0]}=DOLLARS'",
        )
    return {} if missing else {pool: p.usd_per_gpu_hour for pool, p in prices.items() if p is not None}


def cost_of(
    deployment: Deployment,
    latency: LatencyModel,
    given: Given,
    goodput_rps: float | None,
    output_tokens: float,
) -> dict[str, Any]:
    """GPUs, dollars an hour and per million output tokens, and every price with its source; None: unknown."""
    pools = POOLS[deployment.topology]
    devices = {pool: latency.on(pool).metadata.device for pool in pools}
    prices = {device: price_of(device, given) for device in devices.values()}
    hourly: float | None = 0.0
    for pool in pools:
        price = prices[devices[pool]]
        if hourly is not None and deployment.alloc[pool]:
            hourly = None if price is None else hourly + deployment.alloc[pool] * price.usd_per_gpu_hour
    tokens_per_hour = (goodput_rps or 0.0) * output_tokens * 3600
    return {
        "gpus": deployment.gpus,
        "usd_per_hour": hourly,
        "usd_per_million_output_tokens": hourly / tokens_per_hour * 1e6
        if hourly is not None and tokens_per_hour > 0
        else None,
        "prices": {device: None if p is None else p.as_json() for device, p in prices.items()},
    }


def _fact(device: str) -> Price | None:
    try:
        _, known = facts.find_gpu(device)
    except HasError:
        return None
    said = known.get("price_usd_per_gpu_hour") or {}
    if "range" not in said:
        return None
    low, high = said["range"]
    return Price(
        (low + high) / 2, f"shipped facts, the middle of {low:g} to {high:g} $/h; {said.get('date', '')}"
    )
