"""Asymmetric pruning: cut what cannot work, keep what may.

A stage that cannot keep up is a first-order loss that survives wrong latencies, so it is cut on a
one-sided bound; slack is second-order and absorbs bursts, so a dominated candidate goes only when
it is far behind. Rules run in order, each on what the ones before left.

    symbol   meaning
    e        relative error of the profile's latencies
    m        1 - (1-e)/(1+e): two stages wrong by e in opposite directions shift a ratio by this
    R        what a candidate, or the best B and s of its allocation, can carry at the most (`capacity`)
    Ref      min(offered rate, what some candidate carries for sure): relative, for at overload no
             allocation is stable (`promise`)

Which batch still meets the SLO can jump where a flat curve crosses its bound, and no margin on R
covers that: R judges it with latencies at 1-e of the profile's. Ref is simulated with all latencies
at 1+e, for where TTFT leaves little room to queue nobody reaches what capacities allow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np

from has.core.requests import Requests
from has.core.stage import Stage
from has.core.words import percent
from has.errors import InfeasibleError
from has.latency.memory import MemoryLine, gigabytes, memory_verdict
from has.search.capacity import UNBOUNDED
from has.search.cuts import Cut, Pruned
from has.search.problem import PREFILL_POOL, Problem
from has.search.promise import Promises
from has.search.space import Allocation, Candidate
from has.search.worlds import CLOSE, fewest, standing

__all__ = ["Cut", "Pruned", "margin", "only_possible", "prune"]

SATURATED = 0.03
"""An encode batch that gains less than this in throughput a doubling only makes requests wait."""
OVERLOADED = 0.75
"""Where more is offered than can be carried, drowning one prefill pool may save the requests of the other:
the interval of s, and dominance, then take this share of their bounds."""
LEAST_ERROR = 0.10
"""e is at least this: what a bound leaves out (queues, bursts) moves ratios however exact the profile is."""
LEAST_ALLOCATIONS = 3
ROOM = 0.25
"""Share of the space that may stay though something as good stays too."""
WORK = 3_000_000
"""Requests that may be simulated to look at worlds: about two seconds."""


def margin(error: float) -> float:
    """m for a relative error e of the latencies."""
    return 1 - (1 - error) / (1 + error)


def prune(
    problem: Problem,
    candidates: Sequence[Candidate],
    offered: float | None,
    requests: Requests | None = None,
) -> Pruned:
    """Apply all rules; `offered` is the rate to carry (None: as much as can be), `requests` what is
    simulated to know what can be carried (default: the problem's).

    Raises InfeasibleError where memory admits no candidate.
    """
    return _Pruning(problem, offered, requests).run(candidates)


def only_possible(problem: Problem, candidates: Sequence[Candidate]) -> Pruned:
    """The rules that hold without pruning too: what the profile cannot answer for, what no GPU can hold."""
    pruning = _Pruning(problem, None)
    return pruning.run(candidates, rules=(pruning.reach, pruning.memory))


class _Pruning:
    def __init__(self, problem: Problem, offered: float | None, requests: Requests | None = None) -> None:
        self.problem = problem
        self.requests = problem.requests if requests is None else requests
        self.offered = math.inf if offered is None else offered
        self.error = min(max(problem.error, LEAST_ERROR), 0.9)
        self.m = margin(self.error)
        self.cuts: list[Cut] = []
        self.notes: list[str] = []
        self._optimist = problem.capacity_model(slack=1 - self.error, optimism=self.m)
        self._floors: dict[tuple[object, ...], float] = {}
        self._known_promises: Promises | None = None
        self._asked = 0

    def run(
        self,
        candidates: Sequence[Candidate],
        rules: Sequence[Callable[[list[Candidate]], list[Candidate]]] | None = None,
    ) -> Pruned:
        left = list(candidates)
        self._asked = len(left)
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
        """Hard: TTFT and TPOT without any queue, at the size quantile of the attainment target, over the SLO.

        A goodput does without the target. There the rule holds only if somebody meets it for sure.
        """
        optimism = 1 - self.error

        def over(c: Candidate) -> Cut | None:
            ttft = self._ttft_floor(c) * optimism
            if ttft > self.problem.slo.ttft_s:
                why = "TTFT without any queue is over the SLO"
                return Cut(c, "floor", self.problem.slo.ttft_s, ttft, self.error, why)
            tpot = self._tpot_floor * optimism
            if tpot > self._tpot_allowed:
                why = "one decode step is over the TPOT of the SLO"
                return Cut(c, "floor", self._tpot_allowed, tpot, self.error, why)
            return None

        kept = self._unless_all(left, self._cut(left, over), "floor")
        if self.problem.objective.name == "goodput" and len(kept) < len(left) and self._overloaded(kept):
            self.cuts = [cut for cut in self.cuts if cut.rule != "floor"]
            return left
        return kept

    def deficit(self, left: list[Candidate]) -> list[Candidate]:
        """One-sided: an allocation whose best B and s carry less than (1-m)·Ref."""
        best: dict[Allocation, float] = {}
        for c in left:
            best[c.allocation] = max(best.get(c.allocation, 0.0), self._best_r(c))
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
        and the batcher launches whatever waits as soon as the encoder is idle. Nor is saturation at overload,
        where the little that a larger batch gains decides how soon TTFT is over.
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
        if self._overloaded(left):
            saturated = {}

        def unfit(c: Candidate) -> Cut | None:
            if c.topology == "monolithic":
                return None
            carried = c.pool("encode") * throughput(c.encode_batch)
            if carried < need:
                return Cut(c, "batch", need, carried, self.m, "encode batches this small cannot keep up")
            if c.encode_batch in saturated:
                gain = raw(c.encode_batch) / raw(saturated[c.encode_batch]) - 1
                why = f"encode gains only {percent(gain)} over batches of {saturated[c.encode_batch]}"
                return Cut(c, "batch", SATURATED, gain, 0.0, why)
            return None

        return self._cut(left, unfit)

    def dominance(self, left: list[Candidate]) -> list[Candidate]:
        """Two-sided, cautious: at its own B and s far below what another candidate carries for sure; of
        cost, dearer than one that surely meets the SLO."""
        if self.problem.objective.name == "cost":
            return self._too_dear(left)
        wide = 1 - (1 - self.m) * OVERLOADED if self._overloaded(left) else self.m
        bound = (1 - wide) * self._reference(left)

        def behind(c: Candidate) -> Cut | None:
            reach = self._own_r(c)
            if reach >= bound:
                return None
            return Cut(c, "dominance", bound, reach, wide, "another candidate surely carries far more")

        return self._cut(left, behind)

    def _too_dear(self, left: list[Candidate]) -> list[Candidate]:
        cost = self.problem.objective.cost
        able = (c for c in sorted(left, key=cost) if self._promises.bound(c) >= self.offered)
        sure = next((c for c in able if self._promises.meets(c, self.problem.objective.rates)), None)
        if sure is None:
            return left
        why = f"{sure.label} is cheaper and meets the SLO even if every stage is slower by {percent(self.error, None)}"

        def dearer(c: Candidate) -> Cut | None:
            over = cost(c) > cost(sure) * (1 + 1e-9)
            return Cut(c, "dominance", cost(sure), cost(c), self.error, why) if over else None

        return self._cut(left, dearer)

    def worlds(self, left: list[Candidate]) -> list[Candidate]:
        """Behind others, or as good as others that stay, whichever way the profile is wrong.

        Off where looking takes too long: on many GPUs, whose candidates were chosen by simulation.
        """
        if len(left) <= max(LEAST_ALLOCATIONS, ROOM * self._asked):
            return left
        room = round(ROOM * self._asked)
        found = standing(self.problem, left, self.requests, self.error, room, WORK)
        if found.worlds < fewest(self.error):
            self.notes.append(
                f"the check worlds was off: {fewest(self.error)} looks at {len(left)} candidates would simulate more"
                f" than {WORK / 1e6:.3g} million requests"
            )
            return left
        if not len(found.close):
            return left
        stays = dict(zip(left, found.worth_keeping(room).tolist(), strict=True))
        reached = dict(zip(left, found.reached.tolist(), strict=True))

        def superfluous(c: Candidate) -> Cut | None:
            if stays[c]:
                return None
            best = reached[c] >= 1 - found.sight
            why = "where it is near the best, others that stay are" if best else "far behind"
            return Cut(
                c, "worlds", 1 - CLOSE, reached[c], CLOSE, f"{why}, whichever way the profile is wrong"
            )

        return self._cut(left, superfluous)

    # Bounds the rules share.

    @property
    def _promises(self) -> Promises:
        if self._known_promises is None:
            bounds = self.problem.capacity_model(slack=1 + self.error, queued=True)
            self._known_promises = Promises(self.problem, self.requests, bounds, self.error, self.offered)
        return self._known_promises

    def _reference(self, left: Sequence[Candidate]) -> float:
        """What the likeliest do, and the likeliest of those that leave queues most time: one for each floor."""
        groups: dict[float, list[Candidate]] = {}
        for c in left:
            groups.setdefault(self._ttft_floor(c), []).append(c)
        most = max((self._promises.best(group) for group in groups.values()), default=0.0)
        return min(self.offered, most) if min(self.offered, most) != UNBOUNDED else 0.0

    def _overloaded(self, left: Sequence[Candidate]) -> bool:
        return math.isfinite(self.offered) and self._reference(left) < self.offered

    def _best_r(self, c: Candidate) -> float:
        return self._optimist.best_over_offload(c, self.problem.kv_tokens(c))

    def _own_r(self, c: Candidate) -> float:
        return self._optimist.of(c, self.problem.kv_tokens(c)).limit

    def _ttft_floor(self, c: Candidate) -> float:
        local = c.topology == "disaggregated" and c.share < 1
        remote = c.topology == "e_pd" or c.offload > 0
        pool = PREFILL_POOL[c.topology]
        key = (local, remote, pool)
        if key not in self._floors:
            services = self.problem.services(1, local=local, remote=remote, pool=pool, worst=False)
            slo, requests = self.problem.slo, self.problem.requests
            used = float(np.quantile(services / requests.bounds_s(slo)[0], slo.attainment))
            self._floors[key] = used * slo.ttft_s
        return self._floors[key]

    @cached_property
    def _tpot_allowed(self) -> float:
        """The bound that all but the share beyond the attainment target have, or a looser one."""
        slo = self.problem.slo
        return float(np.quantile(self.problem.requests.bounds_s(slo)[1], 1 - slo.attainment))

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
        for c in sorted(possible, key=lambda c: -self._own_r(c)):
            if len(have) >= LEAST_ALLOCATIONS:
                break
            if c.allocation not in have:
                have.add(c.allocation)
                chosen.add(c)
        return [c for c in possible if c in chosen]
