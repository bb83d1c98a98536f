"""Ultravox on small configurations of its parts: transformers has no class of it to compare with, but of each part."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file
from transformers.models.whisper.modeling_whisper import WhisperEncoder

from has.errors import MissingError
from has.models.audio import SAMPLE_RATE
from has.models.bundled import draw_weights
from has.models.families import family_of
from has.models.media import decode_media
from has.models.stage_model import PromptInput, StageModel, load_stage_model
from has.models.ultravox import UltravoxConfig, UltravoxModel
from tests.models.cases import Case, answer_alone
from tests.models.clips import tone

AUDIO = 12
WHISPER = {"d_model": 32, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 64, "num_mel_bins": 128,
           "decoder_layers": 1, "decoder_attention_heads": 2, "decoder_ffn_dim": 64, "vocab_size": 64,
           "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}  # fmt: skip
TEXT = {"vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "tie_word_embeddings": False}  # fmt: skip


def config(text: str = "llama", **more: Any) -> UltravoxConfig:
    return UltravoxConfig(
        audio_config=WHISPER,
        text_config={"model_type": text, **TEXT},
        hidden_size=48,
        projector_ln_mid=True,
        audio_token_index=AUDIO,
        architectures=["UltravoxModel"],
        **more,
    )


def built(made: UltravoxConfig) -> StageModel:
    model = UltravoxModel(made)
    draw_weights(model, "ultravox", 0)
    lm = model.language_model
    lm.generation_config.eos_token_id = None
    lm.generation_config.pad_token_id = 0
    return StageModel("ultravox", family_of(model.eval().requires_grad_(False)), max_positions=4096)


@pytest.fixture(scope="module")
def ultravox() -> StageModel:
    return built(config())


def sounds(*seconds: float) -> list[Any]:
    return [decode_media("audio", tone(each, SAMPLE_RATE), "ultravox-v0.5-llama-3.1-8b") for each in seconds]


@pytest.mark.parametrize("text", ["llama", "gemma3_text", "qwen3"])
def test_the_split_is_generate_of_its_language_model(text: str) -> None:
    model = built(config(text))
    media = sounds(1.27, 3.5)
    request = Case(media, [1, 50, *[AUDIO] * media[0].tokens, 60, *[AUDIO] * media[1].tokens, 70, 80])
    embedded = model.family.embed(torch.tensor([request.ids]))
    embedded[0, torch.tensor(request.ids) == AUDIO] = torch.cat(model.encode(media))
    reference = model.family.model.language_model.generate(
        inputs_embeds=embedded,
        attention_mask=torch.ones(1, len(request.ids), dtype=torch.long),
        max_new_tokens=24,
        do_sample=False,
    )[0].tolist()
    answer = answer_alone(model, request, 24)
    assert answer == reference
    assert len(set(answer)) > 5


def test_tokens_are_as_the_rule_counts_them(ultravox: StageModel) -> None:
    media = sounds(0.005, 0.02, 0.165, 1.0, 7.31, 30.0, 31.0, 60.4)
    assert [item.tokens for item in media] == [1, 1, 2, 7, 46, 188, 188 + 7, 188 + 188 + 3]
    assert [len(e) for e in ultravox.encode(media)] == [item.tokens for item in media]


def test_thirty_seconds_are_whispers_own_encoder(ultravox: StageModel) -> None:
    (item,) = sounds(30.0)
    mine = ultravox.family.model.audio_tower
    theirs = WhisperEncoder(mine.config).eval()
    theirs.load_state_dict(mine.state_dict())
    mel = torch.from_numpy(item.arrays["mel"])
    reference = theirs(mel).last_hidden_state
    torch.testing.assert_close(mine(mel, torch.tensor([3000])), reference, rtol=1e-4, atol=1e-4)
    extracted = hf.WhisperFeatureExtractor(feature_size=128)(
        tone(30.0, SAMPLE_RATE), sampling_rate=SAMPLE_RATE, return_tensors="pt"
    )
    torch.testing.assert_close(mel, extracted["input_features"], rtol=0, atol=1e-4)


def test_a_clip_in_a_batch_is_what_it_is_alone(ultravox: StageModel) -> None:
    media = sounds(1.27, 30.5, 3.51, 0.02)
    for item, together in zip(media, ultravox.encode(media), strict=True):
        torch.testing.assert_close(together, ultravox.encode([item])[0], rtol=1e-4, atol=1e-5)


def test_eight_frames_become_one_token(ultravox: StageModel) -> None:
    """By hand: frames side by side, norm, the gate's half times the other, norm, matrix."""
    projector = ultravox.family.model.multi_modal_projector
    hidden = torch.randn(1, 11, 32, generator=torch.Generator().manual_seed(3))
    first, last = hidden[0, :8].reshape(-1), torch.cat([hidden[0, 8:].reshape(-1), torch.zeros(5 * 32)])

    def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return x / (x.pow(2).mean() + 1e-6).sqrt() * weight

    for row, stacked in zip(projector(hidden)[0], (first, last), strict=True):
        value, gate = (projector.linear_1.weight @ norm(stacked, projector.ln_pre.weight)).chunk(2)
        between = norm(torch.nn.functional.silu(gate) * value, projector.ln_mid.weight)
        torch.testing.assert_close(row, projector.linear_2.weight @ between, rtol=1e-4, atol=1e-4)


@pytest.fixture
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ultravox: StageModel) -> Path:
    """A checkpoint of the projector alone, whose tower and LM are where its config says."""
    model = ultravox.family.model
    model.language_model.save_pretrained(tmp_path / "lm")
    whisper = hf.WhisperModel(model.config.audio_config)
    whisper.encoder.load_state_dict(model.audio_tower.state_dict())
    whisper.save_pretrained(tmp_path / "whisper")
    model.save_pretrained(tmp_path / "whole")
    folder = tmp_path / "trained"
    folder.mkdir()
    made = config(text_model_id=str(tmp_path / "lm"), audio_model_id=str(tmp_path / "whisper"))
    made.save_pretrained(folder)
    weights = load_file(tmp_path / "whole" / "model.safetensors")
    kept = {name: value for name, value in weights.items() if name.startswith("multi_modal_projector.")}
    assert {name.split(".")[1] for name in kept} == {"ln_pre", "linear_1", "ln_mid", "linear_2"}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_what_a_checkpoint_leaves_out_comes_from_where_it_says(cached: Path, ultravox: StageModel) -> None:
    loaded = load_stage_model(str(cached))
    media = sounds(2.0)
    for mine, original in zip(loaded.encode(media), ultravox.encode(media), strict=True):
        torch.testing.assert_close(mine, original)
    assert loaded.weights_bytes == ultravox.weights_bytes
    request = Case(media, [1, *[AUDIO] * media[0].tokens, 70])
    assert answer_alone(loaded, request, 8) == answer_alone(ultravox, request, 8)


def test_a_whole_checkpoint_and_the_older_names_of_its_tower_load(cached: Path, ultravox: StageModel) -> None:
    whole = cached.parent / "whole"
    weights = load_file(whole / "model.safetensors")
    older = {
        name.replace("audio_tower.", "audio_tower.model.encoder.", 1): value
        for name, value in weights.items()
    }
    save_file(older, whole / "model.safetensors", metadata={"format": "pt"})
    loaded = load_stage_model(str(whole))
    media = sounds(2.0)
    torch.testing.assert_close(loaded.encode(media)[0], ultravox.encode(media)[0])


def test_parts_that_are_nowhere_are_named(cached: Path) -> None:
    made = config(text_model_id="nobody/no-such-lm", audio_model_id=str(cached.parent / "whisper"))
    made.save_pretrained(cached)
    with pytest.raises(MissingError, match="nobody/no-such-lm"):
        load_stage_model(str(cached))
    config().save_pretrained(cached)
    with pytest.raises(MissingError, match="weights are in no file"):
        load_stage_model(str(cached))
    dummy = load_stage_model(str(cached), weights="dummy", dtype=torch.bfloat16)
    embeddings = dummy.encode(sounds(1.0))
    assert dummy.prefill([PromptInput([1, *[AUDIO] * 7], embeddings)])[0].logits.isfinite().all()
