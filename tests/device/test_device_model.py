"""The virtual GPU as declared."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from has.device.device_model import VIRTUAL_GPU, DeviceModel, StageModel

shares = st.floats(0.05, 1.0)


@given(
    st.sampled_from(["encode", "prefill", "decode"]), shares, shares, st.integers(1, 64), st.floats(1, 512)
)
def test_more_sms_are_never_slower(stage, a, b, batch, tokens):
    model = VIRTUAL_GPU.stage(stage)
    occupancy = model.occupancy(batch, tokens)
    assert model.rate(min(a, b), occupancy) <= model.rate(max(a, b), occupancy)


@given(shares, st.integers(1, 64), st.floats(1, 512))
def test_compute_never_uses_more_cpu_than_its_share_of_the_slice(share, batch, tokens):
    """Progress per second is CPU seconds per second of a slice: at most the share of it."""
    for stage in (VIRTUAL_GPU.encode, VIRTUAL_GPU.prefill):
        assert stage.rate(share, stage.occupancy(batch, tokens)) <= share


def test_a_small_encode_batch_saturates_early_and_a_large_one_does_not():
    encode = VIRTUAL_GPU.encode
    small, large = encode.occupancy(1, 64), encode.occupancy(8, 64)
    assert small < 0.45
    assert large == 1.0
    assert encode.rate(0.5, small) == encode.rate(1.0, small)
    assert encode.rate(0.5, large) == 0.5 * encode.rate(1.0, large)


def test_prefill_is_near_linear_in_its_share_and_decode_saturates():
    prefill, decode = VIRTUAL_GPU.prefill, VIRTUAL_GPU.decode
    occupancy = prefill.occupancy(1, 128)
    assert 2.6 < prefill.rate(1.0, occupancy) / prefill.rate(0.35, occupancy) < 3.0
    occupancy = decode.occupancy(4, 128)
    assert decode.rate(0.5, occupancy) == 1.0


def test_neighbours_cost_each_other_and_never_speed_up():
    encode = VIRTUAL_GPU.encode
    assert encode.slowdown(0.4, 0.0) == 1.0
    assert 1.0 < encode.slowdown(0.4, 0.6) < encode.slowdown(1.0, 1.0)


@given(shares, shares, st.integers(1, 16), st.integers(1, 4))
def test_streams_together_use_no_more_than_the_slice(a, b, encode_batch, prefill_batch):
    """Both on overlapping SMs: the sum of their progress stays that of one GPU."""
    encode, prefill = VIRTUAL_GPU.encode, VIRTUAL_GPU.prefill
    u = min(a, encode.occupancy(encode_batch, 64))
    v = min(b, prefill.occupancy(prefill_batch, 80))
    assert u / encode.slowdown(u, v) + v / prefill.slowdown(v, u) <= 1.0 + 1e-9


@pytest.mark.parametrize(
    ("asked", "given_"), [(0, 0), (1, 5), (33, 35), (32, 30), (50, 50), (99, 100), (100, 100)]
)
def test_shares_come_in_whole_virtual_sms(asked, given_):
    assert VIRTUAL_GPU.offer(asked) == given_


@given(st.floats(0, 100))
def test_what_was_given_is_given_again(asked):
    given_ = VIRTUAL_GPU.offer(asked)
    assert VIRTUAL_GPU.offer(given_) == given_


def test_the_digest_is_of_everything_declared():
    assert DeviceModel().digest() == VIRTUAL_GPU.digest()
    assert DeviceModel(jitter=0.02).digest() != VIRTUAL_GPU.digest()
    changed = StageModel("compute", least=0.32, full=512, oversubscribed=1.25, shared=0.16)
    assert DeviceModel(encode=changed).digest() != VIRTUAL_GPU.digest()
    assert "shared 0.15" in VIRTUAL_GPU.text()
