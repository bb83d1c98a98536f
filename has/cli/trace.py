"""`has trace convert`: other people's traces to a workload."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from has.cli import options
from has.cli.console import Talk, talk

if TYPE_CHECKING:
    from has.files.formats.convert import Conversion

FORMATS = ("azure", "azure-lmm", "mooncake", "servegen", "burstgpt")


def convert(
    source: Annotated[
        Path,
        typer.Argument(metavar="IN", help="The trace; also .gz. For servegen the folder of one category."),
    ],
    format: Annotated[
        str,
        typer.Option(
            "--format", parser=options.choice(*FORMATS), metavar="|".join(FORMATS), help="What IN is."
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            parser=options.to_write,
            metavar="FILE",
            help="Trace table: .csv, .jsonl, .parquet. With --fit a workload: .yaml.",
        ),
    ],
    fit: Annotated[
        bool, typer.Option("--fit", help="Write a compact workload fitted to the trace, and nothing else.")
    ] = False,
    start_s: Annotated[
        float,
        typer.Option(
            "--start-s",
            parser=options.non_negative,
            metavar="S",
            help="Take requests from here on; the first is at 0.",
        ),
    ] = 0.0,
    end_s: Annotated[
        float | None,
        typer.Option("--end-s", parser=options.positive, metavar="S", help="Take requests before this."),
    ] = None,
    sample: Annotated[
        float,
        typer.Option(
            "--sample",
            parser=options.share,
            metavar="SHARE",
            help="Keep this share of the requests, by the lot.",
        ),
    ] = 1.0,
    time_scale: Annotated[
        float,
        typer.Option(
            "--time-scale",
            parser=options.positive,
            metavar="X",
            help="Multiply times in the workload: 0.5 is twice the rate.",
        ),
    ] = 1.0,
    squared_images: Annotated[
        str,
        typer.Option(
            "--squared-images",
            parser=options.choice("auto", "yes", "no"),
            metavar="auto|yes|no",
            help="azure-lmm: whether NumImages is the square of the number of images. auto: if every value is one.",
        ),
    ] = "auto",
    image_tokens: Annotated[
        int | None,
        typer.Option(
            "--image-tokens",
            parser=options.whole(1),
            metavar="N",
            help="azure-lmm: how many of ContextTokens one image makes (else estimated). With --image-share: their size.",
        ),
    ] = None,
    image_share: Annotated[
        float | None,
        typer.Option(
            "--image-share",
            parser=options.share,
            metavar="SHARE",
            help="Give this share of a text trace's requests one made-up image each.",
        ),
    ] = None,
    seed: options.Seed = 0,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Convert another project's trace to a trace table and a workload that replays it.

    The workload goes beside the table, with the same name and .yaml. Rows that cannot be used are
    skipped, counted and shown; more than 5 % of them is an error. Files of any length are read in
    bounded memory.
    """  # fmt: skip
    with talk(json=json, quiet=quiet) as t:
        from has.files.formats.convert import Options
        from has.files.formats.convert import convert as run
        from has.report.document import Document
        from has.report.terminal import draw
        from has.report.traffic import traffic_sections

        options.target(out, "--out")
        conversion = run(
            source,
            format,
            out,
            Options(
                start_s=start_s,
                end_s=end_s,
                sample=sample,
                time_scale=time_scale,
                seed=seed,
                squared_images=squared_images,
                image_tokens=image_tokens,
                image_share=image_share,
            ),
            compact=fit,
        )
        _tell(t, conversion, time_scale)
        title = f"{source.name} ({format}), as {'fitted' if fit else 'converted'}"
        t.result(
            _figures(conversion), lambda: draw(Document(title, (), traffic_sections(conversion.statistics)))
        )


def _tell(t: Talk, conversion: Conversion, time_scale: float) -> None:
    account = conversion.account
    for note in account.notes:
        t.say(f"note: {note}")
    for reason, count in account.left_out.items():
        t.say(f"left out: {count} of {account.seen} rows ({reason})")
    if account.bad:
        t.warn("\n".join([f"{account.summary()} and were skipped", *(f"  {line}" for line in account.first)]))
    statistics = conversion.statistics
    if statistics.same_instant > 0.5 * statistics.requests:
        t.say(
            f"note: {statistics.same_instant} of {statistics.requests} requests arrive at the same instant as the one "
            "before: the trace's clock is coarse, and its burstiness is partly the clock's"
        )
    if conversion.fit_errors is not None:
        from has.files.formats.fit import error_words, lost_words

        t.say(f"fit: {error_words(conversion.fit_errors)} {lost_words(statistics)}")
    if conversion.trace_file is not None:
        t.say(f"trace written to {conversion.trace_file}")
    scaled = "" if time_scale == 1 else f" (times × {time_scale:g}; the figures below are before that)"
    t.say(f"workload written to {conversion.workload_file}{scaled}")


def _figures(conversion: Conversion) -> dict[str, Any]:
    import numpy as np

    statistics, account = conversion.statistics, conversion.account
    at = np.array([50.0, 90.0, 99.0])
    sizes = {
        name: dict(
            zip(
                ("mean", "p50", "p90", "p99", "max"),
                (h.mean, *h.percentiles(at).tolist(), h.most),
                strict=True,
            )
        )
        for name, h in statistics.sizes.items()
    }
    return {
        "out": conversion.trace_file,
        "workload": conversion.workload_file,
        "requests": statistics.requests,
        "span_s": statistics.span_s,
        "rate_rps": statistics.rate,
        "cv": statistics.cv,
        "sizes": sizes,
        "rows": account.seen,
        "skipped": {"rows": account.bad, "reasons": dict(account.reasons), "first": account.first},
        "left_out": dict(account.left_out),
        "notes": account.notes,
        "fit_error": conversion.fit_errors,
    }
