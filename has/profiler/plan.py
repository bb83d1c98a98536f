"""What to measure: the points of a profile, and how often each.

Every (stage, beside) is a full grid of SM shares, batches and tokens, as look-ups need it; which of its points are measured
and which follow from others is settled on the way (`adapt.py`). Shares lie so close that a latency in proportion to 1/share is
looked up within 3 % between two of them; where a curve bends between two, spare shares come in. A stage beside another is measured with that other one
running all the time on the rest of the SMs: a prefill that is long, an encode that fills its share. At 100 % there is
no rest: there both hold all SMs, without a partition (streams), and each is slowed by as much of the GPU as the other can
fill: so a prefill there is measured beside an encode of the middle size, not beside the largest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from has.core.stage import Beside, Stage
from has.errors import InputError

Size = Literal["quick", "full"]
Key = tuple[str, str, float, int, int]
"""stage, beside, sm_percent, batch, tokens."""
PARTITIONED = (Stage.ENCODE, Stage.PREFILL, Stage.DECODE)
COLOCATED = {Stage.ENCODE: Stage.PREFILL, Stage.PREFILL: Stage.ENCODE}


@dataclass(frozen=True, slots=True)
class Companion:
    """What runs beside a point, without pause, on the SMs that the point leaves (on all, where it has all)."""

    stage: Stage
    batch: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Point:
    """One row to be: `sm_percent` is what the device gives this stage, `sm_asked` what was asked of it.

    spare: at a share that becomes rows only where some curve of the stage bends beside it."""

    stage: Stage
    sm_percent: float
    batch: int
    tokens: int
    sm_asked: float
    companion: Companion | None = None
    spare: bool = False

    @property
    def beside(self) -> Beside:
        return Beside(self.companion.stage) if self.companion else Beside.NONE

    @property
    def key(self) -> Key:
        return (self.stage, self.beside, self.sm_percent, self.batch, self.tokens)


@dataclass(frozen=True, slots=True)
class Sampling:
    """A point is repeated at least `least` times (a decode step `steps` times) until the 90 % confidence interval of its
    mean is no wider than `width` to either side, relatively; but no longer than until there are three times as
    many, or the point has run for `cap_s` (one sample it has always). `straight`: how far the thirds of a
    curve may be off a line between its ends, relatively, for what lies between not to be measured. `bent`: how far
    off a line prolonged from its neighbours may miss the other end of a stretch without spare shares being measured in it."""

    least: int
    steps: int
    width: float
    cap_s: float
    straight: float
    bent: float


@dataclass(frozen=True, slots=True)
class Axes:
    """Values to measure at. `media` are tokens of one request's media, `prompt` prompt + media, `context` decode's."""

    sm: tuple[float, ...]
    batch: tuple[int, ...]
    media: tuple[int, ...]
    prompt: tuple[int, ...]
    context: tuple[int, ...]
    moved: tuple[int, ...]


AXES: dict[Size, Axes] = {
    "quick": Axes(
        (20, 25, 35, 45, 60, 80, 100), (1, 2, 3, 4, 6, 8), (32, 64, 112), (64, 192), (64, 256), (64, 256)
    ),
    "full": Axes(
        (10, 15, 20, 25, 30, 40, 50, 60, 70, 80, 90, 100),
        (1, 2, 3, 4, 6, 8, 12, 16),
        (64, 128, 256),
        (32, 64, 128, 256, 512),
        (64, 256, 1024),
        (64, 256, 1024, 4096),
    ),
}
SAMPLING: dict[Size, Sampling] = {
    "quick": Sampling(2, 6, 0.04, cap_s=1.0, straight=0.02, bent=0.03),
    "full": Sampling(5, 20, 0.01, cap_s=30.0, straight=0.01, bent=0.02),
}
SPARE = range(5, 100, 5)
"""Shares asked for where a curve bends, percent; what the device gives for them counts."""
METHOD = "3: moved bytes come from pages that were written"
"""How points are measured, for digests: what was kept of another way is not used."""
DECODE_REACH = 4
"""Decode runs many sequences at once: its largest batch is this many times the largest of the others."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Points in the order to measure them: the longest first, so that none is left running alone at the end.

    adaptive: points of a straight stretch of a curve need not be measured; where shares or batches were asked for, all are.
    """

    model: str
    size: Size
    points: tuple[Point, ...]
    sampling: Sampling
    adaptive: bool = False

    def digest(self) -> str:
        """Of all that a measured point of this plan depends on besides the device and what runs beside it."""
        text = json.dumps([self.model, asdict(self.sampling), METHOD], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def make_plan(
    model: str,
    given: Callable[[str, float], float],
    media_tokens: Callable[[int], int],
    *,
    size: Size = "quick",
    sm: Sequence[float] | None = None,
    batch: Sequence[int] | None = None,
    tokens: Sequence[int] | None = None,
    usual: Mapping[Size, Axes] | None = None,
) -> Plan:
    """The plan for one model.

    given: the SM share that a stage gets on the device when it asks for one. media_tokens: the nearest number of media tokens
    that an item of the model can have. `sm`, `batch`, `tokens` (of every stage) replace the values of `size`, which
    are those of `usual` (default AXES).
    Raises InputError for values out of range.
    """
    axes = (usual or AXES)[size]
    shares = _checked("sm", sm, 1, 100) or axes.sm
    batches = _whole("batch", batch, 1, 1024) or axes.batch
    counts = _whole("tokens", tokens, 1, 65536)
    adaptive = sm is None and batch is None
    media = sorted({media_tokens(count) for count in counts or axes.media})
    prompt = sorted(set(counts or axes.prompt))
    context = sorted(set(counts or axes.context))
    points = [Point(s, 100.0, 1, t, 100.0) for s in _MOVES for t in sorted(set(counts or axes.moved))]
    points += [Point(Stage.PREPROCESS, 100.0, 1, t, 100.0) for t in media]
    steps = sorted(set(batches) | ({DECODE_REACH * max(batches)} if batch is None else set()))
    typical = Companion(Stage.ENCODE, _middle(batches), _middle(media))
    for stage, sizes, axis, beside in (
        (Stage.DECODE, steps, context, None),
        (Stage.ENCODE, batches, media, Companion(Stage.PREFILL, 1, prompt[-1])),
        (Stage.PREFILL, batches, prompt, Companion(Stage.ENCODE, batches[-1], media[0])),
    ):
        for share, (asked, spare) in _shares(stage, shares, given, adaptive).items():
            streams = share >= 100 and stage is Stage.PREFILL
            for companion in dict.fromkeys((None, typical if streams else beside)):
                points += [Point(stage, share, b, t, asked, companion, spare) for b in sizes for t in axis]
    ordered = tuple(sorted(points, key=weight, reverse=True))
    return Plan(model, size, ordered, SAMPLING[size], adaptive)


def _middle(values: Sequence[int]) -> int:
    """The median of ascending values, of an even number of them the lower."""
    return values[(len(values) - 1) // 2]


_MOVES = (Stage.EMBEDDING_TRANSFER, Stage.KV_TRANSFER)


def weight(point: Point) -> float:
    """How long a point takes, roughly and in no unit: good enough for an order and a forecast."""
    if point.stage in (*_MOVES, Stage.PREPROCESS):
        return 0.0
    if point.stage is Stage.DECODE:
        return 0.1 * (20 + point.batch) / point.sm_percent
    return point.batch * (16 + point.tokens) / point.sm_percent * (1.2 if point.companion else 1.0)


def load(point: Point) -> float:
    """How many virtual GPUs a point keeps busy at most: one beside a companion, else its SM share of one.

    A decode step is bound by memory and may use all there is at any share; and its steps are so short that
    loading its sequences, which nothing paces, costs half as much again.
    """
    if point.stage is Stage.DECODE:
        return 1.5
    return 1.0 if point.companion else point.sm_percent / 100.0


def _shares(
    stage: Stage, asked: Iterable[float], given: Callable[[str, float], float], adaptive: bool
) -> dict[float, tuple[float, bool]]:
    """Share that `stage` gets -> (the first that asked for it, whether it is spare); two may round to the same."""
    found: dict[float, tuple[float, bool]] = {}
    for share in sorted(asked):
        found.setdefault(given(stage, share), (share, False))
    least = min(found)
    for share in SPARE if adaptive else ():
        got = given(stage, share)
        if least < got < 100:
            found.setdefault(got, (share, True))
    return found


def _checked(name: str, values: Sequence[float] | None, low: float, high: float) -> tuple[float, ...]:
    for value in values or ():
        if not low <= value <= high:
            raise InputError(
                "out of range", where="argument", field=name, value=value, allowed=f"{low:g} to {high:g}"
            )
    if values is not None and not values:
        raise InputError("no value", where="argument", field=name, value=list(values), allowed="one or more")
    return tuple(sorted(set(values or ())))


def _whole(name: str, values: Sequence[int] | None, low: int, high: int) -> tuple[int, ...]:
    for value in values or ():
        if isinstance(value, bool) or value != int(value):
            raise InputError(
                "not a whole number", where="argument", field=name, value=value, allowed="integers"
            )
    return tuple(int(value) for value in _checked(name, values, low, high))
