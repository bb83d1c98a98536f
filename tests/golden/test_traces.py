"""Deployments and request lists worked by hand: records and figures, to 1e-8."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from has.core.deployment import Deployment
from has.core.figures import figures, met
from has.core.profile import Profile
from has.core.records import NEVER, ROUTES
from has.core.requests import Requests
from has.sim.run import run_records, simulate

TRACES = sorted(Path(__file__).parent.glob("*.json"))


def _load(path):
    trace = json.loads(path.read_text())
    return (
        trace,
        Deployment.model_validate_json(json.dumps(trace["deployment"])),
        Profile.model_validate_json(json.dumps(trace["profile"])),
        Requests.from_rows(trace["requests"]),
    )


def _value(records, ok, column, i):
    if column == "met":
        return bool(ok[i])
    if column == "arrival_s":
        return records.requests.arrival_ns[i] / 1e9
    name = column.removesuffix("_s") + "_ns" if column.endswith("_s") else column
    value = int(getattr(records, name)[i])
    if value == NEVER:
        return None
    if column == "route":
        return ROUTES[value]
    return value / 1e9 if column.endswith("_s") else value


@pytest.mark.parametrize("path", TRACES, ids=lambda p: p.stem)
def test_records_come_out_as_worked_by_hand(path):
    trace, deployment, profile, requests = _load(path)
    records = run_records(deployment, profile, requests)
    ok = met(records, deployment.slo)
    for i, row in enumerate(trace["records"]):
        for column, expected in row.items():
            if column == "request":
                continue
            value = _value(records, ok, column, i)
            close = pytest.approx(expected, abs=1e-8) if isinstance(expected, float) else expected
            assert value == close, (i, column)


@pytest.mark.parametrize("path", TRACES, ids=lambda p: p.stem)
def test_figures_come_out_as_worked_by_hand(path):
    trace, deployment, profile, requests = _load(path)
    records = run_records(deployment, profile, requests)
    for found in (figures(records, deployment.slo), simulate(deployment, profile, requests)):
        _holds(trace["figures"], found, "figures")


def _holds(expected, found, where):
    for key, value in expected.items():
        if isinstance(value, dict):
            _holds(value, found[key], f"{where}.{key}")
        else:
            assert found[key] == pytest.approx(value, rel=1e-8), f"{where}.{key}"


def test_there_are_traces():
    assert len(TRACES) >= 8
