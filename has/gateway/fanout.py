"""Media of a launching encode batch, dealt to encoders that would stand idle meanwhile.

Batching, routing and dispatch are as without: a request belongs to the worker it was assigned to, whose
batcher says when its batch launches. Only then, and only where a request brings several media, idle
encoders take some of them. All parts start at that instant and each is smaller than the whole, so the
request's media are encoded sooner, at the price of a transfer and of encoders being busy for who comes next.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from has.gateway.pools import EncodeWorker, Ticket
from has.gateway.port import FANOUT, Encode

Part = list[tuple[Ticket, tuple[int, int]]]
"""Requests of one worker's part, each with its media there: [first, beyond)."""


def deal(batch: Sequence[Ticket], parts: int) -> list[Part]:
    """Media of `batch` in at most `parts` parts: each request's in runs of nearly equal length, in order.

    Every request is in the first part; a later one holds only requests with as many media.
    """
    dealt: list[Part] = [[] for _ in range(max(1, parts))]
    for ticket in batch:
        runs = max(1, min(len(dealt), ticket.items))
        for run in range(runs):
            first, beyond = (ticket.items * end // runs for end in (run, run + 1))
            dealt[run].append((ticket, (first, beyond)))
    return [part for part in dealt if part]


def spread(launch: Encode, home: EncodeWorker, others: Iterable[EncodeWorker], most: int) -> list[Encode]:
    """The commands that `launch` of worker `home` becomes: itself, or its part and those of idle `others`.

    most: workers that encode media of one request at once, `home` among them.
    """
    batch = home.encoder.running[-len(launch.requests) :]
    wanted = min(most, max(ticket.items for ticket in batch))
    # Who prefills locally shares its SMs: the last to be asked.
    idle = sorted((o for o in others if o.rests), key=lambda o: (bool(o.prefiller.running), o.index))
    parts = deal(batch, 1 + min(wanted - 1, len(idle)))
    if len(parts) == 1:
        return [launch]
    commands = []
    for part, worker in zip(parts, [home, *idle], strict=False):
        tickets = [ticket for ticket, _ in part]
        start_s = launch.start_s if worker is home else worker.lend(tickets, launch.start_s)
        commands.append(
            Encode(
                worker=worker.index,
                requests=tuple(ticket.request for ticket in tickets),
                local=launch.local if worker is home else (False,) * len(tickets),
                share_percent=worker.share_percent,
                reason=launch.reason if worker is home else FANOUT,
                start_s=start_s,
                items=tuple(items for _, items in part),
            )
        )
        worker.media = sum(beyond - first for _, (first, beyond) in part)
        for ticket in tickets:
            ticket.parts += worker is not home
    return commands
