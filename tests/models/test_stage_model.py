"""The split answers what generate() answers: alone, batched, chunked, and after a journey."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from has.errors import InputError
from has.models.media import decode_media
from has.models.names import BUNDLED
from has.models.stage_model import ChunkInput, Prefilled, PromptInput, StageModel, load_stage_model
from has.models.synthetic import synthetic_media
from has.models.text import chat_prompt
from tests.models.cases import Case, answer_alone, case, generate, loaded

RAGGED = [("What is it?", (64,)), ("Say more about both of these, please:", (64, 130)), ("Hm", (200,))]


def ragged(model: StageModel) -> list[Case]:
    return [case(model, index, text, sizes) for index, (text, sizes) in enumerate(RAGGED)]


def test_split_is_generate(model: StageModel) -> None:
    for request in ragged(model):
        assert answer_alone(model, request, 16) == generate(model, request, 16)


def test_text_only_prompt_is_generate(model: StageModel) -> None:
    ids, _ = chat_prompt([{"role": "user", "content": "no picture at all"}])
    assert answer_alone(model, Case([], ids), 24) == generate(model, Case([], ids), 24)


def test_still_image_on_the_video_model_is_generate() -> None:
    model = loaded("tiny-video")
    item = decode_media("image", synthetic_media("image", "tiny-video", 3, tokens=100), "tiny-video")
    ids, _ = chat_prompt([{"role": "user", "content": [{"type": "image"}]}], [item.tokens])
    tensor = torch.tensor([ids])
    reference = model.family.model.generate(
        input_ids=tensor,
        attention_mask=torch.ones_like(tensor),
        pixel_values=torch.from_numpy(item.arrays["pixels"]),
        image_grid_thw=torch.tensor([item.grid[1:4]]),
        mm_token_type_ids=torch.isin(tensor, torch.tensor(sorted(model.family.placeholders))).int(),
        max_new_tokens=24,
        do_sample=False,
    )[0, len(ids) :].tolist()
    assert answer_alone(model, Case([item], ids), 24) == reference


def test_image_and_video_in_one_prompt() -> None:
    """Both modalities in one encode call come back in the order they were given."""
    model = loaded("tiny-video")
    kinds = ["video", "image", "video"]
    media = [
        decode_media(kind, synthetic_media(kind, "tiny-video", place), "tiny-video")
        for place, kind in enumerate(kinds)
    ]
    together = model.encode(media)
    for item, embedding in zip(media, together, strict=True):
        torch.testing.assert_close(embedding, model.encode([item])[0], rtol=1e-4, atol=1e-4)
    ids, order = chat_prompt(
        [{"role": "user", "content": [{"type": kind} for kind in kinds]}], [item.tokens for item in media]
    )
    assert order == kinds
    assert len(set(answer_alone(model, Case(media, ids), 24))) > 5


def test_answers_are_lively_and_media_matter(model: StageModel) -> None:
    one, other = case(model, 1), case(model, 2)
    assert one.ids == other.ids
    first, second = answer_alone(model, one, 32), answer_alone(model, other, 32)
    assert first != second
    assert len(set(first)) > 10
    logits = [model.prefill([request.prompt(model)])[0].logits for request in (one, other)]
    assert (logits[0] - logits[1]).abs().max() > 0.1


def test_batched_encode_is_each_alone(model: StageModel) -> None:
    media = [item for request in ragged(model) for item in request.media]
    together = model.encode(media)
    assert [tuple(e.shape) for e in together] == [(item.tokens, model.width) for item in media]
    for item, embedding in zip(media, together, strict=True):
        torch.testing.assert_close(embedding, model.encode([item])[0], rtol=1e-4, atol=1e-4)


def test_batched_prefill_is_each_alone(model: StageModel) -> None:
    prompts = [request.prompt(model) for request in ragged(model)]
    for prompt, batched in zip(prompts, model.prefill(prompts), strict=True):
        alone = model.prefill([prompt])[0]
        assert batched.next_position == alone.next_position
        assert batched.kv.shape == (*model.kv_shape[:3], len(prompt.ids), model.kv_shape[3])
        assert batched.kv.is_contiguous()
        torch.testing.assert_close(batched.kv, alone.kv, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(batched.logits, alone.logits, rtol=1e-4, atol=1e-4)
        assert batched.logits.argmax() == alone.logits.argmax()


def test_ragged_decode_is_generate(model: StageModel) -> None:
    requests = ragged(model)
    references = [generate(model, request, 16) for request in requests]
    slots = model.slots(4, 512)
    out = []
    for slot, first in enumerate(model.prefill([request.prompt(model) for request in requests])):
        slots.load(slot, first.kv, first.next_position)
        out.append([int(first.logits.argmax())])
    while len(out[0]) < 16:
        logits = slots.step(range(len(out)), [tokens[-1] for tokens in out])
        for tokens, row in zip(out, logits, strict=True):
            tokens.append(int(row.argmax()))
    assert out == references


@pytest.mark.parametrize("chunk", [3, 17, 64])
def test_chunked_prefill_is_whole(model: StageModel, chunk: int) -> None:
    prompt = case(model, 4, "chunks", (50,)).prompt(model)
    whole = model.prefill([prompt])[0]
    kv = None
    for start in range(0, len(prompt.ids), chunk):
        stop = min(start + chunk, len(prompt.ids))
        piece = model.prefill_chunk([ChunkInput(prompt, start, stop, kv)])[0]
        kv = piece.kv
        assert kv.shape[3] == stop
    assert piece.next_position == whole.next_position
    torch.testing.assert_close(piece.kv, whole.kv, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(piece.logits, whole.logits, rtol=1e-4, atol=1e-4)


def test_chunks_of_different_depth_in_one_pass(model: StageModel) -> None:
    prompts = [request.prompt(model) for request in ragged(model)]
    spans = [(0, 30), (50, 97), (10, len(prompts[2].ids))]
    chunks = []
    for prompt, (start, stop) in zip(prompts, spans, strict=True):
        kv = model.prefill_chunk([ChunkInput(prompt, 0, start)])[0].kv if start else None
        chunks.append(ChunkInput(prompt, start, stop, kv))
    for chunk, together in zip(chunks, model.prefill_chunk(chunks), strict=True):
        alone = model.prefill_chunk([ChunkInput(chunk.prompt, 0, chunk.stop)])[0]
        torch.testing.assert_close(together.kv, alone.kv, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(together.logits, alone.logits, rtol=1e-4, atol=1e-4)


def test_everything_that_travels_survives_it(model: StageModel) -> None:
    """Media, embeddings and KV go through bytes, as between processes; the answer stays the same."""
    request = case(model, 5)
    media = pickle.loads(pickle.dumps(request.media))
    embeddings = [torch.from_numpy(e.numpy().copy()) for e in model.encode(media)]
    first = model.prefill([PromptInput(request.ids, embeddings, [item.grid for item in media])])[0]
    raw = bytearray(first.kv.numpy().tobytes())
    assert len(raw) == len(request.ids) * model.kv_bytes_per_token
    kv = torch.frombuffer(raw, dtype=torch.float32).reshape(first.kv.shape)
    slots = model.slots(2, 256)
    slots.load(1, kv, first.next_position)
    out = [int(first.logits.argmax())]
    while len(out) < 24:
        out.append(int(slots.step([1], [out[-1]])[0].argmax()))
    assert out == generate(model, request, 24)


LENGTH = 7


@cache
def five_sequences() -> tuple[list[Prefilled], list[list[int]]]:
    """What five prompts of different lengths prefill to, and their answers alone."""
    model = loaded("tiny-image")
    prompts = [PromptInput([20 + 7 * i % 200] * (3 + 5 * i)) for i in range(5)]
    return model.prefill(prompts), [answer_alone(model, Case([], list(p.ids)), LENGTH) for p in prompts]


@settings(max_examples=8, deadline=None, derandomize=True)
@given(st.data())
def test_slots_in_any_order_of_coming_and_going(data: st.DataObject) -> None:
    """Loading, stepping any subset in any order and freeing never change what a sequence is told."""
    model = loaded("tiny-image")
    firsts, references = five_sequences()
    slots = model.slots(3, 64)
    free, running, waiting = [0, 1, 2], {}, list(range(5))
    while waiting or running:
        if waiting and free and (not running or data.draw(st.booleans())):
            slot = free.pop(data.draw(st.integers(0, len(free) - 1)))
            sequence = waiting.pop(0)
            slots.load(slot, firsts[sequence].kv, firsts[sequence].next_position)
            running[slot] = (sequence, [int(firsts[sequence].logits.argmax())])
            continue
        chosen = data.draw(st.lists(st.sampled_from(sorted(running)), min_size=1, unique=True))
        logits = slots.step(chosen, [running[slot][1][-1] for slot in chosen])
        for slot, row in zip(chosen, logits, strict=True):
            sequence, tokens = running[slot]
            tokens.append(int(row.argmax()))
            if len(tokens) == LENGTH:
                assert tokens == references[sequence]
                slots.free(slot)
                del running[slot]
                free.append(slot)
    assert slots.active == []


def test_a_slot_gives_back_the_kv_it_was_given(image_model: StageModel) -> None:
    first = image_model.prefill([PromptInput([30, 31, 32])])[0]
    slots = image_model.slots(2, 8)
    slots.load(1, first.kv, first.next_position)
    assert torch.equal(slots.kv(1), first.kv)
    assert (slots.length(1), slots.next_position(1)) == (3, 3)


def test_slots_refuse_what_cannot_be(image_model: StageModel) -> None:
    first = image_model.prefill([PromptInput([30, 31, 32])])[0]
    slots = image_model.slots(1, 4)
    with pytest.raises(ValueError, match="not one of"):
        slots.load(1, first.kv, 3)
    slots.load(0, first.kv, 3)
    with pytest.raises(ValueError, match="taken"):
        slots.load(0, first.kv, 3)
    with pytest.raises(ValueError, match="different slots"):
        slots.step([0, 0], [5, 5])
    slots.step([0], [5])
    with pytest.raises(ValueError, match="full"):
        slots.step([0], [5])
    slots.free(0)
    with pytest.raises(ValueError, match="no room"):
        slots.load(0, torch.zeros(5, 2, 4, 4, 48), 4)
    assert slots.step([], []).shape == (0, image_model.vocab_size)


def test_prompt_and_embeddings_must_fit(image_model: StageModel) -> None:
    ids, _ = chat_prompt([{"role": "user", "content": [{"type": "image"}]}], [64])
    with pytest.raises(InputError, match="64 media placeholders but 0"):
        image_model.prefill([PromptInput(ids)])
    with pytest.raises(InputError, match="longer than the model's context"):
        image_model.prefill([PromptInput([20] * 8193)])
    with pytest.raises(ValueError, match="needs the KV"):
        image_model.prefill_chunk([ChunkInput(PromptInput([20] * 4), 2, 4)])
    with pytest.raises(ValueError, match="chunk"):
        image_model.prefill([PromptInput([])])


def test_numbers_a_planner_needs(model: StageModel) -> None:
    parameters = sum(p.numel() * p.element_size() for p in model.family.model.parameters())
    assert sum(model.weights_bytes.values()) == parameters
    assert model.weights_bytes["encoder"] > 10e6
    layers, two, heads, head_dim = model.kv_shape
    assert model.kv_bytes_per_token == layers * two * heads * head_dim * 4
    kv = model.prefill([PromptInput([20, 21])])[0].kv
    assert kv.numel() * kv.element_size() == 2 * model.kv_bytes_per_token
    assert model.eos is None
    assert model.max_positions >= 2048


def test_weights_come_from_name_and_seed() -> None:
    def weights(name: str, seed: int) -> torch.Tensor:
        return load_stage_model(name, seed=seed).family.embed.weight

    assert torch.equal(weights("tiny-image", 0), loaded("tiny-image").family.embed.weight)
    assert not torch.equal(weights("tiny-image", 0), weights("tiny-image", 1))
    assert weights("tiny-image", 0)[100, 0].item() == pytest.approx(PINNED, abs=1e-6)


PINNED = 0.23574167
"""One weight as a number: saved answers and profiles stay valid only while it does not move."""


def test_unknown_model_is_refused() -> None:
    with pytest.raises(InputError, match="no such model"):
        load_stage_model("tiny-smell")
    assert set(BUNDLED) == {"tiny-image", "tiny-video", "tiny-audio"}


def test_encode_and_prefill_overlap_in_two_threads(model: StageModel) -> None:
    """As on a GPU that two stages share: results are those of each alone, whatever runs beside."""
    request, other = case(model, 6), case(model, 7)
    prompt = request.prompt(model)
    embedding, first = model.encode(other.media)[0], model.prefill([prompt])[0]
    with ThreadPoolExecutor(2) as pool:
        for _ in range(6):
            encoding = pool.submit(model.encode, other.media)
            prefilling = pool.submit(model.prefill, [prompt])
            assert torch.equal(encoding.result()[0], embedding)
            assert torch.equal(prefilling.result()[0].logits, first.logits)
            assert torch.equal(prefilling.result()[0].kv, first.kv)
