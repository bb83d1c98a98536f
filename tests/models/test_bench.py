"""Works to measure are one stage each."""

from __future__ import annotations

import pytest

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
