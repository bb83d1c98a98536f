"""Connections to instances: what breaks is said so, and whether for certain; they are kept or closed as they should be."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from has.engine.vllm import watch
from has.engine.vllm.client import EngineClient
from has.engine.vllm.connections import Broke, HttpConnections
from has.engine.vllm.urls import Urls
from has.gateway.port import Event, Lost

OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 11\r\n\r\n" + b'{"a": "b"}\n'
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def request_of(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """(head, body) of the next request."""
    head = await reader.readuntil(b"\r\n\r\n")
    lines = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:] if line)
    return head, await reader.readexactly(int(lines.get(b"content-length", b"0")))


def client_of(serve: Serve, ask: Callable[[HttpConnections, str], Awaitable[object]]) -> list[object]:
    """Run `ask` against a server that handles every connection by `serve`; how many connections there were comes last."""

    async def main() -> list[object]:
        connections = []

        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connections.append(writer)
            try:
                await serve(reader, writer)
            except (asyncio.IncompleteReadError, ConnectionError):
                pass
            finally:
                writer.close()

        server = await asyncio.start_server(handle, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        client = HttpConnections(connect_s=10.0, keepalive_s=60.0)
        async with server, asyncio.timeout(20):
            try:
                return [await ask(client, url), len(connections)]
            finally:
                await client.aclose()

    return asyncio.run(main())


def test_a_post_arrives_whole_and_its_connection_serves_the_next() -> None:
    seen = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            seen.append(await request_of(reader))
            writer.write(OK)

    async def ask(client: HttpConnections, url: str) -> object:
        answers = []
        for n in (b"1", b"2"):
            async with client.ask(url + "/x", n, {"x-request-id": "r"}, timeout_s=10.0) as answer:
                answers.append((answer.status, await answer.read()))
        return answers

    assert client_of(serve, ask) == [[(200, b'{"a": "b"}\n')] * 2, 1]
    head, body = seen[1]
    assert head.startswith(b"POST /x HTTP/1.1\r\n")
    assert b"x-request-id: r" in head
    assert b"content-type: application/json" in head.lower()
    assert body == b"2"


def test_nobody_listening_is_certain() -> None:
    async def main() -> None:
        free = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        port = free.sockets[0].getsockname()[1]
        free.close()
        await free.wait_closed()
        client = EngineClient()
        wrong, certain = await client.look(f"http://127.0.0.1:{port}")
        await client.aclose()
        assert wrong.startswith("no connection")
        assert certain

    asyncio.run(main())


@pytest.mark.parametrize("part", [b"", b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf"])
def test_a_server_that_goes_away_amid_an_answer_has_broken_it_for_certain(part: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        writer.write(part)

    async def ask(client: HttpConnections, url: str) -> object:
        with pytest.raises(Broke) as broke:
            async with client.ask(url, b"{}", timeout_s=10.0) as answer:
                await answer.read()
        return broke.value.certain

    assert client_of(serve, ask) == [True, 1]


def test_a_silent_server_may_only_be_busy() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        await reader.read()

    async def ask(client: HttpConnections, url: str) -> object:
        with pytest.raises(Broke) as broke:
            async with client.ask(url, timeout_s=0.05):
                pass
        return broke.value.certain

    assert client_of(serve, ask) == [False, 1]


def test_a_server_that_does_not_take_the_body_is_silent_too() -> None:
    """As one that is stopped: the kernel takes some of a video for it, and nobody the rest."""
    over = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await over.wait()

    async def ask(client: HttpConnections, url: str) -> object:
        with pytest.raises(Broke) as broke:
            async with client.ask(url, bytes(32_000_000), timeout_s=0.05):
                pass
        over.set()
        return broke.value.certain

    assert client_of(serve, ask) == [False, 1]


def test_names_that_nobody_resolves_are_waited_for_as_a_connection_is(monkeypatch) -> None:
    over = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: over.wait() and [])

    async def main() -> None:
        client = HttpConnections(connect_s=0.05, keepalive_s=60.0)
        with pytest.raises(Broke) as broke:
            async with client.ask("http://an.instance:1/", b"{}", timeout_s=60.0):
                pass
        assert not broke.value.certain
        over.set()
        await client.aclose()

    asyncio.run(asyncio.wait_for(main(), 20))


def test_a_stream_that_is_left_is_closed_and_one_that_was_read_is_kept() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head, _ = await request_of(reader)
            writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n6\r\nfirst\n\r\n")
            if b"/whole" in head:
                writer.write(b"5\r\nlast\n\r\n0\r\n\r\n")
            else:
                assert await reader.read() == b""  # the client hung up
                return

    async def ask(client: HttpConnections, url: str) -> object:
        seen = []
        for path in ("/whole", "/left", "/whole"):
            async with client.ask(url + path, b"{}", timeout_s=10.0) as answer:
                async for piece in answer.pieces():
                    seen.append(piece)
                    if path == "/left":
                        break
        return b"".join(seen)

    # /left came on the connection that /whole had kept; the third needed a new one.
    assert client_of(serve, ask) == [b"first\nlast\nfirst\nfirst\nlast\n", 2]


def test_events_are_whole_however_the_stream_is_cut() -> None:
    event = b'data: {"choices":[{"delta":{"content":"%s"},"token_ids":[1]}]}\n\n'
    text = event % b"one" + event % "zw\u00f6lf".encode() + b"data: [DONE]\n\n"

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(text))
        for at in range(0, len(text), 7):
            writer.write(text[at : at + 7])
            await writer.drain()

    async def ask(client: HttpConnections, url: str) -> object:
        return [chunk.text async for chunk in EngineClient(connections=client).stream(url, {}, "r")]

    assert client_of(serve, ask) == [["one", "zw\u00f6lf"], 1]


@contextmanager
def out_of_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    held = [os.open(os.devnull, os.O_RDONLY)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (held[0] + 1, hard))
    try:
        with suppress(OSError):
            while True:
                held.append(os.open(os.devnull, os.O_RDONLY))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in held:
            os.close(descriptor)


def test_what_is_wanting_here_says_nothing_of_the_instance() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)

    async def ask(client: HttpConnections, url: str) -> object:
        with out_of_descriptors(), pytest.raises(Broke, match="Too many open files") as broke:
            async with client.ask(url, b"{}", timeout_s=10.0):
                pass
        return broke.value.certain, broke.value.here

    assert client_of(serve, ask) == [(False, True), 0]


def test_a_gateway_that_is_out_of_descriptors_gives_up_no_instance(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(watch, "HEALTH_S", 0.01)

    async def main() -> list[Event]:
        events: list[Event] = []
        client = EngineClient()
        keeper = watch.Watch(Urls(decode=("http://127.0.0.1:1",)), client)
        with out_of_descriptors():
            keeping = asyncio.create_task(keeper.keep(events.append))
            async with asyncio.timeout(20):
                while caplog.text.count("Too many open files") <= 2 * watch.UNHEALTHY:
                    await asyncio.sleep(0.01)
            assert events == []
        async with asyncio.timeout(20):
            while not events:  # now it can be seen that nobody listens there
                await asyncio.sleep(0.01)
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        await client.aclose()
        return events

    assert [type(event) for event in asyncio.run(main())] == [Lost]
