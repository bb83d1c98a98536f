"""Plots of a profile: what they show is what the profile says."""

from __future__ import annotations

import random

import pytest

from has.core.profile import Profile
from has.core.stage import Stage
from has.errors import HasError
from has.files.profile import load_profile, profile_from_rows
from has.files.shipped import shipped
from has.latency.lookup import LatencyModel
from has.policy.partition import SmPartitioner
from has.report.document import Panels, Picture, Table
from has.report.html import page
from has.report.nouns import describe_profile
from has.report.profile_plots import sections


@pytest.fixture(scope="module", params=["cpu-tiny-image", "l40s-ultravox-v0.5-llama-3.1-8b"])
def profile(request) -> Profile:
    return load_profile(shipped("profiles") / f"{request.param}.parquet")


def parts(profile, title):
    return next(section.parts for section in sections(profile) if section.title == title)


def test_the_table_is_the_partition_that_a_search_would_derive(profile):
    (table,) = [part for part in parts(profile, "Sharing a GPU") if isinstance(part, Table)]
    derived = SmPartitioner.from_profile(profile, 0.2, 8)
    assert [(row[0], row[1]) for row in table.rows] == [
        (row[0], derived.encode_share(row[0])) for row in table.rows
    ]
    assert {1, 8} <= {row[0] for row in table.rows}


def test_every_stage_has_its_curves_over_shares_batch_and_tokens(profile):
    for stage in ("Encode", "Prefill", "Decode"):
        panels, batch, tokens = parts(profile, f"{stage}: curves")
        assert isinstance(panels, Panels)
        assert isinstance(batch, Picture)
        assert isinstance(tokens, Picture)
        assert "fit off by" in panels.words
        for picture in panels.pictures:
            assert {"alone", "fit"} <= {trace["name"] for trace in picture.traces}


def test_encode_shows_the_budget_s_line_and_the_chosen_split(profile):
    latency = LatencyModel.from_profile(profile)
    derived = SmPartitioner.from_profile(profile, 0.2, 8)
    panels = parts(profile, "Encode: curves")[0]
    for picture in panels.pictures:
        batch, tokens = (
            int(word.split()[-1 if "batch" in word else 0]) for word in picture.caption.split(", ")[1:]
        )
        level, upright = picture.layout["shapes"]
        assert level["y0"] == pytest.approx(1.2e3 * latency.seconds(Stage.ENCODE, batch, tokens))
        assert upright["x0"] == derived.encode_share(batch)
        assert picture.layout["annotations"][0]["text"] == "+20 %"


def test_points_are_those_of_the_rows_and_the_fit_goes_through_them(profile):
    picture = parts(profile, "Encode: curves")[0].pictures[0]
    marks = next(trace for trace in picture.traces if trace["name"] == "alone")
    fit = next(trace for trace in picture.traces if trace["name"] == "fit")
    assert fit["y"][0] == pytest.approx(marks["y"][0], rel=0.1)
    assert fit["y"][-1] == pytest.approx(marks["y"][-1], rel=0.1)


def test_the_page_and_the_terminal_say_the_same(profile):
    document = describe_profile(profile)
    assert document.sections[0].title == "Sharing a GPU"
    text = page(document)
    assert text.count('class="plot"') >= 9
    assert "work done" in text


def test_a_profile_without_shares_has_nothing_to_plot():
    rows = [
        {"stage": stage, "sm_percent": 100, "batch": 1, "tokens": 100, "latency_s": 0.1}
        for stage in ("encode", "prefill", "decode")
    ]
    made = profile_from_rows({"version": 1, "device": "d", "model": "m", "source": "measured"}, rows)
    assert sections(made) == []
    assert describe_profile(made).sections[0].title == "Metadata"


@pytest.mark.parametrize("seed", range(12))
def test_odd_profiles_are_shown_or_refused_never_worse(seed):
    """Few shares, far batches, rows without time or samples, holes: as a person may have measured."""
    rng = random.Random(seed)
    rows = []
    for stage, beside in (
        ("encode", "none"),
        ("encode", "prefill"),
        ("prefill", "none"),
        ("prefill", "encode"),
        ("decode", "none"),
    ):
        shares, batches, tokens = (
            rng.sample(of, rng.randint(1, 4))
            for of in ([1, 20, 50, 80, 100], [1, 2, 8, 64], [0, 1, 64, 1000])
        )
        rows += [
            {"stage": stage, "beside": beside, "sm_percent": share, "batch": batch, "tokens": count}
            | {"latency_s": rng.choice([0.0, 1e-9, rng.random(), rng.random(), rng.random()])}
            | ({"samples": 2} if rng.random() < 0.9 else {})
            for share in shares for batch in batches for count in tokens if rng.random() > 0.01
        ]  # fmt: skip
    try:
        made = profile_from_rows({"version": 1, "device": "d", "model": "m", "source": "measured"}, rows)
    except HasError:
        return
    assert page(describe_profile(made))
