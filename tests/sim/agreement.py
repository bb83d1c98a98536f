"""Runs one case through kernel and twin and says where they part."""

from __future__ import annotations

import json

from has.core.deployment import Deployment
from has.core.profile import Profile
from has.core.records import COLUMNS, NEVER, ROUTES
from has.core.requests import Requests
from has.latency.lookup import LatencyModel
from has.sim.simulator import Simulator
from tests.sim.twin import Twin

STATUS = ("failed", "completed", "refused")
TOLERANCE_NS = 1000


def nouns(deployment, profile, rows):
    return (
        Deployment.model_validate_json(json.dumps(deployment)),
        Profile.model_validate_json(json.dumps(profile)),
        Requests.from_rows(rows),
    )


def _latency(profile):
    return LatencyModel.from_profile(Profile.model_validate_json(json.dumps(profile)))


def kernel_rows(records):
    """Records as the twin writes them."""
    rows = []
    for i in range(len(records.requests)):
        row = {}
        for name in COLUMNS:
            value = int(getattr(records, name)[i])
            row[name.removesuffix("_ns")] = None if value == NEVER else value
        row["route"] = None if row["route"] is None else ROUTES[row["route"]]
        row["status"] = STATUS[int(records.status[i])]
        rows.append(row)
    return rows


def differences(deployment, profile, rows, seed=0, pools=None):
    """[(request, column, kernel, twin)] beyond the tolerance; `pools`: a profile for each pool's GPUs."""
    d, p, requests = nouns(deployment, profile, rows)
    latency = p
    if pools is not None:
        latency = LatencyModel.of_pools({name: _latency(own) for name, own in pools.items()})
    simulator = Simulator(latency)
    records = simulator.run(d, simulator.prepare(requests, seed))
    twin = Twin(deployment, profile, rows, seed=seed, pools=pools)
    found = []
    for i, (ours, theirs) in enumerate(zip(kernel_rows(records), twin.run(), strict=True)):
        for column, value in ours.items():
            other = theirs[column]
            same = value == other
            if f"{column}_ns" in COLUMNS and None not in (value, other):
                same = abs(value - other) <= TOLERANCE_NS
            if not same:
                found.append((i, column, value, other))
    return found + [item for item in _work(records, twin) if item[2] != item[3]]


def _work(records, twin):
    """What the stages did, as the kernel and as the twin count it."""
    encode, decode = records.stages["encode"], records.stages["decode"]
    if twin.topology != "monolithic":
        ours = sorted(zip(encode.size.tolist(), encode.full.tolist(), strict=True))
        yield "encode", "batches", ours, sorted(twin.batch_log)
    yield "decode", "steps", decode.steps, len(twin.decode_steps)
    yield "decode", "sequences", decode.step_seqs, sum(twin.decode_steps)
