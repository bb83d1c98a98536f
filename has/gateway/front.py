"""Serving a service over HTTP until told to stop, then draining it: the same whoever the workers are."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable

import uvicorn
from starlette.types import ASGIApp

from has.errors import RunError
from has.gateway.server import http_server
from has.gateway.service import Service

Say = Callable[[str], None]


async def serve_until_told(
    service: Service,
    app: ASGIApp,
    sock: socket.socket,
    *,
    drain_s: float,
    say: Say,
    on_ready: Callable[[str], None],
) -> None:
    """Serve `app` on `sock` until SIGINT or SIGTERM, then take nothing new and let what runs end.

    `on_ready` is called with the base URL once the server listens. Raises RunError where the service
    broke. The service is stopped in any case; its workers are the caller's.
    """
    server = http_server(app, drain_s=drain_s)
    for number in (signal.SIGINT, signal.SIGTERM):
        # uvicorn stops on these and raises them again when it has: by then there is nothing left to do.
        signal.signal(number, lambda *_: None)
    url = "http://{}:{}".format(*sock.getsockname()[:2])
    announced = asyncio.create_task(_announce(server, lambda: on_ready(url)))
    drained = asyncio.create_task(_drain_with(server, service, drain_s, say))
    try:
        await server.serve(sockets=[sock])
        await drained
        if service.broken:
            raise RunError(service.broken, mend="start it again")
    finally:
        announced.cancel()
        drained.cancel()
        service.stop("the service is shutting down")


async def _announce(server: uvicorn.Server, ready: Callable[[], None]) -> None:
    while not server.started:
        await asyncio.sleep(0.01)
    ready()


async def _drain_with(server: uvicorn.Server, service: Service, drain_s: float, say: Say) -> None:
    """From the moment the server is told to stop, take nothing new and hurry what waits."""
    while not server.should_exit:
        if service.broken:
            server.should_exit = True
            return
        await asyncio.sleep(0.05)
    say("draining; once more Ctrl-C to end now")
    if not await service.drain(drain_s):
        say("some requests had not ended in time and were given up")
