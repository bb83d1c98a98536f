"""In front of engines, which batch by themselves: requests join what runs, within the bounds of one batch, and end alone."""

from __future__ import annotations

from typing import Any

import pytest

from has.core.deployment import Deployment
from has.gateway.pools import Ticket
from has.gateway.port import Admit, Encode, Prefill, Preprocess, Refuse
from has.gateway.scheduler import Scheduler


def scheduler(
    *, continuous: bool = True, prefill: int = 1, bound: int | None = None, **fields: Any
) -> Scheduler:
    plan = {
        "version": 1,
        "model": "m",
        "topology": "disaggregated",
        "gpus": 2 + prefill,
        "alloc": {"encode": 1, "prefill": prefill, "decode": 1},
        "encode_batch": 2,
        "prefill_offload": 1.0,
        "max_wait_ms": 0.0,
        "slo": {"ttft_ms": 1000, "tpot_ms": 50},
    }
    return Scheduler(
        Deployment.model_validate(plan | fields), preprocesses=False, continuous=continuous, max_queue=bound
    )


def ticket(request: int, tokens: int = 100, *, media: bool = True) -> Ticket:
    return Ticket(request, 0.0, media, tokens if media else 0, 0 if media else tokens, 4)


def started(commands: list[Any], kind: type) -> list[tuple[int, tuple[int, ...]]]:
    assert not any(isinstance(command, Preprocess) for command in commands)
    return [(c.worker, c.requests) for c in commands if isinstance(c, kind)]


def test_an_encoder_is_sent_up_to_b_whatever_runs() -> None:
    gateway = scheduler()
    for request in range(4):
        gateway.arrive(ticket(request), 0.1 * request)
    assert started(gateway.advance(0.3), Encode) == [(0, (0, 1))]
    gateway.encoded(0, 0.4, requests=(1,))
    later = gateway.advance(0.4)
    assert started(later, Encode) == [(0, (2,))], "as many as have ended, oldest first"
    assert started(later, Prefill) == [(0, (1,))], "what has ended does not wait for its batch"
    gateway.encoded(0, 0.5, requests=(0,))
    assert started(gateway.advance(0.5), Encode) == [(0, (3,))]


def test_a_worker_of_ours_ends_its_batch_first() -> None:
    gateway = scheduler(continuous=False)
    for request in range(3):
        gateway.arrive(ticket(request), 0.0)
    assert started(gateway.advance(0.0), Encode) == [(0, (0, 1))]
    assert gateway.advance(0.1) == []
    gateway.encoded(0, 0.2)
    later = gateway.advance(0.2)
    assert started(later, Encode) == [(0, (2,))]
    assert started(later, Prefill) == [(0, (0, 1))]


def test_the_gap_rule_waits_for_company_only_as_far_as_there_is_room() -> None:
    gateway = scheduler(max_wait_ms=400.0)
    gateway.arrive(ticket(0), 0.0)
    assert gateway.advance(0.0) == []
    assert gateway.next_due_s() == 0.4
    assert started(gateway.advance(0.4), Encode) == [(0, (0,))]
    gateway.arrive(ticket(1), 0.5)
    assert started(gateway.advance(0.5), Encode) == [(0, (1,))], "with what runs it makes B: nobody can join"
    gateway.arrive(ticket(2), 0.5)
    assert gateway.next_due_s() is None, "no room: only an end changes that"


def test_prefill_goes_where_fewest_tokens_are_and_within_its_caps() -> None:
    gateway = scheduler(prefill=2, max_num_batched_tokens=250, max_prefill_requests=2)
    for request, tokens in enumerate((120, 100, 100, 100, 100)):
        gateway.arrive(ticket(request, tokens, media=False), 0.0)
    first = started(gateway.advance(0.0), Prefill)
    assert first == [(0, (0,)), (1, (1,)), (1, (2,)), (0, (3,))]
    assert started(gateway.advance(0.1), Prefill) == [], "two each, or 250 tokens"
    gateway.prefilled(True, 0, 0.2, requests=(0,))
    later = gateway.advance(0.2)
    assert started(later, Prefill) == [(0, (4,))]
    assert [c.request for c in later if isinstance(c, Admit)] == [0]


def test_prefill_passes_by_a_worker_that_has_few_tokens_of_as_many_requests_as_it_takes() -> None:
    gateway = scheduler(prefill=2, max_num_batched_tokens=250, max_prefill_requests=2)
    for request, tokens in enumerate((10, 200, 10, 50)):
        gateway.arrive(ticket(request, tokens, media=False), 0.0)
    assert started(gateway.advance(0.0), Prefill) == [(0, (0,)), (1, (1,)), (0, (2,)), (1, (3,))]


def test_a_request_larger_than_the_budget_goes_alone() -> None:
    gateway = scheduler(max_num_batched_tokens=250)
    gateway.arrive(ticket(0, 900, media=False), 0.0)
    gateway.arrive(ticket(1, 10, media=False), 0.0)
    assert started(gateway.advance(0.0), Prefill) == [(0, (0,))]
    gateway.prefilled(True, 0, 0.2, requests=(0,))
    assert started(gateway.advance(0.2), Prefill) == [(0, (1,))]


def test_media_dealt_out_go_to_encoders_with_nothing_to_do() -> None:
    fields = {"alloc": {"encode": 2, "prefill": 1, "decode": 1}, "gpus": 4, "encode_fanout": 2}
    gateway = scheduler(dispatch="shortest_queue", **fields)
    whole = ticket(0)
    whole.items = 2
    gateway.arrive(whole, 0.0)
    commands = [c for c in gateway.advance(0.0) if isinstance(c, Encode)]
    assert [(c.worker, c.requests, c.items) for c in commands] == [(0, (0,), ((0, 1),)), (1, (0,), ((1, 2),))]
    other = ticket(1)
    other.items = 2
    gateway.arrive(other, 0.1)
    (alone,) = [c for c in gateway.advance(0.1) if isinstance(c, Encode)]
    assert (alone.requests, alone.items) == ((1,), ()), "no encoder rests, and parts are of the launch alone"
    gateway.encoded(1, 0.2, requests=(0,))
    assert started(gateway.advance(0.2), Prefill) == []
    gateway.encoded(0, 0.3, requests=(0,))
    assert started(gateway.advance(0.3), Prefill) == [(0, (0,))], "when the last of its parts is there"


@pytest.mark.parametrize("continuous", [True, False])
def test_max_queue_counts_until_the_first_token_which_decode_brings(continuous: bool) -> None:
    """Else decode that cannot keep up takes on requests without bound, as prefill empties the count."""
    gateway = scheduler(continuous=continuous, bound=1)
    gateway.arrive(ticket(0, media=False), 0.0)
    gateway.advance(0.0)
    gateway.prefilled(True, 0, 0.1, requests=(0,))
    assert [c.request for c in gateway.advance(0.1) if isinstance(c, Admit)] == [0]
    assert gateway.unanswered == int(continuous), "workers of ours bring it with prefill"
    assert isinstance(gateway.arrive(ticket(1, media=False), 0.2), Refuse) == continuous
    gateway.answered(0)
    assert gateway.unanswered == int(not continuous), "the one that was taken on"


def test_an_answer_of_one_token_is_prefills_and_waits_no_longer() -> None:
    gateway = scheduler(bound=1)
    whole = ticket(0, media=False)
    whole.output_tokens = 1
    gateway.arrive(whole, 0.0)
    gateway.advance(0.0)
    gateway.prefilled(True, 0, 0.1, requests=(0,))
    assert gateway.unanswered == 0
    assert gateway.arrive(ticket(1, media=False), 0.1) is None
