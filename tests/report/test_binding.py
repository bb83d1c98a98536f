"""What binds and what was busiest: one is named, and where the other differs it is said why."""

from __future__ import annotations

from typing import Any

import pytest

from has.report.binding import busiest_words, carries_words


def stages(**busy: float) -> dict[str, Any]:
    return {
        name: {"utilisation": share, "full_share": 0.5, "mean_batch": 2.5} for name, share in busy.items()
    }


@pytest.mark.parametrize(
    ("binding", "busy"),
    [
        ("decode", {"encode": 0.6, "decode": 0.9}),
        ("encode", {"encode": 0.88, "decode": 0.9}),  # within what is told apart
        ("prefill_decode", {"encode": 0.5, "prefill": 0.3, "decode": 0.9}),
        ("all", {"encode": 0.2, "prefill": 0.3, "decode": 0.9}),
        ("decode", {}),
        ("preprocess", {"encode": 0.9}),  # what binds was not seen: nothing to compare with
    ],
)
def test_nothing_is_said_where_they_agree(binding: str, busy: dict[str, float]) -> None:
    assert busiest_words(binding, stages(**busy)) == ""


@pytest.mark.parametrize(
    ("binding", "busy", "says"),
    [
        ("encode", {"encode": 0.6, "decode": 0.97}, "Decode was busier (97 % of the time): a worker counts as busy from one sequence on"),
        ("decode", {"encode": 0.9, "decode": 0.5}, "Encode was busier (90 % of the time): its batches held 2.5 in the mean"),
        ("decode", {"prefill_local": 0.9, "decode": 0.5}, "Local prefill was busier (90 % of the time): it counts as busy while it waits"),
    ],
)  # fmt: skip
def test_another_stage_that_was_busier_is_named_with_the_reason(
    binding: str, busy: dict[str, float], says: str
) -> None:
    assert busiest_words(binding, stages(**busy)).startswith(says)


def test_full_batches_are_not_blamed() -> None:
    full = {
        "encode": {"utilisation": 0.9, "full_share": 1.0, "mean_batch": 1.0},
        "decode": {"utilisation": 0.4},
    }
    assert "on the SMs that local prefill leaves" in busiest_words("decode", full)


def test_a_rate_above_the_bound_is_explained() -> None:
    assert (
        carries_words("decode", 13.2)
        == carries_words("decode", 13.2, 10.0)
        == "decode binds it, at 13.2 requests/s"
    )
    assert "the target lets some be late" in carries_words("decode", 13.2, 14.0)
