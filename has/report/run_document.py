"""A run as a document: the answer first, then what backs it."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from has.core.trial import Trial, TrialState
from has.core.words import percent, plural
from has.report import figures, pictures
from has.report.answer import (
    answer_lines,
    baseline_table,
    baselines_title,
    best_gain_words,
    each_gain_words,
    price_words,
)
from has.report.binding import LABELS
from has.report.document import Bars, Command, Document, Part, Section, Table, number, two_columns
from has.report.html import page
from has.report.nouns import describe_deployment, flatten
from has.report.provenance import agrees_by_itself, error_words, missed_words, tried_words
from has.report.run import Run
from has.report.run_pictures import NOTHING, Seen, best_trial, look
from has.search.evidence import reproduce


def run_page(run: Run) -> str:
    """`report.html` of a run: its document with what a replay in the simulator adds."""
    return page(describe_run(run, look(run)), footer=f"has report {shlex.quote(str(run.folder))}")


def describe_run(run: Run, seen: Seen = NOTHING) -> Document:
    """All sections that the run has something for; `seen` is what its replay showed."""
    question = run.manifest["question"]
    title = f"Search of {question.get('model')} on {plural(question.get('gpus') or 0, 'GPU')}"
    if run.best is None:
        lead = [
            f"No answer yet: {plural(len(run.trials), 'trial')} finished.",
            f"go on: has search --resume {shlex.quote(str(run.folder))}",
        ]
    else:
        lead = answer_lines(run.best)
        after = 3 if run.evidence.get("meets_slo") is False else 2 + len(missed_words(run.best))
        gains = each_gain_words(run.evidence)
        if gains and best_gain_words(run.evidence).startswith("+"):
            lead.remove(best_gain_words(run.evidence))  # the list says as much
        lead[after:after] = [*([gains] if gains else []), *seen.reason]
    device = str(run.manifest.get("device", ""))
    if "emulated" in device:
        words = "virtual GPUs on slices of a CPU; real computation, but no GPU's speed"
        simulated = question.get("on") == "simulated"
        lead.append(f"{'Simulated on a profile of' if simulated else 'Measured on'} {device}: {words}.")
    if seen.fault:
        lead.append(seen.fault)
    plots = seen.plots
    sections = [
        _baselines(run),
        _plots("How much each can carry", plots.get("sweep")),
        _plots("The landscape: every split, batch bound and share", plots.get("landscape")),
        _pruning(run),
        _trials(run, plots.get("trials", [])),
        _prediction(run),
        _plots("How the GPU's SMs are shared", plots.get("shares")),
        _utilisation(run, plots.get("stages", [])),
        _plots("Latencies, request by request", plots.get("distributions")),
        _pareto(run),
        _confirmations(run),
        _runners_up(run),
        _configuration(run),
        _reproduce(run),
    ]
    return Document(title, lead, [section for section in sections if section is not None])


def _plots(title: str, parts: Sequence[Part] | None) -> Section | None:
    return Section(title, parts) if parts else None


def _baselines(run: Run) -> Section | None:
    table = None if run.best is None else baseline_table(run.best)
    return None if run.best is None or table is None else Section(baselines_title(run.best), [table])


def _configuration(run: Run) -> Section | None:
    if run.best is None:
        return None
    plain = run.best.model_copy(update={"evidence": None})
    parts = [part for section in describe_deployment(plain).sections for part in section.parts]
    return Section("The configuration", parts)


def _utilisation(run: Run, plots: Sequence[Part]) -> Section | None:
    busy = (run.evidence.get("measured") or {}).get("utilisation") or {}
    if not busy:
        return None
    rows = [(LABELS.get(stage, stage), float(share), percent(share)) for stage, share in busy.items()]
    parts: list[Part] = [Bars(rows, "share of time that the stage's workers worked"), *plots]
    trial = best_trial(run)
    if trial is not None and trial.figures:
        parts.append(figures.stages(trial.figures))
    return Section("How busy each stage was", parts)


def _trials(run: Run, plots: Sequence[Part]) -> Section | None:
    if not run.trials:
        return None
    best = _best_label(run)
    rows = [_trial_row(trial, best) for trial in run.trials]
    states = Counter(trial.state.value for trial in run.trials)
    unit = (run.evidence.get("objective") or {}).get("unit", "objective")
    columns = (
        "#",
        "for",
        "configuration",
        "rate/s",
        unit,
        "attainment",
        "TTFT p99 ms",
        "TPOT p99 ms",
        "took, s",
        "state",
    )
    words = ", ".join(f"{count} {state}" for state, count in states.items())
    return Section(
        "Trials",
        [*plots, f"{plural(len(rows), 'trial')}: {words}. The chosen one is marked *.", Table(columns, rows)],
    )


def _best_label(run: Run) -> str | None:
    return None if run.best is None else run.best.label


def _trial_row(trial: Trial, best: str | None) -> tuple[Any, ...]:
    figures = trial.figures or {}
    attainment = figures.get("attainment")
    chosen = trial.deployment.label == best and trial.state is TrialState.COMPLETE
    return (
        f"{trial.number}{'*' if chosen else ''}",
        trial.kind,
        trial.deployment.label,
        trial.rate,
        trial.objective,
        percent(attainment),
        (figures.get("ttft_ms") or {}).get("p99"),
        (figures.get("tpot_ms") or {}).get("p99"),
        trial.duration_s,
        trial.state.value if trial.reason is None else f"{trial.state.value}: {trial.reason}",
    )


def _pruning(run: Run) -> Section | None:
    if not run.pruned:
        return None
    by_rule = Counter(str(row.get("rule")) for row in run.pruned)
    kept = (run.evidence.get("candidates") or {}).get("kept")
    total = len(run.pruned) + (kept or 0)
    left = total
    bars = [("all candidates", float(total), str(total))]
    for rule, count in by_rule.most_common():
        left -= count
        bars.append((f"after {rule}", float(left), f"{left}  ({count} cut)"))
    examples: dict[str, Mapping[str, Any]] = {}
    for row in run.pruned:
        examples.setdefault(str(row.get("rule")), row)
    table = Table(
        ("rule", "cut", "for example", "because"),
        [
            (rule, count, examples[rule].get("candidate"), examples[rule].get("reason"))
            for rule, count in by_rule.most_common()
        ],
    )
    return Section("What was pruned, and why", [Bars(bars, "candidates left", float(total)), table])


def _prediction(run: Run) -> Section | None:
    measured, predicted = run.evidence.get("measured"), run.evidence.get("predicted")
    if not measured or not predicted:
        return None
    tried = tried_words(run.evidence)
    title = f"{tried.capitalize()} against predicted"
    error = run.evidence.get("run_prediction_error_percent") or {}
    if agrees_by_itself(run.evidence, error):
        words = (
            "Trials ran in the simulator on the planner's own profile, so they agree with its predictions and say nothing"
            " of its errors. Live trials would, and so would --trial-profile, another profile to try on."
        )
        return Section(title, [words])
    met = [percent(_at(of, ("attainment",))) for of in (measured, predicted)]
    rows = [("SLO met, of requests", *met)] + [
        (name, _at(measured, path), _at(predicted, path))
        for name, path in (
            ("goodput, requests/s", ("goodput_rps",)),
            ("throughput, requests/s", ("throughput_rps",)),
            ("TTFT mean, ms", ("ttft_ms", "mean")),
            ("TTFT p99, ms", ("ttft_ms", "p99")),
            ("TPOT mean, ms", ("tpot_ms", "mean")),
            ("TPOT p99, ms", ("tpot_ms", "p99")),
        )
    ]
    parts: list[Part] = [Table(("of the best", tried, "predicted"), rows)]
    if error:
        words = error_words(error)
        parts.append(f"Mean error of the uncalibrated prediction over this run's trials: {words}.")
    factors = run.evidence.get("stage_factors") or {}
    if factors:
        told = [
            (
                _FACTORS.get(stage, LABELS.get(stage, stage)),
                f"{value['factor']:.2f}",
                percent(value["sd_percent"] / 100),
            )
            for stage, value in factors.items()
        ]
        parts.append(Table(("stage", "takes so many times what its profile says", "give or take"), told))
    return Section(title, parts)


_FACTORS = {"prefill": "prefill", "beside": "encode and local prefill beside each other, on top"}


def _at(figures: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    value: Any = figures
    for key in path:
        value = (value or {}).get(key)
    return value


def _confirmations(run: Run) -> Section | None:
    rows: list[tuple[Any, ...]] = [
        (
            c.get("deployment"),
            c.get("rate"),
            c.get("seed"),
            percent(c.get("attainment")),
            c.get("requests"),
            c.get("reason") or "",
        )
        for c in run.evidence.get("confirmations") or ()
    ]
    if not rows:
        return None
    columns = ("configuration", "rate/s", "seed", "attainment", "requests", "note")
    return Section("Finalists under other arrivals and loads", [Table(columns, rows)])


def _runners_up(run: Run) -> Section | None:
    rows = [
        (r.get("deployment"), r.get("objective"), r.get("why")) for r in run.evidence.get("runners_up") or ()
    ]
    if not rows:
        return None
    unit = (run.evidence.get("objective") or {}).get("unit", "objective")
    return Section("Runners-up, and why they lost", [Table(("configuration", unit, "why not"), rows)])


def _reproduce(run: Run) -> Section:
    line = str(run.evidence.get("reproduce") or reproduce(str(run.folder), run.manifest["question"]))
    again = _given_again(run.manifest.get("command") or ())
    parts: list[Part] = [Command(shlex.join([*shlex.split(line), *again]))]
    facts = {key: value for key, value in run.manifest.items() if key not in ("question", "command")}
    command = [str(word) for word in run.manifest.get("command") or ()]
    facts["command"] = shlex.join(["has", *command[1:]]) if command else None
    parts.append(
        two_columns((name, value if value is None else number(value)) for name, value in flatten(facts))
    )
    return Section("How to reproduce it", parts)


GIVEN_AGAIN = ("--baseline", "--trial-profile", "--trial-noise")
"""Options of a search that the line of its evidence leaves out."""


def _given_again(command: Sequence[Any]) -> list[str]:
    """Those of the command that was typed, each with its value."""
    words = [str(word) for word in command]
    found = []
    for i, word in enumerate(words):
        option, equals, _ = word.partition("=")
        if option in GIVEN_AGAIN:
            found += [word] if equals else words[i : i + 2]
    return found


def _pareto(run: Run) -> Section | None:
    if not run.pareto:
        return None
    priced = any(r["usd_per_hour"] is not None for r in run.pareto)
    rows = [
        (
            r["gpus"],
            r["carried_rps"],
            r["usd_per_hour"] if priced else "",
            r["usd_per_million_output_tokens"] if priced else "",
            r["deployment"],
            percent(r["attainment"]),
            tried_words(run.evidence) if r["source"] == "measured" else r["source"],
            "on the front" if r["on_front"] else "",
        )
        for r in run.pareto
    ]
    columns = (
        "GPUs",
        "carries, req/s",
        "$/h",
        "$/M output tokens",
        "configuration",
        "attainment",
        "source",
        "",
    )
    prices = price_words(run.evidence.get("cost") or {})
    parts: list[Part] = [pictures.pareto(run.pareto), Table(columns, rows)]
    parts += [prices] if prices else []
    return Section("What more or fewer GPUs carry", parts)
