"""What goes wrong in the field with engines, and must not here: each report, and the tests that hold it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from has.gateway.observer import Observer
from has.trial.engine import _insane, _same
from has.trial.live_records import Answer
from tests.engine.fake_vllm import FakeVllm
from tests.engine.test_workers import Running, deployment, run

FIELD: dict[str, tuple[str, ...]] = {
    "sglang#23082: of 200 requests 150 were never answered": (
        "test_workers.test_of_200_at_once_every_one_is_answered_or_refused",
        "test_live_vllm.test_deploy_serves_the_best_and_leaves_nothing",
    ),
    "vllm#57136: NaN embeddings served as text": (
        "test_field_list.test_nan_logits_served_as_text_are_no_answers",
    ),
    "dynamo PR 6726: embeddings ignored, the same text for every image": (
        "test_field_list.test_the_same_text_for_every_image_is_noted",
        "test_live_vllm.test_texts_are_the_monoliths_and_embeddings_are_used",
    ),
    "ray PR 60057, vllm-ascend#4725: ports clash": (
        "test_exports.test_plan_is_the_deployment",
        "test_launch.test_ports_are_given_once_and_only_free_ones",
        "test_launch.test_one_that_lives_on_without_its_port_is_given_up",
    ),
    "vllm PR 57305, ado#772: one crashed trial poisons a sweep": (
        "test_faults.test_a_fault_fails_its_trial_alone",
        "test_live_vllm.test_a_search_tries_configurations_and_outlives_a_killed_instance",
    ),
    "dynamo#10104, aiconfigurator#106: generated configurations do not boot": (
        "test_parsers.test_vllm",
        "test_parsers.test_sglang",
        "test_parsers.test_sglang_router",
        "test_parsers.test_dynamo",
        "test_exports.test_dynamo_graph",
        "test_exports.test_llmd_files",
        "test_cluster_schemas.test_llmd_deployments",
        "test_cluster_schemas.test_pods_of_dynamo_components",
        "test_refusals.test_a_flag_the_version_does_not_have_is_never_written",
    ),
    "aiconfigurator PR 1340: the plan says 32 GPUs and needs 72": (
        "test_exports.test_plan_is_the_deployment",
        "test_exports.test_compose_says_what_the_script_says",
        "test_exports.test_dynamo_graph",
        "test_exports.test_llmd_files",
    ),
    "sglang PR 38368: encoder out of memory on merged batches": (
        "test_sizes.test_a_merged_batch_beyond_what_is_known_to_fit_is_cut_or_said",
        "test_faults.test_one_that_does_not_start_gives_its_reason_and_ends_the_others",
    ),
    "vllm#44688: nothing is reported while preprocessing eats seconds": (
        "test_field_list.test_seconds_of_preprocessing_in_the_encoder_are_seen",
    ),
    "sglang PR 17929: --host 0.0.0.0 broke the encoder's address": ("test_exports.test_sglang_script",),
    "vllm#34040: an image of 6,042 tokens, an encoder budget of 4,800": (
        "test_workers.test_an_item_beyond_the_encoder_budget_is_refused_by_the_knobs_name",
        "test_sizes.test_budgets_hold_the_largest_item",
    ),
}


def test_every_report_of_the_field_has_its_tests() -> None:
    """That they pass is their own affair; that they are there is this one's."""
    here = {
        f"{path.stem}.{node.name}"
        for path in Path(__file__).parent.glob("test_*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef)
    }
    assert {test for tests in FIELD.values() for test in tests} <= here


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
