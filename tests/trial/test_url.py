"""`has bench`: real requests over a real socket to a server that answers from a queue."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import io
import json

import numpy as np
import pytest
from PIL import Image

from has.core.records import COMPLETED, FAILED, NEVER, REFUSED
from has.core.requests import Requests
from has.core.slo import Slo
from has.errors import HasError, InputError, RunError
from has.gateway.errors import Refused
from has.gateway.http import create_app
from has.gateway.job import TokenEvent
from has.models.media import decode_media
from has.trial.payload import BUNDLED_WRITER, Payloads, Writer, size_model
from has.trial.url import api_root, bench_url
from tests.gateway.queue_service import MODEL, QueueService, serving

SLO = Slo(ttft_ms=30_000, tpot_ms=10_000)


def requests(
    count: int, *, modality="text", gap_s=0.002, items=1, media_tokens=64, prompt_tokens=30, output_tokens=5
) -> Requests:
    media = modality != "text"
    return Requests.from_rows(
        {
            "arrival_s": 7.0 + i * gap_s,
            "modality": modality,
            "items": items if media else 0,
            "media_tokens": media_tokens if media else 0,
            "prompt_tokens": prompt_tokens,
            "output_tokens": output_tokens,
        }
        for i in range(count)
    )


def numbered(count: int, **sizes) -> Requests:
    """Requests whose prompts tell them apart: request i has 30 + i tokens."""
    plain = requests(count, **sizes)
    return dataclasses.replace(plain, prompt_tokens=30 + np.arange(count))


class Moody(QueueService):
    """Answers request i of `numbered` ones as `moods` says, all others well."""

    def __init__(self, moods=(), model=MODEL) -> None:
        super().__init__()
        self.model = model
        self.moods = dict(moods)

    async def submit(self, job):
        mood = self.moods.get(len(job.messages[0].text) - (30 - 4), "well")
        if mood == "refuses":
            raise Refused(1.0, "kv")
        return _Answer(await super().submit(job), mood)


class _Answer:
    def __init__(self, tokens, mood) -> None:
        self._tokens, self._mood = tokens, mood

    @property
    def more(self) -> bool:
        return self._tokens.more

    def __aiter__(self):
        return self

    async def __anext__(self) -> TokenEvent:
        if self._mood == "hangs":
            await asyncio.Event().wait()
        if self._mood == "breaks":
            raise RunError("no more")
        event = await self._tokens.__anext__()
        text = {"silent": "", "stutters": "!"}.get(self._mood, event.text)
        return TokenEvent(event.token_id, text, event.index, event.prompt_tokens, event.finish_reason)

    async def aclose(self) -> None:
        await self._tokens.aclose()


def bench(service, wanted, **options):
    with serving(create_app(service)) as url:
        return bench_url(url, wanted, **options)


def test_a_run_and_its_figures():
    service = Moody()
    seen = []
    run = bench(service, requests(20), watch=lambda *state: seen.append(state))
    figures = run.figures(SLO)
    assert (figures["requests"], figures["completed"], figures["failed"], figures["attainment"]) == (
        20,
        20,
        0,
        1.0,
    )
    assert figures["stages"] == {}
    assert figures["ttft_ms"]["mean"] > 0
    assert run.model == MODEL
    assert run.faults == {}
    assert seen[-1] == (20, 20, 20)
    records = run.records
    assert np.all(records.first_token_ns > records.requests.arrival_ns)
    assert np.all(records.finish_ns >= records.first_token_ns)
    assert np.all(np.diff(records.requests.arrival_ns) >= 0)
    assert records.requests.arrival_ns[0] == pytest.approx(run.schedule.late_s[0] * 1e9, abs=2)


def test_answers_have_the_length_that_was_asked_for():
    run = bench(Moody(), requests(5, output_tokens=9))
    assert list(run.records.requests.output_tokens) == [9] * 5


def test_what_goes_wrong_is_a_miss_with_its_reason():
    run = bench(Moody({1: "refuses", 3: "breaks", 5: "silent", 6: "hangs"}), numbered(8), timeout_s=2.0)
    status = list(run.records.status)
    assert status == [COMPLETED, REFUSED, COMPLETED, FAILED, COMPLETED, FAILED, FAILED, COMPLETED]
    assert run.faults == {"429 kv": 1, "500 server_error": 1, "empty answer": 1, "timeout": 1}
    assert run.empty == 1
    figures = run.figures(SLO)
    assert (figures["completed"], figures["failed"], figures["refused"], figures["attainment"]) == (
        4,
        4,
        1,
        0.5,
    )
    assert run.records.first_token_ns[6] == NEVER
    assert len([line for line in run.warnings if "failed" in line]) == 4


def test_answers_that_repeat_one_token_are_told():
    run = bench(Moody({2: "stutters"}), numbered(4, output_tokens=12))
    assert run.monotone == 1
    assert any("repeat one token" in line for line in run.warnings)
    assert list(run.records.status) == [COMPLETED] * 4


@pytest.mark.parametrize(
    ("model", "modality", "tokens"),
    [("tiny-image", "image", 128), ("tiny-video", "video", 64), ("tiny-audio", "audio", 100)],
)
def test_media_are_unique_and_of_the_right_size(model, modality, tokens):
    service = Moody(model=model)
    wanted = requests(4, modality=modality, items=2, media_tokens=2 * tokens, prompt_tokens=40)
    run = bench(service, wanted)
    jobs = service.jobs[1:]
    media = [medium for job in jobs for medium in job.media]
    assert [medium.kind for medium in media] == [modality] * 8
    assert len({medium.data for medium in media}) == 8
    decoded = [decode_media(modality, medium.data, model).tokens for medium in media]
    assert [sum(pair) for pair in zip(decoded[::2], decoded[1::2], strict=True)] == list(
        run.records.requests.media_tokens
    )
    # Two marks around each medium, four of the template, the rest is text: as the bundled models count
    assert {len(job.messages[0].text) for job in jobs} == {40 - 4 - 2 * 2}


def test_a_model_that_is_not_known_gets_media_of_a_stand_in_and_text_by_its_own_count():
    service = Moody(model="someone/else-7b")
    run = bench(service, requests(3, modality="image", media_tokens=300, prompt_tokens=50))
    width, height = Image.open(io.BytesIO(service.jobs[-1].media[0].data)).size
    assert width * height == pytest.approx(300 * 28 * 28, rel=0.2)
    assert run.figures(SLO)["completed"] == 3
    assert len(service.jobs[-1].messages[0].text.split()) == 50  # this server counts words


def test_the_same_seed_sends_the_same():
    sent = []
    for seed in (1, 1, 2):
        service = Moody()
        bench(service, requests(2, modality="image"), seed=seed)
        sent.append([(job.prompt, job.media) for job in service.jobs[1:]])
    assert sent[0] == sent[1]
    assert sent[0] != sent[2]


def test_a_server_that_knows_no_extras_is_asked_without():
    service = Moody()

    async def plain(scope, receive, send):
        app = create_app(service)
        body = b""
        messages = []
        while scope["type"] == "http":
            message = await receive()
            messages.append(message)
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        if b"ignore_eos" in body:
            await send(
                {
                    "type": "http.response.start",
                    "status": 400,
                    "headers": [(b"content-type", b"application/json")],
                }
            )
            await send(
                {"type": "http.response.body", "body": b'{"error": {"message": "unknown field ignore_eos"}}'}
            )
            return

        async def again():
            return messages.pop(0) if messages else await receive()

        await app(scope, again if messages else receive, send)

    with serving(plain) as url:
        run = bench_url(url, requests(3))
    assert run.figures(SLO)["completed"] == 3
    assert not any(job.ignore_eos for job in service.jobs)


def without_models(app):
    """`app`, but with no list of models, and answering what no client can read to every third streamed request."""
    count = 0

    async def odd(scope, receive, send):
        nonlocal count
        if scope["type"] == "http" and scope["path"] == "/v1/models":
            scope = {**scope, "path": "/nowhere", "raw_path": b"/nowhere"}

        async def twisted(message):
            nonlocal count
            if b'"finish_reason":"' in message.get("body", b"") and b"chunk" in message["body"]:
                count += 1
                if count % 3 == 0:
                    message = {**message, "body": b"data: [1]\n\ndata: 5\n\n"}
            await send(message)

        await app(scope, receive, twisted)

    return odd


def test_an_answer_that_the_server_broke_off_is_a_miss():
    def breaking_off(app):
        async def server(scope, receive, send):
            async def twisted(message):
                body = message.get("body", b"").replace(
                    b'"finish_reason":"length"', b'"finish_reason":"abort" '
                )
                await send({**message, "body": body} if "body" in message else message)

            await app(scope, receive, twisted)

        return server

    with serving(breaking_off(create_app(Moody()))) as url:
        run = bench_url(url, requests(3))
    assert run.faults == {"ended by the server (abort)": 3}
    assert run.figures(SLO)["completed"] == 0


class TestWhoIsThere:
    def test_a_server_that_lists_no_models_and_talks_nonsense_at_times(self):
        with serving(without_models(create_app(Moody()))) as url:
            with pytest.raises(InputError):
                bench_url(url, requests(1))
            run = bench_url(url, requests(6), model=MODEL)
        assert run.faults == {"not a chat completion stream": 2}
        assert run.figures(SLO)["completed"] == 4

    def test_nobody(self):
        with pytest.raises(RunError) as caught:
            bench_url("http://127.0.0.1:9", requests(1))
        assert caught.value.mend

    def test_the_wrong_key(self):
        with serving(create_app(Moody(), api_key="sesame")) as url:
            with pytest.raises(InputError, match="key"):
                bench_url(url, requests(1), api_key="wrong")
            assert bench_url(url, requests(1), api_key="sesame").figures(SLO)["completed"] == 1

    def test_a_model_that_is_not_listed(self):
        with serving(create_app(Moody())) as url, pytest.raises(InputError, match="no such model"):
            bench_url(url, requests(1), model="other")

    def test_a_served_name_hides_a_bundled_model(self):
        service = Moody()
        with serving(create_app(service, served_model_names=["mine"])) as url:
            run = bench_url(url, requests(2, modality="image"))
        assert run.model == "mine"
        assert len(service.jobs[-1].messages[0].text) == 30 - 4 - 2

    @pytest.mark.parametrize(
        "url",
        [
            "http://h:1",
            "http://h:1/",
            "h:1",
            "http://h:1/v1",
            "http://h:1/v1/",
            "http://h:1/v1/chat/completions",
        ],
    )
    def test_forms_of_a_url(self, url):
        assert api_root(url) == "http://h:1/v1"

    @pytest.mark.parametrize(
        "url", ["", "ftp://h", "http://", "http://h:port", "http://h:0", "http://[::1]:65536"]
    )
    def test_what_is_no_url(self, url):
        with pytest.raises(HasError):
            api_root(url)


class TestPayloads:
    def make(self, wanted, **options):
        return Payloads(wanted, model="m", rule_model=MODEL, writer=BUNDLED_WRITER, extra={}, **options)

    def test_a_body(self):
        async def first():
            with self.make(requests(1, modality="image")) as payloads:
                await payloads.stocked()
                return json.loads(await payloads.take(0))

        body = asyncio.run(first())
        image, text = body["messages"][0]["content"]
        assert (body["model"], body["max_tokens"], body["stream"], text["type"]) == ("m", 5, True, "text")
        data = base64.b64decode(image["image_url"]["url"].partition(",")[2])
        assert decode_media("image", data, MODEL).tokens == 64

    @pytest.mark.parametrize("ahead_bytes", [1, 700, 10**9])
    def test_no_more_is_held_than_allowed_and_all_come(self, ahead_bytes):
        async def take_all():
            with self.make(requests(30), ahead_bytes=ahead_bytes) as payloads:
                await payloads.stocked()
                bodies = []
                for i in range(30):
                    bodies.append(await payloads.take(i))
                    held = sum(map(len, payloads._bodies.values()))
                    assert held <= max(ahead_bytes, max(map(len, bodies)) + 50)
                return bodies

        assert len(set(asyncio.run(take_all()))) == 30

    def test_a_fault_reaches_whoever_waits(self):
        async def take():
            with self.make(requests(1, modality="audio")) as payloads:  # this model hears nothing
                await payloads.stocked()

        with pytest.raises(HasError):
            asyncio.run(take())

    def test_leaving_early_ends_the_thread(self):
        with self.make(requests(200), ahead_bytes=1) as payloads:
            pass
        assert not payloads._thread.is_alive()

    def test_text_is_as_long_as_asked(self):
        rng = np.random.Generator(np.random.PCG64(0))
        assert len(BUNDLED_WRITER.text(50, 3, rng)) == 50 - 4 - 6
        assert len(BUNDLED_WRITER.text(1, 3, rng)) == 1
        assert len(Writer(False, template_tokens=10, tokens_per_word=2.0).text(110, 0, rng).split()) == 50

    def test_whose_sizes_media_have(self):
        assert size_model("tiny-image", "image") == "tiny-image"
        assert size_model("nobody/knows", "audio") == "ultravox"
        with pytest.raises(HasError):
            size_model("tiny-image", "audio")
