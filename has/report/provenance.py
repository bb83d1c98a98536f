"""What a figure rests on: measured or simulated, estimated or not, and on how many requests."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from has.core.deployment import Deployment
from has.core.words import percent, plural
from has.report.document import number

SIMULATED = ("SimulatedExecutor", "ModelExecutor")
"""Executors that run trials in the simulator."""
Z95 = 1.96
WIDE = 0.03
"""Half a confidence interval of attainment from which on it is said: fewer than some 400 requests."""


def tried_words(evidence: Mapping[str, Any]) -> str:
    """What trials of this search did with a deployment: "measured" it, or "simulated" it."""
    return "simulated" if evidence.get("executor") in SIMULATED else "measured"


SAME_PERCENT = 0.5
"""By which simulated trials differ at the most from a prediction by the very same profile."""
_ERRORS = {"ttft_mean": "mean TTFT", "tpot_mean": "mean TPOT"}


def agrees_by_itself(evidence: Mapping[str, Any], errors: Mapping[str, float]) -> bool:
    """Whether trials ran in the simulator on the planner's own profile: then their agreement says nothing."""
    return tried_words(evidence) == "simulated" and bool(errors) and max(errors.values()) < SAME_PERCENT


def error_words(errors: Mapping[str, float]) -> str:
    """Errors of predictions, in percent by figure: `goodput 3.1 %, mean TTFT 7.0 %`."""
    return ", ".join(f"{_ERRORS.get(name, name)} {percent(value / 100)}" for name, value in errors.items())


def source_words(source: str | None, error: float | None) -> str:
    """The warning that goes with figures of an estimated profile; empty for a measured one."""
    if source in (None, "measured"):
        return ""
    doubt = "" if error is None else f", stated error {percent(error, None)}"
    return f"ESTIMATE{doubt}: the profile is computed ({source}), nothing of it was measured."


def half_width(attained: float, requests: int) -> float:
    """Half of the 95 % interval of a share seen on `requests` (Wilson's; requests taken as independent,
    which queued ones are not: it is rather wider)."""
    z = Z95
    inside = attained * (1 - attained) / requests + z * z / (4 * requests * requests)
    return z / (1 + z * z / requests) * math.sqrt(inside)


def few_requests_words(what: str, attained: float | None, requests: int | None) -> str:
    """How sure an attainment is that was seen on few requests; empty where they are enough."""
    if attained is None or not requests or half_width(attained, requests) <= WIDE:
        return ""
    points = 100 * half_width(attained, requests)
    return f"few requests: {what} of {percent(attained)} was seen on {requests}, so it is known to ±{points:.0f} points"


def confirmation_words(best: Deployment) -> list[str]:
    """What the runs of the chosen deployment under other arrivals and loads showed."""
    target, rate = best.slo.attainment, best.rate or 0.0
    runs = _runs_of(best)
    seen, failed = (
        _confirmed(best),
        [c.get("reason") or "no reason given" for c in runs if c.get("attainment") is None],
    )
    faults = failed and [
        f"{len(failed)} of {plural(len(runs), 'run')} under other arrivals failed: {'; '.join(dict.fromkeys(failed))}"
    ]
    if not seen:
        return faults
    told = ", ".join(
        f"{percent(c['attainment'])} at {percent(c['rate'] / rate, 0)} of the rate ({number(c['rate'])}/s)"
        + ("" if c["attainment"] >= target else f": BELOW the target of {percent(target, None)}")
        for c in sorted(seen, key=lambda c: float(c["rate"]))
    )
    lines = [f"SLO met under other arrivals: {told}"]
    least = min(seen, key=lambda c: c.get("requests") or math.inf)
    lines += _some(
        [
            few_requests_words(
                "the least of these runs, an SLO met", least["attainment"], least.get("requests")
            )
        ]
    )
    return lines + faults


def missed_words(best: Deployment) -> list[str]:
    """The warning that goes beside the answer where it missed its target under other arrivals, at its rate or below."""
    missed = [
        c
        for c in _confirmed(best)
        if c["attainment"] < best.slo.attainment and c["rate"] <= 1.001 * (best.rate or 0.0)
    ]
    if not missed:
        return []
    worst = min(missed, key=lambda c: float(c["attainment"]))
    seen = f"{percent(worst['attainment'])} at {number(worst['rate'])}/s"
    return [
        f"under other arrivals it missed the target at no more than the rate it was chosen for ({seen}): plan for less"
    ]


def _confirmed(best: Deployment) -> list[Mapping[str, Any]]:
    """Its runs under other arrivals and loads that came to an end."""
    return [c for c in _runs_of(best) if c.get("attainment") is not None and c.get("rate") and best.rate]


def _runs_of(best: Deployment) -> list[Mapping[str, Any]]:
    told = (best.evidence or {}).get("confirmations") or ()
    return [c for c in told if c.get("deployment") == best.label]


def trial_words(best: Deployment) -> list[str]:
    """How sure the trial of the chosen deployment is."""
    measured = (best.evidence or {}).get("measured") or {}
    return _some(
        [few_requests_words("the trial's attainment", measured.get("attainment"), measured.get("requests"))]
    )


def _some(lines: Iterable[str]) -> list[str]:
    return [line for line in lines if line]
