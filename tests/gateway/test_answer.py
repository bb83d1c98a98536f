"""How the tokens of an answer become writes."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import weakref
from types import SimpleNamespace

from has.gateway.answer import Answer, StreamedAnswer
from has.gateway.errors import Interrupted
from has.gateway.http import error_response
from has.gateway.job import Job, TokenEvent
from has.gateway.metrics import Metrics
from has.gateway.stream import TokenStream


def bodies_of(*turns) -> list[list[str]]:
    """The texts of each write, where every turn puts its tokens, or an error, once all before it was written."""
    writes: list[list[str]] = []
    left = list(turns)
    stream = TokenStream(0, 5, lambda _: None)

    def turn() -> None:
        for entry in left.pop(0):
            stream.fail(entry) if isinstance(entry, Exception) else stream.put(entry)

    async def submit(_: Job) -> TokenStream:
        turn()
        return stream

    async def send(message) -> None:
        if message["type"] == "http.response.body":
            events = [line[6:] for line in message["body"].decode().split("\n") if line.startswith("data: {")]
            read = [json.loads(event) for event in events]
            writes.append(
                [
                    "error" if "error" in e else e["choices"][0]["delta"]["content"]
                    for e in read
                    if e.get("choices", "error")
                ]
            )
            if left:
                turn()

    async def receive():
        await asyncio.Event().wait()

    answer = Answer(SimpleNamespace(submit=submit), Job("x"), "m", Metrics("m"), error_response)  # type: ignore[arg-type]
    asyncio.run(StreamedAnswer(answer, include_usage=False)({"type": "http"}, receive, send))
    return writes


def token(index: int, last: bool = False) -> TokenEvent:
    return TokenEvent(index, f"t{index}", index, 5, "length" if last else None)


def test_tokens_that_come_together_leave_together():
    assert bodies_of([token(1)], [token(2), token(3)], [token(4), token(5, last=True)]) == [
        ["t1"],
        ["t2", "t3"],
        ["t4", "t5"],
    ]


def test_what_came_before_an_error_is_written_before_it():
    assert bodies_of([token(1)], [token(2), token(3), Interrupted("gone")]) == [
        ["t1"],
        ["t2", "t3"],
        ["error"],
    ]


def test_a_failure_leaves_nothing_that_only_a_collection_frees():
    class Media:
        pass

    async def read() -> weakref.ref[Media]:
        media = Media()
        stream = TokenStream(0, 5, lambda _: None)
        asyncio.get_running_loop().call_soon(stream.fail, Interrupted("its worker was lost"))
        with contextlib.suppress(Interrupted):
            async for _ in stream:
                pass
        return weakref.ref(media)

    gc.collect()
    gc.disable()
    try:
        assert asyncio.run(read())() is None
    finally:
        gc.enable()
