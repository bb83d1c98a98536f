"""Which points of a plan to measure: the ends of each curve, its thirds, and more only where it bends.

A plane holds the points of one stage, neighbour and token count, over SM shares and batches. Along batches a
latency is near linear; along shares it is near linear in 1/share, with a knee where the work stops filling the SMs. So a
curve is cut in three: if both cuts lie on the line between its ends, what is between follows from the four; else each third
is looked at the same way. Shares are settled first, at the ends and thirds of the batches; then, at each share, batches.
A row that follows instead of being measured has no samples in the profile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from has.core.stage import Beside
from has.profiler.plan import Key, Plan, Point


@dataclass(slots=True)
class Outlook:
    """wanted: points to measure next. follows: seconds of points that need not be measured."""

    wanted: list[Point] = field(default_factory=list)
    follows: dict[Key, float] = field(default_factory=dict)


def outlook(plan: Plan, seconds: Mapping[Key, float]) -> Outlook:
    """What to do next, given what was measured. Nothing is wanted once every point is measured or follows.

    Depends on its arguments alone: an interrupted profile comes to the same points again.
    """
    found = Outlook()
    if not plan.adaptive:
        found.wanted = [point for point in plan.points if point.key not in seconds]
        return found
    for plane in _planes(plan):
        _look(plane, seconds, plan.sampling.straight, found)
    order = {point.key: place for place, point in enumerate(plan.points)}
    found.wanted.sort(key=lambda point: order[point.key])
    return found


Plane = dict[tuple[float, int], Point]
"""(share, batch) -> point."""


def _planes(plan: Plan) -> list[Plane]:
    """Streams, which is what 100 % beside another stage means, are on no curve with the partitions."""
    planes: dict[tuple[str, str, int, bool], Plane] = {}
    for point in plan.points:
        streams = point.beside != Beside.NONE and point.sm_percent >= 100
        key = (point.stage, point.beside, point.tokens, streams)
        planes.setdefault(key, {})[point.sm_percent, point.batch] = point
    return list(planes.values())


def _look(plane: Plane, seconds: Mapping[Key, float], tolerance: float, found: Outlook) -> None:
    shares, batches = (sorted({place[axis] for place in plane}) for axis in (0, 1))
    known = {place: seconds[point.key] for place, point in plane.items() if point.key in seconds}
    wanted: set[tuple[float, int]] = set()
    follows: dict[tuple[float, int], float] = {}

    def line(places: list[tuple[float, int]], axis: Sequence[float]) -> None:
        have = {i: value for i, p in enumerate(places) if (value := known.get(p, follows.get(p))) is not None}
        missing, filled = refine(axis, have, tolerance)
        wanted.update(places[i] for i in missing)
        follows.update({places[i]: value for i, value in filled.items()})

    for place in _marks(0, len(batches) - 1):
        line([(share, int(batches[place])) for share in shares], [1 / share for share in shares])
    if not wanted:
        for share in shares:
            line([(share, int(batch)) for batch in batches], batches)
    found.wanted += [plane[place] for place in wanted]
    found.follows |= {plane[place].key: value for place, value in follows.items()}


def refine(
    axis: Sequence[float], known: Mapping[int, float], tolerance: float
) -> tuple[list[int], dict[int, float]]:
    """(indices to measure next, index -> value of those that follow) on a curve over `axis`.

    known: index -> value. A stretch is straight if the points at its thirds are within `tolerance` of the
    line between its ends, relatively. (Its middle alone would not tell: a curve that bends both ways
    crosses the line there.)
    """
    wanted: list[int] = []
    follows: dict[int, float] = {}

    def visit(low: int, high: int) -> None:
        marks = _marks(low, high)
        missing = [i for i in marks if i not in known]
        if missing:
            wanted.extend(missing)
            return
        straight = all(
            abs(_line(axis, known, low, high, i) - known[i]) <= tolerance * known[i] for i in marks[1:-1]
        )
        for left, right in pairwise(marks):
            if right - left < 2:
                continue
            if not straight:
                visit(left, right)
                continue
            follows.update(
                {i: _line(axis, known, left, right, i) for i in range(left + 1, right) if i not in known}
            )

    visit(0, len(axis) - 1)
    return sorted(set(wanted)), follows


def _marks(low: int, high: int) -> list[int]:
    """The ends and the thirds between."""
    return sorted({low, *(low + round((high - low) * k / 3) for k in (1, 2)), high})


def _line(axis: Sequence[float], known: Mapping[int, float], low: int, high: int, at: int) -> float:
    weight = (axis[at] - axis[low]) / (axis[high] - axis[low])
    return known[low] + weight * (known[high] - known[low])
