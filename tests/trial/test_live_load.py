"""The load of a live trial: what a model can really be sent, and no two media alike."""

from __future__ import annotations

import numpy as np
import pytest

from has.core.requests import Requests
from has.errors import InputError
from has.models.media import decode_media
from has.models.names import BUNDLED
from has.trial.live_load import SyntheticLoad, fitted, item_tokens


def requests(kind: str, n: int = 6) -> Requests:
    rng = np.random.default_rng(1)
    return Requests.from_rows(
        {
            "arrival_s": i / 10,
            "modality": kind,
            "items": 0 if kind == "text" else 1 + i % 3,
            "media_tokens": 0 if kind == "text" else int(rng.integers(20, 900)),
            "prompt_tokens": int(rng.integers(0, 40)),
            "output_tokens": 5,
        }
        for i in range(n)
    )


@pytest.mark.parametrize("model", BUNDLED)
def test_media_have_the_tokens_they_are_said_to_have(model: str) -> None:
    kind = BUNDLED[model]
    asked = fitted(requests(kind), model)
    for i, job in enumerate(SyntheticLoad(model).jobs(asked)):
        items = [decode_media(m.kind, m.data, model) for m in job.media]
        assert len(items) == asked.items[i]
        assert sum(item.tokens for item in items) == asked.media_tokens[i]
        assert len(job.prompt) == asked.prompt_tokens[i]
        assert job.max_tokens == asked.output_tokens[i]
        assert job.ignore_eos


@pytest.mark.parametrize("model", BUNDLED)
def test_fitting_twice_changes_nothing(model: str) -> None:
    once = fitted(requests(BUNDLED[model]), model)
    np.testing.assert_array_equal(fitted(once, model).media_tokens, once.media_tokens)


def test_items_share_what_was_asked() -> None:
    assert sum(item_tokens("tiny-image", "image", 3 * 64, 3)) == 3 * 64
    assert len(item_tokens("tiny-image", "image", 10, 3)) == 3


def test_no_two_media_are_alike() -> None:
    jobs = SyntheticLoad("tiny-image").jobs(fitted(requests("image", 12), "tiny-image"))
    media = [item.data for job in jobs for item in job.media]
    assert len(set(media)) == len(media)


def test_a_text_has_at_least_one_token() -> None:
    assert fitted(requests("text"), "tiny-image").prompt_tokens.min() == 1


def test_a_modality_the_model_does_not_take() -> None:
    with pytest.raises(InputError):
        fitted(requests("audio"), "tiny-image")
