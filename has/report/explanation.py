"""`has explain` in words: the data of `has.search.explain` as a document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from has.core.deployment import Deployment
from has.core.words import percent, signed
from has.report.answer import answer_lines, baseline_table
from has.report.binding import NAMES, busiest_words
from has.report.document import Bars, Document, Part, Section, Table, number
from has.report.figures import one_line
from has.report.provenance import agrees_by_itself, error_words, source_words


def describe_explanation(deployment: Deployment, told: Mapping[str, Any]) -> Document:
    """`told` is what `has.search.explain.explain` returned for `deployment`."""
    lead = answer_lines(deployment) if deployment.evidence else []
    estimated = source_words(told.get("prediction_source"), told.get("profile_error"))
    lead += [estimated] if estimated and estimated not in lead else []
    lead += [
        *_worst_words(told),
        _binding_words(told),
        f"Simulated at {number(told['rate'])} requests/s: {one_line(told['figures'])}.",
    ]
    lead += _advice_words(told)
    sections = [
        _capacities(told),
        _batching(deployment, told),
        _offload(deployment),
        _sm_table(deployment, told),
        _memory(told),
        _sensitivity(told),
        _others(deployment, told),
    ]
    return Document(f"Why {deployment.label}", lead, [section for section in sections if section is not None])


def _worst_words(told: Mapping[str, Any]) -> list[str]:
    """Of which workload all this is, where there are several."""
    each = told.get("attainments") or ()
    if len(each) < 2:
        return []
    attained = ", ".join(f"{of['workload']} {percent(of['attainment'])}" for of in each)
    return [
        f"Of {len(each)} workloads {told['workload']} is served worst, and decides (SLO met: {attained})."
    ]


def _binding_words(told: Mapping[str, Any]) -> str:
    capacities = told["capacities"]
    binding, limit, rate = capacities["binding"], capacities["limit_rps"], told["rate"]
    if binding is None:
        return "The profile bounds no stage."
    words = f"The binding stage is {NAMES.get(binding, binding)}: it can carry {number(limit)} requests/s"
    if rate and limit:
        words += f", of which {number(rate)} are asked ({percent(rate / limit, 0)})"
    if binding == "preprocess":
        words += "; more GPUs gain nothing, more CPU (preprocess_workers) does"
    busiest = busiest_words(binding, told["figures"].get("stages") or {})
    return f"{words}. {busiest}" if busiest else f"{words}."


def _advice_words(told: Mapping[str, Any]) -> list[str]:
    """What another GPU would gain, and a bound that no GPU gets under."""
    words = [f"{words[0].upper()}{words[1:]}." for words in told["advice"][1:]]
    return words + [
        f"No split can meet the {floor['metric']} bound: without any queue it is {number(floor['least_ms'])} ms"
        f" of {number(floor['allowed_ms'])} ms."
        for floor in told["floors"]
        if not floor["met"]
    ]


def _capacities(told: Mapping[str, Any]) -> Section:
    used = told["capacities"]["utilisation"]
    rows = [
        (NAMES.get(stage, stage), float(used.get(stage) or 0.0), _use_words(capacity, used.get(stage)))
        for stage, capacity in told["capacities"]["stages_rps"].items()
    ]
    simulated = [
        (NAMES.get(stage, stage), float(load["utilisation"]), f"{percent(load['utilisation'])} busy")
        for stage, load in (told["figures"].get("stages") or {}).items()
        if load and load.get("utilisation") is not None
    ]
    parts: list[Part] = [Bars(rows, "what each stage can carry, and the share of it that is asked")]
    if simulated:
        parts.append(
            Bars(simulated, "busy in simulation (a local prefill that waits for SMs counts as busy)")
        )
    return Section("What each stage can carry", parts)


def _use_words(capacity: float, used: float | None) -> str:
    return f"{number(capacity)} requests/s" + ("" if used is None else f", {percent(used, 0)} asked")


def _batching(deployment: Deployment, told: Mapping[str, Any]) -> Section | None:
    batching = told["batching"]
    if batching is None:
        return None
    bound, p = deployment.encode_batch, deployment.fill_probability
    if bound == 1:
        words = "B = 1: an image is encoded as soon as an encoder is free; nothing waits for a batch (κ = 0)."
        return Section("When an encode batch is launched", [words])
    parts: list[Part] = [
        f"κ = -ln(1 - p^(1/(B-1))) = {number(batching['kappa'])} at B = {bound}, p = {number(p)}."
    ]
    if batching["gap_s"] is not None:
        parts.append(
            f"λ = {number(batching['media_rps_per_encoder'])} media requests/s at each encoder, so g = κ/λ ="
            f" {number(batching['gap_s'])} s: a batch is launched when {bound} requests wait, or when none has come for g"
            + (
                f", or when the oldest has waited {number(batching['max_wait_s'])} s."
                if batching["max_wait_s"] is not None
                else "; how long the oldest may wait is not bounded (max_wait_ms)."
            )
        )
    if batching["mean_batch"] is not None:
        full = (
            "" if batching["full_share"] is None else f", {percent(batching['full_share'], 0)} of them full"
        )
        parts.append(f"Simulated, a batch holds {number(batching['mean_batch'])} requests in the mean{full}.")
    return Section("When an encode batch is launched", parts)


def _offload(deployment: Deployment) -> Section | None:
    if deployment.topology != "disaggregated":
        return None
    s = deployment.prefill_offload or 0.0
    if s == 0:
        words = "s = 0: every prefill runs on the encode GPUs, beside the encoder; there is no remote prefill pool."
    elif s == 1:
        words = "s = 1: every prefill goes to the remote pool; the encode GPUs do nothing but encode."
    else:
        words = (
            f"s = {number(s)}: of every 100 prefills at an encoder {number(100 * s)} go to the remote pool, evenly spread"
            f" (a counter that is exact, counted in {deployment.offload_unit}s); the others run beside the encoder."
        )
    return Section("Where prefill runs", [words])


def _sm_table(deployment: Deployment, told: Mapping[str, Any]) -> Section | None:
    table = told["sm_table"]
    if table is None:
        return None
    title = "How encode and local prefill share a GPU"
    if table == "streams":
        return Section(title, ["No partition: both run at once on all SMs (streams)."])
    budget = deployment.encode_slowdown_budget
    words = (
        "While a batch is encoded it holds the least share that keeps it within"
        f" {percent(budget, None)} of its time on a whole GPU; local prefill has the rest, and all of it in between."
    )
    rows = [(row["batch"], row["encode_sm"], row["prefill_sm"]) for row in table]
    return Section(
        title, [words, Table(("encode batch", "encode, % of SMs", "local prefill, % of SMs"), rows)]
    )


def _memory(told: Mapping[str, Any]) -> Section:
    memory = told["memory"]
    rows = [
        (
            line["pool"],
            _mib(line["need_bytes"]),
            _mib(line["have_bytes"]),
            percent(line["need_bytes"] / line["have_bytes"], 0)
            if line["need_bytes"] is not None and line["have_bytes"]
            else None,
            line["holds"],
        )
        for line in memory["pools"]
    ]
    parts: list[Part] = [Table(("pool", "needs, MiB", "has, MiB", "used", "for"), rows)] if rows else []
    if memory["kv_tokens_per_worker"] is not None:
        parts.append(f"KV cache of a decoding worker: {memory['kv_tokens_per_worker']} tokens.")
    parts += list(memory["notes"])
    return Section("Memory per GPU", parts or ["The profile says nothing of memory."])


def _mib(count: int | None) -> float | None:
    return None if count is None else count / 2**20


def _sensitivity(told: Mapping[str, Any]) -> Section:
    rows = [
        (
            row["change"],
            row["deployment"],
            row.get("goodput_rps"),
            None
            if row.get("goodput_change_percent") is None
            else signed(row["goodput_change_percent"] / 100),
            row.get("limit_rps"),
            None if row.get("limit_change_percent") is None else signed(row["limit_change_percent"] / 100),
            percent(row.get("attainment")),
            row.get("ttft_p99_ms"),
            row.get("tpot_p99_ms"),
            row.get("reason") or "",
        )
        for row in told["sensitivity"]
    ]
    columns = (
        *("change", "then", "goodput/s", "", "stages carry/s", ""),
        *("attainment", "TTFT p99 ms", "TPOT p99 ms", ""),
    )
    return Section("What a step in any direction would do (simulated)", [Table(columns, rows)])


def _others(deployment: Deployment, told: Mapping[str, Any]) -> Section | None:
    parts: list[Part] = []
    table = baseline_table(deployment)
    if table is not None:
        parts.append(table)
    if told["runners_up"]:
        rows = [(r.get("deployment"), r.get("objective"), r.get("why")) for r in told["runners_up"]]
        parts.append(Table(("runner-up", "objective", "why not"), rows))
    errors = told["prediction_error_percent"]
    if errors and agrees_by_itself(deployment.evidence or {}, errors):
        parts.append(
            "Trials ran in the simulator on the planner's own profile: that they agree with it says nothing of its errors."
        )
    elif errors:
        parts.append(
            f"How far the prediction was off in this run, in the mean: {error_words(errors)} (profile: {told['prediction_source']})."
        )
    return Section("What it was chosen over, and how good the predictions were", parts) if parts else None
