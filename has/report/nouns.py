"""Deployments, workloads, profiles and spaces as documents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from has.core.deployment import POOLS, Deployment
from has.core.profile import Profile, ProfilePoint
from has.core.slo import Slo
from has.core.space import SearchSpace
from has.core.words import percent, plural
from has.core.workload import Distribution, RequestClass, Workload
from has.report import profile_plots
from has.report.document import Document, Section, Table, number, two_columns

_POOL_DOES = {
    "encode": "vision or audio tower",
    "prefill": "remote prefill",
    "decode": "token by token",
    "prefill_decode": "prefill and decode",
    "all": "every stage",
}


def slo_words(slo: Slo) -> str:
    return f"TTFT ≤ {number(slo.ttft_ms)} ms and TPOT ≤ {number(slo.tpot_ms)} ms for {percent(slo.attainment, None)} of requests"


def describe_deployment(deployment: Deployment, title: str = "") -> Document:
    """Pools, knobs, the SM table and the evidence."""
    pools = Table(
        ("pool", "GPUs", "TP", "workers", "does"),
        [
            (
                pool,
                deployment.alloc[pool],
                deployment.tp(pool),
                deployment.workers(pool),
                _does(deployment, pool),
            )
            for pool in POOLS[deployment.topology]
        ],
    )
    sections = [Section("Pools", [pools]), Section("Settings", [_settings(deployment)])]
    if isinstance(deployment.sm_table, tuple):
        rows = [(row.batch, row.encode_sm, 100 - row.encode_sm) for row in deployment.sm_table]
        sections.append(
            Section(
                "SM shares while encode and local prefill share a GPU",
                [Table(("encode batch", "encode %", "local prefill %"), rows)],
            )
        )
    if deployment.evidence:
        sections.append(Section("Evidence", [two_columns(flatten(deployment.evidence))]))
    return Document(
        title or f"Deployment {deployment.label} of {deployment.model}",
        [f"{deployment.topology}, {plural(deployment.gpus, 'GPU')}; {slo_words(deployment.slo)}"],
        sections,
    )


def _does(deployment: Deployment, pool: str) -> str:
    if pool == "encode" and deployment.topology == "disaggregated" and (deployment.prefill_offload or 0) < 1:
        return f"{_POOL_DOES[pool]}, and {percent(1 - (deployment.prefill_offload or 0), None)} of prefills locally"
    return _POOL_DOES[pool]


def _settings(deployment: Deployment) -> Table:
    """Every field but the ones shown elsewhere; those the file leaves to their default are marked."""
    shown_elsewhere = {
        "version",
        "model",
        "topology",
        "gpus",
        "alloc",
        "tensor_parallel",
        "slo",
        "evidence",
        "sm_table",
    }
    rows: list[tuple[str, Any, str]] = []
    for name in Deployment.model_fields:
        value = getattr(deployment, name)
        if name in shown_elsewhere or (value is None and name not in ("rate", "max_wait_ms")):
            continue
        rows.append(
            (
                name,
                "none"
                if value is None
                else value
                if not isinstance(value, dict)
                else ", ".join(map(str, value.items())),
                "" if name in deployment.model_fields_set else "default",
            )
        )
    if deployment.topology == "disaggregated" and not isinstance(deployment.sm_table, tuple):
        rows.append(("sm_table", deployment.sm_table or "derived from the profile", ""))
    return Table(("setting", "value", ""), [(name, number(value), mark) for name, value, mark in rows])


def flatten(value: Any, prefix: str = "") -> list[tuple[str, Any]]:
    """Nested mappings as dotted names and scalars."""
    if isinstance(value, Mapping):
        return [
            pair
            for key, item in value.items()
            for pair in flatten(item, f"{prefix}.{key}" if prefix else str(key))
        ]
    if isinstance(value, list | tuple):
        if any(isinstance(item, Mapping) for item in value):
            return [pair for i, item in enumerate(value) for pair in flatten(item, f"{prefix}.{i}")]
        return [(prefix, ", ".join(number(item) for item in value))]
    return [(prefix, value)]


def describe_workload(workload: Workload) -> Document:
    """Arrivals and the mixture, each size in words."""
    arrivals = workload.arrivals
    words = f"{arrivals.process} arrivals"
    if arrivals.rate is not None:
        words += f" at {number(arrivals.rate)} requests/s"
    if arrivals.cv is not None:
        words += f", coefficient of variation {number(arrivals.cv)}"
    if arrivals.file is not None:
        words += f", replayed from {arrivals.file}, times ×{number(arrivals.time_scale)}"
    lead = [words]
    if workload.description:
        lead.insert(0, workload.description.strip())
    if workload.slo:
        lead.append(slo_words(workload.slo))
    sections = []
    if workload.requests:
        total = sum(entry.weight for entry in workload.requests)
        rows = [
            (
                entry.modality,
                percent(entry.weight / total),
                "–" if entry.modality == "text" else distribution_words(entry.items) if entry.items else "1",
                _media_words(entry),
                distribution_words(entry.prompt_tokens),
                distribution_words(entry.output_tokens),
            )
            for entry in workload.requests
        ]
        columns = ("modality", "share", "items", "one item", "prompt tokens", "output tokens")
        sections.append(Section("Requests", [Table(columns, rows)]))
    return Document(f"Workload {workload.name}", lead, sections)


def _media_words(entry: RequestClass) -> str:
    if entry.media_tokens is not None:
        return f"{distribution_words(entry.media_tokens)} tokens"
    if entry.image_px is not None:
        return f"{entry.image_px[0]}×{entry.image_px[1]} px"
    if entry.video_s is not None:
        return f"{distribution_words(entry.video_s)} s" + (
            f" at {number(entry.fps)} fps" if entry.fps else ""
        )
    if entry.audio_s is not None:
        return f"{distribution_words(entry.audio_s)} s"
    return "–"


def distribution_words(distribution: Distribution) -> str:
    """A distribution on one line."""
    kind = distribution.kind
    value = getattr(distribution, kind)
    if kind == "constant":
        words = number(value)
    elif kind == "uniform":
        words = f"uniform {number(value[0])}–{number(value[1])}"
    elif kind == "normal":
        words = f"normal {number(value.mean)} ± {number(value.sd)}"
    elif kind == "lognormal":
        words = f"lognormal p50 {number(value.p50)}, p99 {number(value.p99)}"
    elif kind == "choice":
        total = sum(value.values())
        words = ", ".join(f"{number(v)} ({_weight(w / total)})" for v, w in value.items())
    else:
        words = f"{len(value)} observed values, median {number(float(np.median(value)))}"
    if distribution.min is not None:
        words += f", ≥ {number(distribution.min)}"
    if distribution.max is not None:
        words += f", ≤ {number(distribution.max)}"
    return words


def _weight(share: float) -> str:
    """In percent; of what is rare a digit more, that it is not shown as nothing."""
    return percent(share, 0 if share >= 0.01 or share == 0 else 2)


def _tp_words(space: SearchSpace, stage: str) -> str:
    tp = space.tensor_parallel
    if stage != "encode" and stage not in tp.model_fields_set:
        return "the profile's"
    return ", ".join(map(str, getattr(tp, stage)))


def describe_space(space: SearchSpace) -> Document:
    """What may be proposed."""
    alloc = [
        (pool, "free" if bounds is None else f"{bounds[0]}–{bounds[1]} GPUs")
        for pool, bounds in ((p, getattr(space.alloc, p)) for p in ("encode", "prefill", "decode"))
    ]
    offload = space.prefill_offload
    rows: list[tuple[str, Any]] = [
        ("topologies", ", ".join(space.topologies)),
        *((f"alloc.{pool}", words) for pool, words in alloc),
        *((f"tensor_parallel.{s}", _tp_words(space, s)) for s in ("encode", "prefill", "decode")),
        ("encode_batch (B)", ", ".join(map(str, space.encode_batch))),
        (
            "prefill_offload (s)",
            f"{number(offload.min)} to {number(offload.max)} in steps of {number(offload.step)}",
        ),
    ]
    return Document("Search space", (), [Section("Candidates", [two_columns(rows)])])


def describe_profile(profile: Profile) -> Document:
    """Metadata, then one table a stage and neighbour: latency against SM share, batch and tokens."""
    metadata = profile.metadata.model_dump(mode="json", exclude_none=True)
    unstable = _unstable(metadata)
    groups: dict[tuple[str, str], list[ProfilePoint]] = {}
    for row in profile.rows:
        groups.setdefault((row.stage.value, row.beside.value), []).append(row)
    derived = ("sharing", "sm_fits")  # shown by the plots, with words
    plain = {key: value for key, value in metadata.items() if key not in derived}
    sections = [*profile_plots.sections(profile), Section("Metadata", [two_columns(flatten(plain))])]
    for (stage, beside), rows in groups.items():
        title = stage if beside == "none" else f"{stage} beside {beside}"
        sections.append(Section(f"{title}: {plural(len(rows), 'point')}", [_latency_table(rows)]))
    if unstable:
        sections.append(Section("Unstable points", unstable))
    meta = profile.metadata
    words = f"{meta.source}, {plural(len(profile.rows), 'point')}"
    if unstable:
        words += f", {len(unstable)} of them unstable: the host was busy, or the device itself varies"
    return Document(
        f"Profile of {meta.model} on {meta.device}",
        [words + (f"; {meta.date}" if meta.date else "")],
        sections,
    )


def _unstable(metadata: dict[str, Any]) -> list[str]:
    """The points whose samples disagree, taken out of the metadata's notes: they are a list of their own."""
    notes = metadata.get("notes")
    if not isinstance(notes, dict) or not isinstance(notes.get("unstable"), list):
        return []
    metadata["notes"] = {key: value for key, value in notes.items() if key != "unstable"}
    return [str(point) for point in notes["unstable"]]


def _latency_table(rows: list[ProfilePoint]) -> Table:
    """Milliseconds; a column for each SM share."""
    shares = sorted({row.sm_percent for row in rows})
    at = {(row.batch, row.tokens, row.sm_percent): row.latency_s * 1e3 for row in rows}
    keys = sorted({(row.batch, row.tokens) for row in rows})
    return Table(
        ("batch", "tokens", *(f"{number(x)} % SM" for x in shares)),
        [(batch, tokens, *(at.get((batch, tokens, x)) for x in shares)) for batch, tokens in keys],
        "latency in ms (decode: of one step)",
    )
