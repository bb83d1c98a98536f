"""Models built from shipped facts alone are as large as the facts say, to the byte where nothing was left out."""

from __future__ import annotations

import pytest
import torch

from has.errors import InputError, MissingError
from has.files import facts
from has.models.stage_model import PromptInput, load_stage_model

ADAPTED = [name for name in facts.models() if not name.startswith(("gemma", "pixtral"))]


@pytest.mark.parametrize("name", ADAPTED)
def test_weights_and_kv_are_those_of_the_facts(name: str) -> None:
    """On the meta device: shapes without storage. Norms and biases that the facts leave out are under .02 %."""
    known = facts.model(name)
    computed = known["computed"]
    model = load_stage_model(name, device="meta", weights="dummy")
    lm = computed["lm_bytes_bf16"]
    if name == "voxtral-mini-3b":  # transformers' class ties nothing, so it has its logits' matrix besides
        lm += 2 * known["lm"]["vocab"] * known["lm"]["hidden"]
    assert model.weights_bytes["lm"] == pytest.approx(lm, rel=1e-4)
    encoder = computed["encoder_plus_projector_bytes_bf16"]
    assert model.weights_bytes["encoder"] == pytest.approx(encoder, rel=3e-3 if "voxtral" in name else 2e-4)
    assert model.kv_bytes_per_token == computed["kv_bytes_per_token_bf16"]
    deep = 1 + known["encoder"].get("deepstack_layers", 0)
    assert model.width * 2 == deep * computed["embedding_bytes_per_mm_token_bf16"]


def test_the_figures_people_quote() -> None:
    quoted = {
        "llava-v1.6-34b": (68.8, 245_760),
        "qwen2.5-vl-7b": (15.2, 57_344),
        "qwen2.5-vl-72b": (145.4, 327_680),
    }
    for name, (lm_gb, kv) in quoted.items():
        model = load_stage_model(name, device="meta", weights="dummy")
        assert (round(model.weights_bytes["lm"] / 1e9, 1), model.kv_bytes_per_token) == (lm_gb, kv)


def test_dtype_is_taken() -> None:
    whole = load_stage_model("qwen2.5-vl-3b", device="meta", weights="dummy", dtype=torch.float32)
    assert whole.kv_bytes_per_token == 2 * facts.model("qwen2.5-vl-3b")["computed"]["kv_bytes_per_token_bf16"]


def test_real_weights_are_not_made_up() -> None:
    with pytest.raises(InputError, match="no such model"):
        load_stage_model("llava-v1.6-34b")
    with pytest.raises(MissingError, match="no checkpoint"):
        load_stage_model("Qwen/Qwen2.5-VL-7B-Instruct")
    with pytest.raises(MissingError, match="no adapter"):
        load_stage_model("gemma-3-27b", weights="dummy")


def test_a_model_of_facts_computes() -> None:
    """A thin one."""
    from has.models import facts_config
    from has.models.checkpoint import dummy_of_facts
    from has.models.families import family_of
    from has.models.stage_model import StageModel

    thin = facts.model("ultravox-v0.5-llama-3.1-8b")
    lm = {
        "layers": 2,
        "vocab": 512,
        "hidden": 64,
        "intermediate": 64,
        "q_heads": 2,
        "kv_heads": 1,
        "head_dim": 32,
    }
    tower = {"layers": 1, "hidden": 64, "intermediate": 64, "heads": 2}
    thin = thin | {
        "lm": thin["lm"] | lm,
        "encoder": thin["encoder"] | tower,
        "projector": {"dims": [512, 64]},
    }
    assert facts_config.config_of(thin)[0] == "UltravoxModel"
    model = StageModel("thin", family_of(dummy_of_facts(thin, "cpu", torch.float32, 0)), 4096)
    assert model.prefill([PromptInput([20, 21, 22])])[0].logits.isfinite().all()
