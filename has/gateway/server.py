"""Listening and serving: the socket first, so that a taken port is an error and not a log line."""

from __future__ import annotations

import socket

import uvicorn
from starlette.types import ASGIApp

from has.errors import InputError, RunError

DRAIN_S = 30.0


def listen(host: str, port: int) -> socket.socket:
    """A listening TCP socket on `host`:`port` (0: any free one). Raises InputError or RunError with the mend."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, OverflowError) as error:
        raise InputError("no such address", where="argument", field="host", value=f"{host}:{port}") from error
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(2048)
    except OSError as error:
        sock.close()
        raise RunError(
            f"cannot listen on {host}:{port}: {error.strerror or error}",
            mend=f"--port another, or --port 0 for any; now {port}",
        ) from error
    sock.setblocking(False)
    return sock


def http_server(app: ASGIApp, *, drain_s: float = DRAIN_S) -> uvicorn.Server:
    """A server for `app`: `await server.serve(sockets=[listen(...)])`.

    SIGINT and SIGTERM, or `server.should_exit = True`, stop it: no new connections, requests in
    flight have `drain_s` to end.
    """
    return uvicorn.Server(
        uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=max(1, round(drain_s)),
            backlog=2048,
        )
    )
