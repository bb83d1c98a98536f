"""The bundled tokenizer and chat template."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from has.errors import InputError
from has.models.names import PLACEHOLDER, VOCAB_SIZE, Special
from has.models.text import Tokenizer, chat_prompt

TOKENIZER = Tokenizer()


def test_every_id_has_its_own_printable_piece() -> None:
    pieces = [TOKENIZER.piece(token) for token in range(VOCAB_SIZE)]
    assert len(set(pieces)) == VOCAB_SIZE
    assert all(piece and piece.isprintable() for piece in pieces)


@settings(derandomize=True)
@given(st.lists(st.integers(0, VOCAB_SIZE - 1)))
def test_ids_survive_text(ids: list[int]) -> None:
    text = TOKENIZER.decode(ids)
    assert TOKENIZER.encode(text) == ids
    assert text == "".join(TOKENIZER.piece(token) for token in ids)


@settings(derandomize=True)
@given(st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E)))
def test_printable_ascii_survives_ids(text: str) -> None:
    ids = TOKENIZER.encode_plain(text)
    assert len(ids) == len(text)
    assert TOKENIZER.decode(ids) == text


@settings(derandomize=True)
@given(st.text())
def test_any_text_encodes_and_users_cannot_forge_specials(text: str) -> None:
    ids = TOKENIZER.encode_plain(text)
    assert min(ids, default=16) >= 16
    assert TOKENIZER.encode(TOKENIZER.decode(ids)) == ids
    ids, _ = chat_prompt([{"role": "user", "content": text}])
    assert [token for token in ids if token < 16] == [
        Special.BOS,
        Special.USER,
        Special.END,
        Special.ASSISTANT,
    ]


def test_media_stand_where_they_were_put() -> None:
    ids, kinds = chat_prompt(
        [
            {"role": "system", "content": "s"},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "a"},
                    {"type": "image_url", "image_url": {"url": "data:,"}},
                    {"type": "text", "text": "b"},
                    {"type": "input_audio"},
                ],
            },
        ],
        [2, 3],
    )
    assert kinds == ["image", "audio"]
    a, b, s = (16 + ord(letter) for letter in "abs")
    opened, closed = Special.MEDIA_START, Special.MEDIA_END
    assert ids == [
        Special.BOS,
        Special.SYSTEM,
        s,
        Special.END,
        Special.USER,
        a,
        *(opened, PLACEHOLDER["image"], PLACEHOLDER["image"], closed),
        b,
        *(opened, *[PLACEHOLDER["audio"]] * 3, closed),
        Special.END,
        Special.ASSISTANT,
    ]


@pytest.mark.parametrize(
    ("messages", "counts", "field"),
    [
        ([{"role": "wizard", "content": "x"}], None, "messages[0].role"),
        ([{"role": "user", "content": [{"type": "smell"}]}], None, "messages[0].content[0].type"),
        ([{"role": "user", "content": [3]}], None, "messages[0].content[0].type"),
        ([{"role": "user", "content": 3}], None, "messages[0].content"),
        ([{"role": "user", "content": [{"type": "image"}]}], [], "media_tokens"),
        ([{"role": "user", "content": "x"}], [4], "media_tokens"),
    ],
)
def test_bad_conversations_name_the_place(messages: list, counts: list | None, field: str) -> None:
    with pytest.raises(InputError) as caught:
        chat_prompt(messages, counts)
    assert caught.value.field == field


def test_a_vocabulary_of_another_size() -> None:
    small = Tokenizer(300)
    assert small.encode(small.decode(range(300))) == list(range(300))
    with pytest.raises(InputError, match="no pieces"):
        Tokenizer(100)
    with pytest.raises(InputError, match="no pieces"):
        Tokenizer(100_000)
