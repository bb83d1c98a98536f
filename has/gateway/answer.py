"""From a job's tokens to an HTTP response, streamed or whole; a client that leaves cancels the job."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing, suppress
from typing import Any

from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from has.errors import HasError, InputError
from has.gateway.errors import Refused, Unavailable
from has.gateway.job import Job, Serving
from has.gateway.metrics import Metrics
from has.gateway.openai_schema import Chunks, completion, error_body, usage
from has.gateway.stop import StopText

Piece = tuple[str, str | None]
"""Text one token adds to the answer, and the finish reason with the last."""


class Answer:
    """One job's way through the service: its text, its counts, its measures.

    more    whether the next piece is here already
    """

    def __init__(
        self,
        service: Serving,
        job: Job,
        model: str,
        metrics: Metrics,
        error_response: Callable[[HasError], Response],
    ) -> None:
        self.job = job
        self.model = model
        self.created = int(time.time())
        self.error_response = error_response
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self.more = False
        self._service = service
        self._metrics = metrics

    @property
    def usage(self) -> dict[str, int]:
        return usage(self.prompt_tokens, self.completion_tokens)

    async def pieces(self) -> AsyncGenerator[Piece, None]:
        """The answer as it comes, stop strings cut off. Closing this cancels the job."""
        start_s = time.monotonic() if self.job.arrival_s is None else self.job.arrival_s
        first_s = last_s = start_s
        finish: str | None = None
        outcome = "abort"
        text = StopText(self.job.stop)
        try:
            async with aclosing(await self._service.submit(self.job)) as tokens:
                async for event in tokens:
                    now_s = time.monotonic()
                    if self.completion_tokens == 0:
                        first_s = now_s
                        self.prompt_tokens = event.prompt_tokens
                        self._metrics.first_token(now_s - start_s, event.prompt_tokens)
                    else:
                        self._metrics.next_token(now_s - last_s)
                    last_s = now_s
                    self.completion_tokens = event.index
                    shown = text.feed(event.text)
                    finish = "stop" if text.stopped else event.finish_reason
                    if finish is not None and not text.stopped:
                        shown += text.flush()
                    self.more = tokens.more
                    yield shown, finish
                    if finish is not None:
                        break
            _whole(finish)
        except Refused as error:
            outcome = f"refused: {error.reason}"  # the service has told its observer
            raise
        except Exception as error:
            outcome = failure_reason(error)
            raise
        finally:
            # A cancelled task or a closed generator passes none of the above: the client left.
            if finish is not None:
                self._metrics.finished(finish, self.completion_tokens, last_s - start_s, first_s - start_s)
            elif not outcome.startswith("refused"):
                self._metrics.failed(outcome, self.completion_tokens)


def failure_reason(error: Exception) -> str:
    """What metrics call a request that ended with `error`: bad_request, unavailable or error."""
    if isinstance(error, InputError):
        return "bad_request"
    return "unavailable" if isinstance(error, Unavailable) else "error"


def _whole(finish: str | None) -> None:
    if finish is None:
        raise Unavailable("the answer ended before its last token")


class WholeAnswer(Response):
    """The answer in one piece."""

    def __init__(self, answer: Answer) -> None:
        super().__init__()
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await _unless_gone(self._whole(), receive)
        if response is not None:
            await response(scope, receive, send)

    async def _whole(self) -> Response:
        answer = self._answer
        parts: list[str] = []
        finish = ""
        try:
            async with aclosing(answer.pieces()) as pieces:
                async for text, reason in pieces:
                    parts.append(text)
                    finish = reason or ""
        except HasError as error:
            return answer.error_response(error)
        return JSONResponse(
            completion(answer.job.id, answer.created, answer.model, "".join(parts), finish, answer.usage)
        )


class StreamedAnswer(Response):
    """The answer as server-sent events, one a token.

    The status is sent with the first token, so that what fails before it has a status of its own;
    what fails after it ends the stream with an error event.
    """

    def __init__(self, answer: Answer, *, include_usage: bool) -> None:
        super().__init__()
        self._answer = answer
        self._chunks = Chunks(answer.job.id, answer.created, answer.model, include_usage)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await _unless_gone(self._stream(scope, receive, send), receive)

    async def _stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer, chunks = self._answer, self._chunks
        started = False
        events = b""
        try:
            async with aclosing(answer.pieces()) as pieces:
                async for text, finish in pieces:
                    events += chunks.token(text, finish)
                    if finish is not None:
                        events += chunks.end(answer.usage)
                    elif answer.more:
                        continue  # tokens that came together leave together: a write costs more than they do
                    if not started:
                        started = True
                        await send({"type": "http.response.start", "status": 200, "headers": _EVENT_STREAM})
                    await send({"type": "http.response.body", "body": events, "more_body": finish is None})
                    events = b""
        except HasError as error:
            response = answer.error_response(error)
            if not started:
                await response(scope, receive, send)
                return
            last = chunks.error(json.loads(bytes(response.body)))
            await send({"type": "http.response.body", "body": last, "more_body": False})
        except Exception:
            if started:
                last = chunks.error(error_body(500, "internal error"))
                await send({"type": "http.response.body", "body": last, "more_body": False})
            raise


_EVENT_STREAM = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


async def _unless_gone(work: Coroutine[Any, Any, Any], receive: Receive) -> Any:
    """`work`'s result; if the client leaves first, `work` is cancelled and waited for, and the result is None."""
    task = asyncio.create_task(work)
    gone = asyncio.create_task(_disconnected(receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
    finally:
        for pending in (task, gone):
            pending.cancel()
        with suppress(asyncio.CancelledError):
            await gone
        with suppress(asyncio.CancelledError):
            await task
    return None


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
