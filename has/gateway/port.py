"""The port between the gateway and its workers: commands down, events up.

The gateway knows workers only through this page. A request is opened once with its payload, then
spoken of by its number; a command says which worker does what and from which *virtual* instant on;
an event says when the work really counted as started and ended. Virtual instants are on the clock
of `time.monotonic`: work starts at the instant that made it ready, not when a process got round to
it, so the lag of messages does not add up along a request's way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from has.gateway.job import Job, MediaBytes

FANOUT = "fanout"
"""Reason of an encode batch that helps another worker with its own."""
PoolName = Literal["preprocess", "encode", "prefill", "decode", "mixed"]
"""Kinds of worker. `mixed` runs iterations of prefill and decode (and, when monolithic, encode)."""


@dataclass(frozen=True, slots=True)
class Preprocess:
    """Decode and resize the media of `request` on preprocessing server `server`."""

    request: int
    server: int
    start_s: float


@dataclass(frozen=True, slots=True)
class Encode:
    """Encode the media of `requests` in one batch, holding `share_percent` of the worker's SMs.

    `local` says of each request whether its prefill stays on this worker; the embeddings of the
    others must be where another worker can fetch them. `reason` is the micro-batcher's, or `fanout`:
    media of a batch that another worker launched, which is not counted or routed again. `items` are the
    media of each request that are encoded here, [first, beyond) among its own; empty: all of them.
    """

    worker: int
    requests: tuple[int, ...]
    local: tuple[bool, ...]
    share_percent: float
    reason: str
    start_s: float
    items: tuple[tuple[int, int], ...] = ()

    @property
    def is_fanout(self) -> bool:
        return self.reason == FANOUT


@dataclass(frozen=True, slots=True)
class Prefill:
    """Prefill `requests` in one batch: on encode worker `worker` (local) or on the remote pool's."""

    remote: bool
    worker: int
    requests: tuple[int, ...]
    start_s: float


@dataclass(frozen=True, slots=True)
class Admit:
    """Hand `request` to a decode worker, or (no decode pool) all that is left of it to a mixed one."""

    worker: int
    request: int
    ready_s: float


@dataclass(frozen=True, slots=True)
class Refuse:
    """The request is not taken. `retry_after_s` is None where trying again cannot help."""

    request: int
    reason: str
    retry_after_s: float | None


Command = Preprocess | Encode | Prefill | Admit


@dataclass(frozen=True, slots=True)
class Preprocessed:
    """`media_tokens` are the LM tokens of all items; `error` is set where the media were no good."""

    request: int
    server: int
    start_s: float
    end_s: float
    media_tokens: int = 0
    error: str = ""


@dataclass(frozen=True, slots=True)
class Encoded:
    """A batch ended. `ratio` is real over nominal duration, for the validity gate.

    `transfers` pairs requests whose embeddings leave the worker with the seconds that takes. `known`
    counts media that were not encoded because the worker had their embeddings. `requests` are those that
    ended, with `media` in all, where others of the worker's may run on; none: the batch.
    """

    worker: int
    start_s: float
    end_s: float
    ratio: float
    transfers: tuple[tuple[int, float], ...] = ()
    known: int = 0
    requests: tuple[int, ...] = ()
    media: int = 0


@dataclass(frozen=True, slots=True)
class Prefilled:
    """A prefill batch ended. `tokens` pairs its requests with their first token (-1: decode will bring it); what
    failed is not among them, and is said apart.

    `transfers` pairs requests with the seconds until their KV is where decode finds it. `counted`
    pairs requests with the prompt and media tokens that the worker counted, where that is news. `requests` are
    those that ended, where others of the worker's may run on; none: the batch.
    """

    remote: bool
    worker: int
    start_s: float
    end_s: float
    ratio: float
    tokens: tuple[tuple[int, int], ...]
    transfers: tuple[tuple[int, float], ...] = ()
    counted: tuple[tuple[int, int], ...] = ()
    requests: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Stepped:
    """A decode step, or an iteration of a mixed worker, ended.

    `tokens` pairs requests with their next token. `ended` are the requests that hold nothing on the
    worker any more. `parts` says of a mixed iteration which stages it had: (stage, share of its
    time, requests). `counted` is as in `Prefilled`.
    """

    worker: int
    start_s: float
    end_s: float
    ratio: float
    tokens: tuple[tuple[int, int], ...]
    ended: tuple[int, ...]
    parts: tuple[tuple[str, float, tuple[int, ...]], ...] = ()
    counted: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Failed:
    """One request could not go on.

    `transient`: for want of room, which will come back. `unfit`: the request's fault. `anew`: what other workers
    made of it may be gone with them; from the start it may go well.
    """

    request: int
    error: str
    transient: bool = False
    unfit: bool = False
    anew: bool = False


@dataclass(frozen=True, slots=True)
class Lost:
    """A worker died or stopped answering; all it held is gone."""

    pool: PoolName
    worker: int
    reason: str


@dataclass(frozen=True, slots=True)
class Back:
    """A replacement for a lost worker is ready."""

    pool: PoolName
    worker: int


@dataclass(frozen=True, slots=True)
class Broken:
    """Workers can no longer be replaced: nothing will be served any more."""

    reason: str


Event = Preprocessed | Encoded | Prefilled | Stepped | Failed | Lost | Back | Broken


@dataclass(frozen=True, slots=True)
class Payload:
    """What a request brings: media as they came, the prompt, and how to choose its tokens.

    `render` makes the prompt's ids from the LM tokens of each medium: a placeholder stands once for
    every embedding, so ids can only be made when the media have been decoded. `context` bounds
    prompt, media and output tokens together: an answer ends there at the latest. `job` is the whole
    request, for workers that render prompts themselves.
    """

    media: tuple[MediaBytes, ...]
    render: Callable[[Sequence[int]], list[int]]
    output_tokens: int
    context: int | None = None
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    ignore_eos: bool = False
    job: Job | None = None


class WorkerPort(Protocol):
    """A set of workers under one deployment. All calls come from one asyncio event loop."""

    def listen(self, handle: Callable[[Event], None]) -> None:
        """From now on call `handle` in the running loop, once per event, in order per worker."""

    def open(self, request: int, payload: Payload) -> None:
        """Take in what `request` brings. Must precede every command that names it."""

    def execute(self, command: Command) -> None:
        """Send `command` to its worker; returns at once. Work of one worker keeps its order."""

    def retain(self, request: int) -> bool:
        """Back to the start: forget what workers made of `request`. True if its media are still preprocessed."""

    def close(self, request: int) -> None:
        """`request` is over, answered or not: drop its data, stop its decoding, free its KV."""
