"""Numbers too large, too small or oddly written for an option are usage errors, and hang nothing."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("simulate", "d.yaml", "--requests", "99999999999999999999999999"), "--requests"),
        (("simulate", "d.yaml", "--seed", "99999999999999999999999999"), "--seed"),
        (("simulate", "d.yaml", "--ttft-ms", "1e308"), "--ttft-ms"),
        (("simulate", "d.yaml", "--tpot-ms", "1e308"), "--tpot-ms"),
        (("simulate", "d.yaml", "--warmup-s", "1e308"), "--warmup-s"),
        (("simulate", "d.yaml", "--requests", "1_0"), "--requests"),
        (("simulate", "d.yaml", "--requests", "٣"), "--requests"),
        (("simulate", "d.yaml", "--rate", "1_0"), "--rate"),
        (("search", "--requests", "99999999999999999999999999"), "--requests"),
        (("search", "--seed", "99999999999999999999999999"), "--seed"),
        (("search", "--ttft-ms", "1e308"), "--ttft-ms"),
        (("search", "--tpot-ms", "1e308"), "--tpot-ms"),
        (("search", "--warmup-s", "1e308"), "--warmup-s"),
        (("search", "--requests", "1_0"), "--requests"),
        (("search", "--requests", "٣"), "--requests"),
        (("search", "--rate", "1_0"), "--rate"),
        (("search", "--gpus", "99999999999999999999999999"), "--gpus"),
        (("search", "--gpus", "65537"), "--gpus"),
        (("search", "--gpus", "0"), "--gpus"),
        (("simulate", "d.yaml", "--workload", "w.yaml", "--profile", "p.csv", "--rate", "1e-320"), "rate"),
        (
            ("simulate", "d.yaml", "--workload", "w.yaml", "--profile", "p.csv", "--warmup-s", "1e11"),
            "warmup_s",
        ),
    ],
)
def test_a_number_out_of_bounds_is_status_2_and_names_the_option(arguments, words, has, inputs) -> None:  # type: ignore[no-untyped-def]
    said = has(*arguments)
    assert said.status == 2, said.err
    assert words in said.err
    assert said.out == ""


LIMITS = {
    "encode_batch: 4": "encode_batch: 1000000",
    "gpus: 8": "gpus: 8\nmax_num_seqs: 1000000\nmax_prefill_requests: 1000000\nmax_queue: 1000000",
    "rate: 6.0": "rate: 1000000\npreprocess_workers: 1000000\nmax_num_batched_tokens: 1099511627776",
    "version: 1": "version: 1\nkv_tokens: 1099511627776\nmax_wait_ms: 1000000000000",
    "ttft_ms: 2000, tpot_ms: 50": "ttft_ms: 1000000000000, tpot_ms: 1000000000000",
}


@pytest.mark.parametrize("old", LIMITS)
def test_a_deployment_at_its_limits_is_simulated(old, has, inputs) -> None:  # type: ignore[no-untyped-def]
    text = (inputs / "d.yaml").read_text()
    assert old in text
    (inputs / "d.yaml").write_text(text.replace(old, LIMITS[old]))
    said = has("simulate", "d.yaml", "--profile", "p.csv", "--workload", "w.yaml", "--requests", "50")
    assert said.status == 0, said.err


def test_the_largest_seed_is_one(has, inputs) -> None:  # type: ignore[no-untyped-def]
    run = ("simulate", "d.yaml", "--profile", "p.csv", "--workload", "w.yaml", "--requests", "50")
    assert has(*run, "--seed", str(2**63 - 1)).status == 0
