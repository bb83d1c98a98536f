"""What a run is given: its digests, and the copies that its folder keeps."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from has.core.deployment import Deployment
from has.core.noun import Noun
from has.core.profile import Profile
from has.core.space import SearchSpace
from has.core.workload import Workload
from has.errors import InputError
from has.files.deployment import save_deployment
from has.files.profile import save_profile
from has.files.reading import existing
from has.files.space import save_space
from has.files.workload import save_workload

TRIAL_PROFILE = "trial-profile.parquet"


def baseline_file(number: int) -> str:
    """Of the user's baseline of that number, from 1, in the order of the manifest's digests."""
    return f"baseline-{number}.yaml"


def digest(value: Any) -> str:
    """Sixteen hexadecimal digits that change when a noun, or plain data, does."""
    if isinstance(value, Noun):
        value = value.model_dump(mode="json", exclude_none=True)
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:16]


def file_digest(path: str) -> str:
    """The like of a file's bytes. InputError where it cannot be read."""
    try:
        with existing(path).open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()[:16]
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", where=path) from error


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a run is given, and keeps copies of.

    pool_profiles   by pool, where GPUs differ from `profile`'s
    baselines       the user's own deployments, by name
    trial_profile   what simulated trials run on, where not on `profile`
    """

    profile: Profile
    workloads: tuple[Workload, ...]
    space: SearchSpace
    pool_profiles: Mapping[str, Profile] = field(default_factory=dict)
    baselines: Mapping[str, Deployment] = field(default_factory=dict)
    trial_profile: Profile | None = None

    @property
    def digests(self) -> dict[str, Any]:
        """By the names of the files that keep them, without their endings; `traces`, of which no copy is kept, by
        their paths. InputError where a trace cannot be read."""
        named = {"profile": self.profile, "workload": self.workloads[0], "space": self.space}
        named |= {f"profile-{pool}": profile for pool, profile in self.pool_profiles.items()}
        named |= {f"workload-{n}": workload for n, workload in enumerate(self.workloads[1:], 2)}
        if self.trial_profile is not None:
            named["trial-profile"] = self.trial_profile
        found: dict[str, Any] = {name: digest(value) for name, value in named.items()}
        found["baselines"] = {name: own.digest() for name, own in self.baselines.items()}
        traces = sorted({w.arrivals.file for w in self.workloads if w.arrivals.file is not None})
        if traces:
            found["traces"] = {path: file_digest(path) for path in traces}
        return found

    def save(self, folder: Path) -> None:
        save_profile(self.profile, folder / "profile.parquet")
        for pool, profile in self.pool_profiles.items():
            save_profile(profile, folder / f"profile-{pool}.parquet")
        for n, workload in enumerate(self.workloads, 1):
            save_workload(workload, folder / ("workload.yaml" if n == 1 else f"workload-{n}.yaml"))
        save_space(self.space, folder / "space.yaml")
        if self.trial_profile is not None:
            save_profile(self.trial_profile, folder / TRIAL_PROFILE)
        self.save_baselines(folder)

    def save_baselines(self, folder: Path) -> None:
        for n, own in enumerate(self.baselines.values(), 1):
            save_deployment(own, folder / baseline_file(n))
