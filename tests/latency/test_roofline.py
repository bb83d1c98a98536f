"""Operation counts and the roofline against facts that were derived otherwise."""

from __future__ import annotations

import math

import pytest

from has.errors import InputError
from has.files import facts
from has.latency.operations import Attention, Elementwise, Gemm, LanguageModel, Tower
from has.latency.roofline import Cost, Gpu, Roofline, calibration, efficiency_of, total
from has.latency.sm_shares import BANDWIDTH_SHARE, Load
from has.search.pools import same_gpu
from has.search.price import price_of

FIVE = ("A100 80GB SXM", "H100 SXM", "H200 SXM", "L40S", "RTX 6000 Ada")
DENSE = [name for name, model in facts.models().items() if not model["lm"]["moe"]]


def streamed_by_one_token(name: str, tp: int = 1) -> float:
    """Bytes of the weights that decode reads, by the operations."""
    operations = LanguageModel.from_facts(facts.model(name), tp).decode(1, 1)
    return sum(2 * op.n * op.k * op.count for op in operations if isinstance(op, Gemm))


@pytest.mark.parametrize("name", DENSE)
def test_decode_streams_the_weights_that_the_facts_count(name):
    model = facts.model(name)
    lm = model["lm"]
    # The input embedding is looked up, not streamed; norms and biases are less than a thousandth.
    embedding = 0 if lm["tied_embeddings"] else 2 * lm["vocab"] * lm["hidden"]
    expected = model["computed"]["lm_bytes_bf16"] - embedding
    assert streamed_by_one_token(name) == pytest.approx(expected, rel=2e-3)


def test_experts_stream_all_weights_at_a_large_batch_and_the_active_ones_at_one():
    model = facts.model("qwen3-vl-30b-a3b")
    lm = LanguageModel.from_facts(model)

    def weights(batch):
        return sum(
            (op.streamed or op.n * op.k) * op.count for op in lm.decode(batch, 1) if isinstance(op, Gemm)
        )

    embedding = model["lm"]["vocab"] * model["lm"]["hidden"]
    assert weights(1) == pytest.approx(model["computed"]["lm_active_params"] - embedding, rel=0.01)
    assert weights(4096) == pytest.approx(model["computed"]["lm_params"] - embedding, rel=0.01)


def test_prefill_computes_two_flops_a_weight_and_token():
    lm = LanguageModel.from_facts(facts.model("qwen2.5-vl-7b"))
    layers = [op for op in lm.prefill(2, 500) if isinstance(op, Gemm) and op.name != "logits"]
    weights = sum(op.n * op.k * op.count for op in layers)
    assert sum(op.flops * op.count for op in layers) == 2 * weights * 1000


def test_logits_are_of_the_last_positions():
    lm = LanguageModel.from_facts(facts.model("qwen2.5-vl-7b"))
    (logits,) = [op for op in lm.prefill(3, 500) if op.name == "logits"]
    assert logits.m == 3


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_tensor_parallel_splits_weights_evenly(tp):
    assert streamed_by_one_token("llava-v1.6-34b", tp) == pytest.approx(
        streamed_by_one_token("llava-v1.6-34b") / tp, rel=0.01
    )


def test_decode_reads_the_kv_of_the_facts():
    for name, model in facts.models().items():
        (attention,) = [
            op for op in LanguageModel.from_facts(model).decode(7, 1000) if isinstance(op, Attention)
        ]
        read = attention.bytes * attention.count
        queries = 4 * 7 * attention.heads * attention.head_dim * attention.count
        assert read - queries == 7 * 1000 * model["computed"]["kv_bytes_per_token_bf16"], name


def test_heads_that_gpus_cannot_share_are_refused():
    with pytest.raises(InputError, match="cannot share") as refused:
        LanguageModel.from_facts(facts.model("qwen2.5-vl-7b"), 8)
    assert refused.value.allowed == "1, 2, 4"


@pytest.mark.parametrize("name", facts.models())
def test_every_tower_holds_the_weights_that_the_facts_count(name):
    model = facts.model(name)
    tower = Tower.from_facts(model)
    gemms = [op for op in tower.encode(1, 256) if isinstance(op, Gemm)]
    weights = sum(op.n * op.k * op.count for op in gemms)
    computed = model["computed"]
    expected = computed["encoder_params"] + computed["projector_params"]
    # Position embeddings, norms and a layer that is held but not run (LLaVA's last) are not streamed.
    assert weights == pytest.approx(expected, rel=0.06)


@pytest.mark.parametrize(
    ("name", "tokens", "sequences", "length"),
    [
        ("llava-v1.6-34b", 2928, 5, 577),
        ("internvl2.5-26b", 13 * 256, 13, 1025),
        ("qwen2.5-vl-7b", 529, 1, 2116),
        ("qwen2.5-vl-7b", 2560, 2, 5120),
        ("qwen3-vl-8b", 400, 1, 1600),
        ("ultravox-v0.5-llama-3.1-8b", 188, 2, 752),
        ("ultravox-v0.5-llama-3.1-8b", 50, 1, 400),
        ("voxtral-small-24b", 375, 1, 1500),
        ("voxtral-small-24b", 10, 1, 1500),
        ("qwen2-audio-7b", 750, 1, 1500),
        ("gemma-3-27b", 256, 1, 4096),
    ],
)
def test_media_tokens_become_sequences(name, tokens, sequences, length):
    assert Tower.from_facts(facts.model(name)).sequences(tokens) == (sequences, length)


def test_windows_attend_within():
    tower = Tower.from_facts(facts.model("qwen2.5-vl-7b"))
    whole, windows = (op for op in tower.encode(1, 256) if isinstance(op, Attention))
    assert (whole.count, whole.length) == (4, 1024)
    assert (windows.count, windows.sequences, windows.length) == (28, 16, 64)


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ("H100", "H100 SXM"),
        ("h200 sxm", "H200 SXM"),
        ("a100-80", "A100 80GB SXM"),
        ("A100 80GB", "A100 80GB SXM"),
        ("rtx6000ada", "RTX 6000 Ada"),
        ("l4", "L4"),
        ("l40s", "L40S"),
        ("h100 pcie", "H100 PCIe"),
        ("NVIDIA H100", "H100 SXM"),
    ],
)
def test_gpus_are_found_by_what_people_call_them(asked, name):
    assert facts.find_gpu(asked)[0] == name
    assert Gpu.from_facts(asked).name == name


SAID_BY_DRIVERS = {
    "NVIDIA RTX 6000 Ada Generation": "RTX 6000 Ada",
    "NVIDIA L40S": "L40S",
    "NVIDIA L4": "L4",
    "NVIDIA A10G": "A10G",
    "NVIDIA A100-SXM4-40GB": "A100 40GB SXM",
    "NVIDIA A100-PCIE-40GB": "A100 40GB PCIe",
    "NVIDIA A100-SXM4-80GB": "A100 80GB SXM",
    "NVIDIA A100 80GB PCIe": "A100 80GB PCIe",
    "NVIDIA H100 80GB HBM3": "H100 SXM",
    "NVIDIA H100 PCIe": "H100 PCIe",
    "NVIDIA H100 NVL": "H100 NVL",
    "NVIDIA H200": "H200 SXM",
    "NVIDIA H200 NVL": "H200 NVL",
    "NVIDIA B200": "B200 SXM",
    "AMD Instinct MI300X": "MI300X",
}


@pytest.mark.parametrize(("said", "name"), SAID_BY_DRIVERS.items())
def test_gpus_are_found_by_what_their_drivers_say(said, name):
    """Also by drivers that leave out the maker's name, wherever a device that was measured meets the facts."""
    for words in (said, said.removeprefix("NVIDIA ")):
        assert facts.find_gpu(words)[0] == name
        assert same_gpu(name, words)
    assert price_of(said, None) == price_of(name, None)
    assert set(SAID_BY_DRIVERS.values()) == set(facts.gpus())


@pytest.mark.parametrize(
    "said",
    [
        "NVIDIA GeForce RTX 4090",
        "NVIDIA L40",
        "NVIDIA A10",
        "NVIDIA H20",
        "NVIDIA H100 80GB HBM3 MIG 3g.40gb",
    ],
)
def test_a_device_that_has_no_facts_is_taken_for_no_other(said):
    with pytest.raises(InputError, match=f"no facts are shipped for the GPU {said.removeprefix('NVIDIA ')}"):
        facts.find_gpu(said)


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ("ultravox-8b", "ultravox-v0.5-llama-3.1-8b"),
        ("Ultravox 27B", "ultravox-v0.6-gemma-3-27b"),
        ("Qwen/Qwen2.5-VL-7B-Instruct", "qwen2.5-vl-7b"),
        ("LLaVA-v1.6-34B", "llava-v1.6-34b"),
    ],
)
def test_models_are_found_by_what_people_call_them(asked, name):
    assert facts.find_model(asked)["name"] == name


def test_an_ambiguous_name_lists_what_it_can_mean():
    with pytest.raises(InputError, match="A100 40GB SXM, A100 80GB SXM"):
        facts.find_gpu("a100")
    with pytest.raises(InputError, match="any of"):
        facts.find_model("qwen2.5-vl")
    with pytest.raises(InputError, match="no facts"):
        facts.find_gpu("L40")
    with pytest.raises(InputError, match="no facts"):
        facts.find_gpu("")


@pytest.mark.parametrize("name", ["L40S", "H100 SXM", "H200 SXM", "B200 SXM"])
def test_the_fit_finds_the_matrix_product_and_the_streaming_rate_of_the_facts(name):
    roofline, measured = Roofline(Gpu.from_facts(name)), facts.gpu_efficiency()[name]
    square = roofline.cost(Gemm("square", 8192, 8192, 8192)).seconds * 1e3
    row = roofline.cost(Gemm("row", 1, 8192, 8192)).seconds * 1e3
    assert square == pytest.approx(measured["gemm_8192_ms"], rel=0.2)
    assert row == pytest.approx(measured["m1_ms"], rel=0.2)


def test_fitted_factors_are_shares():
    for name, kinds in {"all": calibration()["all"], **calibration()["gpus"]}.items():
        for kind, row in kinds.items():
            assert 0.02 < row["compute"] <= 1.2, (name, kind)
            assert 0 <= row["fill"] <= 1.5, (name, kind)
            assert 0 < row["start_s"] < 1e-3, (name, kind)


def test_a_chip_without_tables_takes_those_of_its_twin_and_others_those_of_all():
    assert efficiency_of("RTX 6000 Ada")[0] == efficiency_of("L40S")[0]
    assert "same chip" in efficiency_of("RTX 6000 Ada")[1]
    assert efficiency_of("MI300X")[1].startswith("all GPUs")
    assert efficiency_of("L40S", without=True)[0] != efficiency_of("L40S")[0]


@pytest.mark.parametrize("gpu", FIVE)
def test_no_estimate_beats_the_data_sheet(gpu):
    """Whatever the factors: decode cannot stream faster than the memory, prefill not multiply faster than the peak."""
    card = Gpu.from_facts(gpu)
    lm = LanguageModel.from_facts(facts.model("qwen2.5-vl-7b"))
    decode, prefill = lm.decode(1, 1024), lm.prefill(4, 4096)
    roofline = Roofline(card)
    assert total(roofline, decode).seconds > streamed_by_one_token("qwen2.5-vl-7b") / card.bandwidth
    flops = sum(op.flops * op.count for op in prefill if isinstance(op, Gemm | Attention))
    assert total(roofline, prefill).seconds > flops / card.peak["bfloat16"]


@pytest.mark.parametrize("gpu", FIVE)
def test_more_work_never_takes_less(gpu):
    lm, roofline = LanguageModel.from_facts(facts.model("qwen2.5-vl-7b")), Roofline(Gpu.from_facts(gpu))
    for stage in (lm.prefill, lm.decode):
        for batch in (1, 8, 64):
            times = [total(roofline, stage(batch, n)).seconds for n in (64, 128, 512, 2048, 8192)]
            assert times == sorted(times)


def test_fp8_weights_halve_the_stream_and_need_hardware():
    half = Roofline(Gpu.from_facts("h100")).cost(Gemm("g", 1, 16384, 16384, dtype="fp8"))
    full = Roofline(Gpu.from_facts("h100")).cost(Gemm("g", 1, 16384, 16384))
    assert half.bytes == pytest.approx(full.bytes / 2, rel=1e-3)
    assert half.seconds < full.seconds
    with pytest.raises(InputError, match="fp8"):
        Gpu.from_facts("a100-80").offers("fp8")


def test_costs_are_split_by_what_limits():
    roofline = Roofline(Gpu.from_facts("h100"))
    assert roofline.cost(Gemm("large", 8192, 8192, 8192)).compute_s > 0
    assert roofline.cost(Gemm("row", 1, 8192, 8192)).stream_s > 0
    assert roofline.cost(Elementwise("copy", 1e9)).stream_s > 0
    assert (Cost(1.0, 2.0) + Cost(stream_s=3.0, link_s=4.0)).seconds == 10.0


# SM shares


def load(compute: float = 0.0, stream: float = 0.0, rows: int = 10**6, bytes: float = 0.0) -> Load:
    return Load(Cost(0.001, compute, stream, bytes=bytes), rows, 1024)


def test_a_large_prefill_is_near_linear_in_its_share():
    """Measured on an sm_89 card: 2.8 to 3.0 times as long on 35 % of the SMs."""
    gpu = Gpu.from_facts("l40s")
    prefill = LanguageModel.from_facts(facts.model("qwen2.5-vl-7b")).prefill(1, 8192)
    whole = Load(total(Roofline(gpu), prefill), 8192, 3584)
    assert 2.6 <= whole.seconds(gpu, 35) / whole.seconds(gpu, 100) <= 3.0


def test_the_share_that_a_vision_encoder_fills_is_near_what_was_observed():
    gpu = Gpu.from_facts("a100-80")
    for side, activity in ((225, 0.09), (1024, 0.78), (3000, 0.99)):
        filled = load(rows=math.ceil(side / 14) ** 2).fill(gpu)
        assert filled == pytest.approx(activity, abs=0.13)


def test_arithmetic_that_fills_a_quarter_loses_nothing_down_to_a_quarter():
    gpu = Gpu.from_facts("h100")
    small = load(compute=0.1, rows=700)
    assert small.seconds(gpu, 100 * small.fill(gpu) + 1) == small.seconds(gpu, 100)
    assert small.seconds(gpu, 50 * small.fill(gpu)) > 1.9 * small.seconds(gpu, 100)


def test_decode_keeps_its_speed_while_its_share_saturates_the_memory():
    gpu = Gpu.from_facts("h100")
    decode = load(stream=0.01)
    assert decode.seconds(gpu, 100 * BANDWIDTH_SHARE) == decode.seconds(gpu, 100)
    assert decode.seconds(gpu, 50 * BANDWIDTH_SHARE) == pytest.approx(0.001 + 0.02)


def test_stages_slow_each_other_only_past_the_bandwidth():
    gpu = Gpu.from_facts("h100")
    light, heavy = load(compute=0.1, bytes=1e9), load(stream=0.1, bytes=0.8 * 0.1 * gpu.bandwidth)
    assert light.seconds_beside(gpu, 50, light) == light.seconds(gpu, 50)
    slowed = heavy.seconds_beside(gpu, 50, heavy) / heavy.seconds(gpu, 50)
    assert 1.2 < slowed < 1.6


def test_without_a_partition_arithmetic_that_asks_for_more_than_all_sms_is_stretched():
    """Full beside full: each gets half, so its arithmetic lasts twice; what fills little has room beside little."""
    gpu = Gpu.from_facts("h100")
    full, small = load(compute=0.1, rows=100_000), load(compute=0.1, rows=30)
    assert full.seconds_beside(gpu, 100, full) == pytest.approx(0.001 + 0.2, rel=0.02)
    assert small.seconds_beside(gpu, 100, small) == small.seconds(gpu, 100)
