"""Spaces too large to list: what is found from coarse to fine against what listing everything finds."""

from __future__ import annotations

from typing import Any

import pytest

from has.core.profile import Profile
from has.core.space import SearchSpace
from has.core.workload import Workload
from has.errors import InfeasibleError
from has.search import budgets as budgets_module
from has.search import coarse
from has.search.budgets import look
from has.search.coarse import coarse_to_fine, possible
from has.search.objective import Objective
from has.search.predict import Predictor
from has.search.problem import Problem
from has.search.run import search
from has.search.screen import ranked, screen
from has.search.space import enumerate_budgets, enumerate_space
from has.sim.draw import draw_requests
from tests.search.small import make_profile, make_workload

SPACE = SearchSpace(version=1, encode_batch=[1, 4], prefill_offload={"step": 0.5})


def problem(gpus: int, name: str, rate: float | None, *, count: int = 300, **fields: Any) -> Problem:
    workload = make_workload()
    assert workload.slo is not None
    rates = () if rate is None else (rate,)
    prices = fields.pop("prices", {})
    return Problem(
        gpus=gpus,
        profile=make_profile(),
        workload=workload,
        objective=Objective(name, rates, workload.slo, prices=prices),  # type: ignore[arg-type]  # a literal
        requests=draw_requests(workload, rate=8.0, requests=count, seed=0),
        base_rate=8.0,
        settings={"model": "synthetic"},
        batches=SPACE.encode_batch,
        **fields,
    )


@pytest.mark.parametrize(("objective", "rate"), [("max-rate", None), ("goodput", 60.0)])
def test_growing_a_small_copy_finds_what_looking_at_everything_finds(
    objective: str, rate: float | None
) -> None:
    asked = problem(12, objective, rate)
    told: list[int] = []
    found = coarse_to_fine(SPACE, 12, Predictor(asked), asked.requests, told.append, smallest=3)
    assert told == sorted(told)
    assert told[-1] >= len(found)
    everything = screen(Predictor(asked), enumerate_space(SPACE, 12), asked.requests, lambda _: None)
    best, true = (max(score.value for score in scores.values()) for scores in (found, everything))
    assert best >= 0.98 * true


@pytest.mark.parametrize(
    ("rate", "prices"),
    [
        (9.0, {}),
        (25.0, {}),
        (20.0, {"encode": 1.0, "prefill": 4.0, "decode": 1.0, "prefill_decode": 2.5, "all": 3.0}),
    ],
)
def test_bisection_finds_the_cheapest_of_all_budgets(
    rate: float, prices: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = problem(10, "cost", rate, prices=prices)
    space = SPACE
    listed = possible(asked, enumerate_budgets(space, range(1, 11)))
    lasting = problem(10, "cost", rate, prices=prices, count=3000).requests
    everything = screen(Predictor(asked), listed, lasting, lambda _: None)
    cheapest = asked.objective.cost(ranked(asked.objective, everything)[0])
    monkeypatch.setattr(coarse, "LISTED", 10)
    monkeypatch.setattr(budgets_module, "FEW", 60)
    found, scores = look(space, range(1, 11), Predictor(asked), asked.requests, lasting, lambda _: None)
    assert set(found) == set(scores)
    assert len(found) < len(listed)
    best = ranked(asked.objective, scores)[0]
    assert scores[best].feasible
    assert asked.objective.cost(best) == pytest.approx(cheapest)


def test_a_rate_that_nothing_carries_is_looked_at_on_all_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = problem(6, "cost", 500.0)
    monkeypatch.setattr(coarse, "LISTED", 10)
    found, scores = look(SPACE, range(1, 7), Predictor(asked), asked.requests, asked.requests, lambda _: None)
    assert {c.total for c in found} == {6}
    assert not any(score.feasible for score in scores.values())


def test_above_the_largest_copy_cells_stand_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coarse, "LARGEST", 4)
    asked = problem(13, "max-rate", None)
    found = coarse_to_fine(SPACE, 13, Predictor(asked), asked.requests, smallest=4)
    assert found
    assert {c.total for c in found} == {13}
    best = ranked(asked.objective, found)[0]
    real = Predictor(asked).score(best, asked.requests).value
    assert found[best].value == pytest.approx(real, rel=0.25)


def test_memory_is_named_where_no_candidate_of_a_large_space_fits(
    workload: Workload, profile: Profile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coarse, "LISTED", 10)
    large = make_profile(
        memory_bytes=24 * 10**9,
        weights_bytes={"encoder": 10**9, "lm": 69 * 10**9},
        kv_bytes_per_token=245_760,
    )
    with pytest.raises(InfeasibleError, match="memory admits no candidate"):
        search(6, large, workload, space=SPACE, rate=1.0, requests=80, trials=2)


def test_a_large_search_says_how_far_it_is(
    workload: Workload, profile: Profile, monkeypatch: pytest.MonkeyPatch
) -> None:
    from has.search.events import Callbacks

    monkeypatch.setattr(coarse, "LISTED", 10)
    told: dict[str, int] = {}

    class Heard(Callbacks):
        def progress(self, stage: str, done: int, total: int) -> None:
            told[stage] = told.get(stage, 0) + 1

    search(6, profile, workload, space=SPACE, requests=100, trials=2, callbacks=Heard())
    assert told["looking"] > 10
    assert {f"baseline {name}" for name in ("monolithic", "e_pd", "static_epd")} <= set(told)
