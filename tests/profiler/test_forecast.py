"""The time left of a profile, against a schedule in virtual time whose end is known."""

from __future__ import annotations

import pytest

from has.core.stage import Stage
from has.profiler import run as runner
from has.profiler.forecast import Forecast
from has.profiler.plan import Point, load, weight

GPUS = 4
SIZE = 8


def points() -> list[Point]:
    """Longest first, unpaced ones last, as a plan has them."""
    paced = [
        Point(stage, float(share), batch, 64, float(share))
        for stage in (Stage.ENCODE, Stage.PREFILL, Stage.DECODE)
        for share in (25, 50, 100)
        for batch in (1, 2, 4, 8)
    ]
    alone = [Point(Stage.KV_TRANSFER, 100.0, 1, tokens, 100.0) for tokens in (64, 128, 256)]
    return sorted(paced, key=weight, reverse=True) + alone


def expected_s(point: Point) -> float:
    return 0.3 if weight(point) == 0 else 1.0 + 0.1 * point.batch


def schedule(slower: float) -> tuple[list[tuple[float, float]], float]:
    """(instant, seconds said to be left) after each point, and the instant of the end, where every point
    takes `slower` times as long as expected."""
    now = 0.0
    waiting, running, ends = points(), dict[int, Point](), dict[int, float]()
    forecast = Forecast(points(), expected_s, GPUS, clock=lambda: now)
    said = []
    while waiting or running:
        for index, point in runner._assign(waiting, running, SIZE, GPUS):
            forecast.started(point)
            ends[index] = now + slower * expected_s(point)
        index = min(ends, key=ends.__getitem__)
        now = ends.pop(index)
        forecast.ended(running.pop(index))
        said.append((now, forecast.left_s()))
    return said, now


@pytest.mark.parametrize("slower", [0.5, 1.0, 3.0])
def test_what_is_said_to_be_left_is_about_what_is_left(slower: float) -> None:
    said, end = schedule(slower)
    early = said[: len(said) // 10 + 1]
    later = said[len(said) // 4 : -3]
    for now, left_s in early:
        assert 0.3 * (end - now) < left_s < 3 * (end - now)
    for now, left_s in later:
        assert 0.6 * (end - now) < left_s + 1.5
        assert left_s < 1.7 * (end - now) + 1.5


@pytest.mark.parametrize("slower", [0.01, 1.0])
def test_it_is_never_nought_while_a_point_is_left(slower: float) -> None:
    said, _ = schedule(slower)
    assert all(left_s >= 1.0 for _, left_s in said[:-1])
    assert said[-1][1] == 0.0


def test_a_point_that_is_measured_again_is_left_again() -> None:
    forecast = Forecast(points()[:1], lambda _: 60.0, 1, clock=lambda: 0.0)
    forecast.started(points()[0])
    forecast.ended(points()[0], again=True)
    assert forecast.left_s() >= 1.0
    forecast.started(points()[0])
    forecast.ended(points()[0])
    assert forecast.left_s() == 0.0


def test_what_runs_longest_is_waited_for() -> None:
    now = 0.0
    longest, short = points()[0], points()[1]
    forecast = Forecast([longest, short], lambda p: 100.0 if p is longest else 1.0, GPUS, clock=lambda: now)
    forecast.started(longest)
    forecast.started(short)
    assert load(longest) / GPUS < 0.5
    assert forecast.left_s() == pytest.approx(100.0)
