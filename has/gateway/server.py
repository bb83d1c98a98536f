"""Listening and serving: the socket first, so that a taken port is an error and not a log line."""

from __future__ import annotations

import socket

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from has.errors import InputError, RunError

DRAIN_S = 30.0
HEAD_BYTES = 64 * 1024
"""Of a request's head, and of what may follow its body, about so much is taken: others refuse as much."""


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
            http=_Protocol,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=max(1, round(drain_s)),
            backlog=2048,
        )
    )


class _Protocol(HttpToolsProtocol):
    """httptools takes a head without end; here what brings neither its end nor a part of the body is counted."""

    _unfinished = 0
    _went_on = False

    def data_received(self, data: bytes) -> None:
        self._went_on = False
        super().data_received(data)
        self._unfinished = 0 if self._went_on else self._unfinished + len(data)
        if self._unfinished > HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response(f"The head of a request has at most {HEAD_BYTES} bytes.")

    def on_headers_complete(self) -> None:
        self._went_on = True
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._went_on = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._went_on = True
        super().on_message_complete()
