"""Tokenizers out of a checkpoint's folder."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer as Built
from tokenizers import decoders, models, pre_tokenizers

from has.errors import InputError, MissingError
from has.models.names import VOCAB_SIZE
from has.models.tokenizers import load_tokenizer


def test_the_tokenizer_of_a_folder_and_the_bundled_one(tmp_path):
    letters = Built(
        models.BPE(vocab={chr(c): c - 97 for c in range(97, 123)} | {"Ġ": 26, "he": 27}, merges=[("h", "e")])
    )
    letters.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    letters.decoder = decoders.ByteLevel()
    letters.add_special_tokens(["<image>"])
    letters.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text("{}")
    read = load_tokenizer(str(tmp_path))
    ids = read.encode("<image>he sees")
    assert ids == [28, 27, 26, 18, 4, 4, 18]
    assert read.decode(ids) == "he sees"
    assert read.vocab_size == 29
    assert load_tokenizer("tiny-image").vocab_size == VOCAB_SIZE


def test_what_is_missing_or_broken_is_said(tmp_path):
    with pytest.raises(MissingError, match="no checkpoint"):
        load_tokenizer(str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(MissingError, match=r"tokenizer\.json"):
        load_tokenizer(str(tmp_path))
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(InputError, match="cannot be read"):
        load_tokenizer(str(tmp_path))
