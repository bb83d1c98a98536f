"""One GPU's part under tensor parallelism: the parts add up to the whole."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import transformers as hf

from has.errors import InputError
from has.models.families import Family, family_of
from has.models.shard import cut
from has.models.stage_model import StageModel
from tests.models.cases import loaded

MODELS = ["tiny-image", "tiny-video", "tiny-audio"]


def parts(name: str, gpus: int) -> tuple[Family, list[Family]]:
    whole = loaded(name).family
    made = []
    for rank in range(gpus):
        family = family_of(copy.deepcopy(whole.model))
        cut(family, gpus, rank)
        made.append(family)
    return whole, made


def layers(family: Family) -> Any:
    return family.language_model.layers


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("gpus", [2, 3, 6])
def test_the_outputs_of_all_ranks_add_up_to_the_whole(name: str, gpus: int) -> None:
    text = loaded(name).family.text_config
    if text.num_attention_heads % gpus or (
        text.num_key_value_heads % gpus and gpus % text.num_key_value_heads
    ):
        pytest.skip(
            f"{text.num_attention_heads} heads over {text.num_key_value_heads} are not for {gpus} GPUs"
        )
    whole, ranks = parts(name, gpus)
    x = torch.randn(1, 9, text.hidden_size, generator=torch.Generator().manual_seed(0))
    positions = torch.arange(9)[None]
    if whole.mrope:
        positions = positions.expand(3, 1, -1)
    rotary = whole.language_model.rotary_emb(x, positions)

    def attention(family: Family) -> torch.Tensor:
        out: torch.Tensor = layers(family)[0].self_attn(x, position_embeddings=rotary, attention_mask=None)[0]
        return out

    with torch.inference_mode():
        assert torch.allclose(sum(map(attention, ranks)), attention(whole), atol=1e-5)
        mlp = [layers(family)[0].mlp(x) for family in ranks]
        assert torch.allclose(sum(mlp), layers(whole)[0].mlp(x), atol=1e-5)
        logits = torch.cat([family.head(x) for family in ranks], dim=-1)
        assert torch.allclose(logits, whole.head(x), atol=1e-5)


def test_a_rank_holds_its_part_and_runs_every_stage() -> None:
    whole = loaded("tiny-image")
    family = family_of(copy.deepcopy(whole.family.model))
    cut(family, 2)
    rank = StageModel("tiny-image", family, max_positions=whole.max_positions)
    assert rank.weights_bytes["encoder"] == whole.weights_bytes["encoder"]
    assert 0.45 * whole.weights_bytes["lm"] < rank.weights_bytes["lm"] < 0.7 * whole.weights_bytes["lm"]
    kept = max(1, whole.kv_shape[2] // 2)
    assert rank.kv_shape == (*whole.kv_shape[:2], kept, whole.kv_shape[3])

    from has.models.bench import StageBench

    bench = StageBench(rank)
    for stage in ("encode", "prefill", "decode"):
        bench.prepare(stage, 2, 64)()


def test_heads_that_cannot_be_shared_and_experts_are_refused() -> None:
    family = family_of(copy.deepcopy(loaded("tiny-image").family.model))
    with pytest.raises(InputError, match="cannot be shared by 5 GPUs"):
        cut(family, 5)
    family.text_config = hf.Qwen3MoeConfig(num_experts=4)
    with pytest.raises(InputError, match="experts"):
        cut(family, 2)
