"""Budgets from the workload's largest item; F12: an image of 6,042 tokens under a budget of 4,800."""

from __future__ import annotations

import pytest

from has.core.workload import Workload
from has.engine.engines import VERSIONS
from has.engine.place import ENCODER_BUDGET, make_plan
from has.engine.sizes import Sizes, sizes
from tests.engine.cases import MODEL, deployment, runs_on


def workload(**entry) -> Workload:
    base = {"modality": "image", "prompt_tokens": 60, "output_tokens": 100}
    return Workload.model_validate(
        {"version": 1, "arrivals": {"process": "poisson", "rate": 1.0}, "requests": [base | entry]}
    )


@pytest.mark.parametrize(
    ("entry", "item", "request_", "bounded"),
    [
        ({"media_tokens": 6042}, 6042, 6042, True),
        (
            {"media_tokens": {"uniform": [10, 500]}, "items": {"choice": {1: 0.5, 3: 0.5, 9: 0}}},
            500,
            1500,
            True,
        ),
        ({"media_tokens": {"lognormal": {"p50": 576, "p99": 2880}, "max": 4096}}, 4096, 4096, True),
        ({"media_tokens": {"normal": {"mean": 400, "sd": 0}}}, 400, 400, True),
        ({"image_px": [1920, 1080]}, 2691, 2691, True),
    ],
)
def test_largest_item(entry, item, request_, bounded) -> None:
    found = sizes(workload(**entry), MODEL)
    assert (found.item_tokens, found.request_tokens, found.bounded) == (item, request_, bounded)


def test_without_an_end_the_tail_is_said() -> None:
    found = sizes(workload(media_tokens={"lognormal": {"p50": 576, "p99": 2880}}), MODEL)
    assert not found.bounded
    assert 2880 < found.item_tokens < 20_000
    made = make_plan(deployment(0), "vllm", found)
    assert any("no upper end" in note for note in made.notes)


@pytest.mark.parametrize("engine", VERSIONS)
@pytest.mark.parametrize("item", [4800, 6042, 20_000])
def test_budgets_hold_the_largest_item(engine, item) -> None:
    """F12, for every engine's every instance that may see an item, whatever B."""
    for seed in (s for s in range(30) if runs_on(engine, s)):
        made = make_plan(deployment(seed), engine, Sizes(item, item, item + 500, {"image": 1}))
        assert all(instance.max_num_batched_tokens >= item for instance in made.instances)


@pytest.mark.parametrize("engine", VERSIONS)
def test_a_merged_batch_beyond_what_is_known_to_fit_is_cut_or_said(engine) -> None:
    """vLLM cuts a batch by its budget of tokens, Dynamo takes one request; SGLang's encoder looks at requests alone."""
    largest = 16_384
    for seed in (s for s in range(50) if runs_on(engine, s)):
        made = make_plan(deployment(seed), engine, Sizes(largest, largest, 17_000, {"image": 1}))
        for encoder in made.of("encode"):
            assert encoder.max_num_batched_tokens <= ENCODER_BUDGET
            if encoder.max_num_seqs * largest > ENCODER_BUDGET:
                word = "may run out of memory" if engine == "sglang" else "cut by tokens before B"
                assert any(word in note for note in made.notes)


def test_a_batch_beyond_the_encoder_budget_is_said() -> None:
    seed = next(s for s in range(50) if (deployment(s).encode_batch or 0) == 16 and runs_on("vllm", s))
    made = make_plan(deployment(seed), "vllm", Sizes(16_384, 16_384, 17_000, {"image": 1}))
    assert any("cut by tokens before B" in note for note in made.notes)
    assert all(i.max_num_batched_tokens == ENCODER_BUDGET for i in made.of("encode"))
