"""Which rate and which SLO hold, in every command: the option, else the workload file, else the deployment file.

Where one file overrides another, the list of defaults says so. A trace has a rate of its own: its
times stay as they are unless --rate stretches them, and the gap rule takes the deployment's rate,
else the trace's mean. `has deploy` reads no workload, so there the deployment's own hold; `has export`
compares what is emitted with what was recommended, so there they come before the workload's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from has.cli.defaults import Defaults

if TYPE_CHECKING:
    from has.cli.console import Talk
    from has.core.deployment import Deployment
    from has.core.slo import Slo
    from has.core.workload import Workload

BOUNDS = {"ttft_ms": "--ttft-ms", "tpot_ms": "--tpot-ms", "attainment": "--attainment"}
"""Fields of an SLO, and the options that go before them."""
LEAST_TTFT_MS, LEAST_TPOT_MS = 10.0, 1.0
"""Bounds below these no server of such models meets: they were meant as seconds."""


def note_rate(
    option: float | None, workload: Workload, deployment: Deployment | None, defaults: Defaults
) -> None:
    """List the rate in force, where no option gave it, and whose it is."""
    if option is not None:
        return
    own = None if deployment is None else deployment.rate
    if workload.arrivals.process == "trace":
        why = "" if own is None else f"; the gap rule takes the deployment's {own:g}"
        defaults.note("--rate", "the trace's", f"its times as they are{why}")
    elif workload.arrivals.rate is not None:
        rate = workload.arrivals.rate
        before = "" if own in (None, rate) else f", before the deployment's {own:g}"
        defaults.note("--rate", f"{rate:g}", f"the workload's{before}")
    elif own is not None:
        defaults.note("--rate", f"{own:g}", "the deployment's, as the workload has none")


def note_recommended(
    option: float | None, workload: Workload, deployment: Deployment, defaults: Defaults
) -> None:
    """List the rate and SLO at which an export is scored: those that the deployment was recommended for."""
    own, rate = deployment.rate, workload.arrivals.rate
    if option is not None or own is None or workload.arrivals.process == "trace":
        note_rate(option, workload, deployment, defaults)
    else:
        before = "" if rate in (None, own) else f", before the workload's {rate:g}"
        defaults.note("--rate", f"{own:.4g}", f"the deployment's{before}")
    before = (
        ""
        if workload.slo in (None, deployment.slo)
        else f", before the workload's {_words(workload.slo, list(BOUNDS))}"
    )
    defaults.note(_words(deployment.slo, list(BOUNDS)), "", f"the deployment's{before}")


def slo_in_force(
    options: Mapping[str, float | None],
    workload: Workload,
    deployment: Deployment,
    defaults: Defaults,
) -> Slo:
    """The SLO in force, noted where no option gave it. `options` by the fields of an SLO."""
    base = workload.slo or deployment.slo
    open_ones = [name for name in BOUNDS if options.get(name) is None]
    whose = "the deployment's, as the workload has none"
    if workload.slo is not None:
        own = [name for name in open_ones if getattr(deployment.slo, name) != getattr(workload.slo, name)]
        whose = "the workload's" + (f", before the deployment's {_words(deployment.slo, own)}" if own else "")
    if open_ones:
        defaults.note(_words(base, open_ones), "", whose)
    return with_options(base, options)


def with_options(slo: Slo, options: Mapping[str, float | None]) -> Slo:
    """`slo` with the bounds that were given as options."""
    return slo.model_copy(update={name: value for name, value in options.items() if value is not None})


def note_search_slo(options: Mapping[str, float | None], workload: Workload, defaults: Defaults) -> None:
    """List what a search takes of its workload's SLO; where that has none, the search says what is missing."""
    open_ones = [name for name in BOUNDS if options.get(name) is None]
    if workload.slo is not None and open_ones:
        defaults.note(_words(workload.slo, open_ones), "", "the workload's")


def note_baseline(
    file: str,
    deployment: Deployment,
    options: Mapping[str, float | None],
    workload: Workload,
    defaults: Defaults,
) -> None:
    """A baseline is judged by the search's SLO and rates, whatever its file says: list where they differ."""
    for name in BOUNDS:
        held, own = options.get(name), getattr(deployment.slo, name)
        if held is None and workload.slo is not None:
            held = getattr(workload.slo, name)
        if held is not None and held != own:
            defaults.note(
                f"{BOUNDS[name]} {held:g}", "", f"for --baseline {file} too, before its own {own:g}"
            )


def warn_of_seconds(talk: Talk, slo: Slo | Mapping[str, float | None], where: str = "") -> None:
    """Warn of bounds that read like seconds: nothing but a slip of the unit writes 1.5 ms of TTFT.

    `slo`: one, or what is known of one by the names of its fields.
    """
    for name, least in (("ttft_ms", LEAST_TTFT_MS), ("tpot_ms", LEAST_TPOT_MS)):
        value = slo.get(name) if isinstance(slo, Mapping) else getattr(slo, name)
        if value is not None and value < least:
            place = f"{where}: " if where else ""
            talk.warn(
                f"{place}slo.{name} {value:g} is {value:g} milliseconds; if seconds were meant: {value * 1e3:g}"
            )


def _words(slo: Slo, names: list[str]) -> str:
    return " ".join(f"{BOUNDS[name]} {getattr(slo, name):g}" for name in names)
