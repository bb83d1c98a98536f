"""scikit-optimize's Gaussian process, through its own ask and tell, in a box."""

from __future__ import annotations

import warnings
from typing import Any

from has.errors import MissingError
from has.search.samplers.box import Box
from has.search.samplers.port import Proposal, View

INITIAL = 10
"""Random points before its model is asked."""


class SkoptBox:
    name = "skopt-gp"
    exhaustive = False

    def __init__(self) -> None:
        try:
            import skopt
        except ImportError as error:
            raise MissingError(
                "the sampler skopt-gp needs scikit-optimize, which is not installed",
                mend="pip install 'has-epd[skopt]'",
            ) from error
        self._skopt = skopt

    def propose(self, view: View) -> Proposal | None:
        if not view.untried:
            return None
        box = Box(view.candidates)
        if not box.axes:
            return Proposal(view.untried[0])
        with warnings.catch_warnings():
            # its own numerics warn (a length scale at its bound, a point asked twice); none is the user's doing
            warnings.simplefilter("ignore")
            optimizer = self._skopt.Optimizer(
                [self._dimension(name, box.choices[name]) for name in box.axes],
                base_estimator="GP",
                acq_func="EI",
                acq_optimizer="sampling",
                n_initial_points=INITIAL,
                random_state=int(view.rng.integers(2**31)),
            )
            told = [(box.values(e.candidate), e.utility) for e in view.tried if e.utility is not None]
            inside = [(p, u) for p, u in told if list(p.values()) in optimizer.space]
            if inside:
                # It minimises.
                optimizer.tell([list(p.values()) for p, _ in inside], [-u for _, u in inside])
            asked = [getattr(value, "item", lambda v=value: v)() for value in optimizer.ask()]
        return Proposal(box.nearest(dict(zip(box.axes, asked, strict=True)), view.untried))

    def _dimension(self, name: str, values: list[Any]) -> Any:
        space = self._skopt.space
        if name == "topology":
            return space.Categorical(values)
        if name == "prefill_offload":
            return space.Real(values[0], values[-1])
        return space.Integer(values[0], values[-1])
