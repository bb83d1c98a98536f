"""Our gateway in front of vLLM: the scheduler and policies of the bundled runtime, other workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import httpx

from has.core.deployment import Deployment
from has.engine.sizes import Sizes
from has.engine.vllm.fleet import Fleet
from has.engine.vllm.install import installed
from has.engine.vllm.language import EngineLanguage
from has.engine.vllm.media_count import rule_of
from has.engine.vllm.upkeep import upkeep
from has.engine.vllm.urls import Urls
from has.engine.vllm.workers import EngineWorkers
from has.errors import InputError, RunError
from has.gateway.descriptors import allow_files
from has.gateway.front import Front, Say, serve_deployment, unfailing, with_age_cap
from has.gateway.loop import run
from has.gateway.observer import Observer
from has.gateway.scheduler import Scheduler
from has.gateway.server import DRAIN_S, listen
from has.gateway.service import Service, Tap
from has.policy import RateEstimator

ROLES = {
    "disaggregated": ("encode", "local_prefill", "prefill", "decode"),
    "e_pd": ("encode", "prefill_decode"),
    "monolithic": ("all",),
}
LARGEST_ITEM = 16_384
"""Tokens of one medium that encoders are made for where neither a workload nor the model's rule says: what
Qwen-VL's largest image has."""
MOST_ITEMS = 16
"""Images of one request, likewise."""
LARGE_PX = 8192
"""Sides of an image that every rule scales down to its largest."""


def default_sizes(model: str) -> Sizes:
    """What instances are made for where no workload says: the model's largest images, some a request."""
    rule = rule_of(model)
    item = LARGEST_ITEM
    if rule is not None:
        with suppress(InputError):
            item = rule.image(LARGE_PX, LARGE_PX)
    return Sizes(item, item, item, {"image": MOST_ITEMS})


def attached(text: str, deployment: Deployment) -> Urls:
    """Instances that run already, as `role=URL,role=URL`: by role in order. InputError unless they are the deployment's."""
    found: dict[str, list[str]] = {}
    for pair in filter(None, (part.strip() for part in text.split(","))):
        role, equals, url = pair.partition("=")
        if (
            not equals
            or role not in ROLES[deployment.topology]
            or not url.startswith(("http://", "https://"))
        ):
            raise InputError(
                "no instance of this deployment",
                where="argument",
                field="--attach",
                value=pair,
                allowed=f"role=URL with the roles {', '.join(ROLES[deployment.topology])}",
            )
        found.setdefault(role, []).append(url.rstrip("/"))
    for pool in deployment.alloc.pools:
        needed, have = deployment.workers(pool), len(found.get(pool, ()))
        if needed != have:
            raise InputError(
                f"the deployment has {needed} {pool} workers",
                where="argument",
                field="--attach",
                value=f"{have} of role {pool}",
            )
    local = tuple(found.get("local_prefill", ()))
    if deployment.topology == "disaggregated" and deployment.offload_fraction < 1:
        needed = deployment.workers("encode") // deployment.local_prefill_span
        if len(local) != needed:
            raise InputError(
                f"prefill_offload below 1 needs {needed} local prefill instances, on the GPUs of the encoders",
                where="argument",
                field="--attach",
                value=f"{len(local)} of role local_prefill",
            )
    return Urls(
        encode=tuple(found.get("encode", ())),
        local_prefill=local,
        prefill=tuple(found.get("prefill", ())),
        decode=tuple(found.get("decode", ())),
        mixed=tuple(found.get("prefill_decode", found.get("all", ()))),
        span=deployment.local_prefill_span if local else 1,
    )


async def open_service(
    deployment: Deployment,
    urls: Urls,
    *,
    model: str,
    name: str,
    media_rate: float | None,
    online: bool,
    encoder_budget: int | None = None,
    ec_dir: Path | None = None,
    max_queue: int | None = None,
    seed: int = 0,
    observer: Observer | None = None,
    tap: Tap | None = None,
    language: EngineLanguage | None = None,
) -> tuple[Service, EngineWorkers]:
    """A service in front of running instances. `name` is what they call `model`.

    The context is what the instances that answer say of themselves. RunError where they do not answer.
    """
    language = language or EngineLanguage(model)
    context = await _context((urls.decode or urls.mixed)[0], name)
    encoders = max(1, len(urls.encode))

    def observe() -> Callable[[float], float | None]:
        estimator = RateEstimator(media_rate / encoders if media_rate else None)
        return lambda now_s: estimator.arrive(now_s=now_s)

    scheduler = Scheduler(
        deployment,
        media_rate=media_rate,
        observe=observe if online else None,
        kv_tokens=deployment.kv_tokens,
        max_queue=max_queue,
        backpressure=True,
        continuous=True,
        seed=seed,
    )
    workers = EngineWorkers(
        urls,
        language,
        model=name,
        rule=rule_of(model),
        encoder_budget=encoder_budget,
        ec_dir=ec_dir,
    )
    service = Service(
        scheduler,
        workers,
        model=name,
        max_model_len=context,
        language=language,
        observer=observer,
        tap=tap,
    )
    return service, workers


async def _context(url: str, name: str) -> int | None:
    try:
        async with httpx.AsyncClient(trust_env=False, timeout=10.0) as client:
            listed = (await client.get(f"{url}/v1/models")).json()["data"]
    except (httpx.HTTPError, ValueError, KeyError) as error:
        raise RunError(
            f"no vLLM answers at {url} ({type(error).__name__})", mend="start it, or mend --attach"
        ) from error
    known = {card["id"]: card for card in listed}
    if name not in known:
        raise RunError(
            f"{url} serves {', '.join(known)}, not {name}", mend="start it with --served-model-name"
        )
    length = known[name].get("max_model_len")
    return None if length is None else int(length)


def serve(
    deployment: Deployment,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    attach: str | None = None,
    ec_dir: Path | None = None,
    encoder_budget: int | None = None,
    api_key: str | None = None,
    served_model_names: Sequence[str] = (),
    allowed_media_domains: Sequence[str] = (),
    sizes: Sizes | None = None,
    drain_s: float = DRAIN_S,
    say: Say,
    on_ready: Callable[[str], None] = lambda _: None,
) -> None:
    """Serve `deployment` on vLLM until SIGINT or SIGTERM, then drain; end all instances that were started.

    attach          `role=URL,...` of instances that run already; else they are started here
    ec_dir          the folder through which attached instances pass embeddings: a request's go when it is over
    encoder_budget  most tokens of one medium that attached encoders take; larger are refused by that name
    sizes           what encoders are made for that are started here

    Raises MissingError without vLLM, InfeasibleError for what vLLM cannot run as it is, RunError with
    the engine's own reason where an instance does not start.
    """
    say = unfailing(say)
    deployment = with_age_cap(deployment, say)
    urls = None if attach is None else attached(attach, deployment)
    allow_files()
    sock = listen(host, port)
    fleet = None
    try:
        if urls is None:
            fleet = Fleet(installed(), deployment.model, deployment.gpus, swappable=False, say=say)
            plan = fleet.plan(deployment, sizes or default_sizes(deployment.model))
            say(f"starting {len(plan.instances)} vLLM instances; their logs are in {fleet.launcher.logs}")
            urls, encoder_budget, ec_dir = fleet.arrange(plan), plan.encoder_budget, fleet.ec_dir
        elif urls.encode and ec_dir is None:
            say("nothing removes the embeddings of these instances: their folder is not known (--ec-dir)")
        front = Front(sock, say, api_key, served_model_names, allowed_media_domains, drain_s, on_ready)
        run(_serve(deployment, urls, front, fleet, encoder_budget, ec_dir))
    finally:
        if fleet is not None:
            fleet.close()
        sock.close()


async def _serve(
    deployment: Deployment,
    urls: Urls,
    front: Front,
    fleet: Fleet | None,
    encoder_budget: int | None,
    ec_dir: Path | None,
) -> None:
    opened: list[EngineWorkers] = []

    async def start(observer: Observer, max_queue: int) -> Service:
        service, workers = await open_service(
            deployment,
            urls,
            model=deployment.model,
            name=deployment.model,
            media_rate=deployment.rate,
            online=deployment.rate_estimate != "known" or deployment.rate is None,
            encoder_budget=encoder_budget,
            ec_dir=ec_dir,
            max_queue=max_queue,
            observer=observer,
            tap=None if fleet is None else upkeep(fleet, front.say),
        )
        opened.append(workers)
        return service

    try:
        await serve_deployment(deployment, front, start, on="vLLM")
    finally:
        for workers in opened:
            await workers.aclose()
