"""A compact workload in place of a trace: gamma arrivals and a mixture of sizes, with the error of both.

One entry for text, and for each modality of media one for requests with a single item, with 2 or 3, and
with more, for who sends many sends small ones. Each size is a constant, a choice (few distinct values), a
lognormal where that keeps mean and percentiles within 5 %, else 250 observed values. What such a workload
cannot keep is said: slow changes of the rate, and which sizes come together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from has.core.words import signed
from has.core.workload import Distribution, Lognormal, Workload
from has.errors import InputError
from has.files.formats.histogram import Histogram
from has.files.formats.statistics import Kind, Statistics

Floats = NDArray[np.float64]

PERCENTILES = (50, 90, 99)
_FEW_VALUES = 16
_OBSERVED = 250
"""Of 250 equal slices one lies about the 99th percentile; of 200 two would meet there."""
_LOGNORMAL_ERROR = 0.05
_EVEN_CV = 0.01
"""Below this the arrivals are as good as evenly spaced."""
_Z99 = 2.3263478740408408
_GRID = (np.arange(20_000) + 0.5) / 20_000

Figures = dict[str, float]
Errors = dict[str, Any]


def fit(statistics: Statistics, name: str, source: str, time_scale: float = 1.0) -> tuple[Workload, Errors]:
    """The workload, and the relative error of each figure: rate, cv, and by entry and size mean and percentiles."""
    rate, cv = statistics.rate, statistics.cv
    if rate is None or cv is None:
        raise InputError(
            "is too short to fit: it needs three requests that do not all arrive at once", where=source
        )
    rate /= time_scale
    arrivals: dict[str, Any] = (
        {"process": "constant", "rate": _short(rate)}
        if cv < _EVEN_CV
        else {"process": "gamma", "rate": _short(rate), "cv": _short(cv)}
    )
    entries, sizes = [], {}
    for (modality, group), kind in sorted(statistics.kinds.items()):
        distributions = _distributions(modality, kind)
        entries.append(
            {"weight": _short(kind.count / statistics.requests), "modality": modality, **distributions}
        )
        sizes[f"{modality} {group}".strip()] = _size_errors(kind, distributions)
    errors: Errors = {
        "rate": _relative(arrivals["rate"], rate),
        "cv": _relative(arrivals.get("cv", 0.0), cv) if cv >= _EVEN_CV else 0.0,
        "sizes": sizes,
    }
    workload = Workload.model_validate(
        {
            "version": 1,
            "name": name,
            "description": f"Compact fit of {source}. {error_words(errors)} {lost_words(statistics)}",
            "arrivals": arrivals,
            "requests": entries,
        }
    )
    return workload, errors


def largest_error(errors: Errors) -> tuple[str, float]:
    """The size that is least well kept, in words, and its relative error."""
    all_errors = {
        f"{modality} {size} {figure}": error
        for modality, sizes in errors["sizes"].items()
        for size, figures in sizes.items()
        for figure, error in figures.items()
    }
    worst = max(all_errors, key=lambda key: abs(all_errors[key]))
    return worst, all_errors[worst]


def error_words(errors: Errors) -> str:
    """The error of the fit in a sentence."""
    worst, error = largest_error(errors)
    return (
        f"Error against the source: rate {signed(errors['rate'])}, CV of the gaps {signed(errors['cv'])}; "
        f"of the sizes at most {signed(error)} ({worst})."
    )


def lost_words(statistics: Statistics) -> str:
    """What the fit does not keep."""
    busiest = statistics.busiest()
    words = "Not kept: how the rate changes over time"
    if busiest is not None:
        words += f" (the busiest {busiest[0]:g} s have {busiest[1]:.1f} times the mean rate)"
    return words + ", and which sizes come together."


def _distributions(modality: str, kind: Kind) -> dict[str, Distribution]:
    prompt, output = kind.sizes["prompt_tokens"], kind.sizes["output_tokens"]
    sizes = {"prompt_tokens": _fitted(prompt), "output_tokens": _fitted(output)}
    if modality == "text":
        return sizes
    return {
        "items": _fitted(kind.sizes["items"], lognormal=False),
        "media_tokens": _fitted(kind.item_tokens),
        **sizes,
    }


def _fitted(sizes: Histogram, *, lognormal: bool = True) -> Distribution:
    distinct = sizes.distinct()
    if len(distinct) == 1:
        return Distribution(constant=next(iter(distinct)))
    if len(distinct) <= _FEW_VALUES:
        return Distribution(choice={value: _short(count / sizes.total) for value, count in distinct.items()})
    p50, p99 = (float(p) for p in sizes.percentiles(np.array([50.0, 99.0])))
    if lognormal and 0 < p50 < p99:
        curve = Distribution(
            lognormal=Lognormal(p50=_short(p50), p99=_short(p99)), min=min(distinct), max=sizes.most
        )
        if all(abs(e) <= _LOGNORMAL_ERROR for e in _errors(_levels(curve), _figures(sizes)).values()):
            return curve
    return Distribution(empirical=tuple(sizes.slices(_OBSERVED).tolist()))


def _size_errors(kind: Kind, distributions: Mapping[str, Distribution]) -> dict[str, Figures]:
    errors = {}
    for name, distribution in distributions.items():
        source = kind.item_tokens if name == "media_tokens" else kind.sizes[name]
        label = "media_tokens of one item" if name == "media_tokens" else name
        errors[label] = _errors(_levels(distribution), _figures(source))
    if "items" in distributions:
        total = _totals(_levels(distributions["items"]), _levels(distributions["media_tokens"]))
        errors["media_tokens of all items"] = _errors(total, _figures(kind.sizes["media_tokens"]))
    return errors


def _figures(sizes: Histogram) -> Figures:
    at = sizes.percentiles(np.array(PERCENTILES, np.float64))
    return {"mean": sizes.mean} | {f"p{q}": float(v) for q, v in zip(PERCENTILES, at, strict=True)}


def _errors(values: Floats, source: Figures) -> Figures:
    fitted = {"mean": float(values.mean())} | {f"p{q}": float(np.percentile(values, q)) for q in PERCENTILES}
    return {name: _relative(fitted[name], value) for name, value in source.items()}


def _relative(fitted: float, source: float) -> float:
    """Where the source is 0, the difference itself."""
    return (fitted - source) / (source or 1.0)


def _levels(d: Distribution) -> Floats:
    """The distribution as 20,000 equally likely whole numbers, in ascending order."""
    if d.lognormal is not None:
        from scipy.special import ndtri

        sigma = math.log(d.lognormal.p99 / d.lognormal.p50) / _Z99
        values: Floats = np.rint(np.clip(d.lognormal.p50 * np.exp(sigma * ndtri(_GRID)), d.min, d.max))
        return values
    if d.choice is not None:
        cumulated = np.cumsum(list(d.choice.values()))
        chosen: Floats = np.array(list(d.choice), np.float64)[
            np.searchsorted(cumulated, _GRID * cumulated[-1])
        ]
        return chosen
    given = (d.constant,) if d.constant is not None else d.empirical or ()
    ordered: Floats = np.sort(np.array(given, np.float64))[(_GRID * len(given)).astype(np.int64)]
    return ordered


def _totals(items: Floats, each: Floats) -> Floats:
    """Tokens of all items of 100,000 requests, as a draw from the workload would sum them."""
    generator = np.random.Generator(np.random.PCG64(0))
    number = generator.choice(items, 100_000).astype(np.int64)
    running = np.concatenate([[0.0], np.cumsum(generator.choice(each, int(number.sum())))])
    ends = np.cumsum(number)
    totals: Floats = running[ends] - running[ends - number]
    return totals


def _short(value: float) -> float:
    """Five significant digits: finer than any fit is right."""
    return float(f"{value:.5g}")
