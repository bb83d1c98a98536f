"""What is written for clusters, against the schemas of Kubernetes itself; and our types against what Dynamo itself writes."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from has.engine.export import render
from has.files.yaml import load_yaml
from tests.engine.cases import documents, plan
from tests.engine.cluster_types import Graph
from tests.engine.engines import PYTHON, needs_engines, parser_of

pytestmark = needs_engines
SEEDS = range(32)
VERSION = "1.37"
VALIDATE = """
import json, sys
import kubernetes_validate
failed = []
for document in json.load(open(sys.argv[1])):
    try:
        kubernetes_validate.validate(document, sys.argv[2], strict=True)
    except Exception as error:
        failed.append([str(error)[:300], document["metadata"]["name"]])
print(json.dumps(failed))
"""


def refused(found: list[dict[str, Any]], folder: Path) -> list[list[str]]:
    asked = folder / "documents.json"
    asked.write_text(json.dumps(found))
    done = subprocess.run(
        [PYTHON, "-c", VALIDATE, asked, VERSION], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def written(engine: Any, name: str) -> list[dict[str, Any]]:
    return [
        document
        for seed in SEEDS
        for artefact in render(plan(seed, engine))
        if artefact.name == name
        for document in documents(artefact.text)
    ]


def test_llmd_deployments(tmp_path) -> None:
    found = written("llm-d", "deployments.yaml")
    assert len(found) > 2 * len(SEEDS)
    assert refused(found, tmp_path) == []


def test_pods_of_dynamo_components(tmp_path) -> None:
    """The operator takes each as a pod template: so does a Deployment."""
    found = []
    for graph in written("dynamo", "dynamo.yaml"):
        for component in graph["spec"]["components"]:
            labels = {"app": component["name"]}
            template = component["podTemplate"] | {"metadata": {"labels": labels}}
            spec = {
                "replicas": component["replicas"],
                "selector": {"matchLabels": labels},
                "template": template,
            }
            name = f"{graph['metadata']['name']}-{component['name'].lower()}"
            found.append(
                {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}
            )
    assert len(found) > 3 * len(SEEDS)
    assert refused(found, tmp_path) == []


def test_the_schemas_refuse_what_is_wrong(tmp_path) -> None:
    """A validator that takes everything proves nothing."""
    (document, *_) = [d for d in written("llm-d", "deployments.yaml") if d["kind"] == "Deployment"]
    unknown = json.loads(json.dumps(document))
    unknown["spec"]["template"]["spec"]["containers"][0]["arguments"] = []
    wrong = json.loads(json.dumps(document))
    wrong["spec"]["replicas"] = "two"
    assert len(refused([document, unknown, wrong], tmp_path)) == 2


GRAPHS = "dynamo/profiler/templates/dgd"


def test_dynamos_own_graphs_are_of_the_types_that_ours_are_held_to() -> None:
    shipped = sorted((parser_of("ai-dynamo") / GRAPHS).glob("*/*.yaml"))
    if not shipped:
        pytest.fail(f"ai-dynamo ships no graph in {GRAPHS} any more")
    for path in shipped:
        Graph.model_validate(load_yaml(path))
