"""What is written is what was planned: every artefact is read back and compared with its plan."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from has.engine.artefacts import dynamo, llmd
from has.engine.engines import VERSIONS
from has.engine.export import render
from has.engine.flags import FOLDER
from has.engine.place import ENCODER_BUDGET, make_plan
from has.engine.plan import Plan, ports_of
from has.engine.vllm.serve import attached
from has.files.jsonl import parse_json
from tests.engine.cases import (
    RUNS,
    SEEDS,
    VLLM_RUNS,
    Script,
    deployment,
    documents,
    plan,
    port_of,
    read_script,
    sizes,
)
from tests.engine.cluster_types import Claim, Graph, Picker
from tests.engine.cluster_types import Deployment as KubernetesDeployment

LLMD = parse_json((FOLDER / "llm-d-0.9.0.json").read_text(), "llm-d-0.9.0")


def files(made: Plan) -> dict[str, str]:
    return {artefact.name: artefact.text for artefact in render(made)}


def script(made: Plan) -> Script:
    return read_script(files(made)["launch.sh"])


@pytest.mark.parametrize(("engine", "seed"), RUNS)
def test_plan_is_the_deployment(engine, seed) -> None:
    made = plan(seed, engine)
    asked = deployment(seed)
    assert made.gpus == asked.gpus == sum(i.tensor_parallel for i in made.instances if i.owns_gpus)
    assert made.emitted.alloc == asked.alloc
    for node in range(made.nodes):
        ports = [port for _, port in ports_of(made, node)]
        if engine in ("vllm", "sglang"):
            assert len(ports) == len(set(ports)), "a port twice on a host"
        used = Counter(g for i in made.instances if i.node == node and i.owns_gpus for g in i.gpus)
        assert set(used.values()) <= {1}
        assert all(gpu < made.gpus_per_node for gpu in used)
    for instance in made.of("encode"):
        assert instance.max_num_seqs == made.emitted.encode_batch
        assert (
            sizes(seed).item_tokens
            <= instance.max_num_batched_tokens
            <= max(ENCODER_BUDGET, sizes(seed).item_tokens)
        )
    if engine != "vllm" and asked.topology == "disaggregated":
        assert made.emitted.prefill_offload in (0.0, 1.0)
    if engine == "dynamo" and asked.topology != "monolithic":
        assert made.emitted.encode_batch == 1


@pytest.mark.parametrize(("seed", "sm_split"), VLLM_RUNS)
def test_vllm_script(seed, sm_split) -> None:
    made = plan(seed, "vllm", sm_split=sm_split)
    written = script(made)
    assert list(written.started) == [i.name for i in made.instances]
    for instance in made.instances:
        one = written.started[instance.name]
        assert one.argv[:3] == ["vllm", "serve", made.asked.model]
        assert (one.node, one.gpus) == (instance.node, tuple(map(str, instance.gpus)))
        assert one.value("--port") == str(instance.port)
        assert one.value("--max-num-seqs") == str(instance.max_num_seqs)
        assert one.value("--max-num-batched-tokens") == str(instance.max_num_batched_tokens)
        assert one.value("--tensor-parallel-size") == (
            str(len(instance.gpus)) if len(instance.gpus) > 1 else None
        )
        assert one.json("--limit-mm-per-prompt") == {"audio": 0, "video": 0} | made.sizes.items
        assert one.env.get("VLLM_NIXL_SIDE_CHANNEL_PORT") == (
            str(instance.ports["nixl"]) if "nixl" in instance.ports else None
        )
        kv, ec = one.json("--kv-transfer-config"), one.json("--ec-transfer-config")
        role = instance.role
        assert kv.get("kv_role") == {
            "decode": "kv_consumer",
            "prefill": "kv_producer",
            "local_prefill": "kv_producer",
            "encode_prefill": "kv_producer",
        }.get(role)
        assert ec.get("ec_role") == {"encode": "ec_producer"}.get(
            role, "ec_consumer" if made.of("encode") else None
        )
        if (
            sm_split
            and made.emitted.sm_table not in (None, "streams")
            and role in ("encode", "local_prefill")
        ):
            share = made.emitted.sm_table[0].encode_sm
            assert float(one.env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"]) == (
                share if role == "encode" else 100 - share
            )
    given = written.front[written.front.index("--attach") + 1]
    words = [word.split("=", 1) for word in given.split(",")]
    assert [role for role, _ in words] == [i.role for i in made.instances]
    assert [port_of(url) for _, url in words] == [i.port for i in made.instances]
    urls = attached(given, made.emitted)
    assert len({url for _, _, url in urls.all()}) == len(made.instances), "our gateway takes all of it"
    flags = dict(pairwise(written.front))
    if made.of("encode"):
        assert flags["--ec-dir"] == "${EC_DIR}"
        assert flags["--encoder-budget"] == str(made.of("encode")[0].max_num_batched_tokens)
    else:
        assert "--ec-dir" not in flags
    if sm_split:
        assert made.emitted.prefill_offload == made.asked.prefill_offload


@pytest.mark.parametrize("seed", SEEDS)
def test_sglang_script(seed) -> None:
    made = plan(seed, "sglang")
    written = script(made)
    for instance in made.instances:
        one = written.started[instance.name]
        assert (one.node, one.gpus) == (instance.node, tuple(map(str, instance.gpus)))
        assert one.value("--host") == f"${{HOST{instance.node}}}", (
            "an encoder on 0.0.0.0 gives that as its address"
        )
        assert one.value("--nccl-port") == str(instance.ports["nccl"])
        if instance.role != "encode":
            assert one.value("--chunked-prefill-size") == str(instance.max_num_batched_tokens)
            assert one.value("--max-running-requests") == str(instance.max_num_seqs)
        batch = one.env.get("SGLANG_ENCODER_MAX_BATCH_SIZE")
        assert batch == (str(made.emitted.encode_batch) if instance.role == "encode" else None)
        for purpose, flag in (
            ("bootstrap", "--disaggregation-bootstrap-port"),
            ("encoder_bootstrap", "--encoder-bootstrap-port"),
        ):
            assert one.value(flag) == (str(instance.ports[purpose]) if purpose in instance.ports else None)
        if instance.role in ("prefill", "prefill_decode"):
            assert [port_of(url) for url in one.values("--encoder-urls")] == [
                e.port for e in made.of("encode")
            ]
        if instance.role in ("prefill", "decode"):
            assert one.value("--disaggregation-transfer-backend") == "nixl"
    front = written.front
    given = [front[i + 1 : i + 3] for i, word in enumerate(front) if word == "--prefill"]
    wanted = [[i.port, i.ports["bootstrap"]] for i in made.of("prefill", "encode_prefill")]
    assert [[port_of(url), int(port)] for url, port in given] == wanted
    decoders = [port_of(front[i + 1]) for i, word in enumerate(front) if word == "--decode"]
    assert decoders == [i.port for i in made.of("decode")]


@pytest.mark.parametrize(("engine", "seed"), [(e, s) for e, s in RUNS if e in ("vllm", "sglang")])
def test_compose_says_what_the_script_says(engine, seed) -> None:
    made = plan(seed, engine)
    written, all_files = script(made), files(made)
    for node in range(made.nodes):
        name = "compose.yaml" if made.nodes == 1 else f"compose-node{node}.yaml"
        (document,) = documents(all_files[name])
        services = document["services"]
        here = [i for i in made.instances if i.node == node]
        assert [s for s in services if s not in ("gateway", "router")] == [i.name for i in here]
        for instance in here:
            service, one = services[instance.name], written.started[instance.name]
            assert service["command"] == (one.argv[2:] if engine == "vllm" else one.argv)
            assert service["environment"] == one.env
            (device,) = service["deploy"]["resources"]["reservations"]["devices"]
            assert tuple(device["device_ids"]) == one.gpus
            assert VERSIONS[engine] in service["image"]


@pytest.mark.parametrize("seed", SEEDS)
def test_dynamo_graph(seed) -> None:
    made = plan(seed, "dynamo")
    (document,) = documents(files(made)["dynamo.yaml"])
    graph = Graph.model_validate(document)
    gpus = replicas = 0
    for component in graph.spec.components:
        (container,) = component.podTemplate.spec.containers
        if component.type == "frontend":
            continue
        gpus += int(container.resources.limits["nvidia.com/gpu"]) * component.replicas
        replicas += component.replicas
        argv = container.args
        mode = argv[argv.index("--disaggregation-mode") + 1]
        assert ("--kv-transfer-config" in argv) == (mode in ("prefill", "decode"))
        pool = [i for i in made.instances if dynamo.MODES[i.role] == mode]
        assert component.replicas == len(pool)
        assert {i.tensor_parallel for i in pool} == {int(container.resources.limits["nvidia.com/gpu"])}
        if mode != "encode":  # its encoder takes one request a forward, whatever it is told
            assert argv[argv.index("--max-num-batched-tokens") + 1] == str(pool[0].max_num_batched_tokens)
            assert argv[argv.index("--max-num-seqs") + 1] == str(pool[0].max_num_seqs)
    assert (gpus, replicas) == (made.asked.gpus, len(made.instances))


@pytest.mark.parametrize("seed", SEEDS)
def test_llmd_files(seed) -> None:
    made = plan(seed, "llm-d")
    all_files, facts = files(made), LLMD
    (picker,) = documents(all_files["epp-config.yaml"])
    Picker.model_validate(picker)
    gpus = 0
    written = documents(all_files["deployments.yaml"])
    for claim in (d for d in written if d["kind"] != "Deployment"):
        Claim.model_validate(claim)
    pools = [d for d in written if d["kind"] == "Deployment"]
    for pool in pools:
        KubernetesDeployment.model_validate(pool)
        spec = pool["spec"]["template"]["spec"]
        assert pool["spec"]["template"]["metadata"]["labels"]["llm-d.ai/role"] in facts["roles"]
        (container,) = spec["containers"]
        gpus += pool["spec"]["replicas"] * int(container["resources"]["limits"]["nvidia.com/gpu"])
        argv = container["args"]
        role = pool["spec"]["template"]["metadata"]["labels"]["llm-d.ai/role"]
        planned = [i for i in made.instances if llmd.ROLES[i.role] == role]
        assert pool["spec"]["replicas"] == len(planned)
        assert argv[argv.index("--max-num-seqs") + 1] == str(planned[0].max_num_seqs)
        assert argv[argv.index("--max-num-batched-tokens") + 1] == str(planned[0].max_num_batched_tokens)
        if role == "encode":
            assert planned[0].max_num_seqs == made.emitted.encode_batch
        listening = [argv[argv.index("--port") + 1]]
        for sidecar in spec.get("initContainers", ()):
            flags = dict(argument.split("=") for argument in sidecar["args"])
            assert set(flags) <= set(facts["flags"])
            assert flags.get("--kv-connector", "nixlv2") in facts["kv_connectors"]
            assert flags.get("--ec-connector", "ec-example") in facts["ec_connectors"]
            assert flags["--vllm-port"] == listening[0]
            listening.append(flags["--port"])
        assert len(set(listening)) == len(listening), "a port twice in a pod"
    assert gpus == made.asked.gpus


@pytest.mark.parametrize("engine", VERSIONS)
def test_every_change_is_said(engine) -> None:
    for seed in (s for e, s in RUNS if e == engine):
        made = plan(seed, engine)
        asked, emitted = made.asked.model_dump(), made.emitted.model_dump()
        changed = {name for name in asked if asked[name] != emitted[name]}
        assert changed <= {change.knob for change in made.changes}
        head = next(iter(files(made).values()))
        assert all(str(change) in head for change in made.changes)
        assert f"{VERSIONS[engine]}:" in head, "names the engine version"


@pytest.mark.parametrize("engine", VERSIONS)
def test_only_our_gateway_bounds_queues_and_shares_a_requests_media(engine) -> None:
    asked = deployment(3).model_copy(update={"encode_fanout": 2, "max_queue": 40})
    assert asked.topology == "disaggregated"
    assert asked.alloc["prefill"]
    made = make_plan(asked, engine, sizes(3))
    said = {change.knob: str(change) for change in made.changes}
    if engine == "vllm":
        assert (made.emitted.encode_fanout, made.emitted.max_queue) == (2, 40)
        assert not {"encode_fanout", "max_queue"} & set(said)
    else:
        assert (made.emitted.encode_fanout, made.emitted.max_queue) == (None, None)
        assert said["encode_fanout"].startswith("encode_fanout: 2 becomes unset: ")
        assert said["max_queue"].startswith("max_queue: 40 becomes unset: ")


@pytest.mark.parametrize("engine", VERSIONS)
def test_emitting_what_was_emitted_changes_nothing_more(engine) -> None:
    for seed in (s for e, s in RUNS if e == engine):
        once = plan(seed, engine)
        again = make_plan(once.emitted, engine, sizes(seed))
        assert again.emitted == once.emitted
        knobs = {change.knob for change in again.changes}
        assert knobs <= {"max_num_batched_tokens"}
