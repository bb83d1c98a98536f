"""What is measured of a model on a GPU: all of it, or one rank's part under tensor parallelism, and what the ranks' sums add.

One GPU measures what a rank computes; how long the sums between ranks take it cannot tell: they are estimated (roofline), and
the profile says so. Encode runs on one GPU whatever the TP.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from has.errors import InputError
from has.latency.operations import ACTIVATION, AllReduce
from has.latency.roofline import Gpu, Roofline

if TYPE_CHECKING:
    from has.models.checkpoint import Weights

Measure = Callable[[dict[str, Any]], dict[str, Any]]


def open_rank(model: str, dummy: bool, gpus: int, device: str = "cuda") -> Any:
    """A StageBench of one of `gpus` ranks; its facts are those of the whole model. Raises InputError where it cannot be split.

    A rank's device never holds more than the rank: the whole is cut on the host, or where its weights are dummy ones, before
    it has any.
    """
    from has.models.bench import StageBench
    from has.models.checkpoint import draw
    from has.models.shard import cut
    from has.models.stage_model import load_stage_model

    weights: Weights = "dummy" if dummy else "real"
    if gpus == 1:
        return StageBench(load_stage_model(model, device, weights=weights))
    whole = load_stage_model(model, "meta" if dummy else "cpu", weights=weights)
    layers, hidden = whole.kv_shape[0], whole.family.text_config.hidden_size
    facts = StageBench(whole).facts | {"layers": layers, "hidden": hidden}
    cut(whole.family, gpus)
    if dummy:
        draw(whole.family.model, device)
    else:
        whole.family.model.to(device)
    rank = StageBench(replace(whole))
    rank.facts = facts
    return rank


@dataclass(frozen=True, slots=True)
class Sums:
    """All-reduces of one worker of `gpus` ranks: two a layer, of all rows that a pass computes."""

    kernels: Roofline
    gpus: int
    layers: int
    hidden: int

    def seconds(self, stage: str, batch: int, tokens: int) -> float:
        if stage not in ("prefill", "decode"):
            return 0.0
        rows = batch * tokens if stage == "prefill" else batch
        operation = AllReduce(
            "all-reduce", float(ACTIVATION * rows * self.hidden), self.gpus, 2 * self.layers
        )
        return self.kernels.cost(operation).seconds

    def added(self, measure: Measure) -> Measure:
        """`measure`, its samples longer by the sums."""

        def with_sums(point: dict[str, Any]) -> dict[str, Any]:
            reply = measure(point)
            more = self.seconds(point["stage"], point["batch"], point["tokens"])
            return reply | {"samples": [sample + more for sample in reply["samples"]]}

        return with_sums


def sums(device: str, gpus: int, facts: dict[str, Any]) -> Sums:
    """For a device by the name it says. Raises InputError as `linked`."""
    return Sums(Roofline(linked(device, gpus)), gpus, facts["layers"], facts["hidden"])


def linked(device: str, gpus: int) -> Gpu:
    """The device, whose links the sums between ranks go over. Raises InputError where they are not known."""
    try:
        return Gpu.from_facts(device)
    except InputError as error:
        raise InputError(
            f"how long {gpus} GPUs take to add up what their ranks computed is estimated, and of {device} no facts are shipped",
            where="argument",
            field="--tensor-parallel",
            value=gpus,
            allowed=f"1 on this GPU; more on {error.allowed}",
            mend="leave --tensor-parallel out",
        ) from None
