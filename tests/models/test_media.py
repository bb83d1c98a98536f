"""Decoding media: equal to the processors, and deaf to hostile files."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image
from PIL.PngImagePlugin import PngImageFile

from has.errors import InputError
from has.models.image_rules import AnyresRule, PixelGridRule, TileRule
from has.models.media import Grid, MediaLimits, decode_media, load_image
from has.models.names import BUNDLED
from has.models.pixels import anyres, patches, tiles
from has.models.synthetic import media_bytes, synthetic_media
from has.models.tokens import media_tokens, nearest_media_tokens
from tests.models.clips import clip, sound, stream_of


def picture(width: int, height: int, seed: int = 0) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (height // 8 + 1, width // 8 + 1, 3), np.uint8)
    return Image.fromarray(pixels).resize((width, height), Image.Resampling.BICUBIC)


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def png_claiming(width: int, height: int) -> bytes:
    """A few hundred bytes that promise a picture of any size."""

    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(1000)))


@pytest.mark.parametrize("size", [(300, 500), (224, 224), (1920, 1080), (64, 900)])
def test_tiles_are_the_processor_s(size: tuple[int, int]) -> None:
    from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil

    processor = GotOcr2ImageProcessorPil(
        size={"height": 224, "width": 224},
        crop_to_patches=True,
        image_mean=[0.485, 0.456, 0.406],
        image_std=[0.229, 0.224, 0.225],
    )
    image = picture(*size)
    reference = processor(images=[image], return_tensors="np")["pixel_values"]
    np.testing.assert_allclose(tiles(image, TileRule(tile=224)), reference, atol=1e-5)


@pytest.mark.parametrize("size", [(300, 500), (28, 28), (1920, 1080), (64, 900)])
@pytest.mark.parametrize(("patch", "centred"), [(14, False), (16, True)])
def test_patches_are_the_processor_s(size: tuple[int, int], patch: int, centred: bool) -> None:
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    rule = PixelGridRule(max_pixels=448 * 448, patch=patch, centred=centred)
    statistics = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3} if centred else {}
    processor = Qwen2VLImageProcessorPil(
        size={"shortest_edge": 3136, "longest_edge": 448 * 448}, patch_size=patch, **statistics
    )
    image = picture(*size)
    reference = processor(images=[image], return_tensors="np")
    flat, grid = patches([image], rule, video=False)
    assert grid == tuple(reference["image_grid_thw"][0])
    np.testing.assert_allclose(flat, reference["pixel_values"], atol=1e-5)


@pytest.mark.parametrize("size", [(300, 500), (336, 336), (1000, 1000), (1920, 1080), (101, 900), (55, 54)])
def test_anyres_is_the_processor_s(size: tuple[int, int]) -> None:
    from transformers.models.llava_next.image_processing_pil_llava_next import LlavaNextImageProcessorPil

    processor = LlavaNextImageProcessorPil(
        size={"shortest_edge": 336}, crop_size={"height": 336, "width": 336}
    )
    image = picture(*size)
    reference = processor(images=[image], return_tensors="np")["pixel_values"][0]
    np.testing.assert_allclose(anyres(image, AnyresRule()), reference, atol=1e-5)
    item = decode_media("image", encoded(image, "PNG"), "llava-v1.6-34b")
    assert item.tokens == media_tokens("llava-v1.6-34b", image_px=size)


def test_a_video_of_one_repeated_frame_is_an_image_in_each_step() -> None:
    rule = PixelGridRule(video_min_pixels=56 * 56, video_max_pixels=448 * 448, max_pixels=448 * 448)
    image = picture(200, 150)
    still, (_, high, wide) = patches([image], rule, video=False)
    moving, grid = patches([image] * 5, rule, video=True)
    assert grid == (3, high, wide)
    np.testing.assert_array_equal(moving.reshape(3, *still.shape), np.stack([still] * 3))


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP"])
def test_image_formats(kind: str) -> None:
    item = decode_media("image", encoded(picture(448, 224), kind), "tiny-image")
    assert item.arrays["pixels"].shape == (2, 3, 224, 224)
    assert item.arrays["pixels"].dtype == np.float32
    assert item.tokens == 128 == media_tokens("tiny-image", image_px=(448, 224))
    assert item.nbytes == item.arrays["pixels"].nbytes


def test_pictures_stand_upright_on_white() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned
    turned = load_image(encoded(picture(300, 100), "JPEG", exif=exif))
    assert turned.size == (100, 300)
    clear = load_image(encoded(Image.new("RGBA", (8, 8), (0, 0, 0, 0)), "PNG"))
    assert clear.getpixel((0, 0)) == (255, 255, 255)
    palette = load_image(encoded(Image.new("P", (8, 8), 0), "PNG", transparency=0))
    assert palette.getpixel((0, 0)) == (255, 255, 255)
    assert load_image(encoded(Image.new("L", (8, 8), 7), "PNG")).getpixel((0, 0)) == (7, 7, 7)
    assert load_image(encoded(Image.new("CMYK", (8, 8)), "JPEG")).mode == "RGB"


@pytest.mark.parametrize("side", [8_000, 60_000, 2**31 - 1])
def test_a_bomb_is_refused_by_its_header(side: int, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[object] = []
    monkeypatch.setattr(PngImageFile, "load", decoded.append)
    with pytest.raises(InputError, match="image is too large"):
        decode_media("image", png_claiming(side, side), "tiny-image")
    assert not decoded


@pytest.mark.parametrize(
    ("kind", "model", "data"),
    [
        ("image", "tiny-image", b""),
        ("image", "tiny-image", b"not a picture"),
        ("image", "tiny-image", b"<svg xmlns='http://www.w3.org/2000/svg'/>"),
        ("image", "tiny-image", encoded(picture(400, 400), "PNG")[:500]),
        ("image", "tiny-image", encoded(picture(400, 400), "JPEG")[:300]),
        ("image", "tiny-image", png_claiming(0, 5)),
        ("image", "tiny-image", np.zeros((4, 4), np.uint8)),
        ("video", "tiny-video", b""),
        ("video", "tiny-video", b"not a clip"),
        ("video", "tiny-video", b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n"),
        ("video", "tiny-video", b"ffconcat version 1.0\nfile /etc/passwd\n"),
        ("video", "tiny-video", clip("mp4")[:400]),
        ("video", "tiny-video", sound("WAV")),
        ("video", "tiny-video", []),
        ("video", "tiny-video", [b"not a picture"]),
        ("audio", "tiny-audio", b""),
        ("audio", "tiny-audio", b"not a sound"),
        ("audio", "tiny-audio", sound("WAV")[:20]),
        ("audio", "tiny-audio", sound("WAV", seconds=0)),
        ("audio", "tiny-audio", b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n"),
        ("audio", "tiny-audio", np.zeros(0, np.float32)),
        ("audio", "tiny-audio", np.zeros(9, np.int16)),
    ],
)
def test_broken_media_are_input_errors(kind: str, model: str, data: object) -> None:
    with pytest.raises(InputError) as caught:
        decode_media(kind, data, model)
    assert caught.value.field in (kind, "image_px", "image")


@pytest.mark.parametrize(
    ("kind", "model"),
    [("audio", "tiny-image"), ("video", "tiny-image"), ("image", "tiny-audio"), ("video", "tiny-audio")],
)
def test_a_modality_the_model_does_not_take(kind: str, model: str) -> None:
    with pytest.raises(InputError, match=f"takes no {kind}"):
        decode_media(kind, b"", model)


def test_limits_hold_for_every_kind() -> None:
    def refused(kind: str, model: str, data: object, limits: MediaLimits) -> str:
        with pytest.raises(InputError) as caught:
            decode_media(kind, data, model, limits)
        return str(caught.value)

    png = encoded(picture(100, 100), "PNG")
    assert "bytes" in refused("image", "tiny-image", png, MediaLimits(max_bytes=100))
    assert "pixels" in refused("image", "tiny-image", png, MediaLimits(max_pixels=9_999))
    assert "bytes" in refused("video", "tiny-video", [png, png], MediaLimits(max_bytes=len(png) + 1))
    assert "pixels" in refused("video", "tiny-video", [png], MediaLimits(max_pixels=9_999))
    assert "96 frames" in refused("video", "tiny-video", [png] * 97, MediaLimits())
    movie = clip("mp4")
    assert "pixels" in refused("video", "tiny-video", movie, MediaLimits(max_pixels=100))
    assert "seconds" in refused("video", "tiny-video", movie, MediaLimits(max_seconds=1))
    assert "frames" in refused("video", "tiny-video", movie, MediaLimits(decoded_frames=10))
    assert "pixels" in refused("video", "tiny-video", movie, MediaLimits(max_clip_pixels=64 * 48 * 29))
    assert "long" in refused("audio", "tiny-audio", sound("WAV"), MediaLimits(max_seconds=1))
    assert "long" in refused("audio", "tiny-audio", sound("m4a"), MediaLimits(max_seconds=1))
    assert "seconds" in refused(
        "audio", "tiny-audio", np.zeros(32_000, np.float32), MediaLimits(max_seconds=1)
    )


@pytest.mark.parametrize("container", ["mp4", "matroska", "avi", "webm"])
def test_clips_are_sampled_evenly(container: str) -> None:
    """Three seconds at 10 a second give 6 frames at the model's 2, each with its own grey."""
    from has.models.video import load_frames

    frames, rate = load_frames(clip(container), MediaLimits(), lambda seconds, total: round(2 * seconds))
    assert len(frames) == 6
    assert rate == pytest.approx(2.0, rel=0.05)
    greys = [frame.convert("L").getpixel((5, 5)) for frame in frames]
    assert greys == pytest.approx([8 * index for index in range(0, 30, 5)], abs=12)
    item = decode_media("video", clip(container), "tiny-video")
    assert item.grid[:4] == Grid("video", 3, 4, 4)[:4]
    assert item.grid.step_s == pytest.approx(1.0, rel=0.05)
    assert item.tokens == 12


@pytest.mark.parametrize(
    "limits", [MediaLimits(decoded_frames=10), MediaLimits(max_clip_pixels=10 * 64 * 48)]
)
def test_a_clip_without_a_length_is_counted_no_further_than_it_may_be_long(limits: MediaLimits) -> None:
    assert decode_media("video", stream_of(20), "tiny-video").grid.t == 2
    with pytest.raises(InputError) as caught:
        decode_media("video", stream_of(20), "tiny-video", limits)
    assert caught.value.value in ("11 frames", f"{11 * 64 * 48} pixels in all")


def test_frames_as_images_are_all_used() -> None:
    frames = [encoded(picture(100, 100, seed), "JPEG") for seed in range(6)]
    item = decode_media("video", frames, "tiny-video", fps=4.0)
    assert item.grid == Grid("video", 3, 8, 8, step_s=0.5)
    uneven = [*frames, encoded(picture(50, 70), "PNG")]
    assert decode_media("video", uneven, "tiny-video").grid.t == 4


@pytest.mark.parametrize("kind", list(BUNDLED.values()))
@pytest.mark.parametrize("tokens", [None, 1, 100, 333])
def test_synthetic_media_are_unique_and_sized(kind: str, tokens: int | None) -> None:
    model = next(name for name, modality in BUNDLED.items() if modality == kind)
    one, same, next_, seed = (
        synthetic_media(kind, model, index, seed, tokens) for index, seed in [(0, 0), (0, 0), (1, 0), (0, 1)]
    )
    np.testing.assert_array_equal(one, same)
    assert not np.array_equal(one, next_)
    assert not np.array_equal(one, seed)
    item = decode_media(kind, one, model)
    if tokens is not None:
        assert item.tokens == nearest_media_tokens(model, kind, tokens)
    sent = decode_media(kind, media_bytes(kind, one), model)
    assert sent.tokens == item.tokens
    (array,), (other,) = item.arrays.values(), sent.arrays.values()
    if kind != "audio":  # 16-bit samples round; pictures do not
        np.testing.assert_array_equal(array, other)
