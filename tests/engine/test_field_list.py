"""What goes wrong in the field with engines, and must not here; the rest of the list stands in test_exports (ports,
GPU counts, addresses), test_parsers (configurations that do not boot), test_sizes (budgets), test_workers (silent
drops) and test_live_vllm (a crash fails one trial alone)."""

from __future__ import annotations

import pytest

from has.gateway.observer import Observer
from has.trial.engine import _insane, _same
from has.trial.live_records import Answer
from tests.engine.fake_vllm import FakeVllm
from tests.engine.test_workers import Running, deployment, run


def answers(*tokens: list[int]) -> list[Answer]:
    return [Answer(request=i, tokens=list(given)) for i, given in enumerate(tokens)]


def test_nan_logits_served_as_text_are_no_answers() -> None:
    assert "NaN" in _insane(answers([0] * 12, [0] * 12, [0] * 12))


@pytest.mark.parametrize(
    "given",
    [
        ([0] * 12, list(range(12))),  # one looping answer is a model's own affair
        ([0] * 3, [0] * 3),  # too short to tell
        ([5, 6] * 6, [5, 6] * 6),  # random weights do that; it is noted, not condemned
        ([0] * 12,),
    ],
)
def test_what_may_be_a_real_answer_is_not_condemned(given) -> None:
    assert _insane(answers(*given)) == ""


def test_the_same_text_for_every_image_is_noted() -> None:
    assert _same(answers(list(range(9)), list(range(9))))
    assert not _same(answers(list(range(9)), list(range(1, 10))))


def test_seconds_of_preprocessing_in_the_encoder_are_seen() -> None:
    """Engines report nothing while their CPUs decode media; the gateway measures from outside."""
    seen: dict[str, float] = {}

    class Watching(Observer):
        def stage_done(self, stage: str, wait_s: float, service_s: float) -> None:
            seen[stage] = max(seen.get(stage, 0.0), service_s)

    fake = FakeVllm()
    fake.delay_s["e0"] = 0.3

    async def main(running: Running) -> None:
        running.service.observer = Watching()
        await running.ask()

    run(fake, deployment(), main)
    assert seen["encode"] >= 0.3
    assert set(seen) >= {"preprocess", "encode", "prefill_remote", "decode"}
