"""Whatever a body holds, it becomes a request or a BadRequest; what is sent out is always JSON."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from has.gateway.errors import BadRequest, TooLarge
from has.gateway.openai_schema import MOST_BRACKETS, MOST_COMMAS, NEUTRAL, ChatRequest, Chunks, parse_chat

fixed = settings(deadline=None, derandomize=True, max_examples=400)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["user", "text", "image_url"]),
)
anything = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)
fields = st.sampled_from([*ChatRequest.model_fields, *NEUTRAL, "unknown"])
part = st.one_of(
    anything,
    st.fixed_dictionaries(
        {"type": st.sampled_from(["text", "image_url", "video_url", "audio_url", "input_audio"])},
        optional={
            "text": anything,
            "image_url": anything,
            "video_url": anything,
            "audio_url": anything,
            "input_audio": anything,
        },
    ),
)
message = st.fixed_dictionaries(
    {},
    optional={
        "role": st.one_of(st.sampled_from(["user", "assistant"]), anything),
        "content": st.one_of(st.lists(part, max_size=3), anything),
    },
)


def outcome(body: bytes) -> ChatRequest | BadRequest:
    try:
        return parse_chat(body)
    except BadRequest as error:
        json.dumps(error.message, ensure_ascii=False).encode()  # the answer can be sent
        return error


@fixed
@given(st.binary(max_size=60))
def test_any_bytes(body):
    assert isinstance(outcome(body), ChatRequest | BadRequest)


@fixed
@given(st.dictionaries(fields, anything, max_size=6))
def test_any_fields(body):
    outcome(json.dumps({"model": "m", "messages": [{"role": "user", "content": "a"}], **body}).encode())


@fixed
@given(st.lists(message, max_size=3))
def test_any_messages(messages):
    result = outcome(json.dumps({"model": "m", "messages": messages}).encode())
    if isinstance(result, BadRequest):
        assert result.param is None or result.param.startswith("messages") or "JSON" in result.message


@fixed
@given(st.lists(st.tuples(st.text(), st.sampled_from([None, "stop"])), min_size=1, max_size=5), st.booleans())
def test_any_text_goes_out_as_one_event(tokens, include_usage):
    chunks = Chunks("id", 1, 'a "model"\n', include_usage)
    for i, (text, finish) in enumerate(tokens):
        event = chunks.token(text, finish)
        assert event.count(b"\n") == 2
        choice = json.loads(event.removeprefix(b"data: "))["choices"][0]
        assert choice["delta"]["content"] == text
        assert ("role" in choice["delta"]) == (i == 0)
        assert choice["finish_reason"] == finish
    assert chunks.end({"total_tokens": 1}).count(b"data: ") == 1 + include_usage


def test_exactly_as_many_tokens_as_asked():
    body = {"model": "m", "messages": [{"role": "user", "content": "a"}], "max_completion_tokens": 7}
    assert parse_chat(json.dumps({**body, "min_tokens": 7}).encode()).ignore_eos
    assert isinstance(outcome(json.dumps({**body, "min_tokens": 6}).encode()), BadRequest)


@pytest.mark.parametrize(
    ("content", "stop", "many"),
    [
        ([{"type": "text", "text": ""}] * MOST_BRACKETS, None, "objects and lists"),
        ([[]] * MOST_BRACKETS, None, "objects and lists"),
        ("a", [1] * (MOST_COMMAS + 1), "commas"),
    ],
    ids=["objects", "lists", "values"],
)
def test_a_body_of_more_parts_than_can_be_checked_in_a_moment_is_refused_unread(content, stop, many):
    body = {"model": "m", "messages": [{"role": "user", "content": content}], "stop": stop}
    with pytest.raises(TooLarge, match=many):
        parse_chat(json.dumps(body).encode())
