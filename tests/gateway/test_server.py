"""What a server takes from whoever connects, before anything of it is a request."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterable, Iterator
from itertools import chain, repeat

import pytest

from has.gateway.server import HEAD_BYTES, http_server, listen

START = b"POST / HTTP/1.1\r\nhost: x\r\n"
LONG = b"x: " + b"a" * 10_000 + b"\r\n"
CHUNKED = START + b"transfer-encoding: chunked\r\n\r\n"
MANY = 10_000_000 // len(LONG)


def said_to(pieces: Iterable[bytes]) -> tuple[bytes, int]:
    """(what a server that tells the length of the body answers to `pieces`, how many bytes of them it was sent)."""

    async def app(scope, receive, send) -> None:
        if scope["type"] == "lifespan":
            return
        length, more = 0, True
        while more:
            message = await receive()
            length, more = length + len(message.get("body", b"")), message.get("more_body", False)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"connection", b"close")]})
        await send({"type": "http.response.body", "body": b"%d bytes" % length})

    async def main() -> tuple[bytes, int]:
        sock = listen("127.0.0.1", 0)
        server = http_server(app, drain_s=1)
        serving = asyncio.create_task(server.serve(sockets=[sock]))
        reader, writer = await asyncio.open_connection(*sock.getsockname())
        sent = 0
        try:
            for piece in pieces:
                writer.write(piece)
                sent += len(piece)
                await writer.drain()
                await asyncio.sleep(0)  # a turn of the server, which is in the same loop
            return await reader.read(), sent
        except ConnectionError:
            return b"", sent
        finally:
            writer.close()
            server.should_exit = True
            await serving

    return asyncio.run(asyncio.wait_for(main(), 20))


@pytest.mark.parametrize(
    ("pieces", "told"),
    [
        ([START, LONG, LONG, LONG, b"content-length: 3\r\n\r\nabc"], b"3 bytes"),
        ([START, b"content-length: 5000000\r\n\r\n", *repeat(bytes(50_000), 100)], b"5000000 bytes"),
        ([CHUNKED, *repeat(b"4\r\nabcd\r\n", 20_000), b"0\r\n\r\n"], b"80000 bytes"),
    ],
    ids=["a long head", "a long body", "many small chunks"],
)
def test_what_is_a_request_is_answered(pieces: list[bytes], told: bytes) -> None:
    answer, _ = said_to(pieces)
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"\r\n" + told in answer


def without_end(*first: bytes, then: bytes) -> Iterator[bytes]:
    return chain(first, repeat(then, MANY))


@pytest.mark.parametrize(
    "pieces",
    [
        without_end(START, then=LONG),
        without_end(START, b"x: ", then=bytes(b"a" * len(LONG))),
        without_end(b"GET /", then=bytes(b"a" * len(LONG))),
        without_end(CHUNKED, b"0\r\n", then=LONG),
    ],
    ids=["headers", "one header", "a path", "trailers"],
)
def test_what_never_becomes_one_is_hung_up_on(pieces: Iterator[bytes]) -> None:
    answer, sent = said_to(pieces)
    assert b"200 OK" not in answer
    assert sent < MANY * len(LONG), f"more than {HEAD_BYTES} bytes of it were taken"


@pytest.mark.parametrize(("soft", "hard", "then"), [(100, 300, 200), (100, 150, 150), (250, 300, 250)])
def test_a_gateway_may_open_as_many_files_as_it_wants_or_is_let(soft: int, hard: int, then: int) -> None:
    code = (
        "import resource, sys; from has.gateway.descriptors import allow_files;"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}));"
        "print(allow_files(200), *resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.split() == [str(then), str(then), str(hard)]
