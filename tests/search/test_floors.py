"""What no split of GPUs can get under, and how a search says no."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from has.core.profile import Profile
from has.core.slo import Slo
from has.core.space import SearchSpace
from has.core.workload import Workload
from has.errors import InfeasibleError
from has.files.profile import profile_from_rows, save_profile
from has.files.workload import save_workload
from has.latency.lookup import LatencyModel
from has.search.floors import WAYS, floors
from has.search.pools import latency_of
from has.search.run import search
from has.sim.draw import draw_requests
from tests.cli.conftest import Said
from tests.cli.conftest import has as has
from tests.search.small import make_profile, make_workload

SPACE = SearchSpace.model_validate({"version": 1, "encode_batch": [1], "prefill_offload": {"step": 0.5}})


def requests_of(workload: Workload):  # type: ignore[no-untyped-def]
    return draw_requests(workload, rate=1.0, requests=300, seed=3)


@pytest.mark.parametrize("topologies", [["disaggregated"], ["e_pd"], ["monolithic"], list(WAYS)])
@pytest.mark.parametrize("preprocess_s", [0.0, 0.05])
def test_the_floor_is_one_requests_own_time(topologies: list[str], preprocess_s: float) -> None:
    """At the attainment quantile of all requests, each priced alone by the profile itself."""
    model = LatencyModel.from_profile(make_profile(preprocess_s=preprocess_s))
    listed = requests_of(make_workload())
    slo = Slo(ttft_ms=2000, tpot_ms=40, attainment=0.9)
    ttft, tpot = floors(model, listed, slo, topologies)
    transfer = topologies == ["e_pd"]
    own = [
        model.seconds("preprocess", 1, media)
        + model.seconds("encode", 1, media)
        + (model.seconds("embedding_transfer", 1, media) if transfer else 0.0)
        + model.seconds("prefill", 1, total)
        for media, total in zip(listed.media_tokens, listed.total_tokens, strict=True)
    ]
    assert ttft.least_s == pytest.approx(float(np.quantile(own, 0.9, method="inverted_cdf")))
    assert sum(ttft.parts.values()) == pytest.approx(ttft.least_s)
    assert np.sum(np.array(own) <= ttft.least_s + 1e-12) >= 0.9 * len(own)
    assert tpot.least_s == pytest.approx(
        model.seconds("decode", 1, float(np.mean(listed.total_tokens))), rel=0.01
    )


def test_pools_of_quicker_gpus_lower_the_floor() -> None:
    usual, quick = make_profile(), make_profile(factors={"prefill": 0.2})
    listed, slo = requests_of(make_workload()), Slo(ttft_ms=2000, tpot_ms=40)
    alike = floors(latency_of(usual, {}), listed, slo, ["disaggregated"])[0]
    mixed = floors(latency_of(usual, {"prefill": quick}), listed, slo, ["disaggregated"])[0]
    assert mixed.least_s < alike.least_s
    assert "transfer" in mixed.parts


@pytest.mark.parametrize(
    ("bound", "metric", "part"),
    [({"ttft_ms": 60.0}, "TTFT", "prefill of"), ({"tpot_ms": 3.0}, "TPOT", "one decode step")],
)
def test_a_bound_under_the_floor_is_answered_with_the_bound_and_by_how_much(
    profile: Profile, bound: dict[str, float], metric: str, part: str
) -> None:
    slo = Slo(**({"ttft_ms": 2000.0, "tpot_ms": 40.0} | bound))
    with pytest.raises(InfeasibleError) as answer:
        search(3, profile, make_workload(slo=slo.model_dump()), space=SPACE, rate=1.0, requests=80, trials=2)
    assert answer.value.exit_status == 1
    said = answer.value.message
    (allowed,) = bound.values()
    found = re.search(
        rf"{metric} without any queue is ([\d.]+) ms of {allowed:g} ms allowed, ([\d.]+) times as much", said
    )
    assert found is not None, said
    assert float(found[1]) / allowed == pytest.approx(float(found[2]), rel=0.01)
    assert float(found[2]) > 1
    assert part in said
    assert "more GPUs cannot help" in (answer.value.mend or "")
    evidence = answer.value.least_bad.best.evidence
    assert [f["met"] for f in evidence["floors"]] == [metric != "TTFT", metric != "TPOT"]


def test_too_much_load_is_no_matter_of_floors(profile: Profile, workload: Workload) -> None:
    with pytest.raises(InfeasibleError) as answer:
        search(3, profile, workload, space=SPACE, rate=80.0, requests=80, trials=2)
    assert "without any queue" not in answer.value.message
    assert "--gpus" in (answer.value.mend or "")


def test_the_command_ends_with_status_1_and_says_so(
    has: Callable[..., Said], profile: Profile, workload: Workload, tmp_path: Path
) -> None:
    save_profile(profile, tmp_path / "p.parquet")
    save_workload(workload, tmp_path / "w.yaml")
    said = has(
        "search", "--gpus", 3, "--profile", "p.parquet", "--workload", "w.yaml", "--ttft-ms", 40,
        "--rate", 1, "--trials", 2, "--requests", 80, "--run", "run",
    )  # fmt: skip
    assert said.status == 1
    assert re.search(r"TTFT without any queue is [\d.]+ ms of 40 ms allowed", said.err)
    assert (tmp_path / "best.yaml").is_file()
    told = has("explain", "best.yaml", "--ttft-ms", 40)
    assert "No split can meet the TTFT bound" in told.out


@pytest.mark.parametrize("ttft_ms", [500.0, 20.0])
def test_text_alone_needs_no_encode_rows(ttft_ms: float) -> None:
    """Neither to be searched nor to be told that a prefill takes longer than it may."""
    rows = [
        {"stage": stage, "sm_percent": 100, "batch": 1, "tokens": 100, "latency_s": seconds}
        for stage, seconds in (("prefill", 0.05), ("decode", 0.01))
    ]
    bare = profile_from_rows({"version": 1, "device": "d", "model": "m", "source": "measured"}, rows)
    text = {"modality": "text", "prompt_tokens": 100, "output_tokens": 20}
    asked = make_workload(requests=[text], slo={"ttft_ms": ttft_ms, "tpot_ms": 50.0})
    if ttft_ms > 50:
        assert search(2, bare, asked, space=SPACE, rate=1.0, requests=60, trials=3).feasible
    else:
        with pytest.raises(InfeasibleError, match="TTFT without any queue is 50 ms of 20 ms"):
            search(2, bare, asked, space=SPACE, rate=1.0, requests=60, trials=3)


def test_requests_with_bounds_of_their_own_are_held_to_those() -> None:
    """Three in ten requests are long and may take long: nothing is out of reach, and batches may wait for company."""
    image = {"modality": "image", "media_tokens": 200, "prompt_tokens": 20, "output_tokens": 20}
    video = {"modality": "video", "media_tokens": 2000, "prompt_tokens": 20, "output_tokens": 20}
    own = {"slo": {"ttft_ms": 4000.0, "tpot_ms": 100.0}}
    bounds = {"ttft_ms": 500.0, "tpot_ms": 40.0}
    mixed = make_workload(requests=[{**image, "weight": 0.7}, {**video, **own, "weight": 0.3}], slo=bounds)
    slo, model = Slo(**bounds), LatencyModel.from_profile(make_profile())
    ttft, tpot = floors(model, requests_of(mixed), slo, list(WAYS))
    assert ttft.met
    assert tpot.met
    assert tpot.allowed_s == slo.tpot_s
    held = make_workload(requests=[{**image, "weight": 0.7}, {**video, "weight": 0.3}], slo=bounds)
    refused, _ = floors(model, requests_of(held), slo, list(WAYS))
    assert not refused.met
    assert refused.allowed_s == slo.ttft_s
    hopeless = {"slo": {"ttft_ms": 550.0, "tpot_ms": 100.0}}
    mixed = make_workload(
        requests=[{**image, "weight": 0.7}, {**video, **hopeless, "weight": 0.3}], slo=bounds
    )
    refused, _ = floors(model, requests_of(mixed), slo, list(WAYS))
    assert not refused.met
    assert refused.allowed_s == 0.55


def test_a_bound_of_an_entry_is_mended_in_the_workload() -> None:
    """No option reaches it: whoever followed one would get the same answer."""
    image = {"modality": "image", "media_tokens": 200, "prompt_tokens": 20, "output_tokens": 20}
    own = {"media_tokens": 2000, "weight": 2.0, "slo": {"ttft_ms": 550.0, "tpot_ms": 100.0}}
    mixed = make_workload(requests=[image, {**image, **own}], slo={"ttft_ms": 5000.0, "tpot_ms": 40.0})
    with pytest.raises(InfeasibleError) as error:
        search(4, make_profile(), mixed, space=SPACE, rate=2.0, requests=100, trials=3, seed=1)
    assert "allow at least ttft_ms 607 in the slo of its entry in the workload" in error.value.mend
    assert "--ttft-ms" not in error.value.mend


def test_a_search_of_requests_with_bounds_of_their_own_lets_batches_wait() -> None:
    image = {"modality": "image", "media_tokens": 200, "prompt_tokens": 20, "output_tokens": 20}
    video = {"modality": "video", "media_tokens": 2000, "prompt_tokens": 20, "output_tokens": 20}
    own = {"slo": {"ttft_ms": 6000.0, "tpot_ms": 100.0}}
    mixed = make_workload(
        requests=[{**image, "weight": 0.7}, {**video, **own, "weight": 0.3}],
        slo={"ttft_ms": 900.0, "tpot_ms": 40.0},
    )
    found = search(4, make_profile(), mixed, space=SPACE, rate=2.0, requests=200, trials=4, seed=1)
    assert found.feasible
    assert found.best.max_wait_ms > 0
