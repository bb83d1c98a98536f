"""One suite, every sampler."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from has.core.slo import Slo
from has.core.space import SearchSpace
from has.core.trial import TrialState
from has.errors import InputError, MissingError
from has.search.objective import Objective
from has.search.samplers import NAMES, Tried, View, create
from has.search.space import Candidate, enumerate_space
from has.search.surrogate import Posterior

SPACE = SearchSpace(version=1, encode_batch=[1, 4], prefill_offload={"step": 0.5})
CANDIDATES = enumerate_space(SPACE, 5)
OBJECTIVE = Objective("goodput", (4.0,), Slo(ttft_ms=1000, tpot_ms=50))


def truth(c: Candidate) -> float:
    """A hill: best at 2 encoders, s = .5, larger batches."""
    return 10 - 2 * abs(c.gpus[0] - 2) - 3 * abs(c.share - 0.5) + 0.1 * c.encode_batch


def believe(candidates: Sequence[Candidate]) -> Posterior:
    features = np.array([[c.gpus[0], 2 * c.share, c.encode_batch / 8] for c in candidates])
    squared = ((features[:, None] - features[None]) ** 2).sum(axis=2)
    return Posterior(tuple(candidates), np.array([truth(c) for c in candidates]), np.exp(-squared / 2))


def view(tried: Sequence[Tried] = (), *, number: int = 0, seed: int = 0, **changes: Any) -> View:
    fields: dict[str, Any] = {
        "candidates": CANDIDATES,
        "shortlist": CANDIDATES,
        "tried": tried,
        "number": number,
        "remaining": 10,
        "seed": seed,
        "objective": OBJECTIVE,
        "posterior": believe,
    }
    return View(**(fields | changes))


def tried(c: Candidate, state: TrialState = TrialState.COMPLETE) -> Tried:
    value = None if state == TrialState.FAILED else truth(c)
    return Tried(c, state, value, value, feasible=True)


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    needs = {"optuna-gp": "torch", "skopt-gp": "skopt"}.get(request.param)
    if needs and importlib.util.find_spec(needs) is None:
        pytest.skip(f"{needs} is not installed")
    return str(request.param)


def history(
    sampler_name: str, count: int, candidates: Sequence[Candidate] = CANDIDATES, seed: int = 0
) -> list[Tried]:
    done: list[Tried] = []
    for number in range(count):
        proposal = create(sampler_name).propose(
            view(done, number=number, seed=seed, candidates=candidates, shortlist=candidates)
        )
        if proposal is None:
            break
        state = (
            TrialState.FAILED if number == 1 else TrialState.STOPPED if number == 2 else TrialState.COMPLETE
        )
        done.append(tried(proposal.candidate, state))
    return done


def test_proposes_valid_candidates_and_none_twice(name: str) -> None:
    done = [entry.candidate for entry in history(name, 13)]
    assert len(set(done)) == len(done) == 13
    assert set(done) <= set(CANDIDATES)


def test_same_view_same_proposal(name: str) -> None:
    done = history(name, 12)
    proposals = {create(name).propose(view(done, number=12)).candidate for _ in range(2)}
    assert len(proposals) == 1


def test_ends_when_everything_was_tried(name: str) -> None:
    few = CANDIDATES[:4]
    done = history(name, 9, few)
    assert {entry.candidate for entry in done} == set(few)
    assert len(done) == 4


def test_one_candidate_is_enough(name: str) -> None:
    one = CANDIDATES[:1]
    proposal = create(name).propose(view(candidates=one, shortlist=one))
    assert proposal is not None
    assert proposal.candidate == one[0]


def test_survives_a_history_of_failures(name: str) -> None:
    done = [tried(c, TrialState.FAILED) for c in CANDIDATES[:12]]
    proposal = create(name).propose(view(done, number=12))
    assert proposal is not None
    assert proposal.candidate not in CANDIDATES[:12]


@pytest.mark.parametrize("learner", ["auto", "optuna-tpe", "optuna-gp", "skopt-gp"])
def test_those_that_learn_do_better_than_chance(learner: str) -> None:
    needs = {"optuna-gp": "torch", "skopt-gp": "skopt"}.get(learner)
    if needs and importlib.util.find_spec(needs) is None:
        pytest.skip(f"{needs} is not installed")
    plenty = enumerate_space(SPACE, 8)
    done = [tried(c) for c in plenty[::6]]
    proposed = []
    for number in range(2 if learner.endswith("gp") else 6):  # theirs takes seconds each
        proposal = create(learner).propose(
            view(done, number=len(done), seed=number, candidates=plenty, shortlist=plenty)
        )
        assert proposal is not None
        proposed.append(truth(proposal.candidate))
    average, spread = np.mean([truth(c) for c in plenty]), np.std([truth(c) for c in plenty])
    # Six points drawn at random would be as far above the average once in twenty times.
    assert np.mean(proposed) > average + 0.7 * spread


def test_auto_starts_at_the_best_mean_and_says_what_it_expects() -> None:
    first = create("auto").propose(view())
    assert first is not None
    assert first.expected_improvement is None
    assert truth(first.candidate) == max(map(truth, CANDIDATES))
    second = create("auto").propose(view([tried(first.candidate)], number=1))
    assert second is not None
    assert second.expected_improvement is not None
    assert second.expected_improvement > 0


def test_auto_spends_the_last_trial_on_the_best_mean() -> None:
    worst_first = sorted(CANDIDATES, key=truth)[:3]
    proposal = create("auto").propose(view([tried(c) for c in worst_first], number=3, remaining=1))
    assert proposal is not None
    assert truth(proposal.candidate) == max(map(truth, CANDIDATES))


def test_unknown_name_and_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="no such sampler"):
        create("annealing")
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda n, *a: None if n == "torch" else find_spec(n, *a))
    with pytest.raises(MissingError) as failure:
        create("optuna-gp")
    assert "pip install torch" in failure.value.mend
    monkeypatch.setitem(__import__("sys").modules, "skopt", None)
    with pytest.raises(MissingError) as failure:
        create("skopt-gp")
    assert "skopt" in failure.value.mend


def test_auto_asked_twice_before_an_answer_says_two_things() -> None:
    done = [tried(CANDIDATES[0])]
    first = create("auto").propose(view(done, number=1))
    assert first is not None
    second = create("auto").propose(view(done, number=2, pending=(first.candidate,)))
    assert second is not None
    assert second.candidate not in (first.candidate, CANDIDATES[0])


def test_auto_avoids_what_crashes_and_restarts_that_gain_little() -> None:
    done = [tried(CANDIDATES[0])]
    first = create("auto").propose(view(done, number=1))
    assert first is not None
    avoided = create("auto").propose(
        view(done, number=1, chance=lambda cs: np.array([0.01 if c == first.candidate else 1.0 for c in cs]))
    )
    assert avoided is not None
    assert avoided.candidate != first.candidate
    flat = lambda cs: Posterior(tuple(cs), np.ones(len(cs)), np.eye(len(cs)))  # noqa: E731  # one belief, used once
    here = create("auto").propose(view([tried(CANDIDATES[7])], number=1, dear=True, posterior=flat))
    assert here is not None
    assert here.candidate.allocation == CANDIDATES[7].allocation


def test_auto_repeats_a_noisy_trial_where_that_tells_most() -> None:
    """Two tried ones are nearly equal and uncertain, all others are far behind: another look decides."""
    two = CANDIDATES[:2]

    def belief(candidates: Sequence[Candidate]) -> Posterior:
        mean = np.array([10.0 if c in two else 5.0 for c in candidates])
        return Posterior(tuple(candidates), mean, 0.01 * np.eye(len(mean)), np.full(len(mean), 0.1))

    again = create("auto").propose(view([tried(c) for c in two], number=2, posterior=belief))
    assert again is not None
    assert again.candidate in two
