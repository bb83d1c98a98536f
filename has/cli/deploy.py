"""`has deploy`: serves a deployment behind an OpenAI-compatible API."""

from __future__ import annotations

import re
from ipaddress import IPv6Address
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from has.cli import inputs, options, precedence
from has.cli.console import Talk, talk
from has.cli.defaults import Defaults
from has.errors import InputError

if TYPE_CHECKING:
    from has.core.deployment import Deployment


def command(
    deployment: options.Deployment,
    engine: Annotated[
        str | None,
        typer.Option(
            "--engine",
            parser=options.choice("local", "vllm"),
            metavar="local|vllm",
            help="Workers: the bundled runtime's, or vLLM instances behind the same gateway.",
        ),
    ] = None,
    attach: Annotated[
        str | None,
        typer.Option(
            "--attach",
            metavar="ROLE=URL,…",
            help="vllm: instances that run already, by role in order, instead of starting them.",
        ),
    ] = None,
    ec_dir: Annotated[
        Path | None,
        typer.Option(
            "--ec-dir",
            metavar="DIR",
            help="With --attach: the folder through which the instances pass embeddings, which are removed"
            " when a request is over. Default: nobody removes them.",
        ),
    ] = None,
    encoder_budget: Annotated[
        int | None,
        typer.Option(
            "--encoder-budget",
            parser=options.whole(1),
            metavar="N",
            help="With --attach: max_num_batched_tokens of the encoders; a larger medium is refused. Default: by them.",
        ),
    ] = None,
    host: Annotated[
        str | None, typer.Option("--host", metavar="ADDRESS", help="Address to listen on.")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option("--port", parser=options.whole(0, 65535), metavar="N", help="Port; 0 is any."),
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(
            "--api-key",
            metavar="KEY",
            envvar="HAS_API_KEY",
            help="Asked of every request, but for /health and /ready.",
        ),
    ] = None,
    served_model_name: Annotated[
        list[str] | None,
        typer.Option(
            "--served-model-name", metavar="NAME", help="Name clients use; may be given more than once."
        ),
    ] = None,
    allowed_media_domains: Annotated[
        str | None,
        typer.Option(
            "--allowed-media-domains",
            metavar="A,B",
            help="Hosts that media may be fetched from. Default: none.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say which workers would be started with what, and end.")
    ] = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Serve a deployment behind an OpenAI-compatible API: /v1/chat/completions with images, video and audio.

    Needs neither profile nor evidence. Ctrl-C (or SIGTERM) takes no new requests, ends those in
    flight, and leaves nothing behind.
    """
    with talk(json=json, quiet=quiet) as t:
        from has.files.deployment import load_deployment

        defaults = Defaults()
        plan = load_deployment(deployment)
        engine = defaults.pick("--engine", engine, "local", "the bundled runtime")
        if attach is not None and engine != "vllm":
            raise InputError("goes with --engine vllm", where="argument", field="--attach", value=attach)
        for option, given in (("--ec-dir", ec_dir), ("--encoder-budget", encoder_budget)):
            if given is not None and attach is None:
                raise InputError(
                    "goes with --attach: of instances that are started here it is known",
                    where="argument",
                    field=option,
                    value=str(given),
                    mend=f"--attach ROLE=URL,…, or without {option}",
                )
        host = defaults.pick("--host", host, "127.0.0.1", "this machine alone")
        port = defaults.pick("--port", port, 8000)
        if api_key is None:
            defaults.note("--api-key", "none", "whoever reaches the port is served")
        elif not api_key.strip():
            raise InputError(
                "a blank key locks nothing",
                where="argument",
                field="--api-key",
                value=api_key,
                mend="--api-key KEY, or without it: whoever reaches the port is served",
            )
        domains = _bare_domains(allowed_media_domains or "")
        profile = None
        if plan.topology == "disaggregated" and plan.sm_table is None and engine == "local":
            profile = inputs.profile_of(plan, deployment)
            if profile is not None:
                defaults.note("--profile", profile, "for sm_table")
        inputs.note_deployment_defaults(plan, defaults, profile=profile is not None)
        defaults.tell(t)
        precedence.warn_of_seconds(t, plan.slo, str(deployment))
        serving: dict[str, Any] = {
            "host": host,
            "port": port,
            "api_key": api_key,
            "served_model_names": served_model_name or [],
            "allowed_media_domains": domains,
            "on_ready": lambda url: t.result({"url": url, "deployment": plan}, f"ready: {url}"),
        }
        if engine == "vllm":
            from has.cli import engine as on_engine

            of_instances: dict[str, Any] = {
                "attach": attach,
                "ec_dir": ec_dir,
                "encoder_budget": encoder_budget,
            }
            on_engine.serve(t, plan, deployment, dry_run=dry_run, **of_instances, **serving)
            return
        if dry_run:
            _say_what_would_run(t, plan)
            return
        from has.cli import wiring

        wiring.serve(plan, profile=profile, say=t.say, **serving)


def _bare_domains(text: str) -> list[str]:
    """The hosts of `A,B`. InputError for what no host of a URL can be equal to: it would silently allow nothing."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if re.fullmatch(r"[^\s/:?#@*\[\]]+", name.removeprefix("*.")) is None and not _is_ipv6(name):
            found = re.match(r"(?:[a-z]+://)?(?:[^/@]*@)?((?:\*\.)?[\w.-]+)", name, re.IGNORECASE)
            raise InputError(
                "is no domain",
                where="argument",
                field="--allowed-media-domains",
                value=name,
                allowed="bare domains: example.org; *.example.org for every host below it",
                mend=f"--allowed-media-domains {found[1]}" if found else "name the domain alone",
            )
    return names


def _is_ipv6(name: str) -> bool:
    try:
        IPv6Address(name)
    except ValueError:
        return False
    return True


def _say_what_would_run(t: Talk, plan: Deployment) -> None:
    """Workers and their roles, after the checks that starting them would make."""
    from has.cli import wiring
    from has.report.document import Document, Section, Table
    from has.report.terminal import draw

    workers = wiring.planned_workers(plan)
    document = Document(
        f"Would start for {plan.label}: {len(workers)} processes, and the gateway",
        (),
        [Section("Workers", [Table(("process", "pool", "index", "role"), workers)])],
    )
    rows = [dict(zip(("process", "pool", "index", "role"), row, strict=True)) for row in workers]
    t.result({"deployment": plan, "workers": rows}, lambda: draw(document))
