"""Tensor parallelism of a search: a profile's rows hold at the one that they were taken at, and at no other."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from has.core.profile import Profile, ProfileMetadata
from has.core.space import SearchSpace, TpRanges
from has.errors import InputError

STAGE_OF = {"prefill": "prefill", "decode": "decode", "prefill_decode": "decode", "all": "decode"}
"""Whose list of a space a pool's workers take their number of GPUs from."""


def at_profiles(space: SearchSpace, profile: Profile, pool_profiles: Mapping[str, Profile]) -> SearchSpace:
    """The space, where it leaves a stage's tensor parallelism out at that of the stage's profile.

    Raises InputError for one that the space asks for and the profile is not of. A profile that does
    not say what it was taken at is believed to hold for all.
    """
    asked, taken = space.tensor_parallel, {}
    for stage in ("prefill", "decode"):
        own = pool_profiles.get(stage, profile).metadata.tensor_parallel or 1
        taken[stage] = getattr(asked, stage) if stage in asked.model_fields_set else (own,)
    for pool, stage in STAGE_OF.items():
        if pool in taken or pool in pool_profiles:
            _refuse_other(stage, taken[stage], pool_profiles.get(pool, profile).metadata)
    return space.model_copy(update={"tensor_parallel": TpRanges(encode=asked.encode, **taken)})


def _refuse_other(stage: str, asked: tuple[int, ...], metadata: ProfileMetadata) -> None:
    known = metadata.tensor_parallel
    others = [tp for tp in asked if known not in (None, tp)]
    if others:
        raise InputError(
            f"the profile was taken at tensor_parallel {known}: it has no latencies of another",
            where="space",
            field=f"tensor_parallel.{stage}",
            value=list(asked),
            allowed=f"[{known}], or nothing: the profile's is taken",
            mend=f"make a profile of the other, and search on that: {_command(metadata, others[0])}",
        )


def _command(metadata: ProfileMetadata, tp: int) -> str:
    """What makes the same profile at another tensor parallelism."""
    words = ["has", "profile", "--model", metadata.model]
    if metadata.source == "measured":
        words += ["--device", "cuda"]
    else:
        words += ["--gpu", metadata.device, "--source", metadata.source]
    name = f"{metadata.device}-{metadata.model.rpartition('/')[2]}-tp{tp}.parquet"
    return shlex.join([*words, "--tensor-parallel", str(tp), "--out", name.replace(" ", "-")])
