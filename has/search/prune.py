"""Asymmetric pruning: cut what cannot work, keep what may.

A stage that cannot keep up is a first-order loss that survives wrong latencies, so it is cut on a
one-sided bound; slack is second-order and absorbs bursts, so a dominated candidate goes only when
it is far behind. Rules run in order, each on what the ones before left.

    symbol   meaning
    e        relative error of the profile's latencies
    m        1 - (1-e)/(1+e): two stages wrong by e in opposite directions shift a ratio by this
    R        what a candidate, or the best B and s of its allocation, can carry (`capacity`)
    Ref      min(offered rate, largest R): relative, for at overload no allocation is stable

Which batch still meets the SLO can jump where a flat curve crosses its bound, and no margin on R
covers that. So R judges it with latencies at 1-e of the profile's, Ref with 1+e.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from has.core.stage import Stage
from has.errors import InfeasibleError
from has.latency.memory import MemoryLine, gigabytes, memory_verdict
from has.search.capacity import UNBOUNDED, CapacityModel
from has.search.problem import PREFILL_POOL, Problem
from has.search.space import Allocation, Candidate
from has.search.worlds import behind_in_every_world

SATURATED = 0.03
"""An encode batch that gains less than this in throughput a doubling only makes requests wait."""
OVERLOADED = 0.75
"""Where more is offered than can be carried, drowning one prefill pool may save the requests of the other:
the interval of s, and dominance, then take this share of their bounds."""
ENOUGH = 1.5
"""Times the offered rate: what carries as much is not held against what carries more."""
LEAST_ERROR = 0.10
"""e is at least this: what a bound leaves out (queues, bursts) moves ratios however exact the profile is."""
LEAST_ALLOCATIONS = 3


@dataclass(frozen=True, slots=True)
class Cut:
    """A candidate that was cut: by which rule, at which bound, with which value, under which margin."""

    candidate: Candidate
    rule: str
    bound: float
    value: float
    margin: float
    reason: str


@dataclass(frozen=True, slots=True)
class Pruned:
    """What is left, and why the rest is not. `notes` are checks that were off or guards that acted."""

    kept: tuple[Candidate, ...]
    cuts: tuple[Cut, ...]
    notes: tuple[str, ...] = ()

    @property
    def by_rule(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for cut in self.cuts:
            counts[cut.rule] = counts.get(cut.rule, 0) + 1
        return counts

    def restore(self, candidates: Iterable[Candidate], note: str) -> Pruned:
        """With these candidates back in."""
        back = set(candidates)
        if not back:
            return self
        order = [*self.kept, *(cut.candidate for cut in self.cuts if cut.candidate in back)]
        return Pruned(
            tuple(order), tuple(c for c in self.cuts if c.candidate not in back), (*self.notes, note)
        )


def margin(error: float) -> float:
    """m for a relative error e of the latencies."""
    return 1 - (1 - error) / (1 + error)


def prune(problem: Problem, candidates: Sequence[Candidate], offered: float | None) -> Pruned:
    """Apply all rules; `offered` is the rate to carry (None: as much as can be).

    Raises InfeasibleError where memory admits no candidate.
    """
    return _Pruning(problem, offered).run(candidates)


def only_possible(problem: Problem, candidates: Sequence[Candidate]) -> Pruned:
    """The rules that hold without pruning too: what the profile cannot answer for, what no GPU can hold."""
    pruning = _Pruning(problem, None)
    return pruning.run(candidates, rules=(pruning.reach, pruning.memory))


class _Pruning:
    def __init__(self, problem: Problem, offered: float | None) -> None:
        self.problem = problem
        self.offered = math.inf if offered is None else offered
        self.error = min(max(problem.error, LEAST_ERROR), 0.9)
        self.m = margin(self.error)
        self.cuts: list[Cut] = []
        self.notes: list[str] = []
        self._optimist = problem.capacity_model(slack=1 - self.error, optimism=self.m)
        self._pessimist = problem.capacity_model(slack=1 + self.error, queued=True)
        self._floors: dict[tuple[object, ...], float] = {}

    def run(
        self,
        candidates: Sequence[Candidate],
        rules: Sequence[Callable[[list[Candidate]], list[Candidate]]] | None = None,
    ) -> Pruned:
        left = list(candidates)
        for rule in rules or (self.reach, self.memory):
            left = rule(left)
        if rules is None:
            possible = left
            for rule in (
                self.floor,
                self.deficit,
                self.offload_interval,
                self.batch_interval,
                self.dominance,
                self.worlds,
            ):
                left = rule(left)
            left = self._guard_allocations(possible, left)
        kept = set(left)
        cuts = tuple(cut for cut in self.cuts if cut.candidate not in kept)
        return Pruned(tuple(left), cuts, tuple(self.notes))

    # Each rule takes what is left and returns what it leaves.

    def reach(self, left: list[Candidate]) -> list[Candidate]:
        """Exact: an encode batch that the profile cannot be extrapolated to cannot be predicted."""
        if not self.problem.latency.covers(Stage.ENCODE):
            return left
        largest = float(self.problem.latency.grid(Stage.ENCODE).batch[-1]) * 4

        def beyond(c: Candidate) -> Cut | None:
            if not self.problem.beyond_reach(c.encode_batch):
                return None
            return Cut(
                c, "reach", largest, c.encode_batch, 0.0, "no latency is known for encode batches this large"
            )

        return self._cut(left, beyond)

    def memory(self, left: list[Candidate]) -> list[Candidate]:
        """Hard: weights and the KV of one request must fit, within 5 % of the limit."""
        requests = self.problem.requests
        tokens = np.quantile(requests.total_tokens + requests.output_tokens, self.problem.slo.attainment)
        verdicts: dict[tuple[object, ...], MemoryLine | None] = {}

        def too_large(c: Candidate) -> Cut | None:
            key = (c.topology, c.tp, c.gpus.count(0), c.topology == "disaggregated" and c.share < 1)
            if key not in verdicts:
                verdict = memory_verdict(
                    self.problem.deployment(c),
                    self.problem.metadata,
                    request_tokens=math.ceil(tokens),
                )
                self.notes.extend(note for note in verdict.notes if note not in self.notes)
                verdicts[key] = verdict.hopeless
            line = verdicts[key]
            if line is None:
                return None
            why = f"a GPU of pool {line.pool} must hold {gigabytes(line.need_bytes)} ({line.why})"
            return Cut(c, "memory", line.have_bytes, line.need_bytes, 0.05, why)

        kept = self._cut(left, too_large)
        if left and not kept:
            least = min((cut for cut in self.cuts if cut.rule == "memory"), key=lambda cut: cut.value)
            raise InfeasibleError(
                f"memory admits no candidate: at the least, {least.reason},"
                f" but may use {gigabytes(int(least.bound))}",
                mend="allow more tensor parallelism in the search space, a smaller dtype, or larger GPUs",
            )
        return kept

    def floor(self, left: list[Candidate]) -> list[Candidate]:
        """Hard: TTFT and TPOT without any queue, at the size quantile of the attainment target, over the SLO."""
        optimism = 1 - self.error

        def over(c: Candidate) -> Cut | None:
            ttft = self._ttft_floor(c) * optimism
            if ttft > self.problem.slo.ttft_s:
                why = "TTFT without any queue is over the SLO"
                return Cut(c, "floor", self.problem.slo.ttft_s, ttft, self.error, why)
            tpot = self._tpot_floor * optimism
            if tpot > self.problem.slo.tpot_s:
                why = "one decode step is over the TPOT of the SLO"
                return Cut(c, "floor", self.problem.slo.tpot_s, tpot, self.error, why)
            return None

        return self._unless_all(left, self._cut(left, over), "floor")

    def deficit(self, left: list[Candidate]) -> list[Candidate]:
        """One-sided: an allocation whose best B and s carry less than (1-m)·Ref."""
        best: dict[Allocation, float] = {}
        for c in left:
            best[c.allocation] = max(best.get(c.allocation, 0.0), self._best_r(c, self._optimist))
        reference = self._reference(left)
        bound = (1 - self.m) * reference
        quickest = min(left, key=lambda c: (self._ttft_floor(c), -best[c.allocation]), default=None)
        spared = {quickest.allocation} if quickest is not None else set()

        def short(c: Candidate) -> Cut | None:
            if best[c.allocation] >= bound or c.allocation in spared:
                return None
            binding = self._optimist.of(c, self.problem.kv_tokens(c)).binding
            why = f"at its best B and s this allocation cannot keep up (here: {binding})"
            return Cut(c, "deficit", bound, best[c.allocation], self.m, why)

        return self._cut(left, short)

    def offload_interval(self, left: list[Candidate]) -> list[Candidate]:
        """One-sided: s that leaves one of the two prefill pools more than it can carry."""
        rate = (1 - self.m) * self._reference(left)
        if self._overloaded(left):
            rate *= OVERLOADED

        def outside(c: Candidate) -> Cut | None:
            if c.topology != "disaggregated" or rate <= 0:
                return None
            # Local prefill as it is while encode carries `rate`; where it cannot, the batch rule speaks.
            low = 1 - self._optimist.local_prefill(c, rate) / rate
            high = self._optimist.remote_prefill(c) / rate
            if c.share < min(low, 1.0):
                return Cut(c, "offload", low, c.share, self.m, "local prefill cannot carry the rest")
            if c.share > max(high, 0.0):
                return Cut(
                    c, "offload", high, c.share, self.m, "the remote prefill pool cannot carry that share"
                )
            return None

        return self._cut(left, outside)

    def batch_interval(self, left: list[Candidate]) -> list[Candidate]:
        """One-sided: B too small to carry Ref, or past the encoder's saturation.

        A full batch that would take longer than TTFT is no reason: its waiting budget is then nought,
        and the batcher launches whatever waits as soon as the encoder is idle.
        """
        need = (1 - self.m) * self._reference(left)
        throughput, raw = self._optimist.encode_per_worker, self._optimist.encode_throughput
        batches = sorted({c.encode_batch for c in left if c.topology != "monolithic"})
        saturated = {
            b: small
            for b in batches
            for small in batches
            if small < b and raw(b) < raw(small) * (1 + SATURATED * math.log2(b / small))
        }

        def unfit(c: Candidate) -> Cut | None:
            if c.topology == "monolithic":
                return None
            carried = c.pool("encode") * throughput(c.encode_batch)
            if carried < need:
                return Cut(c, "batch", need, carried, self.m, "encode batches this small cannot keep up")
            if c.encode_batch in saturated:
                gain = raw(c.encode_batch) / raw(saturated[c.encode_batch]) - 1
                why = f"encode gains only {gain:.1%} over batches of {saturated[c.encode_batch]}"
                return Cut(c, "batch", SATURATED, gain, 0.0, why)
            return None

        return self._cut(left, unfit)

    def dominance(self, left: list[Candidate]) -> list[Candidate]:
        """Two-sided, cautious: far less carried than a candidate that is no slower without a queue."""
        reach = {c: min(self._own_r(c, self._optimist), self.offered) for c in left}
        sure = {c: min(self._own_r(c, self._pessimist), self.offered) for c in left}
        wide = 1 - (1 - self.m) * OVERLOADED if self._overloaded(left) else self.m
        ahead: list[tuple[float, float]] = []
        best = 0.0
        for c in sorted(left, key=self._ttft_floor):
            best = max(best, sure[c])
            ahead.append((self._ttft_floor(c), best))
        floors = [f for f, _ in ahead]

        def behind(c: Candidate) -> Cut | None:
            rival = ahead[int(np.searchsorted(floors, self._ttft_floor(c), side="right")) - 1][1]
            bound = (1 - wide) * rival
            if reach[c] >= bound or reach[c] >= self.offered:
                return None
            return Cut(
                c, "dominance", bound, reach[c], wide, "another candidate is no slower and carries far more"
            )

        return self._cut(left, behind)

    def worlds(self, left: list[Candidate]) -> list[Candidate]:
        """One-sided: behind a candidate that is no slower without a queue, whichever way the profile is wrong.

        What carries half as much again as is offered has slack enough. Off with several workloads: their
        requests differ in size, so TTFT can leave one of them hardly room to queue, and what that costs
        no bound on throughput sees (an optimum was lost by half in 1 of 14 random pairs).
        """
        if self.problem.further:
            return left
        if len(left) <= LEAST_ALLOCATIONS or self.error <= LEAST_ERROR:
            return left
        m = margin(LEAST_ERROR)
        m = 1 - (1 - m) * OVERLOADED if self._overloaded(left) else m
        carried, needed = behind_in_every_world(
            self.problem,
            left,
            np.array([self._ttft_floor(c) for c in left]),
            error=self.error,
            rest=LEAST_ERROR,
            margin=m,
            enough=ENOUGH * self.offered,
        )
        place = {c: i for i, c in enumerate(left)}

        def behind(c: Candidate) -> Cut | None:
            value, bound = float(carried[place[c]]), float(needed[place[c]])
            if value >= bound:
                return None
            why = "carries too little in every way the profile may be wrong"
            return Cut(c, "worlds", bound, value, m, why)

        return self._cut(left, behind)

    # Bounds the rules share.

    def _reference(self, left: Sequence[Candidate]) -> float:
        most = max((self._best_r(c, self._pessimist) for c in left), default=0.0)
        if most == 0.0:
            most = max((self._best_r(c, self._optimist) for c in left), default=0.0)
        return min(self.offered, most) if min(self.offered, most) != UNBOUNDED else 0.0

    def _overloaded(self, left: Sequence[Candidate]) -> bool:
        return math.isfinite(self.offered) and self._reference(left) < self.offered

    def _best_r(self, c: Candidate, model: CapacityModel) -> float:
        return model.best_over_offload(c, self.problem.kv_tokens(c))

    def _own_r(self, c: Candidate, model: CapacityModel) -> float:
        return model.of(c, self.problem.kv_tokens(c)).limit

    def _ttft_floor(self, c: Candidate) -> float:
        local = c.topology == "disaggregated" and c.share < 1
        remote = c.topology == "e_pd" or c.offload > 0
        pool = PREFILL_POOL[c.topology]
        key = (local, remote, pool)
        if key not in self._floors:
            services = self.problem.services(1, local=local, remote=remote, pool=pool, worst=False)
            self._floors[key] = float(np.quantile(services, self.problem.slo.attainment))
        return self._floors[key]

    @property
    def _tpot_floor(self) -> float:
        demand = self.problem.demand
        if demand.output_tokens <= 1:
            return 0.0
        return self.problem.latency.grid(Stage.DECODE).seconds(100.0, 1.0, demand.total_tokens)

    # Guards.

    def _cut(self, left: list[Candidate], rule: Callable[[Candidate], Cut | None]) -> list[Candidate]:
        kept = []
        for c in left:
            cut = rule(c)
            if cut is None:
                kept.append(c)
            else:
                self.cuts.append(cut)
        return kept

    def _unless_all(self, left: list[Candidate], kept: list[Candidate], rule: str) -> list[Candidate]:
        """A rule that would cut everything tells that nothing can meet the SLO, and leaves what is least bad."""
        if kept or not left:
            return kept
        cut = min((cut for cut in self.cuts if cut.rule == rule), key=lambda cut: cut.value / cut.bound)
        self.cuts = [cut for cut in self.cuts if cut.rule != rule]  # what stays was not cut
        self.notes.append(
            f"{cut.reason} for every candidate: {cut.value * 1e3:.4g} ms of {cut.bound * 1e3:.4g} ms at the least"
        )
        self.cuts = [cut for cut in self.cuts if cut.rule != rule]  # nothing was cut by it after all
        return left

    def _guard_allocations(self, possible: list[Candidate], kept: list[Candidate]) -> list[Candidate]:
        """Never fewer than three allocations: of the next best ones, the candidate that carries most comes back."""
        chosen = set(kept)
        have = {c.allocation for c in kept}
        for c in sorted(possible, key=lambda c: -self._own_r(c, self._optimist)):
            if len(have) >= LEAST_ALLOCATIONS:
                break
            if c.allocation not in have:
                have.add(c.allocation)
                chosen.add(c)
        return [c for c in possible if c in chosen]
