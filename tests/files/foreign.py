"""Small traces in the formats of others, written from one list of requests."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from has.core.requests import Requests
from has.files.trace import load_trace


@dataclass(frozen=True)
class Ask:
    """One request: seconds (whole milliseconds), images, prompt tokens (images' included), output tokens."""

    ms: int
    images: int
    context: int
    output: int


IMAGE_TOKENS = 300


def asks(count: int = 200, seed: int = 0) -> list[Ask]:
    """Bursty arrivals from 0 on; a third of the requests with 1 to 3 images of IMAGE_TOKENS beside their text.

    Text lengths are symmetric about 500 whether there is an image or not, so that medians differ by the image.
    """
    rng = np.random.default_rng(seed)
    gaps = np.rint(rng.gamma(0.5, 2.0, count) * 250).astype(int)
    gaps[0] = 0
    images = np.where(rng.random(count) < 0.33, rng.integers(1, 4, count), 0)
    text = 500 + np.tile([-100, 100, -50, 50, 0], count)[:count]
    for number in np.unique(images):  # the median text is 500 in each group
        who = np.flatnonzero(images == number)
        text[who] = np.resize([500, 400, 600], len(who)) if len(who) % 3 == 0 else 500
    return [
        Ask(int(t), int(i), int(x + i * IMAGE_TOKENS), int(o))
        for t, i, x, o in zip(np.cumsum(gaps), images, text, rng.integers(1, 400, count), strict=True)
    ]


def stamp(ms: int, layout: str) -> str:
    seconds, rest = divmod(ms, 1000)
    clock = f"{18 + seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    if layout == "2023":
        return f"2023-11-16 {clock}.{rest:03d}0000"
    fraction = f".{rest:03d}000" if rest else ""  # as pandas writes it: none where there is none
    return f"2024-05-10 {clock}{fraction}+00:00"


def azure_2023(rows: list[Ask]) -> str:
    return "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
        f"{stamp(a.ms, '2023')},{a.context},{a.output}\n" for a in rows
    )


def azure_2024(rows: list[Ask]) -> str:
    return "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
        f"{stamp(a.ms, '2024')},{a.context},{a.output}\n" for a in rows
    )


def azure_lmm(rows: list[Ask], power: int = 2) -> str:
    return "TIMESTAMP,NumImages,ContextTokens,GeneratedTokens\n" + "".join(
        f"{stamp(a.ms, '2024')},{a.images**power},{a.context},{a.output}\n" for a in rows
    )


def mooncake(rows: list[Ask]) -> str:
    return "".join(
        json.dumps(
            {"timestamp": a.ms, "input_length": a.context, "output_length": a.output, "hash_ids": [0, 1]}
        )
        + "\n"
        for a in rows
    )


def aiperf(rows: list[Ask]) -> str:
    """Delays after the line before."""
    before = [0, *(a.ms for a in rows)]
    return "".join(
        json.dumps({"delay": a.ms - b, "input_length": a.context, "output_length": a.output}) + "\n"
        for a, b in zip(rows, before, strict=False)
    )


def burstgpt(rows: list[Ask]) -> str:
    return (
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        + "".join(
            f"{a.ms / 1000},s{i},1.5,ChatGPT,{a.context},{a.output},{a.context + a.output},API log\n"
            for i, a in enumerate(rows)
        )
    )


WRITERS = {
    "azure 2023": ("azure", azure_2023),
    "azure 2024": ("azure", azure_2024),
    "azure-lmm": ("azure-lmm", azure_lmm),
    "mooncake": ("mooncake", mooncake),
    "mooncake, delays": ("mooncake", aiperf),
    "burstgpt": ("burstgpt", burstgpt),
}


def expected(format: str, rows: list[Ask]) -> dict[str, list[int]]:
    """Columns of the trace table that must come out, times in ms from the first request on."""
    images = [a.images if format == "azure-lmm" else 0 for a in rows]
    return {
        "ms": [a.ms - rows[0].ms for a in rows],
        "modality": [int(i > 0) for i in images],
        "items": images,
        "media_tokens": [i * IMAGE_TOKENS for i in images],
        "prompt_tokens": [a.context - i * IMAGE_TOKENS for a, i in zip(rows, images, strict=True)],
        "output_tokens": [a.output for a in rows],
    }


def found(table: Path | Requests) -> dict[str, list[int]]:
    """The same columns of a written trace."""
    requests = table if isinstance(table, Requests) else load_trace(table)
    assert not np.any(requests.arrival_ns % 1_000_000)
    names = ("modality", "items", "media_tokens", "prompt_tokens", "output_tokens")
    return {"ms": (requests.arrival_ns // 1_000_000).tolist()} | {
        name: getattr(requests, name).tolist() for name in names
    }


SIZES = {
    "text_tokens": "{100: 0.5, 300: 0.5}",
    "image_tokens": "{250: 0.25, 750: 0.75}",
    "audio_tokens": "{0: 1.0}",
    "video_tokens": "{0: 1.0}",
    "image_count": "{1: 0.8, 4: 0.2}",
    "audio_count": "{0: 1.0}",
    "video_count": "{0: 1.0}",
    "output_tokens": "{20: 0.5, 200: 0.5}",
}


def servegen(
    folder: Path,
    clients: list[list[tuple[float, str, float]]],
    sizes: dict[int, dict[str, str]] | None = None,
    window_s: int = 600,
) -> Path:
    """A folder with these clients, each a list of windows (rate, family, shape)."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, windows in enumerate(clients):
        lines = [
            f"{i * window_s},{rate},1.0,{family},{shape},123.0" if family else f"{i * window_s},0,0,,0,0"
            for i, (rate, family, shape) in enumerate(windows)
        ]
        (folder / f"chunk-{number}-trace.csv").write_text("\n".join(lines) + "\n")
        (folder / f"chunk-{number}-dataset.json").write_text(json.dumps(sizes or {0: SIZES}))
    return folder
