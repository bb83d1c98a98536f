"""HAS: finds the best deployment of a multimodal LLM over encode, prefill and decode GPUs.

Importing this package is light; the heavy parts load on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from has.errors import HasError, InfeasibleError, InputError, MissingError, RunError
from has.version import __version__

if TYPE_CHECKING:
    from has.files.deployment import load_deployment
    from has.files.profile import load_profile
    from has.files.space import load_space
    from has.files.workload import load_workload
    from has.search.run import search
    from has.sim.run import simulate

_LAZY = {
    "load_deployment": "has.files.deployment",
    "load_profile": "has.files.profile",
    "load_space": "has.files.space",
    "load_workload": "has.files.workload",
    "search": "has.search.run",
    "simulate": "has.sim.run",
}

__all__ = [
    "HasError",
    "InfeasibleError",
    "InputError",
    "MissingError",
    "RunError",
    "__version__",
    "load_deployment",
    "load_profile",
    "load_space",
    "load_workload",
    "search",
    "simulate",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'has' has no attribute {name!r}")
