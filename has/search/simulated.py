"""The executor a search takes when none is handed to it: the simulator, on the planner's own profile."""

from __future__ import annotations

from has.core.figures import figures
from has.core.profile import Profile
from has.core.trial import Outcome, TrialPlan, TrialState
from has.errors import InputError
from has.latency.lookup import LatencyModel
from has.sim.simulator import Simulator


class ModelExecutor:
    """Runs a plan through the simulator."""

    parallel = 1
    live = False

    def __init__(self, profile: Profile | LatencyModel) -> None:
        self._simulator = Simulator(profile)

    def run(self, plan: TrialPlan) -> Outcome:
        try:
            prepared = self._simulator.prepare(plan.requests, plan.seed)
            records = self._simulator.run(plan.deployment, prepared, rate=plan.rate)
        except InputError as error:
            return Outcome(TrialState.FAILED, reason=error.message)
        return Outcome(TrialState.COMPLETE, figures(records, plan.slo, plan.warmup_s), records=records)

    def close(self) -> None:
        """Holds nothing."""
