"""docs/files.md: its examples load, its tables name every field and the defaults that hold."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from has.core.deployment import Deployment
from has.core.profile import ProfileMetadata, ProfilePoint
from has.core.space import SearchSpace
from has.core.workload import Arrivals, Distribution, RequestClass, Workload
from has.errors import InputError
from has.files import records, trace
from has.files.deployment import deployment_yaml, load_deployment
from has.files.profile import load_profile
from has.files.space import load_space
from has.files.workload import load_workload
from has.latency.lookup import LatencyModel

PAGE = (Path(__file__).parents[2] / "docs" / "files.md").read_text()
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))


def example(section: str, language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", SECTIONS[section], re.DOTALL)
    assert found
    return found[1]


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_the_examples_load(tmp_path):
    text = example("Deployment", "yaml")
    assert deployment_yaml(load_deployment(written(tmp_path, "d.yaml", text))) == text
    load_workload(written(tmp_path, "w.yaml", example("Workload", "yaml")))
    assert len(trace.load_trace(written(tmp_path, "t.csv", example("Trace", "csv")))) == 2
    written(tmp_path, "p.json", example("Profile", "json"))
    profile = load_profile(written(tmp_path, "p.csv", example("Profile", "csv")))
    assert LatencyModel.from_profile(profile).seconds("encode", 99, 10**6, 1.0) == 0.05
    assert load_space(written(tmp_path, "s.yaml", example("Search space", "yaml"))) == SearchSpace(version=1)


@pytest.mark.parametrize(
    ("section", "names"),
    [
        ("Deployment", Deployment.model_fields),
        (
            "Workload",
            [
                *Workload.model_fields,
                *Arrivals.model_fields,
                *RequestClass.model_fields,
                *Distribution.model_fields,
            ],
        ),
        ("Trace", trace.COLUMNS + trace.SIZES),
        ("Profile", [*ProfilePoint.model_fields, *ProfileMetadata.model_fields]),
        ("Search space", SearchSpace.model_fields),
        ("Records", records.COLUMNS),
    ],
)
def test_every_field_is_documented(section, names):
    text = SECTIONS[section]
    assert [name for name in names if not re.search(rf"\b{name}\b", text)] == []


def test_the_defaults_are_those_that_hold():
    for name, field in Deployment.model_fields.items():
        shown = re.search(rf"^\| `{name}` \| (.*?) \|", SECTIONS["Deployment"], re.MULTILINE)
        assert shown, name
        if field.is_required():
            assert shown[1] == "required", name
        elif isinstance(field.default, int | float | str):
            assert shown[1].strip("`") == str(field.default), name


def test_the_error_shown_is_the_error_given(tmp_path):
    text = (
        example("Deployment", "yaml").replace("encode_batch", "encode_bach").replace("gpus: 8", "gpus: true")
    )
    with pytest.raises(InputError) as error:
        load_deployment(written(tmp_path, "best.yaml", text))
    given = str(error.value).replace(f"{tmp_path}/", "")
    shown = example("Errors", "text")
    before, after = shown.split("…")
    assert given.startswith(before)
    assert given.endswith(after.strip())
