"""Simulations in threads say what they say one by one, and are counted."""

from __future__ import annotations

import pytest

from has.core.slo import Slo
from has.core.space import SearchSpace
from has.search import side_by_side as module
from has.search.objective import Objective
from has.search.predict import Predictor
from has.search.problem import Problem
from has.search.side_by_side import side_by_side
from has.search.space import enumerate_space
from has.sim.draw import draw_requests
from tests.search.small import make_profile, make_workload


@pytest.fixture
def deployments():
    workload = make_workload()
    assert isinstance(workload.slo, Slo)
    space = SearchSpace(version=1)
    asked = Problem(
        gpus=3,
        profile=make_profile(),
        workload=workload,
        objective=Objective("max-rate", (), workload.slo),
        requests=draw_requests(workload, rate=8.0, requests=300, seed=0),
        base_rate=8.0,
        settings={"model": "synthetic"},
        batches=space.encode_batch,
    )
    return asked, [asked.deployment(c) for c in enumerate_space(space, 3)][:40]


@pytest.mark.parametrize("threads", [1, 2, 4, 64])
def test_the_same_as_one_by_one(deployments, monkeypatch, threads):
    asked, listed = deployments
    alone = Predictor(asked)
    expected = [alone.point(d, asked.base_rate, asked.requests) for d in listed]
    monkeypatch.setattr(module, "cores", lambda: threads)
    predictor = Predictor(asked)
    seen = set()

    def point(by, deployment):
        seen.add(id(by))
        return by.point(deployment, asked.base_rate, asked.requests)

    assert side_by_side(predictor, point, listed) == expected
    assert predictor.simulations == alone.simulations
    assert (len(seen) > 1) == (threads > 1)


def test_of_nothing_nothing(deployments):
    assert side_by_side(Predictor(deployments[0]), lambda by, d: d, []) == []


def test_a_failure_is_the_callers(deployments, monkeypatch):
    asked, listed = deployments
    monkeypatch.setattr(module, "cores", lambda: 4)

    def fails(by, deployment):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        side_by_side(Predictor(asked), fails, listed)
