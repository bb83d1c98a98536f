"""The HTTP API over a real socket: what clients get for every way a request can go."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import re
import socket
import struct
import time

import httpx
import numpy as np
import openai
import pytest
import soundfile
from PIL import Image
from starlette.requests import Request

from has.errors import InputError, RunError
from has.gateway.http import _body, create_app
from has.gateway.limits import Limits
from has.gateway.metrics import Metrics
from has.gateway.server import listen
from has.models.media import MediaLimits
from tests.gateway.queue_service import MODEL, QueueService, chat, serving, serving_queue

CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def server():
    with serving_queue() as pair:
        yield pair


@pytest.fixture
def service(server):
    service, _ = server
    service.jobs.clear()
    service.cancelled.clear()
    return service


@pytest.fixture
def client(server):
    return server[1]


def png(width=8, height=8, mode="RGB") -> bytes:
    buffer = io.BytesIO()
    Image.new(mode, (width, height)).save(buffer, "PNG")
    return buffer.getvalue()


def wav(seconds=0.1, kind="WAV") -> bytes:
    buffer = io.BytesIO()
    soundfile.write(buffer, np.zeros(round(16000 * seconds), np.float32), 16000, format=kind)
    return buffer.getvalue()


def data_url(data: bytes, mime="image/png") -> str:
    return f"data:{mime};base64,{base64.b64encode(data).decode()}"


def with_parts(*parts, text="see this", **fields) -> dict:
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": [*parts, {"type": "text", "text": text}]}],
        **fields,
    }


def image(data: bytes | None = None) -> dict:
    return {"type": "image_url", "image_url": {"url": data_url(data or png())}}


def events(response) -> list:
    lines = [line for line in response.text.split("\n\n") if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line[6:]) for line in lines[:-1]]


def error_of(response, status: int) -> dict:
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert error["type"]
    return error


class TestWhole:
    def test_an_answer(self, client, service):
        answer = client.post(CHAT, json=chat("one two three")).json()
        assert answer["object"] == "chat.completion"
        assert answer["model"] == MODEL
        assert answer["id"].startswith("chatcmpl-")
        [choice] = answer["choices"]
        assert choice["message"] == {"role": "assistant", "content": "one two three", "refusal": None}
        assert choice["finish_reason"] == "stop"
        assert answer["usage"] == {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6}

    @pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
    def test_the_token_limit(self, client, service, field):
        answer = client.post(CHAT, json=chat("one two three", **{field: 2})).json()
        assert answer["choices"][0]["finish_reason"] == "length"
        assert answer["usage"]["completion_tokens"] == 2

    def test_what_the_service_is_asked(self, client, service):
        body = chat(
            "a", temperature=0.5, top_p=0.9, seed=7, ignore_eos=True, max_tokens=1, user="me", unknown=1
        )
        assert client.post(CHAT, json=body).status_code == 200
        [job] = service.jobs
        assert (job.temperature, job.top_p, job.seed, job.ignore_eos, job.max_tokens) == (
            0.5,
            0.9,
            7,
            True,
            1,
        )
        assert job.arrival_s is not None

    def test_without_temperature_it_is_greedy(self, client, service):
        client.post(CHAT, json=chat("a"))
        assert service.jobs[0].temperature == 0.0

    def test_asking_for_exactly_n_tokens(self, client, service):
        answer = client.post(CHAT, json=chat("a b", max_tokens=5, min_tokens=5)).json()
        assert answer["usage"]["completion_tokens"] == 5

    @pytest.mark.parametrize(
        ("stop", "text"),
        [("three", "one two "), (["x", "wo t"], "one t"), (["four", "two"], "one "), ("absent", "one two three four"),
         (["four!"], "one two three four")],
    )  # fmt: skip
    def test_stop(self, client, service, stop, text):
        answer = client.post(CHAT, json=chat("one two three four", stop=stop)).json()
        assert answer["choices"][0]["message"]["content"] == text
        assert answer["choices"][0]["finish_reason"] == "stop"

    def test_a_stop_string_cancels_the_job(self, client, service):
        client.post(CHAT, json=chat("endless a b c", stop=" c"))
        assert service.cancelled.wait(10)


class TestStream:
    def test_an_answer(self, client, service):
        response = client.post(CHAT, json=chat("one two three", stream=True))
        assert response.headers["content-type"].startswith("text/event-stream")
        chunks = events(response)
        assert [c["choices"][0]["delta"].get("content") for c in chunks] == ["one ", "two ", "three"]
        assert [c["choices"][0]["delta"].get("role") for c in chunks] == ["assistant", None, None]
        assert [c["choices"][0]["finish_reason"] for c in chunks] == [None, None, "stop"]
        assert all(c["object"] == "chat.completion.chunk" and "usage" not in c for c in chunks)
        assert len({c["id"] for c in chunks}) == 1

    def test_usage_comes_last_and_alone(self, client, service):
        chunks = events(
            client.post(CHAT, json=chat("one two", stream=True, stream_options={"include_usage": True}))
        )
        assert [c["usage"] for c in chunks[:-1]] == [None, None]
        assert chunks[-1]["choices"] == []
        assert chunks[-1]["usage"] == {"prompt_tokens": 2, "completion_tokens": 2, "total_tokens": 4}

    def test_text_that_breaks_json_arrives_whole(self, client, service):
        text = 'quo"te \\ new\nline \u2028 é漢😀 data:'
        chunks = events(client.post(CHAT, json=chat(text, stream=True)))
        assert "".join(c["choices"][0]["delta"]["content"] for c in chunks) == text

    def test_stop_is_never_shown(self, client, service):
        chunks = events(client.post(CHAT, json=chat("one two three four", stream=True, stop="wo three")))
        assert "".join(c["choices"][0]["delta"]["content"] for c in chunks) == "one t"
        assert chunks[-1]["choices"][0]["finish_reason"] == "stop"

    def test_a_fault_before_the_first_token_has_its_status(self, client, service):
        error = error_of(client.post(CHAT, json=chat("undecodable", stream=True)), 400)
        assert error["param"] == "image"

    def test_a_fault_after_it_ends_the_stream_with_an_error(self, client, service):
        for how in ("breaks", "vanishes"):
            *tokens, last = events(client.post(CHAT, json=chat(f"{how} b c d", stream=True)))
            assert len(tokens) == 2
            assert set(last["error"]) == {"message", "type", "param", "code"}


class TestMedia:
    def test_text_and_media_keep_their_order(self, client, service):
        first, second = png(4, 4), png(5, 5)
        parts = [image(first), {"type": "text", "text": "between"}, image(second)]
        assert client.post(CHAT, json=with_parts(*parts, text=" after")).status_code == 200
        [job] = service.jobs
        assert [m.data for m in job.media] == [first, second]
        content = job.messages[0].content
        assert [part if isinstance(part, str) else part.index for part in content] == [
            0,
            "between",
            1,
            " after",
        ]

    @pytest.mark.parametrize("kind", ["WAV", "FLAC", "MP3"])
    def test_input_audio(self, client, service, kind):
        sound = wav(kind=kind)
        part = {
            "type": "input_audio",
            "input_audio": {"data": base64.b64encode(sound).decode(), "format": kind.lower()},
        }
        assert client.post(CHAT, json=with_parts(part)).status_code == 200
        [medium] = service.jobs[0].media
        assert (medium.kind, medium.data, medium.format) == ("audio", sound, kind.lower())

    def test_a_video_file_and_a_video_of_frames(self, client, service):
        frames = [png(4, 4), png(4, 4)]
        joined = ",".join(base64.b64encode(frame).decode() for frame in frames)
        for url in (data_url(b"any bytes", "video/mp4"), f"data:video/jpeg;base64,{joined}"):
            part = {"type": "video_url", "video_url": {"url": url}}
            assert client.post(CHAT, json=with_parts(part)).status_code == 200
        file, pictures = (job.media[0] for job in service.jobs)
        assert (file.kind, file.data) == ("video", b"any bytes")
        assert (pictures.kind, pictures.data) == ("video", tuple(frames))

    @pytest.mark.parametrize(
        ("part", "param"),
        [
            ({"type": "image_url", "image_url": {"url": "data:image/png;base64,@@"}}, "image_url.url"),
            ({"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}, "image_url.url"),
            ({"type": "image_url", "image_url": {"url": data_url(b"no image")}}, "image_url.url"),
            ({"type": "image_url", "image_url": {"url": data_url(wav(), "audio/wav")}}, "image_url.url"),
            ({"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}, "image_url.url"),
            ({"type": "image_url", "image_url": {"url": "/etc/passwd"}}, "image_url.url"),
            ({"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}, "image_url.url"),
            ({"type": "image_url", "image_url": {}}, "image_url.url"),
            ({"type": "image_url"}, "image_url"),
            ({"type": "input_audio", "input_audio": {"data": "@", "format": "wav"}}, "input_audio.data"),
            ({"type": "input_audio", "input_audio": {"data": "AA==", "format": "ogg"}}, "input_audio.format"),
        ],
    )
    def test_faults_are_named(self, client, service, part, param):
        error = error_of(client.post(CHAT, json=with_parts(part)), 400)
        assert error["param"] == f"messages.0.content.0.{param}"
        assert not service.jobs


class TestErrors:
    @pytest.mark.parametrize(
        ("body", "param"),
        [
            ({}, "model"),
            ({"model": MODEL}, "messages"),
            (chat("a", max_tokens=0), "max_tokens"),
            (chat("a", max_tokens="5"), "max_tokens"),
            (chat("a", max_tokens=True), "max_tokens"),
            (chat("a", max_tokens=9000), "max_tokens"),
            (chat("a", temperature=-1), "temperature"),
            (chat("a", temperature="hot"), "temperature"),
            (chat("a", top_p=0), "top_p"),
            (chat("a", n=2), "n"),
            (chat("a", logprobs=True), "logprobs"),
            (chat("a", tools=[{"type": "function"}]), "tools"),
            (chat("a", response_format={"type": "json_object"}), "response_format"),
            (chat("a", stop=""), "stop.0"),
            (chat("a", seed=1.5), "seed"),
            (chat("a", stream_options={"include_usage": True}), "stream_options"),
            ({"model": MODEL, "messages": []}, "messages"),
            ({"model": MODEL, "messages": [{"role": "king", "content": "a"}]}, "messages.0.role"),
            ({"model": MODEL, "messages": [{"role": "user", "content": 5}]}, "messages.0.content"),
            (
                {"model": MODEL, "messages": [{"role": "user", "content": [{"type": "x"}]}]},
                "messages.0.content.0",
            ),
            (
                {"model": MODEL, "messages": [{"role": "user", "content": [{"type": "text"}]}]},
                "messages.0.content.0.text",
            ),
        ],
    )
    def test_bad_fields_are_named(self, client, service, body, param):
        error = error_of(client.post(CHAT, json=body), 400)
        assert error["param"] == param
        assert error["type"] == "invalid_request_error"
        assert not service.jobs

    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"{",
            b"[]",
            b"\xff\xfe",
            b"nul",
            b'{"model": NaN}',
            b"[" * 100_000,
            b'{"a": "\\ud800"}',
        ],
    )
    def test_bodies_that_are_no_request(self, client, service, body):
        error_of(client.post(CHAT, content=body, headers={"content-type": "application/json"}), 400)

    def test_text_that_is_no_unicode(self, client, service):
        body = json.dumps(chat("X")).replace("X", "\\ud800").encode()
        error_of(client.post(CHAT, content=body, headers={"content-type": "application/json"}), 400)

    def test_neutral_values_of_what_is_not_supported(self, client, service):
        body = chat(
            "a",
            n=1,
            logprobs=False,
            tools=[],
            presence_penalty=0.0,
            response_format={"type": "text"},
            top_k=-1,
        )
        assert client.post(CHAT, json=body).status_code == 200

    def test_a_browser_cannot_post_unasked(self, client, service):
        body = json.dumps(chat("a"))
        error_of(client.post(CHAT, content=body, headers={"content-type": "text/plain"}), 400)
        error_of(client.post(CHAT, content=body), 400)  # none at all, as a page of another site may send
        error_of(
            client.post(
                CHAT, content=body, headers={"content-type": "application/json", "content-encoding": "gzip"}
            ),
            400,
        )

    def test_unknown_model(self, client, service):
        error = error_of(client.post(CHAT, json={**chat("a"), "model": "gpt-9"}), 404)
        assert (error["param"], error["code"]) == ("model", "model_not_found")

    def test_unknown_route_and_method(self, client, service):
        error_of(client.get("/v2/chat"), 404)
        error_of(client.get(CHAT), 405)

    @pytest.mark.parametrize("stream", [False, True])
    def test_backpressure(self, client, service, stream):
        response = client.post(CHAT, json=chat("refused", stream=stream))
        error = error_of(response, 429)
        assert (error["type"], error["code"]) == ("rate_limit_error", "queue")
        assert response.headers["retry-after"] == "3"

    def test_nobody_there(self, client, service):
        error_of(client.post(CHAT, json=chat("unavailable")), 503)

    def test_an_interrupted_answer(self, client, service):
        assert error_of(client.post(CHAT, json=chat("breaks b c d")), 500)["code"] == "interrupted"

    def test_a_fault_of_our_own_is_an_error_and_no_traceback(self, client, service):
        error = error_of(client.post(CHAT, json=chat("explodes b c d")), 500)
        assert "Traceback" not in json.dumps(error)


class TestLeaving:
    def test_a_client_that_leaves_a_stream_cancels_its_job(self, client, service):
        with client.stream("POST", CHAT, json=chat("endless", stream=True)) as response:
            assert next(response.iter_lines()).startswith("data: ")
        assert service.cancelled.wait(10)

    def test_a_client_that_leaves_before_a_whole_answer_does_too(self, server, service):
        with (
            httpx.Client(base_url=server[1].base_url, timeout=0.3) as hasty,
            pytest.raises(httpx.ReadTimeout),
        ):
            hasty.post(CHAT, json=chat("endless"))
        assert service.cancelled.wait(10)


class TestOpenAiClient:
    @pytest.fixture
    def official(self, server, service):
        with openai.OpenAI(base_url=f"{server[1].base_url}/v1", api_key="none", max_retries=0) as official:
            yield official

    def test_whole(self, official):
        answer = official.chat.completions.create(**chat("one two three", max_tokens=2, seed=1))
        assert answer.choices[0].message.content == "one two"
        assert answer.choices[0].finish_reason == "length"
        assert answer.usage.total_tokens == 5

    def test_stream(self, official):
        stream = official.chat.completions.create(
            **chat("one two", stream=True, stream_options={"include_usage": True})
        )
        chunks = list(stream)
        assert "".join(c.choices[0].delta.content for c in chunks if c.choices) == "one two"
        assert chunks[-1].usage.completion_tokens == 2

    def test_media(self, official, service):
        body = with_parts(
            image(),
            {
                "type": "input_audio",
                "input_audio": {"data": base64.b64encode(wav()).decode(), "format": "wav"},
            },
        )
        assert official.chat.completions.create(**body).usage.prompt_tokens == 2 + 128
        assert [medium.kind for medium in service.jobs[0].media] == ["image", "audio"]

    def test_models(self, official):
        assert [model.id for model in official.models.list()] == [MODEL]
        assert official.models.retrieve(MODEL).id == MODEL
        with pytest.raises(openai.NotFoundError):
            official.models.retrieve("other")

    def test_errors(self, official):
        with pytest.raises(openai.RateLimitError):
            official.chat.completions.create(**chat("refused"))
        with pytest.raises(openai.BadRequestError, match="temperature"):
            official.chat.completions.create(**chat("a", temperature=3))
        with pytest.raises(openai.APIError, match="decode worker"):
            list(official.chat.completions.create(**chat("breaks b c", stream=True)))


class TestOperations:
    def test_health_and_readiness_differ(self, client, service):
        assert client.get("/health").status_code == 200
        assert client.get("/ready").status_code == 200
        service.why_not = "draining"
        try:
            assert client.get("/health").status_code == 200
            assert error_of(client.get("/ready"), 503)["message"] == "draining"
            error_of(client.post(CHAT, json=chat("a")), 503)
        finally:
            service.why_not = None

    def test_models(self, client):
        body = client.get("/v1/models").json()
        assert body["object"] == "list"
        assert body["data"][0]["id"] == MODEL
        assert body["data"][0]["max_model_len"] == 8192

    def test_metrics(self):
        metrics = Metrics(MODEL)
        service = QueueService(metrics)
        metrics.watch(service.state)
        with serving(create_app(service, metrics=metrics)) as url, httpx.Client(base_url=url) as client:
            client.post(CHAT, json=chat("one two three"))
            client.post(CHAT, json=chat("one two", max_tokens=1, stream=True))
            client.post(CHAT, json=chat("refused"))
            client.post(CHAT, json=chat("undecodable"))
            response = client.get("/metrics")
            assert response.headers["content-type"].startswith("text/plain")

            def value(name: str) -> float:
                found = re.search(rf"^{re.escape(name)} (\S+)$", response.text, re.MULTILINE)
                assert found, f"{name} is not in\n{response.text}"
                return float(found[1])

            label = f'{{model_name="{MODEL}"}}'
            assert value(f"has:prompt_tokens_total{label}") == 5
            assert value(f"has:generation_tokens_total{label}") == 4
            assert value(f"has:time_to_first_token_seconds_count{label}") == 2
            assert value(f"has:inter_token_latency_seconds_count{label}") == 2
            assert value(f'has:request_success_total{{finished_reason="stop",model_name="{MODEL}"}}') == 1
            assert value(f'has:request_success_total{{finished_reason="length",model_name="{MODEL}"}}') == 1
            assert value(f'has:requests_refused_total{{model_name="{MODEL}",reason="queue"}}') == 1
            assert value(f'has:request_failure_total{{model_name="{MODEL}",reason="bad_request"}}') == 1
            assert value(f"has:num_requests_waiting{label}") == 3
            assert value(f"has:kv_cache_usage_perc{label}") == 0.25
            assert value(f'has:gap_threshold_seconds{{encode_worker="0",model_name="{MODEL}"}}') == 0.25
            assert value(f'has:queue_length{{model_name="{MODEL}",stage="encode"}}') == 3

    def test_what_fails_before_the_service_is_asked_is_counted(self):
        """Else an outage of everything leaves all counters flat."""
        with serving_queue(limits=Limits(body_bytes=10_000, silence_s=0.05)) as (service, client):

            def failures() -> dict[str, float]:
                text = client.get("/metrics").text
                found = re.findall(r'has:request_failure_total\{.*reason="(\w+)"\} (\S+)', text)
                return {reason: float(count) for reason, count in found}

            def missed() -> dict[str, int]:
                return client.get("/status").json()["last_minute"]["missed"]

            error_of(client.post(CHAT, json=chat("a", temperature=-1)), 400)
            error_of(client.post(CHAT, json=with_parts(image(b"no image"))), 400)
            error_of(client.post(CHAT, json={**chat("a"), "model": "gpt-9"}), 404)
            error_of(client.post(CHAT, json=chat("x" * 10_000)), 413)
            with _raw(client, b"Content-Length: 1000", b"{") as connection:
                assert connection.recv(4096).startswith(b"HTTP/1.1 408 ")
            assert failures() == {"bad_request": 5}
            assert missed() == {}, "the clients' own doing"
            service.why_not = "no living worker for decode"
            error_of(client.post(CHAT, json=chat("a")), 503)
            service.why_not = None
            error_of(client.post(CHAT, json=chat("unavailable")), 503)
            error_of(client.post(CHAT, json=chat("refused")), 429)
            assert failures() == {"bad_request": 5, "unavailable": 2}
            assert missed() == {"unavailable": 2}


class TestKey:
    @pytest.fixture(scope="class")
    @classmethod
    def locked(cls):
        with serving_queue(api_key="sesame", served_model_names=["mine", "alias"]) as pair:
            yield pair[1]

    @pytest.mark.parametrize(
        "path", [CHAT, "/v1/models", "/metrics", "/", "/nowhere", "/health/", "/ready/x"]
    )
    @pytest.mark.parametrize(
        "header",
        [None, "sesame", "Bearer", "Bearer wrong", "Basic sesame", "Bearer sesame2", "Bearer s\u00e9same"],
    )
    def test_without_it_everything_is_closed(self, locked, path, header):
        headers = {} if header is None else {"authorization": header.encode()}
        response = locked.post(path, json=chat("a"), headers=headers)
        assert error_of(response, 401)["code"] == "invalid_api_key"

    @pytest.mark.parametrize("path", ["/health", "/ready"])
    def test_but_the_probes(self, locked, path):
        assert locked.get(path).status_code == 200

    def test_with_it_everything_is_open(self, locked):
        headers = {"authorization": "Bearer sesame"}
        assert (
            locked.post(CHAT, json={**chat("a"), "model": "alias"}, headers=headers).json()["model"]
            == "alias"
        )
        assert [m["id"] for m in locked.get("/v1/models", headers=headers).json()["data"]] == [
            "mine",
            "alias",
        ]
        error_of(locked.post(CHAT, json=chat("a"), headers=headers), 404)


@pytest.mark.parametrize("key", ["", " ", "\t"])
def test_a_blank_key_is_none(key):
    """`Authorization: Bearer` alone would hold it."""
    with pytest.raises(InputError, match="locks nothing") as caught:
        create_app(QueueService(), api_key=key)
    assert caught.value.field == "api_key"


class TestLimits:
    LIMITS = Limits(
        body_bytes=400_000,
        media_items=2,
        messages=3,
        media=MediaLimits(max_bytes=200_000, max_pixels=1_000_000, max_seconds=2.0, decoded_frames=3),
        expansion=50,
        expansion_floor=500_000,
    )

    @pytest.fixture(scope="class")
    @classmethod
    def small(cls):
        with serving_queue(limits=cls.LIMITS) as pair:
            yield pair[1]

    @pytest.mark.parametrize(
        "parts",
        [
            [image(png(1001, 1000))],  # pixels
            [image(png(500, 500))],  # 750 kB from 2 kB
            [image(), image(), image()],
            [{"type": "input_audio", "input_audio": {"data": base64.b64encode(wav(2.1)).decode(), "format": "wav"}}],
            [{"type": "input_audio", "input_audio": {"data": base64.b64encode(wav(2.1, "FLAC")).decode(), "format": "flac"}}],
            [{"type": "video_url", "video_url": {"url": "data:video/jpeg;base64," + ",".join([base64.b64encode(png()).decode()] * 4)}}],
            [{"type": "video_url", "video_url": {"url": data_url(b"x" * 200_001, "video/mp4")}}],
        ],
        ids=["pixels", "expansion", "items", "seconds", "flac seconds", "frames", "bytes"],
    )  # fmt: skip
    def test_media(self, small, parts):
        assert error_of(small.post(CHAT, json=with_parts(*parts)), 413)["code"] == "too_large"

    def test_within_the_bounds(self, small):
        parts = [
            image(png(400, 400)),
            {
                "type": "input_audio",
                "input_audio": {"data": base64.b64encode(wav(1.9)).decode(), "format": "wav"},
            },
        ]
        assert small.post(CHAT, json=with_parts(*parts)).status_code == 200

    def test_body(self, small):
        error_of(small.post(CHAT, json=chat("x" * 400_000)), 413)
        pieces = (b"x" * 50_000 for _ in range(20))  # no Content-Length
        error_of(small.post(CHAT, content=pieces, headers={"content-type": "application/json"}), 413)

    def test_bodies_held_at_once(self):
        with serving_queue(limits=Limits(bodies_bytes=100_000)) as (service, client):
            waiting = chat("endless", stream=True, user="x" * 60_000)
            with client.stream("POST", CHAT, json=waiting) as response:
                lines = response.iter_lines()  # held, or its end would close the stream
                assert next(lines)
                refused = client.post(CHAT, json=chat("x" * 60_000))
                assert error_of(refused, 429)["code"] == "memory"
                assert client.post(CHAT, json=chat("small")).status_code == 200
            assert service.cancelled.wait(10)
            # The cancelled request's room comes back a moment after its job has ended.
            statuses = (client.post(CHAT, json=chat("x" * 60_000)).status_code for _ in range(1000))
            assert 200 in statuses

    def test_media_fetched_count_as_bodies(self):
        """A body of some hundred bytes may name gigabytes."""

        async def picture(_: httpx.Request) -> httpx.Response:
            async def data():
                yield png() + bytes(30_000)

            return httpx.Response(200, content=data())

        async def resolve(_host: str, _port: int) -> list[str]:
            return ["93.184.216.34"]

        metrics, service = Metrics(MODEL), QueueService()
        app = create_app(
            service,
            metrics=metrics,
            limits=Limits(bodies_bytes=100_000),
            allowed_media_domains=["cdn.example.org"],
            resolver=resolve,
            media_transport=httpx.MockTransport(picture),
        )
        part = {"type": "image_url", "image_url": {"url": "https://cdn.example.org/cat.png"}}
        with serving(app) as url:
            refused = httpx.post(f"{url}{CHAT}", json=with_parts(*[part] * 4))
            assert error_of(refused, 429)["code"] == "memory"
            assert not service.jobs
            for _ in range(2):
                assert httpx.post(f"{url}{CHAT}", json=with_parts(*[part] * 3)).status_code == 200
            shown = httpx.get(f"{url}/metrics").text
        assert f'has:requests_refused_total{{model_name="{MODEL}",reason="memory"}} 1.0' in shown
        assert "request_failure_total{" not in shown, "a refusal is no failure too"

    def test_messages(self, small):
        error_of(
            small.post(CHAT, json={"model": MODEL, "messages": [{"role": "user", "content": "a"}] * 4}), 413
        )


def test_a_taken_port_is_an_error_with_its_mend():
    taken = listen("127.0.0.1", 0)
    try:
        with pytest.raises(RunError) as caught:
            listen("127.0.0.1", taken.getsockname()[1])
        assert "--port" in caught.value.mend
    finally:
        taken.close()
    with pytest.raises(InputError):
        listen("no such host.invalid", 1)


def _raw(client, head: bytes, body: bytes = b"") -> socket.socket:
    connection = socket.create_connection((client.base_url.host, client.base_url.port))
    connection.settimeout(30)
    connection.sendall(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: here\r\nContent-Type: application/json\r\n"
        + head
        + b"\r\n\r\n"
        + body
    )
    return connection


def test_a_body_that_is_announced_too_large_is_not_waited_for(client):
    with _raw(client, b"Content-Length: 99999999999") as connection:
        assert connection.recv(4096).startswith(b"HTTP/1.1 413 ")


def test_a_body_that_stops_coming_is_not_waited_for_for_ever():
    with serving_queue(limits=Limits(silence_s=0.05)) as (service, client):
        with _raw(client, b"Content-Length: 1000", b"{") as connection:
            assert connection.recv(4096).startswith(b"HTTP/1.1 408 ")
        assert client.post(CHAT, json=chat("hello")).status_code == 200
        assert len(service.jobs) == 1


def test_a_body_may_take_its_time_as_long_as_it_comes():
    """Each piece comes just before patience ends; together they take several times as long."""
    silence_s, pieces = 60.0, [b"{", b'"a"', b":", b"1", b"}"]
    head = [(b"content-type", b"application/json")]
    left = list(pieces)

    async def read() -> bytes:
        loop, passed_s = asyncio.get_running_loop(), 0.0
        clock = loop.time
        loop.time = lambda: clock() + passed_s

        async def receive():
            nonlocal passed_s
            passed_s += 0.9 * silence_s
            await asyncio.sleep(0)  # what is due now is called
            await asyncio.sleep(0)
            return {"type": "http.request", "body": left.pop(0), "more_body": bool(left)}

        return await _body(Request({"type": "http", "headers": head}, receive), Limits(silence_s=silence_s))

    assert asyncio.run(read()) == b"".join(pieces)


@pytest.mark.parametrize("path", ["/", "/health", "/ready", "/metrics", "/status", "/v1/models"])
def test_head_is_answered_as_get_without_a_body(client, path):
    got, head = client.get(path), client.head(path)
    assert (head.status_code, head.content) == (got.status_code, b"")
    assert head.headers["content-type"] == got.headers["content-type"]


def test_series_without_a_label_of_their_own_are_0_from_the_start():
    text = Metrics("m").render().decode()
    for name in ("generation_tokens_total", "time_to_first_token_seconds_count", "encode_batch_size_count"):
        assert f'has:{name}{{model_name="m"}} 0.0' in text


def test_a_client_that_resets_within_its_body_is_an_abort_and_no_fault(caplog):
    with serving_queue() as (service, client):
        connection = _raw(client, b"Content-Length: 1000", b"{")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()  # with nothing to linger for this is a reset
        deadline = time.monotonic() + 30
        while 'reason="abort"' not in client.get("/metrics").text:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert client.post(CHAT, json=chat("hello")).status_code == 200
        assert len(service.jobs) == 1
    assert "internal error" not in caplog.text
    assert "Traceback" not in caplog.text


def test_fetching_media_is_part_of_the_time_to_the_first_token():
    held_s = 0.2

    async def slow(_: httpx.Request) -> httpx.Response:
        async def data():
            await asyncio.sleep(held_s)
            yield png()

        return httpx.Response(200, content=data(), headers={"content-type": "image/png"})

    async def resolve(_host: str, _port: int) -> list[str]:
        return ["93.184.216.34"]

    service, metrics = QueueService(), Metrics(MODEL)
    app = create_app(
        service,
        metrics=metrics,
        allowed_media_domains=["cdn.example.org"],
        resolver=resolve,
        media_transport=httpx.MockTransport(slow),
    )
    part = {"type": "image_url", "image_url": {"url": "https://cdn.example.org/cat.png"}}
    with serving(app) as url:
        assert httpx.post(f"{url}{CHAT}", json=with_parts(part)).status_code == 200
        shown = httpx.get(f"{url}/metrics").text
    (seconds,) = re.findall(r"has:time_to_first_token_seconds_sum\{[^}]*\} (\S+)", shown)
    assert float(seconds) >= held_s
