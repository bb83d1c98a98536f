"""httpx over aiohttp's connections: what fails is raised as httpx would, and connections are kept or closed as they should be."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import httpx
import pytest

from has.engine.vllm.transport import AiohttpTransport

OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 11\r\n\r\n" + b'{"a": "b"}\n'
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def request_of(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """(head, body) of the next request."""
    head = await reader.readuntil(b"\r\n\r\n")
    lines = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:] if line)
    return head, await reader.readexactly(int(lines.get(b"content-length", b"0")))


def client_of(serve: Serve, ask: Callable[[httpx.AsyncClient, str], Awaitable[object]]) -> list[object]:
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
        async with (
            server,
            asyncio.timeout(20),
            httpx.AsyncClient(transport=AiohttpTransport(keepalive_s=60.0), timeout=10.0) as client,
        ):
            return [await ask(client, url), len(connections)]

    return asyncio.run(main())


def test_a_post_arrives_whole_and_its_connection_serves_the_next() -> None:
    seen = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            seen.append(await request_of(reader))
            writer.write(OK)

    async def ask(client: httpx.AsyncClient, url: str) -> object:
        answers = [
            await client.post(url + "/x", json={"n": n}, headers={"x-request-id": "r"}) for n in (1, 2)
        ]
        return [(answer.status_code, answer.json()) for answer in answers]

    assert client_of(serve, ask) == [[(200, {"a": "b"})] * 2, 1]
    head, body = seen[1]
    assert head.startswith(b"POST /x HTTP/1.1\r\n")
    assert b"x-request-id: r" in head
    assert body == b'{"n":2}'


def test_nobody_listening_is_a_connect_error() -> None:
    async def main() -> None:
        free = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        port = free.sockets[0].getsockname()[1]
        free.close()
        await free.wait_closed()
        async with httpx.AsyncClient(transport=AiohttpTransport(keepalive_s=1.0)) as client:
            with pytest.raises(httpx.ConnectError):
                await client.get(f"http://127.0.0.1:{port}/health")

    asyncio.run(main())


@pytest.mark.parametrize("part", [b"", b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf"])
def test_a_server_that_goes_away_amid_an_answer_is_a_read_error(part: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        writer.write(part)

    async def ask(client: httpx.AsyncClient, url: str) -> object:
        with pytest.raises(httpx.ReadError):
            await client.post(url, json={})
        return None

    client_of(serve, ask)


def test_a_silent_server_is_a_read_timeout() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        await reader.read()

    async def ask(client: httpx.AsyncClient, url: str) -> object:
        with pytest.raises(httpx.ReadTimeout):
            await client.get(url, timeout=0.05)
        return None

    client_of(serve, ask)


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

    async def ask(client: httpx.AsyncClient, url: str) -> object:
        lines = []
        for path in ("/whole", "/left", "/whole"):
            async with client.stream("POST", url + path, json={}) as answer:
                async for line in answer.aiter_lines():
                    lines.append(line)
                    if path == "/left":
                        break
        return lines

    # /left came on the connection that /whole had kept; the third needed a new one.
    assert client_of(serve, ask) == [["first", "last", "first", "first", "last"], 2]
