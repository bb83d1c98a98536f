"""Works to measure are one stage each."""

from __future__ import annotations

import mmap

import pytest
import torch

from has.models import bench
from tests.models.cases import loaded


def test_no_picture_is_decoded_while_encode_is_measured(monkeypatch):
    made = bench.StageBench(loaded("tiny-image"))
    encode, preprocess = (made.prepare(stage, 1, 64) for stage in ("encode", "preprocess"))

    def decoding(*_):
        raise LookupError("decoded")

    monkeypatch.setattr(bench, "decode_media", decoding)
    encode()
    with pytest.raises(LookupError):
        preprocess()


def test_bytes_go_between_a_gpus_memory_and_what_processes_share():
    """In the host's memory nothing does. Here the GPU's is the host's too: what is put is what was taken."""
    assert bench.StageBench(loaded("tiny-image")).moves(mmap.mmap(-1, 1)) is None
    shared = mmap.mmap(-1, 100)
    put, take = bench.moves_between(shared, torch.device("cpu"))
    shared[:] = b"\7" * 100
    take(60)
    shared[:] = bytes(100)
    put(80)
    assert shared[:] == b"\7" * 60 + bytes(40)
    with pytest.raises(BufferError):  # it cannot go while something sees it
        shared.close()


def test_a_model_of_facts_can_be_measured_too():
    """A thin Ultravox with dummy weights: every stage of it runs, its media are sounds, its placeholder its own."""
    from has.files import facts
    from has.models.checkpoint import dummy_of_facts
    from has.models.families import family_of
    from has.models.stage_model import StageModel

    known = facts.model("ultravox-v0.5-llama-3.1-8b")
    lm = {
        "layers": 2,
        "vocab": 512,
        "hidden": 64,
        "intermediate": 64,
        "q_heads": 2,
        "kv_heads": 1,
        "head_dim": 32,
    }
    tower = {"layers": 1, "hidden": 64, "intermediate": 64, "heads": 2}
    thin = known | {
        "lm": known["lm"] | lm,
        "encoder": known["encoder"] | tower,
        "projector": {"dims": [512, 64]},
    }
    model = StageModel("ultravox-thin", family_of(dummy_of_facts(thin, "cpu", None, 0)), 4096)
    made = bench.StageBench(model)
    assert made.facts["dtype"] == "bfloat16"
    assert [len(e) for e in made.prepare("encode", 2, 25)()] == [25, 25]
    assert made.prepare("preprocess", 1, 25)().tokens == 25
    assert made.prepare("prefill", 2, 40)()[1].kv.shape == (2, 2, 1, 40, 32)
    assert made.prepare("decode", 3, 40)().shape == (3, 512)
