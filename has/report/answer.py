"""The answer of a search in sentences and one table: what the terminal, the page and `has explain` begin with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from has.core.deployment import Deployment
from has.core.words import percent, plural, signed
from has.report.document import Table, number
from has.report.nouns import slo_words
from has.report.provenance import (
    confirmation_words,
    missed_words,
    source_words,
    trial_words,
    tried_words,
)

BASELINE_WORDS = {
    "monolithic": "monolithic (every GPU does all)",
    "e_pd": "E+PD (encode apart)",
    "static_epd": "static E+P+D (best split at B = 1, s = 1)",
}

NO_GAIN = 0.0005
"""A gain that is shown as nothing."""


def answer_lines(best: Deployment) -> list[str]:
    """What is recommended, what it reaches, what that gains, and how sure it is. `best` carries its evidence."""
    evidence = best.evidence or {}
    objective = evidence.get("objective") or {}
    reached = f"{number(objective.get('value'))} {objective.get('unit', '')}".strip()
    nothing_meets = evidence.get("meets_slo") is False
    lines = [
        *(["Nothing meets the SLO; this is the least bad."] if nothing_meets else []),
        f"{best.label}: {reached}{'' if nothing_meets else _objective_words(objective)}",
        f"{best.topology}, {plural(best.gpus, 'GPU')}; {slo_words(best.slo)}",
        *([] if nothing_meets else missed_words(best)),
    ]
    gain = best_gain_words(evidence)
    if gain:
        lines.append(gain)
    cost = cost_words(evidence.get("cost") or {})
    if cost:
        lines.append(cost)
    confidence = evidence.get("confidence") or {}
    if confidence.get("probability") is not None and not nothing_meets:
        lines.append(
            f"within {number(confidence.get('within_percent'))} % of the best there is"
            f" with probability {_probability_words(confidence['probability'])}"
        )
    profile = evidence.get("profile") or {}
    estimated = source_words(profile.get("source"), profile.get("error"))
    return [*lines, *trial_words(best), *confirmation_words(best), *([estimated] if estimated else [])]


def cost_words(cost: Mapping[str, Any]) -> str:
    """Dollars an hour and per million output tokens; empty where a GPU has no price."""
    hourly, tokens = cost.get("usd_per_hour"), cost.get("usd_per_million_output_tokens")
    if hourly is None:
        return ""
    each = ", ".join(
        f"{gpu} at {number(p['usd_per_gpu_hour'])} $/h" for gpu, p in cost["prices"].items() if p
    )
    per_token = "" if tokens is None else f", {number(tokens)} $ per million output tokens within the SLO"
    return f"costs {number(hourly)} $/h{per_token} ({each})"


def price_words(cost: Mapping[str, Any]) -> str:
    """Whose prices they are."""
    told = [f"{gpu}: {price['source']}" for gpu, price in (cost.get("prices") or {}).items() if price]
    return f"Prices: {'; '.join(told)}." if told and cost.get("usd_per_hour") is not None else ""


def _probability_words(probability: float) -> str:
    """Two digits; what they would round to a certainty is none."""
    if 0.005 <= probability < 0.995:
        return f"{probability:.2f}"
    return "above 0.99" if probability > 0.5 else "below 0.01"


def _objective_words(objective: Mapping[str, Any]) -> str:
    rates = objective.get("rates") or []
    return {
        "max-rate": ", the largest rate that meets the SLO",
        "goodput": f" of goodput at {', '.join(map(number, rates))} requests/s offered",
        "cost": f", the least that carries {', '.join(map(number, rates))} requests/s",
    }.get(str(objective.get("name")), "")


def gain(best: float | None, other: float | None, objective: str) -> float | None:
    """How much better the best is than another, as a share of the other; None where there is nothing to compare."""
    if best is None or other is None:
        return None
    if objective == "cost":
        return other / best - 1 if best else None
    return best / other - 1 if other else None


def best_gain_words(evidence: Mapping[str, Any]) -> str:
    """The gain over the strongest baseline, in words; empty where no baseline could run."""
    objective = evidence.get("objective") or {}
    name, value = str(objective.get("name")), objective.get("value")
    gains = [
        (over, key)
        for key, baseline in (evidence.get("baselines") or {}).items()
        if (over := gain(value, baseline.get("objective"), name)) is not None
    ]
    if not gains:
        return ""
    least, key = min(gains)
    words, strongest = BASELINE_WORDS.get(key, key), evidence["baselines"][key]
    said = strongest.get("objective_source", "measured")
    tried = tried_words(evidence)
    verb = "is predicted" if said == "predicted" else tried
    where = on_others(strongest, objective) or "on the same GPUs"
    if least < -NO_GAIN:
        better = gain(strongest.get("objective"), value, name)
        by = "better" if better is None else f"{percent(better)} better"
        return (
            f"the baseline {words}, {where}, {verb} {by}: "
            "the trials do not tell them apart, or it should be used"
        )
    if least < NO_GAIN:
        return f"as good as the strongest baseline, {words}, {where}"
    doubt = f", which is predicted, not {tried}" if said == "predicted" else ""
    return f"{signed(least)} over the strongest baseline, {words}{doubt}, {where}"


def on_others(baseline: Mapping[str, Any], objective: Mapping[str, Any]) -> str:
    """How many GPUs a baseline has where the best has another number of them: a user's own may, and all may where
    the cheapest is looked for. Empty elsewhere."""
    has, best = baseline.get("gpus"), objective.get("gpus")
    return "" if has is None or best is None or has == best else f"on {plural(has, 'GPU')}, not {best}"


def each_gain_words(evidence: Mapping[str, Any]) -> str:
    """The gain over every baseline HAS always scores, on one line; empty where there is none."""
    objective = evidence.get("objective") or {}
    told = []
    for key, baseline in (evidence.get("baselines") or {}).items():
        if key not in BASELINE_WORDS:
            continue
        over = gain(objective.get("value"), baseline.get("objective"), str(objective.get("name")))
        name = f"{BASELINE_WORDS[key].partition(' (')[0]} ({baseline.get('deployment')})"
        if over is not None:
            told.append(f"{signed(over)} over {name}")
        elif baseline.get("deployment") is None or baseline.get("objective") is None:
            told.append(f"{BASELINE_WORDS[key].partition(' (')[0]}: {baseline.get('reason') or 'not scored'}")
        else:
            told.append(f"{name} carries nothing")
    return "Gain on equal GPUs: " + "; ".join(told) if told else ""


def baselines_title(best: Deployment) -> str:
    evidence = best.evidence or {}
    objective, baselines = evidence.get("objective") or {}, evidence.get("baselines") or {}
    alike = not any(on_others(baseline, objective) for baseline in baselines.values())
    return "Against the baselines" + (", on the same GPUs" if alike else "")


def baseline_table(best: Deployment) -> Table | None:
    """The best and every baseline; on equal GPUs, unless its note says otherwise."""
    evidence = best.evidence or {}
    baselines = evidence.get("baselines") or {}
    if not baselines:
        return None
    objective = evidence.get("objective") or {}
    name, value = str(objective.get("name")), objective.get("value")
    measured = evidence.get("measured") or {}
    rows: list[tuple[Any, ...]] = [
        (
            "best",
            best.label,
            value,
            None,
            measured.get("rate"),
            percent(measured.get("attainment")),
            (measured.get("ttft_ms") or {}).get("p99"),
            "",
        )
    ]
    for key, baseline in baselines.items():
        over = gain(value, baseline.get("objective"), name)
        rows.append(
            (
                BASELINE_WORDS.get(key, key),
                baseline.get("deployment"),
                baseline.get("objective"),
                _gain_words(over, baseline.get("objective")),
                baseline.get("rate"),
                percent(baseline.get("attainment")),
                baseline.get("ttft_p99_ms"),
                "; ".join(
                    filter(None, (on_others(baseline, objective), _note(baseline, tried_words(evidence))))
                ),
            )
        )
    unit = str(objective.get("unit", ""))
    held = f"largest {unit}" if name == "max-rate" else unit
    columns = (
        "",
        "configuration",
        held,
        "gain over it",
        "tried at req/s",
        "attainment there",
        "TTFT p99 ms there",
    )
    caption = (
        "The largest rate is held to traffic that lasts; a trial is short, and may carry more."
        if name == "max-rate"
        else ""
    )
    return Table((*columns, "note"), rows, caption)


def _note(baseline: Mapping[str, Any], tried: str) -> str:
    reason = baseline.get("reason") or ""
    return f"predicted, not {tried}: {reason}" if baseline.get("objective_source") == "predicted" else reason


def _gain_words(over: float | None, other: float | None) -> str | None:
    if over is not None:
        return signed(over)
    return "it carries nothing" if other == 0 else None
