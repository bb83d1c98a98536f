"""What the plots of a run show, mark and say."""

from __future__ import annotations

import numpy as np
import pytest

from has.core.deployment import Deployment
from has.files.profile import load_profile
from has.report import pictures
from has.report.landscape import Landscape


def split(encode_sm: float) -> Deployment:
    return Deployment.model_validate(
        {
            "version": 1,
            "model": "qwen2.5-vl-7b",
            "topology": "disaggregated",
            "gpus": 4,
            "alloc": {"encode": 1, "prefill": 1, "decode": 2},
            "encode_batch": 2,
            "prefill_offload": 0.5,
            "sm_table": [{"batch": 1, "encode_sm": encode_sm}],
            "slo": {"ttft_ms": 2000, "tpot_ms": 50},
        }
    )


@pytest.mark.parametrize(
    ("encode_sm", "marks"),
    [
        (30.0, ["encode, batch 2: 30 %", "local prefill: 70 %"]),
        (50.0, ["50 % each"]),
        (100.0, ["encode, batch 2: 100 %"]),
    ],
)
def test_the_split_is_marked_where_it_is(encode_sm: float, marks: list[str]) -> None:
    picture = pictures.sm_shares(load_profile("l40s-qwen2.5-vl-7b"), split(encode_sm), 576, 1024)
    assert picture is not None
    assert [told["text"] for told in picture.layout["annotations"]] == marks
    assert picture.layout["shapes"][0]["x0"] == encode_sm


def test_the_answer_s_cross_is_seen_on_dark_and_on_light() -> None:
    values = {1: np.array([[1.0, 3.0], [0.5, np.nan]])}
    found = Landscape(5.0, ("1E1P2D", "1E2P1D"), (0.0, 0.5), values, "1E1P2D")
    best = split(50.0).model_copy(update={"encode_batch": 1})
    (picture,) = pictures.landscape(found, best).pictures
    edge, cross = picture.traces[1:]
    assert (edge["x"], edge["y"]) == (cross["x"], cross["y"]) == (["0.5"], ["1E1P2D"])
    assert edge["marker"]["line"]["color"] == "#ffffff"
    assert edge["marker"]["line"]["width"] > cross["marker"]["line"]["width"]


def test_a_curve_that_begins_beyond_the_picture_says_so() -> None:
    mine, far = np.linspace(100, 900, 200), np.linspace(9_000, 12_000, 200)
    picture = pictures.distribution("TTFT", [("best", mine), ("static", far)], {"p50": 500.0}, 1000.0, 5.0)
    names = [trace["name"] for trace in picture.traces]
    assert names[:2] == ["best", "static (beyond the right edge)"]
    assert min(picture.traces[1]["x"]) > picture.layout["xaxis"]["range"][1]
    assert "best 100.0 %, static 0.0 %" in picture.words


def test_an_empty_distribution_has_no_edge() -> None:
    picture = pictures.distribution("TPOT", [("best", np.array([]))], {}, 50.0, 5.0)
    assert picture.traces[0]["x"] == []
