"""The largest things a workload brings: what budgets of an engine must hold.

An encoder budget below one item is an engine error at the first large image (vLLM refuses an item of
6,042 tokens under a budget of 4,800), so budgets are made from the workload, not from a default.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from scipy.stats import lognorm, norm

from has.core.requests import Requests
from has.core.stage import MODALITIES
from has.core.workload import Distribution, RequestClass, Workload
from has.errors import InputError
from has.files.trace import load_trace
from has.models.tokens import media_tokens

TAIL = 1e-4
"""Of an unbounded distribution, the share that may exceed what budgets are made for; said where it applies."""
Z99 = 2.3263478740408408
"""The 99th percentile of a standard normal."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """
    item_tokens     LM tokens of the largest single medium
    request_tokens  LM tokens of all media of the largest request
    total_tokens    prompt, media and output tokens of the largest request
    items           modality -> most media of one request
    bounded         False where a distribution has no upper end, and `TAIL` of it lies beyond
    """

    item_tokens: int
    request_tokens: int
    total_tokens: int
    items: dict[str, int]
    bounded: bool = True

    @property
    def limits(self) -> dict[str, int]:
        """Most items of each modality in one prompt; 0 for those that do not come, or engines reserve for them."""
        return {kind: self.items.get(kind, 0) for kind in ("audio", "image", "video")} if self.items else {}


def largest(distribution: Distribution | None) -> tuple[int, bool]:
    """The largest value, rounded up, and whether it is one; of an unbounded one the quantile 1 - TAIL."""
    if distribution is None:
        return 0, True
    d = distribution
    bounded = True
    if d.constant is not None:
        top = float(d.constant)
    elif d.uniform is not None:
        top = float(d.uniform[1])
    elif d.choice is not None:
        top = float(max(value for value, weight in d.choice.items() if weight > 0))
    elif d.empirical is not None:
        top = float(max(d.empirical))
    elif d.normal is not None:
        top = float(norm.ppf(1 - TAIL, d.normal.mean, d.normal.sd)) if d.normal.sd else d.normal.mean
        bounded = d.normal.sd == 0
    else:
        assert d.lognormal is not None
        sigma = math.log(d.lognormal.p99 / d.lognormal.p50) / Z99
        top = float(lognorm.ppf(1 - TAIL, sigma, scale=d.lognormal.p50)) if sigma else d.lognormal.p50
        bounded = sigma == 0
    if d.max is not None:
        # A stated end is the end: nobody who wrote one wants budgets below it.
        return math.ceil(d.max if not bounded else min(top, d.max)), True
    return math.ceil(top), bounded


def sizes(workload: Workload, model: str) -> Sizes:
    """The sizes of `workload` for `model`. InputError where a media size is given and no token rule is known."""
    if workload.arrivals.process == "trace":
        assert workload.arrivals.file is not None
        return sizes_of_requests(load_trace(workload.arrivals.file, model, token_rule=media_tokens))
    item = request = total = 0
    bounded = True
    items: dict[str, int] = {}
    for entry in workload.requests:
        if entry.weight == 0:
            continue
        one, known = _item(entry, model)
        count = 0 if entry.modality == "text" else max(1, largest(entry.items)[0]) if entry.items else 1
        prompt, prompt_known = largest(entry.prompt_tokens)
        output, output_known = largest(entry.output_tokens)
        if count:
            items[entry.modality] = max(items.get(entry.modality, 0), count)
        item, request = max(item, one), max(request, one * count)
        total = max(total, one * count + prompt + output)
        bounded = bounded and known and prompt_known and output_known
    return Sizes(item, request, total, items, bounded)


def sizes_of_requests(requests: Requests) -> Sizes:
    """The sizes of a list. Of several items only the sum is known: the largest may be nearly all of it."""
    items: dict[str, int] = {}
    for index, modality in enumerate(MODALITIES):
        those = requests.items[requests.modality == index]
        if index and len(those):
            items[modality] = max(1, int(those.max()))
    media = int(requests.media_tokens.max()) if len(requests) else 0
    total = int((requests.total_tokens + requests.output_tokens).max()) if len(requests) else 0
    return Sizes(media, media, total, items)


def _item(entry: RequestClass, model: str) -> tuple[int, bool]:
    if entry.modality == "text":
        return 0, True
    if entry.image_px is not None and entry.video_s is None:
        return media_tokens(model, image_px=entry.image_px), True
    if entry.video_s is not None:
        seconds, bounded = largest(entry.video_s)
        return media_tokens(model, video_s=seconds, fps=entry.fps, image_px=entry.image_px), bounded
    if entry.audio_s is not None:
        seconds, bounded = largest(entry.audio_s)
        return media_tokens(model, audio_s=seconds), bounded
    if entry.media_tokens is None:
        raise InputError("a media entry without a size", field="requests")
    return largest(entry.media_tokens)
