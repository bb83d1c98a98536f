"""Opening a deployment to the world, and serving it until told to stop: the same whoever the workers are."""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import uvicorn
from starlette.types import ASGIApp

from has.core.deployment import Deployment
from has.core.serving import MAX_QUEUE, served_max_wait_ms
from has.errors import RunError
from has.gateway.http import create_app
from has.gateway.metrics import Metrics
from has.gateway.server import DRAIN_S, http_server
from has.gateway.service import Service

Say = Callable[[str], None]
Start = Callable[[Metrics, int], Awaitable[Service]]
"""Makes the service of a deployment: told whom it reports to, and how many may wait for a first token."""


@dataclass(frozen=True, slots=True)
class Front:
    """How a deployment meets its clients: on which socket, by which names, with whose leave."""

    sock: socket.socket
    say: Say
    api_key: str | None = None
    served_model_names: Sequence[str] = ()
    allowed_media_domains: Sequence[str] = ()
    drain_s: float = DRAIN_S
    on_ready: Callable[[str], None] = lambda _: None


def unfailing(say: Say) -> Say:
    """`say`, but where nobody takes what is said (a full disk, a closed pipe) serving goes on without."""

    def said(line: str) -> None:
        with suppress(OSError):
            say(line)

    return said


def url_of(sock: socket.socket) -> str:
    """The base URL of what listens on `sock`."""
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def with_age_cap(deployment: Deployment, say: Say) -> Deployment:
    """`deployment` with a bound on how long an encode batch may wait, from its SLO where it names none."""
    max_wait_ms = served_max_wait_ms(deployment)
    if max_wait_ms == deployment.max_wait_ms:
        return deployment
    say(f"max_wait_ms {max_wait_ms:g}: the deployment names none; a quarter of its TTFT bound")
    return deployment.model_copy(update={"max_wait_ms": max_wait_ms})


async def serve_deployment(deployment: Deployment, front: Front, start: Start, on: str = "") -> None:
    """Start the service of `deployment` and serve it until SIGINT or SIGTERM, then drain it.

    `on` names the workers, where they are not our own. The service has ended on return; its workers are the caller's to end.
    """
    name = front.served_model_names[0] if front.served_model_names else deployment.model
    max_queue = deployment.max_queue or MAX_QUEUE
    metrics = Metrics(name)
    service = await start(metrics, max_queue)
    metrics.watch(service.state)
    app = create_app(
        service,
        api_key=front.api_key,
        served_model_names=front.served_model_names or (name,),
        allowed_media_domains=front.allowed_media_domains,
        metrics=metrics,
        deployment=deployment,
    )
    where, url = f" on {on}" if on else "", url_of(front.sock)
    front.say(
        f"{deployment.label}{where} serves {name} on {url} (at most {max_queue} requests wait; then 429)"
    )
    front.say(f"status page: {url}/")
    # A full collection goes through all that was imported, in 0.2 s in which no answer moves; this is not garbage.
    gc.collect()
    gc.freeze()
    await serve_until_told(
        service, app, front.sock, drain_s=front.drain_s, say=front.say, on_ready=front.on_ready
    )


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

    A SIGINT while it drains ends it at once. `on_ready` is called with the base URL once the server listens. Raises RunError where the service
    broke. The service is stopped in any case; its workers are the caller's.
    """
    server = http_server(app, drain_s=drain_s)
    for number in (signal.SIGINT, signal.SIGTERM):
        # uvicorn stops on these and raises them again when it has: by then there is nothing left to do.
        signal.signal(number, lambda *_: None)
    announced = asyncio.create_task(_announce(server, lambda: on_ready(url_of(sock))))
    drained = asyncio.create_task(_drain_with(server, service, drain_s, unfailing(say)))
    try:
        await server.serve(sockets=[sock])
        if not server.force_exit:
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
