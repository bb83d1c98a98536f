"""Requests drawn from a workload: distributions, determinism, rates, traces."""

from __future__ import annotations

import numpy as np
import pytest

from has.core.stage import MODALITIES
from has.core.workload import Workload
from has.errors import InputError
from has.sim.draw import draw_requests, generators, media_share


def _workload(requests=None, **arrivals):
    arrivals = {"process": "poisson", "rate": 5.0} | arrivals
    data = {"version": 1, "arrivals": arrivals}
    if arrivals["process"] != "trace":
        data["requests"] = requests or [_image()]
    return Workload.model_validate(data)


def _image(**fields):
    return {"modality": "image", "media_tokens": 100, "prompt_tokens": 10, "output_tokens": 20} | fields


def _drawn(field, distribution, n=40_000):
    return getattr(draw_requests(_workload([_image(**{field: distribution})]), requests=n, seed=1), field)


def test_the_same_seed_draws_the_same_and_another_another():
    w = _workload([_image(prompt_tokens={"uniform": [1, 1000]})])
    a, b, c = (draw_requests(w, seed=s, requests=500) for s in (1, 1, 2))
    assert np.array_equal(a.arrival_ns, b.arrival_ns)
    assert np.array_equal(a.prompt_tokens, b.prompt_tokens)
    assert not np.array_equal(a.arrival_ns, c.arrival_ns)
    assert not np.array_equal(a.prompt_tokens, c.prompt_tokens)


def test_another_rate_moves_arrivals_and_nothing_else():
    w = _workload([_image(prompt_tokens={"uniform": [1, 1000]})])
    slow, fast = (draw_requests(w, rate=r, requests=500) for r in (1.0, 4.0))
    assert np.array_equal(slow.prompt_tokens, fast.prompt_tokens)
    assert np.allclose(slow.arrival_ns, fast.arrival_ns * 4.0, atol=4)


def test_three_thousand_by_default():
    assert len(draw_requests(_workload())) == 3000


@pytest.mark.parametrize(
    ("process", "cv"), [("poisson", 1.0), ("gamma", 0.5), ("gamma", 3.0), ("constant", 0.0)]
)
def test_arrivals_have_their_rate_and_spread(process, cv):
    extra = {"cv": cv} if process == "gamma" else {}
    r = draw_requests(_workload(process=process, rate=8.0, **extra), requests=60_000)
    gaps = np.diff(r.arrival_ns) / 1e9
    assert gaps.mean() == pytest.approx(1 / 8, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.05, abs=1e-6)


def test_distributions():
    assert set(_drawn("output_tokens", 7)) == {7}
    uniform = _drawn("prompt_tokens", {"uniform": [2, 5]})
    assert np.allclose(np.bincount(uniform, minlength=6)[2:] / len(uniform), 0.25, atol=0.01)
    normal = _drawn("prompt_tokens", {"normal": {"mean": 500, "sd": 50}})
    assert (normal.mean(), normal.std()) == pytest.approx((500, 50), rel=0.02)
    lognormal = _drawn("prompt_tokens", {"lognormal": {"p50": 60, "p99": 900}})
    assert np.percentile(lognormal, [50, 99]) == pytest.approx([60, 900], rel=0.05)
    choice = _drawn("items", {"choice": {1: 0.66, 2: 0.2, 3: 0.14}})
    assert np.bincount(choice)[1:] / len(choice) == pytest.approx([0.66, 0.2, 0.14], abs=0.01)
    assert set(_drawn("prompt_tokens", {"empirical": [3, 9]})) == {3, 9}


def test_bounds_and_rounding():
    clipped = _drawn("prompt_tokens", {"lognormal": {"p50": 60, "p99": 900}, "min": 50, "max": 300})
    assert (clipped.min(), clipped.max()) == (50, 300)
    assert _drawn("output_tokens", {"normal": {"mean": 0, "sd": 1}}).min() == 1
    assert _drawn("prompt_tokens", {"normal": {"mean": 0, "sd": 1}}).min() == 0


def test_media_tokens_are_drawn_for_every_item():
    w = _workload([_image(items=4, media_tokens={"normal": {"mean": 1000, "sd": 100}})])
    r = draw_requests(w, requests=20_000)
    assert set(r.items) == {4}
    assert (r.media_tokens.mean(), r.media_tokens.std()) == pytest.approx((4000, 200), rel=0.03)


def test_a_mixture_with_its_own_slo():
    text = {"weight": 3, "modality": "text", "prompt_tokens": 9, "output_tokens": 1}
    slo = {"ttft_ms": 500.0, "tpot_ms": 30.0}
    w = _workload([_image(weight=1, slo=slo), text])
    r = draw_requests(w, requests=20_000)
    assert r.media_share == pytest.approx(0.25, abs=0.01)
    assert media_share(w) == 0.25
    assert np.all(r.ttft_slo_s[r.is_media] == 0.5)
    assert np.all(np.isnan(r.ttft_slo_s[~r.is_media]))
    assert set(r.media_tokens[~r.is_media]) == {0}
    assert set(r.items[~r.is_media]) == {0}


def test_a_media_request_without_an_item_is_a_text():
    w = _workload([_image(items={"choice": {0: 0.5, 1: 0.5}})])
    r = draw_requests(w, requests=2000)
    assert np.array_equal(r.is_media, r.items > 0)
    assert set(r.media_tokens[~r.is_media]) == {0}
    assert media_share(w) == 0.5


def test_sizes_in_pixels_and_seconds_follow_the_models_rule():
    from has.models.tokens import media_tokens

    image = {"modality": "image", "image_px": [336, 336], "prompt_tokens": 1, "output_tokens": 1}
    r = draw_requests(_workload([image]), requests=5, model="tiny-image")
    assert set(r.media_tokens) == {media_tokens("tiny-image", image_px=(336, 336))}
    with pytest.raises(InputError):
        draw_requests(_workload([image]), requests=5)


def _trace(tmp_path, **arrivals):
    path = tmp_path / "t.csv"
    lines = ["arrival_s,modality,media_tokens,prompt_tokens,output_tokens"]
    lines += [f"{t},{'image' if t % 2 else 'text'},{100 * (t % 2)},10,5" for t in range(10)]
    path.write_text("\n".join(lines) + "\n")
    return _workload(process="trace", rate=None, file=str(path), **arrivals)


def test_a_trace_is_replayed_whole_cut_and_scaled(tmp_path):
    w = _trace(tmp_path)
    assert draw_requests(w).arrival_ns.tolist() == [t * 10**9 for t in range(10)]
    assert len(draw_requests(w, requests=4)) == 4
    slowed = draw_requests(_trace(tmp_path, time_scale=2.5))
    assert slowed.arrival_ns[-1] == 22_500_000_000
    at_rate = draw_requests(w, rate=3.0)
    assert at_rate.mean_rate == pytest.approx(3.0)
    assert media_share(w) is None
    assert MODALITIES[at_rate.modality[1]] == "image"


def test_what_cannot_be_drawn_is_said():
    with pytest.raises(InputError, match="rate"):
        draw_requests(_workload(rate=None))
    with pytest.raises(InputError, match="requests"):
        draw_requests(_workload(), requests=0)
    with pytest.raises(InputError, match="rate"):
        draw_requests(_workload(), rate=float("nan"))


def test_the_kernel_draws_as_numpy_does():
    """Dispatch: the generator's `integers(n)`, from its 32-bit words (plain Python runs the same text)."""
    from has.sim import memory as at
    from has.sim.dispatch import draw as compiled_draw

    draw = compiled_draw.py_func

    for n in (1, 2, 3, 5, 7, 96, 3 * 2**29):
        words = generators(9)[2].integers(2**32, size=400)
        m = np.zeros(at.HEADER + len(words), np.int64)
        m[at.WORDS], m[at.N_WORDS] = at.HEADER, len(words)
        m[at.HEADER :] = words
        again = generators(9)[2]
        assert [draw(m, n) for _ in range(150)] == [int(again.integers(n)) for _ in range(150)]
