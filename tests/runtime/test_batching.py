"""Who is in the next step. The whole is held against the simulator in tests/gateway."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from has.runtime.batching import PASS_TOKENS, DecodeBatch, MixedBatch, Sequence, passes


def test_the_head_blocks_until_its_kv_fits() -> None:
    batch = DecodeBatch(max_seqs=8, kv_tokens=100)
    for request, tokens in enumerate((60, 50, 5)):
        batch.add(Sequence(request, tokens, 3, produced=1))
    assert [s.request for s in batch.admit(0.0)] == [0]
    assert batch.stepped() == []
    assert [s.request for s in batch.stepped()] == [0]
    assert [s.request for s in batch.admit(1.0)] == [1, 2]
    assert batch.reserved == 53 + 8


def test_nobody_joins_before_his_kv_is_there() -> None:
    batch = DecodeBatch(max_seqs=8, kv_tokens=None)
    batch.add(Sequence(0, 10, 3, ready_s=5.0, produced=1))
    assert batch.next_start_s(free_s=1.0) == 5.0
    assert batch.admit(4.9) == []
    assert len(batch.admit(5.0)) == 1
    assert batch.next_start_s(free_s=6.0) == 6.0


def test_a_dropped_sequence_gives_its_kv_back() -> None:
    batch = DecodeBatch(max_seqs=1, kv_tokens=20)
    batch.add(Sequence(0, 10, 5, produced=1))
    batch.add(Sequence(1, 10, 5, produced=1))
    batch.admit(0.0)
    batch.drop(0)
    assert [s.request for s in batch.admit(0.0)] == [1]
    batch.drop(1)
    assert batch.reserved == 0
    assert batch.drop(7) is None


def test_chunks_take_what_decodes_leave_and_one_prompt_is_partial() -> None:
    batch = MixedBatch(max_seqs=8, kv_tokens=None, token_budget=10)
    for request, tokens in enumerate((6, 9, 3)):
        batch.add(Sequence(request, tokens, 4))
    first = batch.plan(0.0)
    assert [(c.sequence.request, c.start, c.stop) for c in first.chunks] == [(0, 0, 6), (1, 0, 4)]
    batch.stepped(first)
    second = batch.plan(1.0)
    assert [s.request for s in second.decodes] == [0]
    assert [(c.sequence.request, c.start, c.stop) for c in second.chunks] == [(1, 4, 9), (2, 0, 3)]
    assert sum(c.stop - c.start for c in second.chunks) <= 10 - len(second.decodes)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(
    st.lists(st.tuples(st.integers(1, 30), st.integers(1, 6)), min_size=1, max_size=12),
    st.integers(1, 5),
    st.integers(1, 25),
)
def test_every_mixed_sequence_gets_all_its_tokens(sizes, max_seqs: int, budget: int) -> None:
    budget = max(budget, max_seqs + 1)
    batch = MixedBatch(max_seqs, kv_tokens=40, token_budget=budget)
    for request, (tokens, output) in enumerate(sizes):
        batch.add(Sequence(request, tokens, output))
    produced = [0] * len(sizes)
    prefilled = [0] * len(sizes)
    while batch.next_start_s(0.0) is not None:
        step = batch.plan(0.0)
        assert len(step.decodes) + sum(c.stop - c.start for c in step.chunks) <= budget
        assert len(batch.admitted) <= max_seqs
        assert sum(not c.last for c in step.chunks) <= 1
        for sequence in step.decodes:
            produced[sequence.request] += 1
        for chunk in step.chunks:
            assert chunk.start == prefilled[chunk.sequence.request]
            prefilled[chunk.sequence.request] = chunk.stop
            produced[chunk.sequence.request] += chunk.last
        batch.stepped(step)
    assert prefilled == [tokens for tokens, _ in sizes]
    assert produced == [output for _, output in sizes]


@given(st.lists(st.integers(1, 400), max_size=40))
def test_passes_hold_every_prompt_once_and_little_padding(lengths: list[int]) -> None:
    groups = passes(lengths)
    assert sorted(place for group in groups for place in group) == list(range(len(lengths)))
    for group in groups:
        spans = [lengths[place] for place in group]
        assert max(spans) * len(spans) - sum(spans) <= PASS_TOKENS


def test_prompts_of_one_length_are_one_pass() -> None:
    assert passes([96] * 8) == [list(range(8))]
    assert passes([]) == []
    assert passes([80, 150, 80]) == [[1], [0, 2]]
