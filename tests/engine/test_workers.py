"""The gateway over vLLM's protocol: what is asked of whom, and what happens when an instance fails."""

from __future__ import annotations

import asyncio
import io
from collections import Counter
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import has.engine.vllm.watch as watch_module
import has.engine.vllm.workers as workers_module
import has.gateway.service as service_module
from has.core.deployment import Deployment
from has.engine.vllm.language import TEMPLATE_TOKENS, EngineLanguage
from has.engine.vllm.urls import Urls
from has.engine.vllm.workers import EngineWorkers
from has.errors import HasError
from has.gateway.errors import BadRequest, Interrupted, Refused, Unavailable
from has.gateway.job import Job, MediaBytes
from has.gateway.port import Back, Lost
from has.gateway.scheduler import Scheduler
from has.gateway.service import Service
from has.models.tokens import token_rule
from tests.engine.fake_vllm import FakeVllm


def png(width: int = 224, height: int = 224) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (width, height)).save(out, "PNG")
    return out.getvalue()


def deployment(
    encode: int = 1, prefill: int = 1, decode: int = 1, batch: int = 1, **fields: Any
) -> Deployment:
    return Deployment.model_validate(
        {
            "version": 1,
            "model": "tiny",
            "topology": "disaggregated",
            "gpus": encode + prefill + decode,
            "alloc": {"encode": encode, "prefill": prefill, "decode": decode},
            "encode_batch": batch,
            "prefill_offload": 1.0,
            "max_wait_ms": 20.0,
            "dispatch": "round_robin",
            "slo": {"ttft_ms": 2000.0, "tpot_ms": 200.0},
            **fields,
        }
    )


class Running:
    """A service over fake instances, inside a running loop."""

    def __init__(
        self,
        fake: FakeVllm,
        plan: Deployment,
        *,
        budget: int | None = None,
        max_queue: int | None = None,
        kv_tokens: int | None = None,
    ) -> None:
        names = {
            pool: tuple(f"http://{pool[0]}{i}" for i in range(plan.alloc[pool])) for pool in plan.alloc.pools
        }
        language = EngineLanguage("tiny")
        span = plan.local_prefill_span
        locals_ = plan.alloc["encode"] // span if plan.offload_fraction < 1 else 0
        self.workers = EngineWorkers(
            Urls(
                encode=names["encode"],
                local_prefill=tuple(f"http://l{i}" for i in range(locals_)),
                prefill=names["prefill"],
                decode=names["decode"],
                span=span,
            ),
            language,
            model="tiny",
            rule=token_rule("qwen2.5-vl"),
            encoder_budget=budget,
            ec_dir=fake.ec_dir,
            connections=fake,
        )
        scheduler = Scheduler(
            plan,
            media_rate=5.0,
            kv_tokens=kv_tokens,
            max_queue=max_queue,
            backpressure=True,
            continuous=True,
        )
        self.service = Service(scheduler, self.workers, model="tiny", max_model_len=512, language=language)

    async def ask(
        self,
        images: int = 1,
        tokens: int | None = 3,
        size: tuple[int, int] = (224, 224),
        prompt: str = "what?",
    ) -> tuple[str, int, str]:
        """(text, prompt tokens, finish reason)."""
        media = tuple(MediaBytes("image", png(*size), "image/png", param="messages.0") for _ in range(images))
        asked = await self.service.submit(Job(prompt, media, max_tokens=tokens))
        async with aclosing(asked):
            events = [e async for e in asked]
        return "".join(e.text for e in events), events[-1].prompt_tokens, events[-1].finish_reason or ""

    async def close(self) -> None:
        self.service.stop("over")
        await self.workers.aclose()


def run(fake: FakeVllm, plan: Deployment, what, **options):  # type: ignore[no-untyped-def]
    async def main():  # type: ignore[no-untyped-def]
        running = Running(fake, plan, **options)
        try:
            async with asyncio.timeout(20):
                return await what(running)
        finally:
            await running.close()

    return asyncio.run(main())


def test_a_request_goes_through_all_stages() -> None:
    fake = FakeVllm()
    text, prompt_tokens, finish = run(fake, deployment(), lambda r: r.ask(images=2))
    assert (text, prompt_tokens, finish) == ("t0 t1 t2 ", 77, "length")
    assert len(fake.encoded) == 2
    assert fake.seen["d0"][0]["return_token_ids"]


def test_text_alone_passes_no_encoder() -> None:
    fake = FakeVllm()
    assert run(fake, deployment(), lambda r: r.ask(images=0))[0] == "t0 t1 t2 "
    assert not fake.seen["e0"]


def test_one_token_is_prefills_alone() -> None:
    fake = FakeVllm()
    assert run(fake, deployment(), lambda r: r.ask(tokens=1))[0] == "t0 "
    assert not fake.seen["d0"]


def test_no_two_requests_share_a_name() -> None:
    """An image sent twice is encoded twice: nothing is ever another request's."""
    fake = FakeVllm()
    run(fake, deployment(), lambda r: asyncio.gather(r.ask(), r.ask()))
    assert len(fake.encoded) == 2


def test_batches_are_bounded_by_b_at_the_encoder() -> None:
    fake = FakeVllm()

    async def flood(running: Running) -> None:
        most = 0
        original = running.workers.execute

        def execute(command):  # type: ignore[no-untyped-def]
            nonlocal most
            if type(command).__name__ == "Encode":
                most = max(most, len(command.requests))
            original(command)

        running.workers.execute = execute  # type: ignore[method-assign]
        await asyncio.gather(*(running.ask() for _ in range(20)))
        assert most == 4

    run(fake, deployment(batch=4), flood)


@pytest.mark.parametrize("host", ["e0", "p0", "d0"])
def test_a_dead_instance_before_the_first_token_is_not_seen(host) -> None:
    fake = FakeVllm()
    fake.dead.add(host)
    plan = deployment(encode=2, prefill=2, decode=2)
    answers = run(fake, plan, lambda r: asyncio.gather(*(r.ask() for _ in range(6))))
    assert [text for text, *_ in answers] == ["t0 t1 t2 "] * 6


@pytest.mark.parametrize("host", ["e0", "p0", "d0"])
def test_an_engine_that_answers_500_for_ever_is_dead(host) -> None:
    fake = FakeVllm()
    fake.broken.add(host)
    plan = deployment(encode=2, prefill=2, decode=2)
    answers = run(fake, plan, lambda r: asyncio.gather(*(r.ask() for _ in range(6))))
    assert [text for text, *_ in answers] == ["t0 t1 t2 "] * 6


@pytest.mark.parametrize("host", ["e0", "p0", "d0"])
def test_a_hiccup_is_tried_once_more(host) -> None:
    fake = FakeVllm()
    fake.fail_once.add(host)
    assert run(fake, deployment(), lambda r: r.ask())[0] == "t0 t1 t2 "


def test_kv_that_died_with_its_prefill_is_made_anew() -> None:
    """Decode is well, and fails: what it was promised is gone. Before the first token that is nobody's concern."""
    fake = FakeVllm()
    fake.die_after_prefill.add("p0")
    answers = run(fake, deployment(prefill=2), lambda r: asyncio.gather(*(r.ask() for _ in range(6))))
    assert [text for text, *_ in answers] == ["t0 t1 t2 "] * 6


@pytest.mark.parametrize("tokens", [2, 3])
def test_kv_of_an_instance_that_was_started_anew_meanwhile(tokens) -> None:
    """It is well whenever anybody looks, and knows of nothing."""
    fake = FakeVllm()
    fake.forget["p0"] = 1
    text, _, finish = run(fake, deployment(), lambda r: r.ask(tokens=tokens))
    assert (text, finish) == (" ".join(f"t{i}" for i in range(tokens)) + " ", "length")
    assert [len(fake.seen[host]) for host in ("e0", "p0", "d0")] == [2, 2, 3], "from the start, once"


def test_a_request_that_always_fails_is_not_tried_for_ever() -> None:
    fake = FakeVllm()
    fake.forget["p0"] = 100

    async def main(running: Running) -> None:
        with pytest.raises(Interrupted, match="no such KV"):
            await running.ask()
        assert len(fake.seen["d0"]) == 4, "twice on the spot, and as often from the start"
        fake.forget.clear()
        assert (await running.ask())[0] == "t0 t1 t2 ", "and its worker serves the next"

    run(fake, deployment(), main)


def test_a_prefill_that_fails_starts_over_with_its_embeddings() -> None:
    """Of one token, which prefill brings: it stays one."""
    fake = FakeVllm()
    fake.fail_times["p0"] = 2
    assert run(fake, deployment(), lambda r: r.ask(tokens=1))[0] == "t0 "
    assert not fake.seen["d0"]
    assert len(fake.seen["e0"]) == 2


def test_dying_after_tokens_were_sent_is_an_error() -> None:
    """Never silence, and never an answer begun twice."""
    fake = FakeVllm()
    fake.die_after["d0"] = 2
    with pytest.raises(Interrupted, match="after 2 tokens"):
        run(fake, deployment(), lambda r: r.ask(tokens=5))


@pytest.mark.parametrize("host", ["e0", "p0", "d0"])
def test_what_an_engine_aborts_before_the_first_token_is_tried_once_more(host) -> None:
    """One that is paused or ends gracefully says 200 and ends what it has not finished."""
    fake = FakeVllm()
    fake.abort[host] = 0
    text, _, finish = run(fake, deployment(), lambda r: r.ask())
    assert (text, finish) == ("t0 t1 t2 ", "length")
    assert len(fake.seen[host]) == 2


def test_a_single_token_that_was_aborted_is_none() -> None:
    fake = FakeVllm()
    fake.abort["p0"] = 0
    assert run(fake, deployment(), lambda r: r.ask(tokens=1))[0] == "t0 "


def test_an_abort_after_tokens_were_sent_is_an_error() -> None:
    """Never a cut answer that says it is whole."""
    fake = FakeVllm()
    fake.abort["d0"] = 2
    with pytest.raises(Interrupted, match=r"the engine ended it .abort."):
        run(fake, deployment(), lambda r: r.ask(tokens=5))


@pytest.mark.parametrize("host", ["e0", "p0", "d0"])
def test_what_an_engine_refuses_is_the_clients(host) -> None:
    fake = FakeVllm()
    fake.refuse[host] = "at most 2 images"
    with pytest.raises(BadRequest, match="at most 2 images"):
        run(fake, deployment(), lambda r: r.ask())


def test_an_item_beyond_the_encoder_budget_is_refused_by_the_knobs_name() -> None:
    """F12: an image of 6,042 tokens, encoder budget 4,800."""
    fake = FakeVllm()
    with pytest.raises(BadRequest, match="max_num_batched_tokens = 4800"):
        run(fake, deployment(), lambda r: r.ask(size=(3000, 1600)), budget=4800)
    assert not fake.seen["e0"], "refused before any engine saw it"
    assert token_rule("qwen2.5-vl").image(3000, 1600) > 4800


def test_of_200_at_once_every_one_is_answered_or_refused() -> None:
    """F10: 200 requests at once; not one may be lost, also while an instance dies under them."""
    fake = FakeVllm()
    fake.die_after["d0"] = 1

    async def flood(running: Running) -> list[str]:
        async def one() -> str:
            try:
                return (await running.ask())[0]
            except Refused:
                return "refused"
            except HasError:
                return "error"

        return list(await asyncio.gather(*(one() for _ in range(200))))

    outcomes = run(fake, deployment(decode=2, batch=4), flood, max_queue=150)
    assert len(outcomes) == 200
    assert set(outcomes) <= {"t0 t1 t2 ", "refused", "error"}
    assert outcomes.count("refused") == 50
    assert outcomes.count("t0 t1 t2 ") >= 100


def test_an_instance_that_comes_back_is_used_again(monkeypatch) -> None:
    monkeypatch.setattr(watch_module, "HEALTH_S", 0.01)
    fake = FakeVllm()
    fake.dead.add("e0")

    async def main(running: Running) -> None:
        while not running.workers.watch.lost:
            await asyncio.sleep(0.01)
        fake.dead.clear()
        while running.workers.watch.lost:
            await asyncio.sleep(0.01)
        assert (await running.ask())[0] == "t0 t1 t2 "

    run(fake, deployment(), main)


def test_a_worker_of_two_instances_is_back_when_both_are_well(monkeypatch) -> None:
    """An encoder that is well does not bring back what lost its local prefill; nor is that said again and again."""
    monkeypatch.setattr(watch_module, "HEALTH_S", 0.01)
    fake = FakeVllm()
    fake.dead |= {"l0"}
    heard: list[Any] = []

    async def main(running: Running) -> None:
        handle = running.workers._handle
        running.workers.listen(lambda event: (heard.append(event), handle(event)))  # type: ignore[func-returns-value]
        while not heard:
            await asyncio.sleep(0.01)
        fake.dead |= {"e0"}
        while len(heard) < 3:
            await asyncio.sleep(0.01)
        fake.dead -= {"l0"}
        while running.workers.watch.lost[("encode", 0)] != {"http://e0"}:
            await asyncio.sleep(0.01)
        assert not any(isinstance(event, Back) and event.worker == 0 for event in heard)
        fake.dead.clear()
        while running.workers.watch.lost:
            await asyncio.sleep(0.01)
        assert (await running.ask())[0] == "t0 t1 t2 "

    run(fake, deployment(encode=2, prefill_offload=0.5, tensor_parallel={"local_prefill": 2}), main)
    told = Counter((type(event), event.worker) for event in heard if isinstance(event, Lost | Back))
    assert told == {(Lost, 0): 2, (Lost, 1): 1, (Back, 0): 1, (Back, 1): 1}
    lost = {event.reason.rpartition(" at ")[2] for event in heard if isinstance(event, Lost)}
    assert lost == {"http://l0", "http://e0"}, "each is said, so that each is started anew"


@pytest.mark.parametrize("host", ["e0", "p0", "d0"])
@pytest.mark.parametrize(
    "answer",
    ["no JSON", "[]", '{"choices": 5, "ec_transfer_params": [1]}', "data: {no JSON\n\n", "data: [1]\n\n"],
)
def test_an_answer_that_cannot_be_read_is_an_error(host, answer) -> None:
    """Never silence; and the worker serves the next."""
    fake = FakeVllm()
    fake.garbled[host] = answer

    async def main(running: Running) -> None:
        with pytest.raises(Interrupted):
            await running.ask()
        fake.garbled.clear()
        assert (await running.ask())[0] == "t0 t1 t2 "

    run(fake, deployment(), main)


@pytest.mark.parametrize("host", ["e0", "p0", "d0"])
def test_an_instance_that_does_not_come_back_keeps_no_request_waiting(host, monkeypatch) -> None:
    monkeypatch.setattr(service_module, "REPLACED_S", 0.05)
    monkeypatch.setattr(service_module, "LOOK_S", 0.02)
    fake = FakeVllm()
    fake.dead.add(host)

    async def main(running: Running) -> None:
        with pytest.raises(Unavailable, match="no living worker for") as caught:
            await running.ask()
        assert caught.value.retry_after_s == 1.0
        assert not running.service.scheduler.tickets

    run(fake, deployment(), main)


def test_decode_that_cannot_keep_up_is_told_of_by_429() -> None:
    """Requests that prefill has done and decode has not begun still await their first token."""
    fake = FakeVllm()
    fake.delay_s["d0"] = 60.0

    async def main(running: Running) -> None:
        waiting = [asyncio.create_task(running.ask()) for _ in range(3)]
        while len(fake.seen["d0"]) < 3:
            await asyncio.sleep(0.01)
        assert running.service.state().waiting == 3
        with pytest.raises(Refused):
            await running.ask()
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    run(fake, deployment(), main, max_queue=3)


@pytest.mark.parametrize(("tokens", "images"), [(None, 0), (None, 1), (3, 0), (3, 1)])
@pytest.mark.parametrize("kv_tokens", [None, 300])
def test_no_request_is_refused_for_an_estimate_of_its_text(tokens, images, kv_tokens) -> None:
    """Four bytes a token is too much for some text: here 900 tokens are estimated where the context holds 512."""
    fake = FakeVllm()
    asked = run(
        fake, deployment(), lambda r: r.ask(images, tokens=tokens, prompt="x" * 3600), kv_tokens=kv_tokens
    )
    assert asked == ("t0 t1 t2 ", 77, "length")


@pytest.mark.parametrize("tokens", [None, 3])
def test_what_media_and_the_answer_alone_need_is_refused_before_an_engine_is_asked(tokens) -> None:
    fake = FakeVllm()
    with pytest.raises(BadRequest, match="the context holds 512") as caught:
        run(fake, deployment(), lambda r: r.ask(images=8, tokens=tokens))
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(BadRequest, match="600 output tokens are asked for"):
        run(fake, deployment(), lambda r: r.ask(images=0, tokens=600))
    with pytest.raises(BadRequest, match="131073 characters"):  # of 256 a token
        run(fake, deployment(), lambda r: r.ask(images=0, tokens=tokens, prompt="x" * 131_073))
    assert not fake.seen


@pytest.mark.parametrize("left", [1, 2, 40])
def test_an_answer_without_a_bound_is_as_long_as_the_engine_makes_it(left) -> None:
    """What an estimate of the prompt leaves of the context cuts no answer, and loses none that it leaves one token."""
    fake = FakeVllm()
    prompt = "x" * 4 * (512 - TEMPLATE_TOKENS - 64 - left)
    text, _, finish = run(fake, deployment(), lambda r: r.ask(tokens=None, prompt=prompt))
    assert (text, finish) == ("t0 t1 t2 ", "length")


def test_embeddings_of_a_finished_request_are_removed(tmp_path) -> None:
    fake = FakeVllm()
    fake.ec_dir = tmp_path

    async def main(running: Running) -> None:
        await running.ask(images=2)
        assert len(fake.encoded) == 2
        assert list(tmp_path.iterdir()) == []

    run(fake, deployment(), main)


async def asked_to_encode(fake: FakeVllm, running: Running) -> asyncio.Task[tuple[str, int, str]]:
    """A request whose encoder has begun, and takes for ever."""
    fake.delay_s |= {"e0": 3600.0, "e1": 3600.0}
    asking = asyncio.create_task(running.ask())
    while not fake.seen:
        await asyncio.sleep(0.01)
    fake.delay_s.clear()
    return asking


def test_embeddings_written_after_the_client_left_are_swept(tmp_path, monkeypatch) -> None:
    """And the encoder that was at them lives: nothing was taken away under it."""
    monkeypatch.setattr(workers_module, "SWEEP_S", 0.01)
    fake = FakeVllm()
    fake.ec_dir = tmp_path

    async def main(running: Running) -> None:
        asking = await asked_to_encode(fake, running)
        asking.cancel()
        while not fake.saved or list(tmp_path.iterdir()):
            await asyncio.sleep(0.01)
        assert not fake.dead
        assert (await running.ask())[0] == "t0 t1 t2 "

    run(fake, deployment(), main)


def test_embeddings_of_an_attempt_that_was_given_up_are_swept(tmp_path, monkeypatch) -> None:
    """The request lives on under other names."""
    monkeypatch.setattr(workers_module, "SWEEP_S", 0.01)
    fake = FakeVllm()
    fake.ec_dir = tmp_path

    async def main(running: Running) -> None:
        asking = await asked_to_encode(fake, running)
        (host,) = fake.seen
        running.workers.watch.lose("encode", int(host[1]), f"http://{host}", "no connection")
        assert (await asking)[0] == "t0 t1 t2 "
        assert fake.saved == 2, "of both attempts"
        while list(tmp_path.iterdir()):
            await asyncio.sleep(0.01)

    run(fake, deployment(encode=2), main)


def test_the_sweep_spares_what_a_request_or_another_gateway_holds(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(workers_module, "SWEEP_S", 0.01)
    fake = FakeVllm()
    fake.ec_dir = tmp_path
    (tmp_path / "has-01234567-1-0-0").mkdir()

    async def main(running: Running) -> None:
        looks, glob = 0, Path.glob

        def counted(folder: Path, pattern: str) -> Iterator[Path]:
            nonlocal looks
            looks += folder == tmp_path
            return glob(folder, pattern)

        monkeypatch.setattr(Path, "glob", counted)
        asking = await asked_to_encode(fake, running)
        while looks < 5:
            await asyncio.sleep(0.01)
        assert len(list(tmp_path.iterdir())) == 2
        asking.cancel()
        while len(list(tmp_path.iterdir())) == 2:
            await asyncio.sleep(0.01)
        await running.close()
        assert not [task for task in asyncio.all_tasks() if "_sweep" in repr(task)], "it ends with the rest"

    run(fake, deployment(), main)
    assert [entry.name for entry in tmp_path.iterdir()] == ["has-01234567-1-0-0"]


def test_media_of_one_request_are_encoded_by_idle_encoders_at_once() -> None:
    fake = FakeVllm()
    plan = deployment(encode=2).model_copy(update={"encode_fanout": 2})
    assert run(fake, plan, lambda r: r.ask(images=2))[0] == "t0 t1 t2 "
    assert [len(fake.seen[host]) for host in ("e0", "e1")] == [1, 1]
    assert len(fake.encoded) == 2


def test_an_answer_is_read_to_its_end() -> None:
    """One that is left at its last token closes the connection: a new one for every request, and an abort in the engine."""
    fake = FakeVllm()

    async def main(running: Running) -> None:
        await running.ask()
        while not fake.read_to_end:
            await asyncio.sleep(0.01)

    run(fake, deployment(), main)
    assert fake.read_to_end == {"d0": 1}
