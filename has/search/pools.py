"""Pools of different GPUs: whose profile holds where.

One profile is the rule's; `pool_profiles` name the exceptions by pool: `{"encode": Profile of an L4}`.
A PD pool and a monolith, where they are not named, run on decode's GPUs.
"""

from __future__ import annotations

from collections.abc import Mapping

from has.core.deployment import POOLS, Deployment
from has.core.profile import Profile
from has.errors import HasError, InputError
from has.files import facts
from has.latency.lookup import LatencyModel

POOL_NAMES = tuple(dict.fromkeys(pool for pools in POOLS.values() for pool in pools))


def latency_of(profile: Profile, pool_profiles: Mapping[str, Profile]) -> LatencyModel:
    """Latencies by pool. Raises InputError for a pool that is none, and for profiles of different models."""
    whole = LatencyModel.from_profile(profile)
    if not pool_profiles:
        return whole
    for pool, own in pool_profiles.items():
        if pool not in POOL_NAMES:
            raise InputError(
                "no such pool",
                where="argument",
                field="pool_profiles",
                value=pool,
                allowed=", ".join(POOL_NAMES),
            )
        if own.metadata.model != profile.metadata.model:
            raise InputError(
                f"the profile of pool {pool} is of another model than the others",
                where="argument",
                field="pool_profiles",
                value=own.metadata.model,
                allowed=profile.metadata.model,
            )
    models = {p: LatencyModel.from_profile(own, f"profile of {p}") for p, own in pool_profiles.items()}
    return LatencyModel.of_pools({"encode": whole, "prefill": whole, "decode": whole} | models)


def hardware(latency: LatencyModel, topology: str) -> dict[str, str] | None:
    """GPU of each pool as a deployment says it; None where all pools are alike."""
    if not latency.pools:
        return None
    return {pool: latency.on(pool).metadata.device for pool in POOLS[topology]}


def fits_hardware(deployment: Deployment, latency: LatencyModel) -> list[str]:
    """Warnings of pools whose GPU is not the one that their profile is of."""
    return [
        f"pool {pool} is to run on {gpu}, its profile is of {device}"
        for pool, gpu in (deployment.hardware or {}).items()
        if pool in POOLS[deployment.topology]
        and not same_gpu(gpu, device := latency.on(pool).metadata.device)
    ]


def same_gpu(name: str, device: str) -> bool:
    """Whether two names mean one GPU, by the shipped facts: `h100` and `H100 SXM`."""
    if name.strip().casefold() == device.casefold():
        return True
    try:
        return facts.find_gpu(name)[0] == facts.find_gpu(device)[0]
    except HasError:
        return False
