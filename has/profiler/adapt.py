"""Which points of a plan to measure: the ends of each curve, its thirds, and more only where it bends.

A plane holds the points of one stage, neighbour and token count, over SM shares and batches. Along batches a
latency is near linear; along shares it is near linear in 1/share, with a knee where the work stops filling the SMs. So a
curve is cut in three: if both cuts lie on the line between its ends, what is between follows from the four; else each third
is looked at the same way. Shares are settled first, at the ends and thirds of the batches; then, at each share, batches.
A row that follows instead of being measured has no samples in the profile.

Look-ups are linear in the share itself, and a knee between two shares of the grid would be cut off by up to a tenth. So once
the grid's own shares are settled, a stretch between two of them is bent if neither neighbouring stretch, prolonged, meets its
other end; there the spare share nearest to where the two prolonged lines cross is measured, and becomes a share of the grid.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from has.core.stage import Beside
from has.profiler.plan import Key, Plan, Point, Sampling


@dataclass(slots=True)
class Outlook:
    """wanted: points to measure next. follows: seconds of points that need not be measured. absent: spare points
    that are no rows, as things stand."""

    wanted: list[Point] = field(default_factory=list)
    follows: dict[Key, float] = field(default_factory=dict)
    absent: set[Key] = field(default_factory=set)


def outlook(plan: Plan, seconds: Mapping[Key, float]) -> Outlook:
    """What to do next, given what was measured. Nothing is wanted once every point is measured, follows or is absent.

    Depends on its arguments alone: an interrupted profile comes to the same points again.
    """
    return Lookout(plan).look(seconds)


class Lookout:
    """`outlook` of one plan again and again, as `seconds` grow: a plane is looked at anew only if it has got a point."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._order = {point.key: place for place, point in enumerate(plan.points)}
        self._points = _planes(plan) if plan.adaptive else []
        self._planes: dict[int, tuple[int, _Plane]] = {}

    def look(self, seconds: Mapping[Key, float]) -> Outlook:
        """`seconds` hold what they held at the last look, and more."""
        found = Outlook()
        if not self._plan.adaptive:
            found.wanted = [point for point in self._plan.points if point.key not in seconds]
            return found
        planes = [self._plane(number, seconds) for number in range(len(self._points))]
        shares: dict[tuple[str, str], set[float]] = {}
        for plane in planes:
            shares.setdefault(plane.grid, set()).update(plane.shares)
        for plane in planes:
            active = shares[plane.grid]
            found.wanted += [plane.points[place] for place in plane.wanted]
            found.follows |= plane.filled(active)
            found.absent |= plane.keys_beyond(active)
        found.wanted.sort(key=lambda point: self._order[point.key])
        return found

    def _plane(self, number: int, seconds: Mapping[Key, float]) -> _Plane:
        points = self._points[number]
        have = sum(point.key in seconds for point in points.values())
        kept = self._planes.get(number)
        if kept is None or kept[0] != have:
            kept = have, _Plane(points, seconds, self._plan.sampling)
            self._planes[number] = kept
        return kept[1]


def rows(plan: Plan, ahead: Outlook) -> int:
    """How many rows the profile will have, as things stand."""
    return len(plan.points) - len(ahead.absent)


def settled(plan: Plan, seconds: Mapping[Key, float], ahead: Outlook) -> int:
    """How many of those are measured or follow."""
    return sum(
        point.key not in ahead.absent and (point.key in seconds or point.key in ahead.follows)
        for point in plan.points
    )


Place = tuple[float, int]
"""(share, batch)."""


def _planes(plan: Plan) -> list[dict[Place, Point]]:
    """Streams, which is what 100 % beside another stage means, are on no curve with the partitions."""
    planes: dict[tuple[str, str, int, bool], dict[Place, Point]] = {}
    for point in plan.points:
        streams = point.beside != Beside.NONE and point.sm_percent >= 100
        key = (point.stage, point.beside, point.tokens, streams)
        planes.setdefault(key, {})[point.sm_percent, point.batch] = point
    return list(planes.values())


class _Plane:
    """What is known of one plane, what follows, and what to measure next. shares: those that are rows on its account."""

    def __init__(self, points: dict[Place, Point], seconds: Mapping[Key, float], sampling: Sampling) -> None:
        self.points = points
        first = next(iter(points.values()))
        self.grid = (first.stage, first.beside)
        self.batches = sorted({batch for _, batch in points})
        self.follows: dict[Place, float] = {}
        self.wanted: set[Place] = set()
        self._known = {place: seconds[point.key] for place, point in points.items() if point.key in seconds}
        self._filled: tuple[set[float], dict[Key, float]] | None = None
        self._tolerance = sampling.straight
        own = {share for (share, _), point in points.items() if not point.spare}
        self.shares = sorted(own | {share for share, _ in self._known})
        marks = [self.batches[mark] for mark in _marks(0, len(self.batches) - 1)]
        for batch in marks:
            grid = sorted(own)
            self._line([(share, batch) for share in grid], [1 / share for share in grid])
        if not self.wanted:
            for batch in marks:
                self._bends(batch, sampling.bent, self._known.get)
        if not self.wanted:
            for batch in marks:
                self._between(self.shares, batch)
            for share in self.shares:
                self._line([(share, batch) for batch in self.batches], self.batches)
        if not self.wanted:
            for batch in self.batches:
                self._bends(batch, sampling.bent, self._at)
        self.shares = sorted({*self.shares, *(share for share, _ in self.wanted)})

    def filled(self, shares: set[float]) -> dict[Key, float]:
        """What follows, rows at `shares` that only other planes of the grid need among it, once this plane is settled."""
        if self._filled is None or self._filled[0] != shares:
            if not self.wanted:
                for batch in self.batches:
                    self._between(sorted(shares), batch)
            follows = {self.points[place].key: value for place, value in self.follows.items()}
            self._filled = set(shares), follows
        return self._filled[1]

    def keys_beyond(self, shares: set[float]) -> set[Key]:
        return {point.key for (share, _), point in self.points.items() if share not in shares}

    def _at(self, place: Place) -> float | None:
        return self._known.get(place, self.follows.get(place))

    def _line(self, places: list[Place], axis: Sequence[float]) -> None:
        have = {i: value for i, place in enumerate(places) if (value := self._at(place)) is not None}
        missing, filled = refine(axis, have, self._tolerance)
        self.wanted.update(places[i] for i in missing)
        self.follows.update({places[i]: value for i, value in filled.items()})

    def _bends(self, batch: int, tolerance: float, at: Callable[[Place], float | None]) -> None:
        """At the marks of the batches what was measured counts alone: what follows lies on lines and shows no bend."""
        shares = sorted({share for share, _ in self.points})
        have = {i: value for i, share in enumerate(shares) if (value := at((share, batch))) is not None}
        self.wanted.update((shares[i], batch) for i in bends([1 / s for s in shares], have, tolerance))

    def _between(self, shares: Sequence[float], batch: int) -> None:
        """Values at `shares` where there is none: on lines in 1/share between those there are."""
        axis = [1 / share for share in shares]
        have = {i: value for i, s in enumerate(shares) if (value := self._at((s, batch))) is not None}
        for low, high in pairwise(sorted(have)):
            for i in range(low + 1, high):
                self.follows[shares[i], batch] = _line(axis, have, low, high, i)


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


def bends(axis: Sequence[float], known: Mapping[int, float], tolerance: float) -> list[int]:
    """Indices to measure next on a curve over `axis` (1/share): one in each stretch that bends so much that look-ups are wrong.

    known: index -> value, the ends among them. A stretch is straight if the one before it or the one behind it,
    prolonged, is within `tolerance` of its other end, relatively. In one that is not, the two prolonged lines up to where they
    cross are what the curve should be: wanted is the index at which a look-up is farthest off it, if by more than `tolerance`.
    Where there are no two lines that cross within, it is the middle one.
    """
    marks = sorted(known)
    wanted = []
    for place, (low, high) in enumerate(pairwise(marks)):
        if high - low < 2:
            continue
        before = marks[place - 1] if place else None
        behind = marks[place + 2] if place + 2 < len(marks) else None
        meets = [
            abs(_line(axis, known, one, other, end) - known[end]) <= tolerance * known[end]
            for one, other, end in ((before, low, high), (high, behind, low))
            if one is not None and other is not None
        ]
        if any(meets):
            continue
        at = None
        if before is not None and behind is not None:
            at = _crossing(axis, known, (before, low), (high, behind))
        if at is None or before is None or behind is None:
            wanted.append((low + high) // 2)
            continue
        off = {}
        for i in range(low + 1, high):
            sides = (before, low) if abs(axis[i] - axis[low]) <= abs(at - axis[low]) else (high, behind)
            expected = _line(axis, known, *sides, i)
            off[i] = abs(_looked_up(axis, known, low, high, i) / expected - 1)
        worst = max(off, key=off.__getitem__)
        if off[worst] > tolerance:
            wanted.append(worst)
    return wanted


def _looked_up(axis: Sequence[float], known: Mapping[int, float], low: int, high: int, at: int) -> float:
    """As a look-up does it: linear in the share."""
    shares = [1 / axis[i] for i in (low, high, at)]
    return known[low] + (shares[2] - shares[0]) / (shares[1] - shares[0]) * (known[high] - known[low])


def _crossing(
    axis: Sequence[float],
    known: Mapping[int, float],
    left: tuple[int, int],
    right: tuple[int, int],
) -> float | None:
    """Where the lines through two pairs of points cross, if that is between the pairs."""
    slopes = [(known[j] - known[i]) / (axis[j] - axis[i]) for i, j in (left, right)]
    if slopes[0] == slopes[1]:
        return None
    i, j = left[1], right[0]
    at = (known[j] - known[i] + slopes[0] * axis[i] - slopes[1] * axis[j]) / (slopes[0] - slopes[1])
    return at if min(axis[i], axis[j]) < at < max(axis[i], axis[j]) else None


def _marks(low: int, high: int) -> list[int]:
    """The ends and the thirds between."""
    return sorted({low, *(low + round((high - low) * k / 3) for k in (1, 2)), high})


def _line(axis: Sequence[float], known: Mapping[int, float], low: int, high: int, at: int) -> float:
    weight = (axis[at] - axis[low]) / (axis[high] - axis[low])
    return known[low] + weight * (known[high] - known[low])
