"""Sound to log-mel frames: decoding, resampling to mono 16 kHz, Whisper's filterbank. No torch."""

from __future__ import annotations

import io
import math
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from has.errors import InputError

Floats = npt.NDArray[np.float32]

SAMPLE_RATE = 16_000
FFT, HOP = 400, 160
_RATES = (4_000, 384_000)


def load_audio(data: bytes, max_s: float) -> Floats:
    """Mono samples at 16 kHz, in -1..1, of wav, flac, ogg or mp3 (libsndfile), or the sound of an mp4, mkv or webm.

    The length the header states is checked before anything is decoded, and no more than `max_s`
    seconds are ever decoded. Raises InputError for what is too long, empty or not audio.
    """
    import soundfile

    try:
        with soundfile.SoundFile(io.BytesIO(data)) as file:
            rate = file.samplerate
            _check_rate(rate)
            _check_length(file.frames / rate, max_s)
            samples = file.read(int(max_s * rate) + 1, dtype="float32", always_2d=True)
    except soundfile.SoundFileError:
        from has.models.video import load_sound

        samples, rate = load_sound(data, max_s)
        _check_rate(rate)
    _check_length(len(samples) / rate, max_s)
    if not len(samples):
        raise InputError("the audio is empty", field="audio")
    return resample(np.nan_to_num(samples.mean(axis=1)), rate)


def _check_rate(rate: int) -> None:
    if not _RATES[0] <= rate <= _RATES[1]:
        raise InputError(
            "sample rate out of range", field="audio", value=rate, allowed=f"{_RATES[0]}..{_RATES[1]} Hz"
        )


def _check_length(seconds: float, max_s: float) -> None:
    if seconds > max_s:
        raise InputError(
            "the audio is too long", field="audio", value=f"{seconds:.1f} s", allowed=f"up to {max_s:g} s"
        )


def resample(samples: Floats, rate: int) -> Floats:
    """`samples` at `rate`, at 16 kHz (polyphase filter)."""
    if rate == SAMPLE_RATE:
        return np.ascontiguousarray(samples, np.float32)
    from scipy.signal import resample_poly

    shared = math.gcd(rate, SAMPLE_RATE)
    return np.asarray(resample_poly(samples, SAMPLE_RATE // shared, rate // shared), np.float32)


def log_mel(samples: Floats, bins: int) -> Floats:
    """[bins, frames], 100 frames a second: Whisper's log-mel spectrogram of 16 kHz samples.

    Power spectrum of 25 ms Hann windows every 10 ms (edges reflected, the last window dropped),
    mel filters, log10 floored at 8 below the clip's maximum, (x + 4) / 4.
    """
    padded = np.pad(
        samples.astype(np.float64), FFT // 2, mode="reflect" if len(samples) > FFT // 2 else "constant"
    )
    windows = np.lib.stride_tricks.sliding_window_view(padded, FFT)[::HOP][:-1]
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(FFT) / FFT)
    power = np.abs(np.fft.rfft(windows * hann, axis=1)) ** 2
    mel = np.log10(np.maximum(power @ mel_filters(bins), 1e-10))
    mel = np.maximum(mel, mel.max() - 8.0)
    return np.ascontiguousarray(((mel + 4.0) / 4.0).T, np.float32)


@lru_cache(maxsize=4)
def mel_filters(bins: int) -> npt.NDArray[np.float64]:
    """[FFT / 2 + 1, bins]: triangles on Slaney's mel scale from 0 to 8 kHz, each of unit area.

    The scale is linear below 1 kHz (3/200 mel per Hz) and logarithmic above (27 mel per factor 6.4).
    """
    top = 15.0 + np.log(SAMPLE_RATE / 2 / 1000.0) * 27.0 / np.log(6.4)
    mels = np.linspace(0.0, top, bins + 2)
    edges = np.where(mels < 15.0, mels * 200.0 / 3.0, 1000.0 * np.exp(np.log(6.4) / 27.0 * (mels - 15.0)))
    bands = np.linspace(0.0, SAMPLE_RATE / 2, FFT // 2 + 1)
    rising = (bands[:, None] - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - bands[:, None]) / (edges[2:] - edges[1:-1])
    triangles = np.maximum(0.0, np.minimum(rising, falling))
    filters: npt.NDArray[np.float64] = triangles * (2.0 / (edges[2:] - edges[:-2]))
    return filters
