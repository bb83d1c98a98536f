"""From a foreign trace to a trace table with a workload beside it, or to a compact workload alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from has.core.workload import Arrivals, Workload
from has.errors import InputError
from has.files.formats import azure, azure_lmm, burstgpt, mooncake, servegen
from has.files.formats.fit import Errors, fit
from has.files.formats.rows import ARRIVAL, IMAGE, ITEMS, MEDIA, MODALITY, Account, Batch
from has.files.formats.statistics import Statistics
from has.files.formats.writing import ENDINGS, save_batches
from has.files.reading import existing
from has.files.validate import validate
from has.files.workload import save_workload
from has.files.yaml import load_yaml

FORMATS = ("azure", "azure-lmm", "mooncake", "servegen", "burstgpt")
_TEXT_ONLY = {"azure": azure.read, "mooncake": mooncake.read, "burstgpt": burstgpt.read}

MOST_RATE = 1000.0
LEAST_RATE = 1 / 3600
_ENOUGH_TO_JUDGE = 20
"""Requests from which on a mean rate outside these bounds is taken for times in another unit."""
_UNITS = {"mooncake": "milliseconds", "burstgpt": "seconds"}


@dataclass(frozen=True, slots=True)
class Options:
    """What to take of a trace. `start_s` and `end_s` count from its first request; `sample` is the share
    of requests kept, each by the lot; a text trace gets `image_share` of made-up images of `image_tokens`."""

    start_s: float = 0.0
    end_s: float | None = None
    sample: float = 1.0
    time_scale: float = 1.0
    seed: int = 0
    squared_images: str = "auto"
    image_tokens: int | None = None
    image_share: float | None = None


@dataclass(frozen=True, slots=True)
class Conversion:
    """What came out. `fit_errors` is None for a trace that is kept whole."""

    workload: Workload
    workload_file: Path
    trace_file: Path | None
    statistics: Statistics
    account: Account
    fit_errors: Errors | None


def convert(
    source: str | Path, format: str, out: str | Path, options: Options = Options(), *, compact: bool = False
) -> Conversion:
    """Read `source` in one of FORMATS and write it, in bounded memory.

    `out` is the trace table (.csv, .jsonl, .parquet), and a workload that replays it goes beside it; with
    `compact` it is the workload (.yaml) fitted to the trace. Bad rows are counted in `account`; raises
    InputError where they are more than 5 %, where the file is no such trace, or nothing is left.
    """
    source, out = Path(source), Path(out)
    _check(format, out, options, compact)
    workload_file = out.with_suffix(".yaml")
    _spare(source, out, workload_file)
    account = Account(str(source))
    statistics = Statistics()
    batches = _gathered(
        _selected(_read(source, format, account, options), account, format, options), statistics
    )
    if compact:
        for _ in batches:
            pass
        account.check()
        workload, errors = fit(statistics, out.stem, _described(source, format, options), options.time_scale)
        save_workload(workload, out)
        return Conversion(workload, out, None, statistics, account, errors)
    save_batches(_checked(batches, account), out)
    workload = Workload(
        version=1,
        name=out.stem,
        description=f"Replay of {_described(source, format, options)}",
        arrivals=Arrivals(process="trace", file=out.name, time_scale=options.time_scale),
    )
    save_workload(workload, workload_file)
    return Conversion(workload, workload_file, out, statistics, account, None)


def _check(format: str, out: Path, options: Options, compact: bool) -> None:
    def refuse(option: str, message: str, value: Any, allowed: str) -> None:
        raise InputError(message, where="argument", field=option, value=value, allowed=allowed)

    endings = (".yaml", ".yml") if compact else ENDINGS
    if out.suffix.lower() not in endings:
        why = (
            "a fit is a workload file"
            if compact
            else "a converted trace is a table; a workload goes beside it"
        )
        refuse("--out", why, str(out), "a file ending in " + ", ".join(endings))
    if options.end_s is not None and options.end_s <= options.start_s:
        refuse("--end-s", "is not after the start", options.end_s, f"more than {options.start_s:g}")
    if options.squared_images != "auto" and format != "azure-lmm":
        refuse("--squared-images", "only azure-lmm has squared images", options.squared_images, "nothing")
    if options.image_share is not None and (format not in _TEXT_ONLY or options.image_tokens is None):
        refuse("--image-share", "adds images to a text trace, of --image-tokens each", options.image_share, "a text format, and --image-tokens")  # fmt: skip
    if options.image_tokens is not None and format != "azure-lmm" and options.image_share is None:
        refuse("--image-tokens", "needs --image-share in a text trace; in servegen images have their own", options.image_tokens, "azure-lmm, or --image-share")  # fmt: skip


def _spare(source: Path, out: Path, workload_file: Path) -> None:
    """Refuse to write over the trace that is read, or, beside the table, over a file that nobody named."""
    if _same(out, source) or (_same(out.parent, source) and servegen.TRACE.fullmatch(out.name)):
        raise InputError(
            "is the trace that is converted",
            where="argument",
            field="--out",
            value=str(out),
            mend="name another file; the source is kept as it is",
        )
    if workload_file != out and workload_file.exists() and not _replays(workload_file, out):
        raise InputError(
            f"the workload would go to {workload_file}, where there is a file that does not replay this table",
            where="argument",
            field="--out",
            value=str(out),
            mend=f"name another table, or move {workload_file} away",
        )


def _same(one: Path, other: Path) -> bool:
    """Whether both names, links followed, are of one file or folder that is there."""
    with suppress(OSError, ValueError):
        return one.samefile(other)
    return False


def _replays(workload_file: Path, table: Path) -> bool:
    """Whether it is a workload as an earlier conversion to `table` left it; the table itself may be gone."""
    with suppress(InputError):
        workload = validate(Workload, load_yaml(workload_file), str(workload_file))
        file = workload.arrivals.file
        return file is not None and (workload_file.parent / file).resolve() == table.resolve()
    return False


def _read(source: Path, format: str, account: Account, options: Options) -> Iterator[Batch]:
    if format == "servegen":
        return servegen.read(source, account, seed=options.seed)
    existing(source)
    if format == "azure-lmm":
        return azure_lmm.read(
            source, account, squared=options.squared_images, image_tokens=options.image_tokens
        )
    return _with_images(_TEXT_ONLY[format](source, account), account, options)


def _with_images(batches: Iterator[Batch], account: Account, options: Options) -> Iterator[Batch]:
    """Text requests, a share of which is given one image each, on top of their text."""
    if options.image_share is None or options.image_tokens is None:
        account.notes.append(
            "this trace is text only: no request has media, and encode GPUs have nothing to do"
        )
        yield from batches
        return
    account.notes.append(
        f"the trace is text only; the images ({options.image_share:g} of the requests, {options.image_tokens} "
        "tokens each) are made up"
    )
    generator = np.random.Generator(np.random.PCG64([options.seed, 1]))
    for batch in batches:
        chosen = generator.random(len(batch)) < options.image_share
        batch[chosen, MODALITY] = IMAGE
        batch[chosen, ITEMS] = 1
        batch[chosen, MEDIA] = options.image_tokens
        yield batch


def _selected(batches: Iterator[Batch], account: Account, format: str, options: Options) -> Iterator[Batch]:
    """The slice, its times counted from its start, and of it the sample."""
    generator = np.random.Generator(np.random.PCG64([options.seed, 2]))
    start = round(options.start_s * 1e9)
    end = None if options.end_s is None else round(options.end_s * 1e9)
    seen, first, last, covers = 0, 0, 0, 0
    for batch in batches:
        arrival = batch[:, ARRIVAL]
        covers = int(arrival[-1])
        low = int(np.searchsorted(arrival, start))
        high = len(arrival) if end is None else int(np.searchsorted(arrival, end))
        if high > low:
            first = first if seen else int(arrival[low])
            last = int(arrival[high - 1])
            seen += high - low
            part = batch[low:high]
            part[:, ARRIVAL] -= start
            yield part if options.sample == 1 else part[generator.random(len(part)) < options.sample]
        if high < len(arrival):
            break
    account.check()
    if seen == 0:
        raise InputError(
            f"no request arrives from {options.start_s:g} s on"
            + ("" if end is None else f" and before {options.end_s:g} s"),
            where=account.where,
            field="--start-s" if options.start_s else "--end-s",
            allowed=f"the trace covers 0 to {covers / 1e9:g} s",
        )
    if format != "servegen":  # its rates are written down, not told by times in some unit
        _judge_rate(seen, (last - first) / 1e9, account, format)


def _judge_rate(requests: int, span_s: float, account: Account, format: str) -> None:
    if requests < _ENOUGH_TO_JUDGE:
        return
    rate = (requests - 1) / span_s if span_s > 0 else np.inf
    if not LEAST_RATE <= rate <= MOST_RATE:
        unit = _UNITS.get(format)
        raise InputError(
            f"{requests} requests in {span_s:g} s are {rate:.3g} a second, which no service sees"
            + (f": times are read as {unit}; are they in another unit?" if unit else ""),
            where=account.where,
            allowed=f"mean rates from one request an hour to {MOST_RATE:g} a second",
            mend=f"give the times in {unit}" if unit else "check the times",
        )


def _gathered(batches: Iterator[Batch], statistics: Statistics) -> Iterator[Batch]:
    for batch in batches:
        statistics.add(batch)
        yield batch


def _checked(batches: Iterator[Batch], account: Account) -> Iterator[Batch]:
    """Refuses a trace of which nothing is left, before its table takes the place of an older one."""
    rows = 0
    for batch in batches:
        rows += len(batch)
        yield batch
    if rows == 0:
        raise InputError(
            "the sample keeps no request", where=account.where, field="--sample", mend="keep a larger share"
        )


def _described(source: Path, format: str, options: Options) -> str:
    """`chunk.csv (azure), 0 to 600 s, a sample of 0.1 (seed 0), …`"""
    words = f"{source.name} ({format})"
    if options.start_s or options.end_s is not None:
        words += f", {options.start_s:g} s to " + (
            "its end" if options.end_s is None else f"{options.end_s:g} s"
        )
    if options.sample != 1:
        words += f", a sample of {options.sample:g}"
    if options.time_scale != 1:
        words += f", times × {options.time_scale:g}"
    if options.image_share is not None:
        words += (
            f", made-up images of {options.image_tokens} tokens in {options.image_share:g} of the requests"
        )
    if format == "servegen" or options.sample != 1 or options.image_share is not None:
        words += f", seed {options.seed}"
    return words
