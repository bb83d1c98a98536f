"""Options that several commands share, and the parsers that make a bad value a usage error (status 2)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from has.core.limits import MOST, MOST_COUNT, MOST_GPUS, MOST_REQUESTS, MOST_SEED
from has.errors import InputError
from has.files.atomic import check_writable


def _number(text: str | float) -> float:
    try:
        value = float(_plain(text))
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no number") from None
    if not math.isfinite(value):
        raise typer.BadParameter(f"{text!r} is not finite")
    if value > MOST:
        raise typer.BadParameter(f"{text!r} is above {MOST:g}")
    return value


def _plain(text: str | float) -> str:
    """Python also reads `1_0` and the digits of every script; people who type such things mistyped."""
    if not str(text).isascii() or "_" in str(text):
        raise ValueError(text)
    return str(text)


def positive(text: str | float) -> float:
    """A finite number above 0."""
    value = _number(text)
    if value <= 0:
        raise typer.BadParameter(f"{text!r} is not above 0")
    return value


def non_negative(text: str | float) -> float:
    """A finite number of at least 0."""
    value = _number(text)
    if value < 0:
        raise typer.BadParameter(f"{text!r} is below 0")
    return value


def pool_profile(text: str) -> str:
    """Checks `encode=l4.parquet`; the text is kept, `as_pool_profile` reads it."""
    as_pool_profile(text)
    return text


def as_pool_profile(text: str) -> tuple[str, Path]:
    """Pool and file."""
    pool, equals, file = text.partition("=")
    if not equals or not pool or not file:
        raise typer.BadParameter(f"{text!r} is not like encode=FILE")
    return pool, Path(file)


def price(text: str) -> str:
    """Checks `2.5` or `L4=0.8`; the text is kept, `as_price` reads it."""
    as_price(text)
    return text


def as_price(text: str) -> tuple[str, float]:
    """GPU ("" for any) and dollars."""
    gpu, _, usd = text.rpartition("=")
    return gpu, positive(usd)


def share(text: str | float) -> float:
    """A number from 0 to 1."""
    value = _number(text)
    if not 0 <= value <= 1:
        raise typer.BadParameter(f"{text!r} is not from 0 to 1")
    return value


def whole(least: int, most: int = MOST_REQUESTS) -> Callable[[str], int]:
    """Parser of one whole number from `least` to `most`."""

    def check(text: str | int) -> int:
        try:
            value = int(_plain(text))
        except ValueError:
            raise typer.BadParameter(f"{text!r} is no whole number") from None
        if value < least or value > most:
            raise typer.BadParameter(f"{text!r} is not from {least} to {most}")
        return value

    return check


gpus = whole(1, MOST_GPUS)
seed = whole(0, MOST_SEED)


def whole_numbers(least: int, most: int = MOST_COUNT) -> Callable[[str], str]:
    """Checks a list such as `1,2,4`; the text is kept, `as_integers` reads it."""

    def check(text: str) -> str:
        for part in text.split(","):
            try:
                value = int(_plain(part))
            except ValueError:
                raise typer.BadParameter(f"{part.strip()!r} in {text!r} is no whole number") from None
            if value < least or value > most:
                raise typer.BadParameter(f"{value} in {text!r} is not from {least} to {most}")
        if len(set(as_integers(text) or ())) != len(text.split(",")):
            raise typer.BadParameter(f"{text!r} names a value twice")
        return text

    return check


def as_integers(text: str | None) -> list[int] | None:
    """`"1,2,4"` as [1, 2, 4]."""
    return None if text is None else sorted(int(part) for part in text.split(","))


def refuse(given: Mapping[str, Any], problem: str, otherwise: str = "") -> None:
    """Raise InputError for the first option that was given (not None) where it would do nothing."""
    for option, value in given.items():
        if value is not None:
            raise InputError(
                problem,
                where="argument",
                field=option,
                value=value,
                mend="; or ".join(filter(None, (f"leave {option} out", otherwise))),
            )


def choice(*allowed: str) -> Callable[[str], str]:
    """Parser of an option whose values are fixed words."""

    def check(text: str) -> str:
        if text not in allowed:
            raise typer.BadParameter(f"{text!r} is none of {', '.join(allowed)}")
        return text

    return check


def to_write(text: str | Path) -> Path:
    """A place to write to that is not stdout, where the answer goes (and while a command runs nothing else)."""
    path = Path(text)
    if str(text) == "-" or str(path) in STDOUT_NAMES:
        raise typer.BadParameter(f"{text} is where the answer goes; name a file")
    return path


STDOUT_NAMES = ("/dev/stdout", "/dev/fd/1", "/proc/self/fd/1")


PROFILES = (".parquet", ".csv")
"""Kinds of file that a profile is written to."""


def target(file: Path | None, option: str, endings: tuple[str, ...] = ()) -> None:
    """Refuse a file to be written, before any work, whose ending says no kind that can be, or that cannot be written."""
    if file is None:
        return
    if endings and file.suffix.lower() not in endings:
        raise InputError(
            f"unknown kind of file: {file.suffix or 'no ending'}",
            where="argument",
            field=option,
            value=str(file),
            allowed=f"a file ending in {' or '.join(endings)}",
        )
    check_writable(file, option)


# -- options of more than one command; those of search alone are in `search_options` -----------------

Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout, and nothing else there.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no comments on stderr.")]
Seed = Annotated[int, typer.Option("--seed", parser=seed, metavar="N", help="Seed of all that is drawn.")]

Deployment = Annotated[Path, typer.Argument(metavar="DEPLOYMENT", help="Deployment file, such as best.yaml.")]
Profile = Annotated[
    Path | None,
    typer.Option(
        "--profile",
        metavar="FILE",
        help="Profile of the stages (Parquet, or CSV + JSON), or the name of a shipped one.",
    ),
]
PoolProfiles = Annotated[
    list[str] | None,
    typer.Option(
        "--pool-profile",
        parser=pool_profile,
        metavar="POOL=FILE",
        help="Profile of a pool whose GPUs are of another type; may be given more than once.",
    ),
]
Workload = Annotated[
    Path | None,
    typer.Option(
        "--workload",
        metavar="FILE",
        help="Workload file (arrivals, sizes, SLO), a trace, or the name of a shipped one.",
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        "--model", metavar="M", help="Bundled model, Hugging Face id or folder. On cpu: tiny-image."
    ),
]
Device = Annotated[
    str | None,
    typer.Option(
        "--device", metavar="auto|cuda|cpu", help="Where to measure and run. auto: this machine's device."
    ),
]

Rate = Annotated[
    float | None,
    typer.Option(
        "--rate", "--request-rate", parser=positive, metavar="R", help="Requests per second in all."
    ),
]
TtftMs = Annotated[
    float | None,
    typer.Option("--ttft-ms", parser=positive, metavar="MS", help="SLO: time to first token, milliseconds."),
]
TpotMs = Annotated[
    float | None,
    typer.Option(
        "--tpot-ms", parser=positive, metavar="MS", help="SLO: time per output token, milliseconds."
    ),
]
Attainment = Annotated[
    float | None,
    typer.Option(
        "--attainment", parser=share, metavar="SHARE", help="SLO: share of requests that must meet both."
    ),
]
WarmupS = Annotated[
    float,
    typer.Option(
        "--warmup-s",
        parser=non_negative,
        metavar="S",
        help="Seconds after the first arrival that figures leave out.",
    ),
]

Records = Annotated[
    Path | None,
    typer.Option(
        "--records",
        parser=to_write,
        metavar="FILE",
        help="Write a row for every request there, .csv or .parquet.",
    ),
]
Html = Annotated[
    Path | None,
    typer.Option("--html", parser=to_write, metavar="FILE", help="Write one self-contained page there."),
]
