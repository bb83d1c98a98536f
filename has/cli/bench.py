"""`has bench`: open-loop load on any OpenAI-compatible URL."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from has.cli import options, precedence
from has.cli.console import Talk, talk
from has.cli.defaults import Defaults
from has.cli.failure import once_answered
from has.core.words import plural
from has.errors import InputError

if TYPE_CHECKING:
    from has.core.requests import Requests
    from has.core.slo import Slo
    from has.core.workload import Workload

NUM_PROMPTS = 100
UNBOUND_MS = 1e12
"""Stands for a bound that was not given: 30 years."""
TELL_EVERY_S = 5.0


def goodput(text: str) -> str:
    """Checks `ttft:MS,tpot:MS`; the text is kept, `slo_of` reads it."""
    slo_of(text)
    return text


def slo_of(text: str | None) -> dict[str, float]:
    """`"ttft:2000,tpot:50"` as {"ttft_ms": 2000.0, "tpot_ms": 50.0}."""
    bounds: dict[str, float] = {}
    for part in (text or "").split(","):
        name, colon, value = part.partition(":")
        if not part and not text:
            continue
        if not colon or name.strip() not in ("ttft", "tpot"):
            raise typer.BadParameter(f"{part!r} is none of ttft:MS, tpot:MS")
        key = f"{name.strip()}_ms"
        if key in bounds:
            raise typer.BadParameter(f"{name.strip()} stands twice in {text!r}")
        bounds[key] = options.positive(value)
    return bounds


def command(
    url: Annotated[
        str, typer.Argument(metavar="URL", help="Base URL of the service, such as http://127.0.0.1:8000.")
    ],
    workload: Annotated[
        Path,
        typer.Option(
            "--workload", metavar="FILE", help="Workload file: arrivals and sizes.", show_default=False
        ),
    ],
    model: Annotated[
        str | None,
        typer.Option("--model", metavar="NAME", help="Model to ask for. Default: the first the URL lists."),
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option("--api-key", metavar="KEY", envvar="OPENAI_API_KEY", help="Sent as a bearer token."),
    ] = None,
    rate: options.Rate = None,
    num_prompts: Annotated[
        int | None,
        typer.Option("--num-prompts", parser=options.whole(1), metavar="N", help="Requests to send."),
    ] = None,
    duration_s: Annotated[
        float | None,
        typer.Option(
            "--duration-s", parser=options.positive, metavar="S", help="Send for this long instead."
        ),
    ] = None,
    warmup_s: options.WarmupS = 0.0,
    goodput: Annotated[
        str | None,
        typer.Option(
            "--goodput",
            parser=goodput,
            metavar="ttft:MS,tpot:MS",
            help="SLO that goodput and attainment are held to.",
        ),
    ] = None,
    records: options.Records = None,
    seed: options.Seed = 0,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Send a workload to any OpenAI-compatible URL, open loop, and report the figures of a trial.

    Requests are sent when they are due, whatever has been answered. What the server does not tell
    (stages, routes) is absent. The status is 0 whatever the attainment.
    """
    with talk(json=json, quiet=quiet) as t:
        from has.core.figures import check_warmup, met
        from has.files.records import save_records
        from has.files.workload import load_workload
        from has.report import figures as parts
        from has.report.document import Document
        from has.report.nouns import slo_words
        from has.report.terminal import draw
        from has.trial.url import bench_url

        options.target(records, "--records", (".csv", ".parquet"))
        defaults = Defaults()
        wanted = load_workload(workload)
        slo = _slo(wanted, slo_of(goodput), defaults)
        requests = _requests(wanted, model, rate, num_prompts, duration_s, seed, defaults)
        check_warmup(requests, warmup_s)
        defaults.note("--seed", seed)
        defaults.tell(t)
        precedence.warn_of_seconds(t, slo)
        run = bench_url(url, requests, model=model, api_key=api_key, seed=seed, watch=_Watch(t))
        for warning in run.warnings:
            t.warn(warning)
        figures = run.figures(slo, warmup_s)
        t.result(
            figures,
            lambda: draw(
                Document(f"Bench of {run.model} at {url}", [slo_words(slo)], parts.sections(figures))
            ),
        )
        if records is not None:
            with once_answered():
                save_records(run.records, records, met(run.records, slo))
                t.say(f"records of {plural(len(requests), 'request')} written to {records}")


def _slo(workload: Workload, bounds: dict[str, float], defaults: Defaults) -> Slo:
    """--goodput before the workload's SLO; a bound that neither names does not bind."""
    from has.core.slo import Slo

    if workload.slo is None and not bounds:
        raise InputError(
            "no SLO to hold the answers to",
            where="argument",
            field="--goodput",
            mend="--goodput ttft:2000,tpot:50, or an slo in the workload",
        )
    fields = {"ttft_ms": UNBOUND_MS, "tpot_ms": UNBOUND_MS}
    if workload.slo is not None:
        fields = workload.slo.model_dump()
        rest = [f"{name[:-3]}:{fields[name]:g}" for name in ("ttft_ms", "tpot_ms") if name not in bounds]
        if rest:
            defaults.note("--goodput", ",".join(rest), "the workload's")
    return Slo(**{**fields, **bounds})


def _requests(
    workload: Workload,
    model: str | None,
    rate: float | None,
    num_prompts: int | None,
    duration_s: float | None,
    seed: int,
    defaults: Defaults,
) -> Requests:
    """The list to send: so many requests, or those of so many seconds; a trace is sent whole."""
    from has.sim.draw import draw_requests

    count = num_prompts
    trace = workload.arrivals.process == "trace"
    if count is None and duration_s is None and not trace:
        count = defaults.pick("--num-prompts", None, NUM_PROMPTS)
    precedence.note_rate(rate, workload, None, defaults)
    if count is None and duration_s is not None and not trace:
        # enough for the seconds asked, however the arrivals bunch; what comes after them is cut below
        count = 100 + round(2 * duration_s * (rate or workload.arrivals.rate or 1.0))
    requests = draw_requests(workload, rate=rate, requests=count, seed=seed, model=model)
    if duration_s is not None:
        requests = requests[requests.arrival_ns - requests.arrival_ns[0] <= duration_s * 1e9]
    return requests


class _Watch:
    """Tells how many were sent and answered, every few seconds and at the end."""

    def __init__(self, talk: Talk) -> None:
        self._talk = talk
        self._told_s = time.monotonic()

    def __call__(self, sent: int, ended: int, total: int) -> None:
        now_s = time.monotonic()
        if now_s - self._told_s >= TELL_EVERY_S or ended == total:
            self._told_s = now_s
            self._talk.say(f"sent {sent}, answered {ended} of {total}")
