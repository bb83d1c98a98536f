"""What a server fills in where a deployment file leaves it open: the runtime serves so, the simulator can show it.

A simulation that is asked for nothing more takes the file as it is: no age cap, no bound of the
queue, a rate that is known. A server cannot: a lone request would wait out the gap of whatever rate
was seen last, a queue without bound answers nobody, and nobody tells it the rate.
"""

from __future__ import annotations

from typing import Any

from has.core.deployment import Deployment

MAX_QUEUE = 256
"""Requests without a first token that a server takes on before it refuses."""
AGE_SHARE = 0.25
"""Of the TTFT bound: half of what is left if the work itself takes half of it."""


def served_max_wait_ms(deployment: Deployment) -> float | None:
    """How long an encode batch may wait in a server; None where nothing is batched or the file says it."""
    if deployment.max_wait_ms is not None or (deployment.encode_batch or 1) == 1:
        return deployment.max_wait_ms
    return AGE_SHARE * deployment.slo.ttft_ms


def served(deployment: Deployment) -> dict[str, Any]:
    """The fields, by name, that a server would set and `deployment` leaves open."""
    fields: dict[str, Any] = {}
    if (max_wait_ms := served_max_wait_ms(deployment)) != deployment.max_wait_ms:
        fields["max_wait_ms"] = max_wait_ms
    if deployment.max_queue is None:
        fields["max_queue"] = MAX_QUEUE
    if deployment.rate_estimate is None and (deployment.encode_batch or 1) > 1:
        fields["rate_estimate"] = "online"
    return fields
