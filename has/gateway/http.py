"""The OpenAI-compatible HTTP API over a service.

    POST /v1/chat/completions   stream and not
    GET  /v1/models, /v1/models/{id}
    GET  /health                200 while the process answers
    GET  /ready                 200 only when a chat sent now would be served
    GET  /metrics               Prometheus
    GET  /, /status             the status page, and what it shows as JSON

Every error has the body `{"error": {message, type, param, code}}`. With an API key set, everything
but `/health` and `/ready` answers 401 without it, unknown paths included. A browser gives it as the
password it is asked for, which opens the status page and nothing else: browsers send passwords along
with requests that other sites make them send.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import logging
import math
import time
import uuid
from collections.abc import AsyncIterator, Callable, MutableMapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import httpx
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from has.core.deployment import Deployment
from has.errors import HasError, InputError
from has.gateway.answer import Answer, StreamedAnswer, WholeAnswer, failure_reason
from has.gateway.errors import BadRequest, Interrupted, NotFound, Refused, TooLarge, TooSlow, Unavailable
from has.gateway.job import Job, MediaBytes, MediaRef, Message, Serving
from has.gateway.limits import Limits
from has.gateway.media_urls import Charge, MediaUrls, Resolver, decode_base64, resolve_host
from has.gateway.metrics import CONTENT_TYPE, Metrics
from has.gateway.openai_schema import AudioPart, ChatRequest, TextPart, error_body, parse_chat, part_url
from has.gateway.status import PAGE_HEADERS, page, status

OPEN_PATHS = ("/health", "/ready")
PAGE_PATHS = ("/", "/status")
CLIENT_LEFT = 499
"""Status of the answer to a client that left while it sent its body; nobody reads it."""
CHARGE = "has.charge"
"""Where a request's scope says how to count further bytes that are held for it."""


def create_app(
    service: Serving,
    *,
    api_key: str | None = None,
    served_model_names: Sequence[str] = (),
    allowed_media_domains: Sequence[str] = (),
    limits: Limits | None = None,
    metrics: Metrics | None = None,
    deployment: Deployment | None = None,
    resolver: Resolver = resolve_host,
    media_transport: httpx.AsyncBaseTransport | None = None,
) -> Starlette:
    """The application. `served_model_names` replace the service's own name; the first is the one shown.

    `metrics` is where the service reports too, if it does; `deployment` gives the status page its name and
    SLO; `resolver` and `media_transport` are how remote media are looked up and fetched.

    Raises InputError for an `api_key` that is blank.
    """
    if api_key is not None and not api_key.strip():
        # A header that names no key would hold it.
        raise InputError(
            "a blank key locks nothing",
            where="argument",
            field="api_key",
            value=api_key,
            allowed="a key, or None: whoever reaches the port is served",
        )
    bounds = limits or Limits()
    names = tuple(served_model_names) or (service.model,)
    seen = metrics or Metrics(names[0], service.state)
    media = MediaUrls(bounds, allowed_media_domains, resolver=resolver, transport=media_transport)
    started, started_s = int(time.time()), time.monotonic()

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await media.close()

    async def has_error(_: Request, error: Exception) -> Response:
        assert isinstance(error, HasError)
        return error_response(error)

    async def http_error(_: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        code = "not_found" if error.status_code == 404 else None
        body = error_body(error.status_code, str(error.detail), code=code)
        return JSONResponse(body, error.status_code, headers=error.headers)

    async def health(_: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def ready(_: Request) -> Response:
        why_not = service.not_ready()
        if why_not is None:
            return JSONResponse({"status": "ready"})
        return JSONResponse(error_body(503, why_not, code="not_ready"), 503)

    async def scrape(_: Request) -> Response:
        return Response(seen.render(), headers={"content-type": CONTENT_TYPE})

    async def status_page(_: Request) -> Response:
        return Response(page(), headers=PAGE_HEADERS)

    async def status_now(_: Request) -> Response:
        shown = status(
            service.state(),
            seen.recent,
            deployment,
            model=service.model,
            names=names,
            started_s=started_s,
            now_s=time.monotonic(),
        )
        return JSONResponse(shown, headers={"cache-control": "no-store"})

    def model_card(name: str) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": started,
            "owned_by": "has",
            "root": service.model,
            "max_model_len": service.max_model_len,
        }

    async def models(_: Request) -> Response:
        return JSONResponse({"object": "list", "data": [model_card(name) for name in names]})

    async def model(request: Request) -> Response:
        name = request.path_params["name"]
        _known(name, names)
        return JSONResponse(model_card(name))

    async def accepted(request: Request) -> tuple[ChatRequest, Job]:
        """What a request asks for, as far as that can be said before the service takes it on."""
        arrived_s = time.monotonic()
        asked = parse_chat(await _body(request, bounds))
        _known(asked.model, names)
        if (why_not := service.not_ready()) is not None:
            raise Unavailable(why_not, retry_after_s=1.0)
        charge = request.scope[CHARGE]
        return asked, await _job(asked, bounds, media, service.max_model_len, arrived_s, charge)

    async def chat(request: Request) -> Response:
        try:
            asked, job = await accepted(request)
        except ClientDisconnect:
            seen.failed("abort")
            return Response(status_code=CLIENT_LEFT)
        except Refused:  # counted where it was refused
            raise
        except Exception as error:
            seen.failed(failure_reason(error))
            raise
        answer = Answer(service, job, asked.model, seen, error_response)
        if asked.stream:
            options = asked.stream_options
            return StreamedAnswer(answer, include_usage=options is not None and options.include_usage)
        return WholeAnswer(answer)

    return Starlette(
        routes=[
            Route("/v1/chat/completions", chat, methods=["POST"]),
            Route("/health", health),
            Route("/ready", ready),
            Route("/metrics", scrape),
            Route("/", status_page),
            Route("/status", status_now),
            Route("/v1/models", models),
            Route("/v1/models/{name:path}", model),
        ],
        middleware=[
            Middleware(_Faults),
            Middleware(_ApiKey, key=api_key),
            Middleware(_BodyBudget, most=bounds.bodies_bytes, refused=seen.refused),
        ],
        exception_handlers={HasError: has_error, HTTPException: http_error},
        lifespan=lifespan,
    )


def error_response(error: HasError) -> Response:
    """The answer an error becomes: its status, its body, Retry-After where there is sense in it."""
    headers: dict[str, str] = {}
    param: str | None = None
    code: str | None = None
    match error:
        case BadRequest():
            status, param, code = error.status, error.param, error.code
        case InputError():
            status, param = 400, error.field or None
        case Refused():
            status, code = 429, error.reason
            headers["Retry-After"] = str(max(1, math.ceil(error.retry_after_s)))
        case Unavailable():
            status = 503
            if error.retry_after_s is not None:
                headers["Retry-After"] = str(max(1, math.ceil(error.retry_after_s)))
        case Interrupted():
            status, code = 500, "interrupted"
        case _:
            status = 500
    return JSONResponse(error_body(status, error.message, param, code), status, headers=headers)


class _Faults:
    """A fault of our own becomes a log entry and a 500; the connection lives on if its answer is whole."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = whole = False

        async def watched(message: MutableMapping[str, Any]) -> None:
            nonlocal started, whole
            started = True
            whole = message["type"] == "http.response.body" and not message.get("more_body", False)
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except Exception as error:
            if scope["type"] != "http" or (started and not whole):
                raise
            logging.getLogger(__name__).exception("internal error at %s", scope["path"])
            if not started:
                body = error_body(500, f"internal error ({type(error).__name__})")
                await JSONResponse(body, 500)(scope, receive, send)


class _BodyBudget:
    """Bounds the bytes of all bodies held at once, and of media fetched for them, until their answers have ended."""

    def __init__(self, app: ASGIApp, most: int, refused: Callable[[str], None]) -> None:
        self._app = app
        self._most = most
        self._refused = refused
        self._held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        mine = 0

        def charge(size: int) -> None:
            nonlocal mine
            if size and self._held + size > self._most:
                self._refused("memory")
                raise Refused(1.0, "memory")
            mine += size
            self._held += size

        async def counted() -> MutableMapping[str, Any]:
            message = await receive()
            charge(len(message.get("body", b"")))
            return message

        try:
            await self._app({**scope, CHARGE: charge}, counted, send)
        finally:
            self._held -= mine


class _ApiKey:
    """Pure ASGI, as it stands before every request."""

    def __init__(self, app: ASGIApp, key: str | None) -> None:
        self._app = app
        self._key = None if key is None else key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or self._key is None or scope["path"] in OPEN_PATHS or self._holds(scope):
            await self._app(scope, receive, send)
            return
        scheme = 'Basic realm="HAS: the API key as password"' if _is_page(scope) else "Bearer"
        body = error_body(
            401, "a valid API key is needed: Authorization: Bearer <key>", code="invalid_api_key"
        )
        await JSONResponse(body, 401, headers={"WWW-Authenticate": scheme})(scope, receive, send)

    def _holds(self, scope: Scope) -> bool:
        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        scheme, _, token = given.partition(b" ")
        token = token.strip()
        if scheme.lower() == b"basic" and _is_page(scope):
            with suppress(binascii.Error):
                token = base64.b64decode(token, validate=True).partition(b":")[2]
        elif scheme.lower() != b"bearer":
            return False
        return hmac.compare_digest(token, self._key or b"")


def _is_page(scope: Scope) -> bool:
    return scope["path"] in PAGE_PATHS and scope["method"] in ("GET", "HEAD")


async def _body(request: Request, limits: Limits) -> bytes:
    """The body, refused as soon as it is too long, or no more of it comes."""
    most = limits.body_bytes
    kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
    # A browser sends other types, or none, to any address unasked; JSON it must first ask leave for.
    if kind != "application/json":
        raise BadRequest("Content-Type must be application/json")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise BadRequest("a compressed body is not taken")
    length = 0
    with suppress(ValueError):  # the raise stands outside: errors of ours are ValueErrors too
        length = int(request.headers.get("content-length", "0"))
    if length > most:
        raise TooLarge(f"the body is larger than {most} bytes")
    pieces, size = [], 0
    now_s = asyncio.get_running_loop().time
    try:
        async with asyncio.timeout(limits.silence_s) as patience:
            async for piece in request.stream():
                patience.reschedule(now_s() + limits.silence_s)
                size += len(piece)
                if size > most:
                    raise TooLarge(f"the body is larger than {most} bytes")
                pieces.append(piece)
    except TimeoutError:
        raise TooSlow(f"no more of the body came for {limits.silence_s:g} s") from None
    return b"".join(pieces)


def _known(model: str, names: Sequence[str]) -> None:
    if model not in names:
        raise NotFound(
            f"the model {model!r} does not exist; here is {', '.join(names)}", "model", code="model_not_found"
        )


async def _job(
    asked: ChatRequest,
    limits: Limits,
    urls: MediaUrls,
    max_model_len: int | None,
    arrived_s: float,
    charge: Charge,
) -> Job:
    """The request as a job: media fetched and held to their bounds, text and media in their order."""
    if len(asked.messages) > limits.messages:
        raise TooLarge(f"more than {limits.messages} messages", "messages")
    if max_model_len is not None and (asked.token_limit or 0) > max_model_len:
        raise BadRequest(f"max_tokens is larger than the context of {max_model_len} tokens", "max_tokens")
    media: list[MediaBytes] = []
    messages: list[Message] = []
    for m, message in enumerate(asked.messages):
        content: list[str | MediaRef] = []
        for p, part in enumerate(message.content or ()):
            if isinstance(part, TextPart):
                content.append(part.text)
                continue
            if len(media) >= limits.media_items:
                raise TooLarge(f"more than {limits.media_items} media", "messages")
            param = f"messages.{m}.content.{p}.{part.type}"
            if isinstance(part, AudioPart):
                sound = part.input_audio
                medium = MediaBytes(
                    "audio", decode_base64(sound.data, f"{param}.data"), sound.format, f"{param}.data"
                )
            else:
                kind, url = part_url(part)
                medium = await urls.load(url, kind, f"{param}.url", charge)
            content.append(MediaRef(len(media)))
            media.append(medium)
        messages.append(Message(message.role, tuple(content)))
    if limits.are_quick(media):
        media = limits.check_all(media)
    else:
        # Reading headers can take milliseconds a file; other streams must not wait for it.
        media = await asyncio.to_thread(limits.check_all, media)
    return Job(
        prompt=tuple(messages),
        media=tuple(media),
        max_tokens=asked.token_limit,
        temperature=asked.temperature or 0.0,
        top_p=1.0 if asked.top_p is None else asked.top_p,
        seed=asked.seed,
        stop=tuple(asked.stop or ()),
        ignore_eos=bool(asked.ignore_eos),
        arrival_s=arrived_s,
        id=f"chatcmpl-{uuid.uuid4().hex}",
    )
