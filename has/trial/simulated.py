"""Simulated trials on a truth of their own: what if the planner's profile is off?"""

from __future__ import annotations

import math
import threading
from typing import Any

import numpy as np

from has.core.figures import figures
from has.core.profile import Profile
from has.core.trial import Outcome, TrialPlan, TrialState
from has.errors import InputError
from has.latency.lookup import LatencyModel
from has.sim.simulator import Simulator

NOISY = ("throughput_rps", "goodput_rps")
TIMES = ("ttft_ms", "tpot_ms", "e2e_ms")


class SimulatedExecutor:
    """Runs plans through the simulator on `profile`, which need not be the planner's (`has.core.trial.Executor`).

    noise  standard deviation of ln(measured/true), one factor a trial, as machines have good and
           bad days: rates are multiplied by it, times divided; attainment moves as its odds
    seed   of the noise. A trial's factor depends on the seed, the deployment, the requests and
           how often it was tried with them before, so that a repeat differs and a rerun of the whole does not.
    parallel  trials that may be simulated side by side, each on a core of its own
    trial_profile  what the latencies are of where that is not the planner's profile; a run keeps a copy of it
    """

    live = False

    def __init__(
        self,
        profile: Profile | LatencyModel,
        *,
        noise: float = 0.0,
        seed: int = 0,
        parallel: int = 1,
        trial_profile: Profile | None = None,
    ) -> None:
        if not (math.isfinite(noise) and 0 <= noise <= 1):
            raise InputError(
                "not a standard deviation of a logarithm",
                where="argument",
                field="noise",
                value=noise,
                allowed="0..1",
            )
        if isinstance(parallel, bool) or not isinstance(parallel, int) or parallel < 1:
            raise InputError(
                "not a number of trials",
                where="argument",
                field="parallel",
                value=parallel,
                allowed="an integer of at least 1",
            )
        self.parallel = parallel
        self._latency = Simulator(profile).latency
        self._own = threading.local()  # a simulator keeps memory between runs, so each thread has one
        self.noise = noise
        self.trial_profile = trial_profile
        self._seed = seed
        self._tried: dict[tuple[str, float | None, int], int] = {}
        self._counting = threading.Lock()

    def run(self, plan: TrialPlan) -> Outcome:
        try:
            simulator = self._simulator()
            prepared = simulator.prepare(plan.requests, plan.seed)
            records = simulator.run(plan.deployment, prepared, rate=plan.rate, online=plan.rate is None)
        except InputError as error:
            return Outcome(TrialState.FAILED, reason=str(error))
        shown = figures(records, plan.slo, plan.warmup_s)
        factor = self._factor(plan)
        if factor != 1.0:
            shown = noisy(shown, factor)
        return Outcome(TrialState.COMPLETE, shown, records=records, telemetry={"noise": factor})

    def close(self) -> None:
        """Holds nothing."""

    def _simulator(self) -> Simulator:
        if not hasattr(self._own, "simulator"):
            self._own.simulator = Simulator(self._latency)
        found: Simulator = self._own.simulator
        return found

    def _factor(self, plan: TrialPlan) -> float:
        # The list is part of it: a search that is gone on with confirms without having tried before.
        listed = int(np.bitwise_xor.reduce(plan.requests.arrival_ns))
        key = (plan.deployment.digest(), plan.rate, listed)
        with self._counting:
            count = self._tried[key] = self._tried.get(key, 0) + 1
        if self.noise == 0:
            return 1.0
        words = [self._seed, int(key[0], 16), count, round((plan.rate or 0.0) * 1e6), listed]
        return float(np.exp(self.noise * np.random.default_rng(words).standard_normal()))


def noisy(shown: dict[str, Any], factor: float) -> dict[str, Any]:
    """Figures as a run that is `factor` times as good would show them."""
    result = dict(shown)
    for name in NOISY:
        if result[name] is not None:
            result[name] *= factor
    for name in TIMES:
        result[name] = {k: None if v is None else v / factor for k, v in result[name].items()}
    share = result["attainment"]
    if share:
        result["attainment"] = share * factor / (1 - share + share * factor)
    return result
