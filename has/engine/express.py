"""What an engine makes of a deployment: the nearest one it can run, and every knob that changed.

| knob | vLLM behind our gateway | SGLang | Dynamo | llm-d |
|---|---|---|---|---|
| pool sizes, TP | yes | yes | yes | yes |
| B | yes | yes, greedy | one request per forward | yes, greedy |
| gap and age rule | our gateway's | none: launch when idle | none | none |
| s, SM split | two processes a GPU under MPS, asked for | s = 1 | s = 1 | s = 1 |
| dispatch | our gateway's | router's policy; encoders at random | round robin | its scorer |
| media of a request on several encoders | our gateway's | SGLang's own rule | none | none |
| bound of the queue | our gateway's | none | none | none |
| bound of KV tokens | our gateway's | yes | none | none |
| preprocessing | each instance's own | the same | the same | the same |
| types of GPU | nodes of one type | nodes of one type | none | none |

Greedy is the age rule with a budget of 0: whatever waits when the encoder is idle goes, up to B. So
what is emitted is a deployment again, and can be scored.
"""

from __future__ import annotations

from typing import Any

from has.core.deployment import Deployment, SmRow
from has.engine.names import is_loadable, loadable
from has.engine.plan import Change, EngineName
from has.policy import SmPartitioner

NAMES: dict[EngineName, str] = {"vllm": "vLLM", "sglang": "SGLang", "dynamo": "Dynamo", "llm-d": "llm-d"}


class _Rewrite:
    """Collects changed fields; a field that already has the value changes nothing and is not mentioned."""

    def __init__(self, deployment: Deployment) -> None:
        self.asked = deployment
        self.fields: dict[str, Any] = {}
        self.changes: list[Change] = []

    def set(self, knob: str, value: Any, why: str, shown: Any = None) -> None:
        asked = getattr(self.asked, knob)
        if asked == value:
            return
        self.fields[knob] = value
        self.changes.append(Change(knob, "unset" if asked is None else asked, shown or value, why))

    def done(self) -> Deployment:
        kept = self.asked.model_dump(exclude_none=True) | self.fields
        return Deployment.model_validate({k: v for k, v in kept.items() if v is not None})


def express(
    deployment: Deployment, engine: EngineName, *, sm_split: bool = False, sm_table: Any = None
) -> tuple[Deployment, tuple[Change, ...], tuple[str, ...]]:
    """(emitted deployment, changes, notes).

    sm_split   vLLM only: emit s and the SM split as two MPS-capped processes on every encode GPU
    sm_table   the table in force where the deployment leaves it to its profile
    """
    change = _Rewrite(deployment)
    name, notes = NAMES[engine], []
    change.set("model", loadable(deployment.model), "the id by which engines load it")
    if not is_loadable(loadable(deployment.model)):
        notes.append(
            f"{name} loads a model by a folder or by its id on Hugging Face, and {deployment.model} is neither:"
            " set the deployment's model to one"
        )
    if deployment.topology != "monolithic":
        _batching(change, engine, name)
    if deployment.topology == "disaggregated":
        if engine == "vllm" and sm_split and deployment.offload_fraction < 1:
            notes += _mps(change, deployment, sm_table)
        elif deployment.alloc["prefill"]:
            if deployment.offload_fraction < 1:
                why = f"{name} has no prefill beside encode on one GPU; all prefill goes to its own pool"
                change.set("prefill_offload", 1.0, why)
            change.set("sm_table", "streams", "nothing runs beside encode, so there is nothing to split")
        else:
            why = (
                f"encode and prefill are one process of {name} on each of these GPUs, without a split of SMs"
            )
            change.set("sm_table", "streams", why)
            notes.append(
                "no prefill pool: encode GPUs run an engine that encodes and prefills in one scheduler; B bounds"
                " nothing there, and the score, which lets the two overlap, is optimistic"
            )
        change.set("first_token", "decode", f"{name} streams from the decode instance")
    if engine != "vllm":
        _dispatch(change, engine, name)
    _of_our_gateway(change, engine, name)
    if engine == "llm-d" and (deployment.topology == "e_pd" or deployment.alloc.prefill):
        notes.append(
            "nothing removes embeddings from the claim that these pods share: clear it from time to time"
        )
    return change.done(), tuple(change.changes), tuple(notes)


def _batching(change: _Rewrite, engine: EngineName, name: str) -> None:
    if engine == "dynamo":
        change.set("encode_batch", 1, "Dynamo's encode worker runs one request per forward")
    elif engine != "vllm" and (change.asked.encode_batch or 1) > 1:
        why = f"{name} has no gap rule: its encoder takes what waits when it is idle"
        change.set("max_wait_ms", 0.0, why)


def _of_our_gateway(change: _Rewrite, engine: EngineName, name: str) -> None:
    why = f"every instance of {name} preprocesses what it is sent"
    change.set("preprocess_workers", None, why, "unset")
    if engine == "vllm":
        return
    if (change.asked.encode_fanout or 1) > 1:
        why = (
            f"{name} has no such bound" if engine == "sglang" else f"{name} encodes a request on one encoder"
        )
        change.set("encode_fanout", None, why, "unset")
    change.set("max_queue", None, f"nothing in front of {name} counts who waits for a first token", "unset")
    if engine != "sglang":
        why = f"nothing in front of {name} counts KV; an instance holds what its memory does"
        change.set("kv_tokens", None, why, "unset")
        change.set(
            "hardware",
            None,
            f"{name}'s pods are placed by the cluster: give each pool a nodeSelector",
            "unset",
        )


def _mps(change: _Rewrite, deployment: Deployment, sm_table: Any) -> list[str]:
    table = SmPartitioner(deployment.sm_table or sm_table or "streams")
    notes = [
        "EXPERIMENTAL, not run by us: two processes share each encode GPU under CUDA MPS;"
        " MPS caps SMs but isolates neither memory bandwidth nor faults"
    ]
    if table.streams:
        return [*notes, "no SM table: both processes may use all SMs (streams)"]
    share = round(table.encode_share(deployment.encode_batch or 1))
    row = (SmRow(batch=1, encode_sm=float(min(max(share, 1), 99))),)
    if deployment.sm_table != row:
        change.fields["sm_table"] = [r.model_dump() for r in row]
        why = "MPS caps are fixed when a process starts; the split of a full batch is taken for all"
        change.changes.append(Change("sm_table", "follows the batch", f"{row[0].encode_sm:g} % encode", why))
    return notes


def _dispatch(change: _Rewrite, engine: EngineName, name: str) -> None:
    asked = change.asked.dispatch
    if engine == "sglang" and change.asked.topology != "monolithic" and change.asked.alloc["encode"] > 1:
        change.set("dispatch", "random", "SGLang's prefill instances pick encoders at random")
    elif engine == "dynamo":
        change.set("dispatch", "round_robin", "Dynamo's frontend goes round")
    elif engine == "llm-d" and asked != "shortest_queue":
        change.set("dispatch", "shortest_queue", "llm-d's queue scorer takes the shortest queue")
