"""Sound to log-mel: Whisper's own extractor is the measure."""

from __future__ import annotations

import numpy as np
import pytest
from transformers import WhisperFeatureExtractor

from has.errors import InputError
from has.models.audio import SAMPLE_RATE, load_audio, log_mel, mel_filters, resample
from has.models.media import decode_media
from tests.models.clips import RATE, sound, tone


@pytest.mark.parametrize("bins", [80, 128])
def test_log_mel_is_whisper_s(bins: int) -> None:
    extractor = WhisperFeatureExtractor(feature_size=bins)
    np.testing.assert_allclose(mel_filters(bins), extractor.mel_filters, atol=1e-12)
    rng = np.random.default_rng(0)
    for samples in (0.1 * rng.standard_normal(64_000).astype(np.float32), tone(2.0, SAMPLE_RATE)):
        reference = extractor(
            samples, sampling_rate=SAMPLE_RATE, padding=False, truncation=False, return_tensors="np"
        )
        np.testing.assert_allclose(log_mel(samples, bins), reference["input_features"][0], atol=1e-4)


@pytest.mark.parametrize("kind", ["WAV", "FLAC", "OGG", "MP3", "m4a"])
def test_formats_give_the_same_sound(kind: str) -> None:
    heard = load_audio(sound(kind), 10)
    assert len(heard) / SAMPLE_RATE == pytest.approx(3.0, abs=0.1)
    spectrum = np.abs(np.fft.rfft(heard[:SAMPLE_RATE] * np.hanning(SAMPLE_RATE)))
    assert set(np.argsort(spectrum)[-1:]) == {440}
    assert spectrum[1500] > 20 * np.median(spectrum)
    assert spectrum[440] / spectrum[1500] == pytest.approx(3.0, rel=0.1)


def test_resampling_keeps_a_tone() -> None:
    same = tone(1.0, SAMPLE_RATE)
    assert resample(same, SAMPLE_RATE) is not None
    np.testing.assert_allclose(resample(tone(1.0, RATE), RATE)[500:-500], same[500:-500], atol=5e-3)


def test_long_sounds_become_chunks() -> None:
    item = decode_media("audio", tone(9.0, SAMPLE_RATE), "tiny-audio")
    assert item.arrays["mel"].shape == (3, 80, 400)
    assert item.tokens == 150
    exact = decode_media("audio", tone(8.0, SAMPLE_RATE), "tiny-audio")
    assert exact.tokens == 100
    np.testing.assert_array_equal(  # chunks are cut from one spectrogram, in order
        exact.arrays["mel"].transpose(1, 0, 2).reshape(80, -1), log_mel(tone(8.0, SAMPLE_RATE), 80)
    )


def test_absurd_sample_rates_are_refused() -> None:
    header = bytearray(sound("WAV"))
    header[24:28] = (2_000_000_000).to_bytes(4, "little")
    with pytest.raises(InputError, match="sample rate"):
        load_audio(bytes(header), 10)
