"""Bundled models as fixtures; each is built once."""

from __future__ import annotations

import pytest
import torch

from has.models.names import BUNDLED
from has.models.stage_model import StageModel
from tests.models.cases import loaded


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(params=list(BUNDLED))
def model(request: pytest.FixtureRequest) -> StageModel:
    return loaded(request.param)


@pytest.fixture
def image_model() -> StageModel:
    return loaded("tiny-image")
