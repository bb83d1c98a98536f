"""Pools of different GPUs, several workloads and prices, on the command line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from has.files.deployment import load_deployment, save_deployment
from has.files.profile import save_profile
from has.files.workload import save_workload
from tests.cli.conftest import Said
from tests.search.small import make_profile, make_workload

Has = Callable[..., Said]
SEARCH = (
    "search",
    "--gpus",
    4,
    "--profile",
    "big.parquet",
    "--trials",
    3,
    "--requests",
    80,
    "--run",
    "run",
    "--quiet",
)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Profiles of a dear GPU, of a cheap one, and of the dear one at TP 2; two workloads."""
    for name, device, tp, slower in (
        ("big", "H100 SXM", 1, 1.0),
        ("small", "L4", 1, 1.5),
        ("tp2", "H100 SXM", 2, 0.7),
    ):
        made = make_profile(
            factors=dict.fromkeys(("encode", "prefill", "decode"), slower), tensor_parallel=tp
        )
        metadata = made.metadata.model_copy(update={"device": device})
        save_profile(made.model_copy(update={"metadata": metadata}), tmp_path / f"{name}.parquet")
    save_workload(make_workload(), tmp_path / "a.yaml")
    save_workload(make_workload(name="other"), tmp_path / "b.yaml")
    return tmp_path


def test_a_search_over_mixed_pools_writes_what_every_command_then_takes(has: Has, files: Path) -> None:
    found = has(
        *SEARCH, "--pool-profile", "encode=small.parquet", "--pool-profile", "decode=tp2.parquet",
        "--workload", "a.yaml", "--workload", "b.yaml", "--rate", 2, "--objective", "cost",
        "--price", "l4=0.5", "--price", "h100=3", "--json",
    )  # fmt: skip
    assert found.status == 0
    best = load_deployment(files / "best.yaml")
    assert best.hardware is not None
    assert set(best.hardware.values()) <= {"L4", "H100 SXM"}
    assert found.json["cost"]["prices"]["H100 SXM"] == {"usd_per_gpu_hour": 3.0, "source": "given"}
    assert found.json["unit"] == "$/h"
    if best.topology != "monolithic":
        assert best.tp({"disaggregated": "decode", "e_pd": "prefill_decode"}[best.topology]) == 2
    assert (files / "run" / "workload-2.yaml").is_file()

    told = has("simulate", "best.yaml", "--rate", 2)
    assert "encode=run/profile-encode.parquet" in told.err
    assert "is to run on" not in told.err
    assert "tensor_parallel" not in told.err
    explained = has("explain", "best.yaml", "--rate", 2, "--json")
    assert explained.status == 0, explained.err
    assert explained.json["figures"]["requests"] > 0
    again = has("search", "--resume", "run", "--quiet", "--json")
    assert again.json["objective"] == found.json["objective"]


def test_a_pool_on_another_gpu_than_its_profile_is_warned_of(has: Has, files: Path) -> None:
    assert has(*SEARCH, "--workload", "a.yaml", "--rate", 2).status == 0
    moved = load_deployment(files / "best.yaml")
    pool = moved.alloc.pools[0]
    save_deployment(moved.model_copy(update={"hardware": {pool: "B200"}}), files / "moved.yaml")
    for command in ("simulate", "explain"):
        assert f"pool {pool} is to run on B200, its profile is of H100 SXM" in has(command, "moved.yaml").err
    save_deployment(moved.model_copy(update={"hardware": {pool: "h100"}}), files / "same.yaml")
    assert "is to run on" not in has("simulate", "same.yaml").err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--pool-profile", "small.parquet"), "is not like encode=FILE"),
        (("--pool-profile", "encoder=small.parquet"), "no such pool"),
        (("--pool-profile", "encode=missing.parquet"), "missing.parquet"),
        (("--price", "L4="), "no number"),
        (("--price", "-1"), "not above 0"),
        (("--price", "L4=1"), "no pool has this GPU"),
        (("--price", "2", "--price", "L4=1"), "one price for all"),
        (("--pool-profile", "encode=small.parquet", "--on", "live"), "pools of different GPUs"),
        (("--workload", "missing.yaml"), "missing.yaml"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(
    has: Has, files: Path, options: tuple[str, ...], said: str
) -> None:
    refused = has(*SEARCH, "--workload", "a.yaml", "--rate", 2, *options)
    assert refused.status in (2, 3)
    assert said in refused.err
    assert not (files / "best.yaml").exists()
