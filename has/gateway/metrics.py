"""Prometheus metrics, named as vLLM names its own, with the prefix `has:`.

Counters and histograms are fed by the HTTP side (requests, tokens) and the service (batches,
stages, routes); gauges are read from the service when somebody scrapes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from has.gateway.observer import Observer, ServiceState
from has.gateway.recent import Recent

# A second series for every one, of which nobody makes use.
disable_created_metrics()  # type: ignore[no-untyped-call]  # prometheus_client leaves it unannotated

_Metric = TypeVar("_Metric", Counter, Histogram)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_SECONDS = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.075,
    0.1,
    0.15,
    0.2,
    0.3,
    0.5,
    0.75,
    1,
    1.5,
    2,
    3,
    5,
    7.5,
    10,
    20,
    40,
    80,
    160,
    640,
)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000)
_BATCH = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64)


class Metrics(Observer):
    """All metrics of one server. `state` is asked at each scrape; its gauges are absent without it.

    `recent` keeps the last minute of the same, for the status page.
    """

    def __init__(self, model_name: str, state: Callable[[], ServiceState] | None = None) -> None:
        self.registry = CollectorRegistry()
        self.recent = Recent()
        self._model = model_name
        self._state = state
        self.prompt_tokens = self._counter("prompt_tokens", "Prompt and media tokens prefilled")
        self.generation_tokens = self._counter("generation_tokens", "Tokens produced")
        self._success = self._counter("request_success", "Requests answered", "finished_reason")
        self._failures = self._counter(
            "request_failure", "Requests that ended without a whole answer", "reason"
        )
        self._refused = self._counter("requests_refused", "Requests turned away by backpressure", "reason")
        self._ttft = self._histogram("time_to_first_token_seconds", "Arrival to first token", _SECONDS)
        self._tpot = self._histogram(
            "request_time_per_output_token_seconds", "Mean time per token after the first", _SECONDS
        )
        self._gap = self._histogram("inter_token_latency_seconds", "Time between two tokens", _SECONDS)
        self._e2e = self._histogram("e2e_request_latency_seconds", "Arrival to last token", _SECONDS)
        self._prompt = self._histogram(
            "request_prompt_tokens", "Prompt and media tokens of a request", _TOKENS
        )
        self._generation = self._histogram("request_generation_tokens", "Tokens of an answer", _TOKENS)
        self._encode_batch = self._histogram("encode_batch_size", "Requests of an encode batch", _BATCH)
        self._launches = self._counter("encode_launches", "Encode batches by what launched them", "reason")
        self._cache_queries = self._counter("mm_cache_queries", "Media that came to be encoded")
        self._cache_hits = self._counter("mm_cache_hits", "Media whose embeddings their worker still had")
        self._wait = self._histogram(
            "stage_wait_seconds", "Ready for a stage until its start", _SECONDS, "stage"
        )
        self._service = self._histogram(
            "stage_service_seconds", "Start of a stage to its end", _SECONDS, "stage"
        )
        self._children: dict[tuple[int, str], Any] = {}
        self._routes = self._counter("prefills_routed", "Prefills by where they were sent", "route")
        self._route_tokens = self._counter("prefill_tokens_routed", "Their prompt and media tokens", "route")
        self.registry.register(_StateCollector(self))

    def watch(self, state: Callable[[], ServiceState]) -> None:
        """Ask `state` from now on: a service is often made after the metrics it reports to."""
        self._state = state

    def render(self) -> bytes:
        """The text that Prometheus scrapes."""
        return generate_latest(self.registry)

    def first_token(self, ttft_s: float, prompt_tokens: int) -> None:
        self._ttft.observe(ttft_s)
        self._prompt.observe(prompt_tokens)
        self.prompt_tokens.inc(prompt_tokens)

    def next_token(self, gap_s: float) -> None:
        self._gap.observe(gap_s)

    def finished(self, reason: str, tokens: int, e2e_s: float, ttft_s: float) -> None:
        self._one(self._success, reason).inc()
        self._generation.observe(tokens)
        self.generation_tokens.inc(tokens)
        self._e2e.observe(e2e_s)
        tpot_s = (e2e_s - ttft_s) / (tokens - 1) if tokens > 1 else None
        if tpot_s is not None:
            self._tpot.observe(tpot_s)
        self.recent.answered(time.monotonic(), ttft_s, tpot_s)

    def failed(self, reason: str, tokens: int = 0) -> None:
        """`reason`: error, abort (the client left), bad_request, unavailable."""
        self._one(self._failures, reason).inc()
        self.generation_tokens.inc(tokens)
        if reason not in ("abort", "bad_request"):  # the client's own doing is no miss of ours
            self.recent.missed(time.monotonic(), reason)

    def refused(self, reason: str) -> None:
        self._one(self._refused, reason).inc()
        self.recent.missed(time.monotonic(), f"refused: {reason}")

    def encode_launched(self, size: int, reason: str) -> None:
        self._encode_batch.observe(size)
        self._one(self._launches, reason).inc()
        self.recent.launched(time.monotonic(), size, reason)

    def encoded(self, media: int, known: int) -> None:
        self._cache_queries.inc(media)
        self._cache_hits.inc(known)

    def stage_done(self, stage: str, wait_s: float, service_s: float) -> None:
        self._one(self._wait, stage).observe(wait_s)
        self._one(self._service, stage).observe(service_s)

    def routed(self, remote: bool, tokens: int) -> None:
        route = "remote" if remote else "local"
        self._one(self._routes, route).inc()
        self._one(self._route_tokens, route).inc(tokens)

    def gauges(self) -> Iterator[Metric]:
        """The service's state as gauges."""
        if self._state is None:
            return
        state = self._state()
        yield self._gauge("num_requests_running", "Requests that have their first token", state.running)
        yield self._gauge("num_requests_waiting", "Requests that await their first token", state.waiting)
        if state.kv_tokens_total:
            used = (state.kv_tokens_used or 0) / state.kv_tokens_total
            yield self._gauge("kv_cache_usage_perc", "Share of KV tokens reserved, 1 is all", used)
        yield self._gauges("queue_length", "Requests that wait for a stage", "stage", state.queues)
        yield self._gauges(
            "workers_alive",
            "Workers that are not being replaced",
            "pool",
            {pool.name: float(sum(worker.alive for worker in pool.workers)) for pool in state.pools},
        )
        workers = {str(i): worker for i, worker in enumerate(state.encode_workers)}
        for name, meaning, values in (
            ("encode_waiting", "Requests in the micro-batcher", {i: float(w.waiting) for i, w in workers.items()}),
            ("gap_threshold_seconds", "Silence after which a batch is launched", {i: w.gap_s for i, w in workers.items()}),
            ("arrival_rate_estimate", "Media requests per second", {i: w.rate_rps for i, w in workers.items()}),
            ("encode_sm_percent", "SMs that encode holds now", {i: w.encode_sm for i, w in workers.items()}),
            ("prefill_sm_percent", "SMs that local prefill may use now", {i: w.prefill_sm for i, w in workers.items()}),
            ("offload_deviation", "Sent remote less s times all, in the offload unit", {i: w.offload_deviation for i, w in workers.items()}),
        ):  # fmt: skip
            yield self._gauges(
                name, meaning, "encode_worker", {i: v for i, v in values.items() if v is not None}
            )

    def _gauge(self, name: str, meaning: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"has:{name}", meaning, labels=["model_name"])
        family.add_metric([self._model], value)
        return family

    def _gauges(self, name: str, meaning: str, label: str, values: Mapping[str, float]) -> Metric:
        family = GaugeMetricFamily(f"has:{name}", meaning, labels=["model_name", label])
        for key, value in values.items():
            family.add_metric([self._model, key], value)
        return family

    def _counter(self, name: str, meaning: str, *labels: str) -> Counter:
        counter = Counter(f"has:{name}", meaning, ["model_name", *labels], registry=self.registry)
        return counter if labels else counter.labels(self._model)

    def _histogram(self, name: str, meaning: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        histogram = Histogram(
            f"has:{name}", meaning, ["model_name", *labels], buckets=buckets, registry=self.registry
        )
        return histogram if labels else histogram.labels(self._model)

    def _one(self, metric: _Metric, label: str) -> _Metric:
        """The one of `metric` with this label, kept: looking it up anew costs as much as counting."""
        key = (id(metric), label)
        if key not in self._children:
            self._children[key] = metric.labels(self._model, label)
        found: _Metric = self._children[key]
        return found


class _StateCollector(Collector):
    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        return self._metrics.gauges()

    def describe(self) -> Iterator[Metric]:
        return iter(())  # or registering would ask the service for its state before it runs
