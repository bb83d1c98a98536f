"""What ships: facts with their sources, workloads and spaces that load."""

from __future__ import annotations

import pytest

from has.errors import InputError
from has.files import facts
from has.files.profile import load_profile
from has.files.shipped import KINDS, named, names, shipped
from has.files.space import load_space
from has.files.workload import load_workload


def test_every_model_has_shapes_sizes_and_sources():
    assert len(facts.models()) == 25
    for name, model in facts.models().items():
        assert model["name"] == name
        assert model["sources"], name
        assert model["huggingface"], name
        assert model["computed"]["lm_bytes_bf16"] > 0
        assert model["computed"]["kv_bytes_per_token_bf16"] > 0


def test_public_figures_of_known_models():
    llava = facts.model("llava-v1.6-34b")["computed"]
    assert llava["lm_bytes_bf16"] == 68_779_669_504
    assert llava["kv_bytes_per_token_bf16"] == 245_760
    qwen = facts.model("Qwen/Qwen2.5-VL-7B-Instruct")["computed"]
    assert round(qwen["lm_bytes_bf16"] / 1e9, 1) == 15.2
    assert qwen["kv_bytes_per_token_bf16"] == 57_344
    assert facts.model("qwen2.5-vl-72b")["computed"]["kv_bytes_per_token_bf16"] == 327_680


def test_kv_bytes_are_what_the_shapes_say():
    for model in facts.models().values():
        lm = model["lm"]
        expected = 2 * lm["layers"] * lm["kv_heads"] * lm["head_dim"] * 2
        assert model["computed"]["kv_bytes_per_token_bf16"] == expected, model["name"]


def test_every_gpu_has_what_an_estimate_needs():
    for name, gpu in facts.gpus().items():
        assert gpu["sources"], name
        assert gpu["confidence"], name
        for key in ("sm_or_cu", "memory_gb", "bandwidth_gb_s", "bf16_dense_tflops"):
            assert gpu[key] > 0, name
    assert facts.gpu("h100 sxm")["memory_gb"] == 80
    assert facts.gpu_efficiency()["L40S"]["tflops"] == 187


def test_an_unknown_name_gets_its_likely_one():
    with pytest.raises(InputError) as error:
        facts.model("llava-v1.6-34")
    assert error.value.mend == "did you mean llava-v1.6-34b?"
    with pytest.raises(InputError, match="GPU"):
        facts.gpu("H100 NVL2")


def test_facts_handed_out_cannot_be_lost():
    facts.models().clear()
    assert facts.models()


WORKLOADS = ("image", "video", "audio", "mixed", "tiny-image", "tiny-video", "tiny-audio")


@pytest.mark.parametrize("name", WORKLOADS)
def test_shipped_workloads_load(name):
    workload = load_workload(shipped("workloads") / f"{name}.yaml")
    assert workload.name == name
    assert workload.slo is not None


@pytest.mark.parametrize("modality", ["image", "video", "audio"])
def test_tiny_workloads_stay_within_what_the_bundled_models_carry(modality):
    (entry,) = load_workload(shipped("workloads") / f"tiny-{modality}.yaml").requests
    items = max(entry.items.choice or {entry.items.constant: 1})
    media = max(entry.media_tokens.choice or {entry.media_tokens.constant: 1})
    assert entry.modality == modality
    assert items * media + entry.prompt_tokens.max + entry.output_tokens.max <= 400


@pytest.mark.parametrize("gpus", [4, 8, 16])
def test_shipped_spaces_load_and_reach_their_size(gpus):
    space = load_space(shipped("search_spaces") / f"gpus-{gpus}.yaml")
    ranges = [space.alloc.encode, space.alloc.prefill, space.alloc.decode]
    assert sum(low for low, _ in ranges) <= gpus <= sum(high for _, high in ranges)
    assert set(space.topologies) == {"disaggregated", "e_pd", "monolithic"}


def test_every_shipped_workload_and_space_is_tested_here():
    assert {path.stem for path in shipped("workloads").glob("*.yaml")} == set(WORKLOADS)
    assert {path.stem for path in shipped("search_spaces").glob("*.yaml")} == {"gpus-4", "gpus-8", "gpus-16"}


def test_what_ships_goes_by_its_bare_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert load_workload("image").name == "image"
    assert load_profile("h100-qwen2.5-vl-7b").metadata.model == "qwen2.5-vl-7b"
    assert load_space("gpus-8") == load_space(shipped("search_spaces") / "gpus-8.yaml")
    assert load_profile("a100 26b").metadata.model == "internvl2.5-26b"  # as much of it as leaves no doubt


def test_every_shipped_name_leads_to_its_own_file_and_no_two_are_alike():
    assert sum(len(names(kind)) for kind in KINDS) == len(names(*KINDS))
    for name, file in names(*KINDS).items():
        assert named(name, *KINDS) == file


def test_a_file_of_that_name_goes_first_and_a_folder_does_not(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "image").mkdir()
    assert load_workload("image").name == "image"
    (tmp_path / "image").rmdir()
    mine = (shipped("workloads") / "audio.yaml").read_text()
    (tmp_path / "image").write_text(mine)
    assert load_workload("image").name == "audio"


@pytest.mark.parametrize(
    ("load", "name", "message", "mend"),
    [
        (load_workload, "imgae", "no workload of that name ships with HAS", "did you mean image?"),
        (load_workload, "tiny", "can be any of tiny-audio, tiny-image, tiny-video", ""),
        (load_workload, "photographs", "no workload of that name", "check the spelling"),
        (load_workload, "examples/workloads/image.yaml", "no such file", "image ships with HAS, and goes by that name"),
        (load_workload, "my-traffic.yaml", "no such file", "check the spelling of the path"),
        (load_space, "gpus-9", "no search space of that name", "did you mean gpus-"),
        (load_profile, "h100-qwen2.5-vl-8b", "no profile of that name", "h100-qwen2.5-vl-7b"),
        (load_profile, "profiles/l40s-llava-v1.6-34b.parquet", "no such file", "l40s-llava-v1.6-34b ships with HAS"),
    ],
)  # fmt: skip
def test_a_name_that_leads_nowhere_is_answered_with_what_is_near(
    load, name, message, mend, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as caught:
        load(name)
    assert message in caught.value.message
    assert caught.value.where == name
    assert mend in caught.value.mend


def test_a_slip_of_a_file_s_own_name_is_answered_with_the_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "traffic.yaml").write_text("")
    (tmp_path / "profile.parquet").write_text("")
    for load, slip, meant in (
        (load_workload, "trafic.yaml", "traffic.yaml"),
        (load_profile, "profile.parquett", "profile.parquet"),
        (load_profile, str(tmp_path / "profil.parquet"), str(tmp_path / "profile.parquet")),
    ):
        with pytest.raises(InputError) as caught:
            load(slip)
        assert caught.value.mend == f"did you mean {meant}?"


def test_what_may_stand_there_is_not_a_page_long():
    with pytest.raises(InputError) as caught:
        named("nonsense", *KINDS)
    assert "33 profiles (has doctor --json lists them)" in caught.value.allowed
    assert "gpus-8" in caught.value.allowed
