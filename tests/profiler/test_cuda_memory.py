"""What a GPU has no memory for is left out of its profile, and said. No GPU takes part in this."""

from __future__ import annotations

import pytest
import torch

from has.core.stage import Stage
from has.latency.lookup import LatencyModel
from has.profiler.memory import OutOfMemory, Room, _largest
from has.profiler.plan import Point
from tests.profiler.cuda_fake import Bench, facts_of, measured, with_bench


def test_what_a_gpu_has_no_memory_for_is_left_out_and_said(place):
    """Weights leave 9.9 GB: a decode of 32 x 4096 tokens would be 32 GB. Grids stay full, so the batch goes and no context."""

    class Large(Bench):
        facts = facts_of(39 * 10**9, 245760)

        def prepare(self, stage, batch, tokens):
            assert stage != "decode" or 245760 * batch * tokens < 9.9e9
            return super().prepare(stage, batch, tokens)

    profile = measured(with_bench(place, Large), sm=None, batch=None, tokens=None)
    decode = {(row.batch, row.tokens) for row in profile.rows if row.stage is Stage.DECODE}
    assert {batch for batch, _ in decode} == {1, 2, 3, 4, 6, 8}
    assert {tokens for _, tokens in decode} == {512, 4096}
    LatencyModel.from_profile(profile)  # refuses a grid with holes
    (line,) = [line for line in profile.metadata.notes["left_out"] if line.startswith("decode")]
    assert line == (
        "decode: not measured above batch 8 or 4096 tokens: 32 x 4096 tokens need 33.2 GB beside 39.0 GB of weights, of 51.5 GB"
    )


def test_a_point_that_runs_out_of_memory_is_left_out_and_the_others_go_on(place, tmp_path):
    """Preparing fails as torch does, of the point itself or of what runs beside it; so does a lane. A rerun ends likewise."""

    class Tight(Bench):
        def prepare(self, stage, batch, tokens):
            if stage == "decode" and batch * tokens > 8 * 4096:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 30.00 GiB.\nGPU 0")
            run = super().prepare(stage, batch, tokens)

            def tight():
                if stage == "prefill" and batch == 8 and tokens == 2048:
                    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 4.00 GiB.")
                return run()

            return tight

    opened = with_bench(place, Tight)
    for _ in range(2):
        steps = []
        profile = measured(
            opened, sm=None, batch=None, tokens=None, out=tmp_path / "p.parquet", tell=steps.append
        )
        left_out = profile.metadata.notes["left_out"]
        assert {line.partition(":")[0] for line in left_out} == {"decode", "prefill", "prefill beside encode"}
        assert any("of SMs, batch 32, 4096 tokens: CUDA out of memory" in line for line in left_out)
        warnings = [step.warning for step in steps if step.warning]
        assert {f"left out: {line}" for line in left_out} <= set(warnings)
        assert len(warnings) == len(set(warnings))
        LatencyModel.from_profile(profile)
        assert {row.batch for row in profile.rows if row.stage is Stage.PREFILL} == {1, 2, 3, 4, 6}
        assert {row.batch for row in profile.rows if row.stage is Stage.ENCODE} == {1, 2, 3, 4, 6, 8}


def test_a_model_that_leaves_no_room_is_said_with_what_mends_it(place):
    def unloaded(model, shares):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nGPU 0")

    with pytest.raises(OutOfMemory, match=r"weights of qwen2\.5-vl-7b: CUDA out of memory") as caught:
        measured(unloaded)
    assert "--tensor-parallel" in caught.value.mend

    class Filling(Bench):
        facts = facts_of(49 * 10**9, 245760)

    with pytest.raises(OutOfMemory, match=r"qwen2\.5-vl-7b leaves no room for any"):
        measured(with_bench(place, Filling))


def test_another_error_than_of_memory_is_no_reason_to_leave_a_point_out(place):
    class Broken(Bench):
        def prepare(self, stage, batch, tokens):
            raise RuntimeError("shapes do not match")

    with pytest.raises(RuntimeError, match="shapes do not match"):
        measured(with_bench(place, Broken))


def test_a_rank_has_room_for_what_the_whole_model_has_not():
    facts = facts_of(70 * 10**9, 245760)
    point = Point(Stage.DECODE, 100.0, 32, 4096, 100.0)
    assert "need 33.2 GB beside 70.0 GB" in Room.of(80 * 10**9, facts).refuses(point)
    assert not Room.of(80 * 10**9, facts, gpus=2).refuses(point)
    assert Room.of(80 * 10**9, facts, gpus=2, copies=2).refuses(point)  # two processes under MPS


def test_what_stays_has_two_values_of_each_axis_where_it_can():
    """Look-ups find no difference along an axis of one: three batches at two contexts go before seven at one."""
    cells = {(batch, tokens) for batch in (1, 2, 3, 4, 6, 8, 32) for tokens in (512, 4096)}
    assert _largest(cells, {(batch, 4096) for batch in (4, 6, 8, 32)}) == (3, 4096)
    assert _largest(cells, {(batch, 4096) for batch in (1, 2, 3, 4, 6, 8, 32)}) == (32, 512)
    assert _largest(cells, {(32, 4096)}) == (8, 4096)
    assert _largest(cells, cells) is None
