"""How long a request may be, before and after its media are counted."""

from __future__ import annotations

import pytest

from has.gateway.context import Context
from has.gateway.errors import BadRequest
from has.gateway.job import Job, MediaRef, Message


def job(max_tokens: int | None) -> Job:
    return Job("What is this?", max_tokens=max_tokens)


def test_without_a_wish_an_answer_may_be_as_long_as_the_prompt_leaves() -> None:
    assert Context(100).output_tokens(job(None), 30) == 70
    assert Context(100).left_after_media(job(None), 90, 70) == 10


def test_what_is_asked_for_is_given_whole_or_refused() -> None:
    context = Context(100)
    assert context.output_tokens(job(70), 30) == 70
    assert context.left_after_media(job(40), 60, 40) == 40
    with pytest.raises(
        BadRequest, match="31 tokens and 70 output tokens are asked for; the context holds 100"
    ):
        context.output_tokens(job(70), 31)
    with pytest.raises(BadRequest, match="61 tokens and 40 output tokens are asked for") as caught:
        context.left_after_media(job(40), 61, 40)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "messages")


@pytest.mark.parametrize("wish", [None, 1])
def test_a_prompt_that_fills_the_context_is_refused(wish: int | None) -> None:
    with pytest.raises(BadRequest, match="the prompt has 100 tokens"):
        Context(100).output_tokens(job(wish), 100)
    with pytest.raises(BadRequest, match="the prompt has 100 tokens; the context holds 100"):
        Context(100).left_after_media(job(wish), 100, 1)


def test_without_a_bound_a_wish_is_needed_and_media_take_nothing() -> None:
    with pytest.raises(BadRequest, match="max_tokens is needed"):
        Context(None).output_tokens(job(None), 30)
    assert Context(None).output_tokens(job(7), 30) == 7
    assert Context(None).left_after_media(job(7), 10**6, 7) == 7


@pytest.mark.parametrize(("wish", "room"), [(None, 98), (40, 60)])
def test_an_estimate_is_believed_as_far_as_there_is_room(wish: int | None, room: int) -> None:
    context = Context(100)
    assert context.credible(job(wish), 30) == 30
    assert context.credible(job(wish), 10**6) == room
    assert context.credible(job(wish), 10**6, media_tokens=20) == room - 20
    assert context.credible(job(wish), 10**6, media_tokens=200) == 0
    assert context.output_tokens(job(wish), room) == (wish or 2)
    assert Context(None).credible(job(wish), 10**6) == 10**6


def test_text_that_is_too_long_for_any_tokenizer_is_refused_unread() -> None:
    long = Job((Message("user", ("x" * 250, MediaRef(0))), Message("user", ("x" * 151,))), max_tokens=1)
    Context(None).check_text(long, 4)
    Context(101).check_text(long, 4)
    with pytest.raises(
        BadRequest, match="401 characters; the context of 100 tokens holds at most 400"
    ) as caught:
        Context(100).check_text(long, 4)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "messages")
    Context(10).check_text(Job((5,) * 100, max_tokens=1), 1)
