"""Media of one request on several encoders: only where others stand idle, and it goes on when the last part is in."""

from __future__ import annotations

from typing import Any

import pytest

from has.core.deployment import Deployment
from has.errors import InputError
from has.files.validate import validate
from has.gateway.fanout import deal
from has.gateway.pools import Ticket
from has.gateway.port import Encode, Prefill
from has.gateway.scheduler import Scheduler


def plan(topology: str = "disaggregated", **fields: Any) -> dict[str, Any]:
    given: dict[str, Any] = {
        "disaggregated": {
            "alloc": {"encode": 3, "prefill": 1, "decode": 1},
            "encode_batch": 1,
            "prefill_offload": 1.0,
        },
        "e_pd": {"alloc": {"encode": 3, "prefill_decode": 2}, "encode_batch": 1},
        "monolithic": {"alloc": {"all": 5}},
    }[topology]
    common = {"version": 1, "model": "m", "topology": topology, "slo": {"ttft_ms": 1000, "tpot_ms": 50}}
    return {**common, "gpus": 5, "dispatch": "round_robin", "encode_fanout": 3, **given, **fields}


def scheduler(**fields: Any) -> Scheduler:
    return Scheduler(Deployment.model_validate(plan(**fields)), preprocesses=False)


def arrive(to: Scheduler, request: int, items: int, now_s: float = 0.0) -> list[Encode]:
    to.arrive(Ticket(request, now_s, True, 64 * items, 20, 5, items=items), now_s)
    return [command for command in to.advance(now_s) if isinstance(command, Encode)]


def runs(commands: list[Encode]) -> dict[int, tuple[tuple[int, int], ...]]:
    return {command.worker: command.items for command in commands}


@pytest.mark.parametrize(
    ("items", "parts", "dealt"),
    [
        ([5], 3, [[(0, 1)], [(1, 3)], [(3, 5)]]),
        ([2, 1], 3, [[(0, 1), (0, 1)], [(1, 2)]]),
        ([4, 4], 2, [[(0, 2), (0, 2)], [(2, 4), (2, 4)]]),
        ([3], 1, [[(0, 3)]]),
    ],
)
def test_media_are_dealt_in_runs_and_none_is_forgotten(items, parts, dealt) -> None:
    batch = [Ticket(i, 0.0, True, 64, 8, 4, items=n) for i, n in enumerate(items)]
    assert [[run for _, run in part] for part in deal(batch, parts)] == dealt


def test_idle_encoders_share_the_media_of_a_request_from_the_same_instant() -> None:
    commands = arrive(scheduler(), 0, 4, now_s=1.5)
    assert runs(commands) == {0: ((0, 1),), 1: ((1, 2),), 2: ((2, 4),)}
    assert [command.reason for command in commands] == ["full", "fanout", "fanout"]
    assert {command.start_s for command in commands} == {1.5}
    assert not any(local for command in commands for local in command.local)


def test_no_more_encoders_than_media_than_the_deployment_allows_or_than_are_idle() -> None:
    assert len(arrive(scheduler(), 0, 2)) == 2
    assert len(arrive(scheduler(encode_fanout=2), 0, 5)) == 2
    busy = scheduler()
    arrive(busy, 0, 1)
    assert runs(arrive(busy, 1, 5)) == {1: ((0, 2),), 2: ((2, 5),)}
    waiting = scheduler(encode_batch=2, fill_probability=1.0)
    assert arrive(waiting, 0, 3) == []  # at worker 0, for company
    assert arrive(waiting, 1, 3) == []  # at worker 1
    assert arrive(waiting, 2, 3) == []  # at worker 2
    assert runs(arrive(waiting, 3, 3)) == {0: ()}, "the others wait for a batch of their own"


@pytest.mark.parametrize("fanout", [None, 1])
def test_without_it_a_request_is_encoded_whole(fanout: int | None) -> None:
    assert runs(arrive(scheduler(encode_fanout=fanout), 0, 4)) == {0: ()}
    assert runs(arrive(scheduler(), 1, 1)) == {0: ()}, "and so is one medium in any case"


def test_prefill_waits_for_the_last_part_and_its_transfer() -> None:
    to = scheduler()
    arrive(to, 0, 3)
    to.encoded(0, 1.0, lambda _: 0.5)
    to.encoded(2, 1.1, lambda _: 0.1)
    assert to.advance(1.6) == []
    to.encoded(1, 1.7, lambda _: 0.1)
    assert to.advance(1.75) == []
    assert to.next_due_s() == pytest.approx(1.8)
    [prefill] = to.advance(1.8)
    assert isinstance(prefill, Prefill)
    assert prefill.start_s == pytest.approx(1.8)


def test_a_local_prefill_waits_for_what_others_send_and_not_for_its_own() -> None:
    to = scheduler(alloc={"encode": 3, "prefill": 0, "decode": 2}, prefill_offload=0.0)
    commands = arrive(to, 0, 3)
    assert [command.local for command in commands] == [(True,), (False,), (False,)]
    to.encoded(1, 1.0, lambda _: 0.2)
    to.encoded(2, 1.0, lambda _: 0.2)
    to.encoded(0, 1.5, lambda _: 0.2)
    [prefill] = to.advance(1.5)
    assert (prefill.remote, prefill.worker, prefill.start_s) == (False, 0, 1.5)


def test_the_router_counts_a_request_once_however_many_encode_it() -> None:
    to = scheduler(alloc={"encode": 3, "prefill": 1, "decode": 1}, prefill_offload=0.5)
    for request in range(6):
        for command in arrive(to, request, 3, now_s=float(request)):
            to.encoded(command.worker, request + 0.1)
        to.advance(request + 0.2)
    assert [encoder.router.total for encoder in to.encoders] == [2, 2, 2]


def test_a_helper_that_dies_costs_its_part_and_nothing_twice() -> None:
    to = scheduler()
    arrive(to, 0, 3)
    to.encoded(0, 0.5)
    [lost] = to.lost("encode", 1, 0.6)
    to.retry(lost.request, 0.6, preprocessed=True)
    assert to.advance(0.6) == [], "it waits at worker 2, which still works for the first attempt"
    to.encoded(2, 0.7)
    commands = to.advance(0.7)
    assert not any(isinstance(command, Prefill) for command in commands), "what that made counts for nothing"
    assert runs(commands) == {2: ((0, 1),), 0: ((1, 3),)}


def test_who_was_to_prefill_dies_while_others_still_encode_for_it() -> None:
    to = scheduler(alloc={"encode": 3, "prefill": 0, "decode": 2}, prefill_offload=0.0)
    arrive(to, 0, 3)
    to.encoded(0, 0.5)
    assert [ticket.request for ticket in to.lost("encode", 0, 0.6)] == [0]


def test_a_monolith_has_no_encoders_to_spread_over() -> None:
    with pytest.raises(InputError, match="encode_fanout: a monolithic deployment has none"):
        validate(Deployment, plan("monolithic"), "deployment.yaml")
    assert len(arrive(scheduler(topology="e_pd"), 0, 3)) == 3
