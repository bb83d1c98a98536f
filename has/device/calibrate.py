"""Measure the nominal table of a model: CPU seconds of its works, in the state the machine is in when all virtual GPUs work.

What a work costs depends on what else runs: a core that idles is slow to begin with, one whose other hardware thread computes
is slower throughout, and a shared host has seconds or minutes in which everything takes longer. So that a table taken now and one
taken in an hour say the same:

    one state      eight workers, each at the duty of one virtual GPU, all busy from the first sample to the last
    interleaved    works are dealt out in shares of about equal length; a worker goes round its own and its neighbour's, so that
                   every work is measured by two processes and all along
    the least      of the samples of a work the least counts: what disturbs only adds. The headroom puts back, for all works
                   alike, what they add to each other when all GPUs are busy, so that the host keeps up with the device
    halves         the tables of the earlier and of the later samples must agree, else more are taken; if they still do
                   not, the table says by how much (`Nominal.wavers`)

What is left between two tables is one factor for all works: how fast the host is in those minutes.
"""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, Any, Protocol

from has.device import host, nominal
from has.device.fleet import WAKE_S, Fleet, Handler
from has.device.nominal import Costs, Nominal
from has.device.patience import Patience
from has.errors import RunError

USUAL_S = 30.0
"""How long all of it takes on a quiet machine, loading included."""
LOCK_S = 300.0
"""How long another command is waited for that measures: it gives up sooner itself."""
SPAN_S, MOST_S = 10.0, 20.0
"""How long samples are taken, and at most where the two halves of them do not agree."""
STEADY = 0.05
"""How far apart they may be for no more to be taken, at nine works in ten; a table counts as sound a little beyond."""
LEAST = 4
"""Samples of each work at least."""
WITHIN = 0.75
"""Share of all samples, each over the least of its work, that the headroom covers. How much busy cores add to each other is a
fact of the host (1.2 at the median on one, 1.27 on another whose cores are threads of shared ones): where a table claims less
than most works take, virtual GPUs that are all saturated need more cores than their share, and the gate refuses trials on an
idle machine."""
HEADROOM = (1.2, 1.4)
"""At least and at most. With less, saturated GPUs kept no pace on any host; beyond, samples tell of seconds in which the host
was slow (1.48 beside halves that were 20 % apart), not of what works add to each other."""
WORKER = "has.device.calibrate:worker"
Key = tuple[str, int, int]
"""stage, batch, tokens."""


class Bench(Protocol):
    """What can be measured of a model: works as callables, and facts for profiles.

    facts["media_unit"]: media tokens of the smallest thing the encoder takes.
    """

    facts: dict[str, Any]

    def prepare(self, stage: str, batch: int, tokens: int) -> Callable[[], object]: ...


def grid(media_unit: int) -> dict[str, tuple[tuple[int, ...], tuple[int, ...]]]:
    """Batches and tokens to measure per stage: enough, as CPU cost is near linear between and beyond them."""
    media = max(1, round(64 / media_unit)) * media_unit
    return {
        "encode": ((1, 4, 8), (media, 2 * media)),
        "prefill": ((1, 4), (16, 64, 256)),
        "decode": ((1, 8, 32), (64, 256)),
    }


def nominal_table(
    model: str,
    bench: str,
    *,
    total_share: float | None = None,
    progress: Callable[[int, int], None] | None = None,
    say: Callable[[str], None] = lambda _: None,
    fresh: bool = False,
) -> Nominal:
    """The table of `model` that is kept on this machine, else measured now (15 to 30 s) and kept.

    fresh: one that was measured while others used the machine is measured again, if they no longer do; so is one that wavered.

    bench: "module:function" that opens a Bench for a model name (has.models.names.BENCH for bundled models).
    total_share: see host.total_share. Two callers at once measure once. say: is told what is waited for where that takes long.
    Raises RunError where the machine is too busy.
    """
    with _alone(say):
        table = nominal.kept(model, total_share)
        if table is not None and fresh and not table.sound and _quiet():
            total_share, table = table.total_share, None
        if table is None:
            table = measure(model, bench, host.total_share(total_share), progress, say)
            nominal.keep(table)
    return table


def _quiet() -> bool:
    return host.busy_cores() <= nominal.OTHERS_BOUND * host.cores()


def measure(
    model: str,
    bench: str,
    share: float,
    progress: Callable[[int, int], None] | None = None,
    say: Callable[[str], None] = lambda _: None,
    clock: Callable[[], float] = time.monotonic,
) -> Nominal:
    """Measure with as many workers as there are virtual GPUs, each at the duty of one.

    progress: seconds passed, of how many.
    """
    slice_cores = host.slice_cores(share)
    patience = Patience(f"measuring what {model} costs on this CPU", USUAL_S, say, clock=clock)
    with Fleet(bench, model, WORKER, host.MAX_VIRTUAL_GPUS, patience=patience) as fleet:
        axes = grid(fleet.ask(0, {"facts": True})["media_unit"])
        works = [(s, b, t) for s, (batches, tokens) in axes.items() for b in batches for t in tokens]
        shares = deal(works, _first_look(fleet, works), fleet.size)
        samples: dict[Key, list[float]] = {work: [] for work in works}
        others, own_s = host.OthersMeter(), 0.0
        begun, until_s = clock(), SPAN_S
        turns = [0] * fleet.size

        def go_on(index: int) -> None:
            fleet.send(
                index,
                {"works": shares[(index + turns[index] % 2) % fleet.size], "duty": slice_cores},
            )

        for index in range(fleet.size):
            go_on(index)
        running = fleet.size
        while running:
            for index, (taken, spent_s) in fleet.replies():
                own_s += spent_s
                for stage, batch, tokens, cpu_s in taken:
                    samples[stage, batch, tokens].append(cpu_s)
                passed_s = clock() - begun
                if passed_s >= until_s and until_s < MOST_S and wavering(samples) > STEADY:
                    until_s += SPAN_S / 4
                if progress:
                    progress(min(round(passed_s), round(until_s)), round(until_s))
                if passed_s >= until_s and min(map(len, samples.values())) >= LEAST:
                    running -= 1
                    continue
                turns[index] += 1
                go_on(index)
        used = others.cores(own_s)
    added = headroom(samples)
    costs = {work: added * min(of) for work, of in samples.items()}
    return Nominal(
        model,
        share,
        slice_cores,
        {
            stage: Costs(batches, tokens, tuple(tuple(costs[stage, b, t] for t in tokens) for b in batches))
            for stage, (batches, tokens) in axes.items()
        },
        round(used, 2),
        round(wavering(samples), 3),
    )


def _first_look(fleet: Fleet, works: Sequence[Key]) -> dict[Key, float]:
    """CPU seconds of each work once, to deal them out by; it warms what first calls build."""
    for index in range(fleet.size):
        fleet.send(index, {"works": works[index :: fleet.size], "duty": 1.0})
    found: dict[Key, float] = {}
    while len(found) < len(works):
        for _, (taken, _spent) in fleet.replies():
            found |= {(stage, batch, tokens): cpu_s for stage, batch, tokens, cpu_s in taken}
    return found


def deal(works: Sequence[Key], seconds: Mapping[Key, float], shares: int) -> list[list[Key]]:
    """Works in `shares` shares that take about equally long: the longest first, each to the share that has least."""
    dealt: list[list[Key]] = [[] for _ in range(shares)]
    filled = [0.0] * shares
    for work in sorted(works, key=lambda work: seconds[work], reverse=True):
        least = filled.index(min(filled))
        dealt[least].append(work)
        filled[least] += seconds[work]
    return dealt


def headroom(samples: Mapping[Key, Sequence[float]]) -> float:
    """What a sample is over the least of its work: `WITHIN` of all are at or below, whichever work they are of; in the
    bounds of `HEADROOM`."""
    over = sorted(sample / min(of) for of in samples.values() for sample in of)
    least, most = HEADROOM
    return min(most, max(least, over[int(WITHIN * (len(over) - 1))]))


def wavering(samples: Mapping[Key, Sequence[float]]) -> float:
    """How far the tables of earlier and later samples are apart, relatively: what nine in ten works do not exceed."""
    apart = sorted(
        abs(min(of[len(of) // 2 :]) / min(of[: len(of) // 2]) - 1) if len(of) > 1 else float("inf")
        for of in samples.values()
    )
    return apart[int(0.9 * (len(apart) - 1))]


def worker(bench: Bench, index: int) -> Handler:
    prepared: dict[Key, Callable[[], object]] = {}

    def ready(work: Key) -> Callable[[], object]:
        if work not in prepared:
            prepared[work] = bench.prepare(*work)
            prepared[work]()
        return prepared[work]

    def handle(message: dict[str, Any]) -> Any:
        if message.get("facts"):
            return bench.facts
        begun = time.process_time()
        works = [(stage, batch, tokens) for stage, batch, tokens in message["works"]]
        taken = [(*work, paced_cpu_s(ready(work), message["duty"])) for work in works]
        return taken, time.process_time() - begun

    return handle


def paced_cpu_s(fn: Callable[[], object], duty: float) -> float:
    """CPU seconds of `fn` on this thread, which then rests until it has computed for `duty` of the time."""
    begun, ran = time.monotonic(), time.thread_time()
    fn()
    ran = time.thread_time() - ran
    time.sleep(max(0.0, ran / duty - (time.monotonic() - begun)))
    return ran


@contextmanager
def _alone(say: Callable[[str], None]) -> Iterator[None]:
    with (host.cache_folder() / "nominal.lock").open("w") as lock:
        _take(lock, say)
        yield


def _take(lock: IO[str], say: Callable[[str], None]) -> None:
    """Hold `lock`, once who holds it now has ended."""
    told = False
    until_s = time.monotonic() + LOCK_S
    while not _took(lock):
        if not told:
            say("another command is measuring what works cost on this CPU: waiting for it")
            told = True
        if time.monotonic() >= until_s:
            raise RunError(
                f"another command has been measuring what works cost on this CPU for {LOCK_S:.0f} s",
                mend="wait until it is done, or end it",
            )
        time.sleep(WAKE_S)


def _took(lock: IO[str]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
