"""`has doctor`: what this machine offers, and what to do about what is missing."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from has.cli import options
from has.cli.console import talk
from has.errors import MissingError
from has.version import __version__

if TYPE_CHECKING:
    from has.report.document import Document

EXTRAS = {
    "runtime": (
        "torch",
        "transformers",
        "PIL",
        "av",
        "soundfile",
        "starlette",
        "uvicorn",
        "httptools",
        "uvloop",
        "httpx",
        "aiohttp",
        "prometheus_client",
    ),
    "cuda": ("cuda.bindings", "pynvml"),
    "silicon": ("aiconfigurator_core",),
    "skopt": ("skopt",),
}
"""The modules that each extra of the installation brings."""

EXTRA_DOES = {
    "runtime": "profiling, live trials, serving",
    "cuda": "SM partitions and clocks of NVIDIA GPUs",
    "silicon": "estimates from measured kernels (--source silicon)",
    "skopt": "--sampler skopt-gp",
}

MANY = 10
"""More shipped files than this are counted, not listed."""

ENGINES = {"vllm": "vllm", "sglang": "sglang", "dynamo": "ai-dynamo"}
"""Serving engines: module, and the distribution it comes in."""


def command(json: options.Json = False, quiet: options.Quiet = False) -> None:
    """Say what this machine offers: devices, memory, SMs, partition mechanism, engines, and what is missing."""
    with talk(json=json, quiet=quiet) as t:
        from has.report.terminal import draw

        found = examine()
        t.result(found, lambda: draw(_document(found)))


def examine() -> dict[str, Any]:
    """Everything `has doctor --json` says."""
    from has.device.detect import detect

    devices = [asdict(info) for info in detect()]
    extras = {name: [m for m in modules if not _installed(m)] for name, modules in EXTRAS.items()}
    engines = {name: _version(package) for name, package in ENGINES.items() if _installed(name)}
    engines |= _vllm_elsewhere()
    shared_memory = _free_bytes(Path("/dev/shm"))
    found: dict[str, Any] = {
        "has": __version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": _memory_bytes(),
        "shared_memory_free_bytes": shared_memory,
        "devices": devices,
        "extras": {name: {"installed": not missing, "missing": missing} for name, missing in extras.items()},
        "engines": engines,
        "shipped": _shipped(),
    }
    found["advice"] = _advice(found)
    return found


def _installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):  # the parent package is missing, or is damaged
        return False


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "unknown version"


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError, AttributeError):
        return None


def _free_bytes(folder: Path) -> int | None:
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None


def _shipped() -> dict[str, list[str]]:
    """By the names that options take."""
    from has.files.shipped import KINDS, names

    return {kind: list(names(kind)) for kind in KINDS}


def _advice(found: Mapping[str, Any]) -> list[str]:
    """What to do about what is missing, most important first."""
    lines = []
    if not found["extras"]["runtime"]["installed"]:
        lines.append(
            "profiling, live trials and serving need the runtime: pip install 'has-epd[runtime]'"
            " (planning with has search --on simulated and has simulate works without)"
        )
    nvidia = shutil.which("nvidia-smi") is not None or Path("/proc/driver/nvidia").exists()
    has_cuda = any(device.get("kind") == "cuda" for device in found["devices"])
    if nvidia and not found["extras"]["cuda"]["installed"]:
        lines.append("an NVIDIA driver is here; to use it: pip install 'has-epd[cuda]'")
    if not nvidia and not has_cuda:
        lines.append("no NVIDIA GPU is here: the cpu device runs real trials on virtual GPUs, slower")
    if found["cores"] is not None and found["cores"] < 2:
        lines.append("one core: live trials of several virtual GPUs will mostly fail their validity gate")
    free = found["shared_memory_free_bytes"]
    if free is not None and free < 1 << 30:
        lines.append(f"/dev/shm has {free >> 20} MiB free; live trials want 1 GiB (docker: --shm-size=2g)")
    if not found["engines"]:
        lines.append(
            "no serving engine (vllm, sglang, dynamo) is installed; has deploy uses the bundled runtime"
        )
    return lines


def _document(found: Mapping[str, Any]) -> Document:
    from has.report.document import Document, Section, Table, two_columns

    machine = two_columns(
        [
            ("HAS", found["has"]),
            ("Python", found["python"]),
            ("system", found["system"]),
            ("cores", found["cores"]),
            ("memory", _size(found["memory_bytes"])),
            ("shared memory free", _size(found["shared_memory_free_bytes"])),
        ]
    )
    devices = [two_columns(_device_rows(device)) for device in found["devices"]]
    extras = Table(
        ("extra", "state", "for"),
        [
            (
                name,
                "installed"
                if state["installed"]
                else f"missing: {', '.join(state['missing'])}; pip install 'has-epd[{name}]'",
                EXTRA_DOES[name],
            )
            for name, state in found["extras"].items()
        ],
    )
    engines = ", ".join(f"{name} {at}" for name, at in found["engines"].items()) or "none"
    shipped = two_columns((kind, _few(names)) for kind, names in found["shipped"].items())
    return Document(
        "What this machine offers",
        found["advice"] or ["nothing is missing"],
        [
            Section("Machine", [machine]),
            Section("Devices", devices),
            Section("Parts of HAS", [extras]),
            Section("Serving engines", [engines]),
            Section("Shipped with HAS, by the names that --profile, --space and --workload take", [shipped]),
        ],
    )


def _device_rows(device: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """What is known of a device, in words."""
    memory = device["memory_bytes"]
    each = "" if device["gpus"] == 1 else f"{device['gpus']} virtual GPUs, each with "
    rows: list[tuple[str, Any]] = [
        (device["kind"], f"{device['name']}{' (emulated device)' if device['emulated'] else ''}"),
        ("SMs", None if device["sm_count"] is None else f"{each}{device['sm_count']}"),
        ("memory", None if memory is None else f"{each}{_size(memory)}"),
        ("partition", device["partition"]),
        *((f"not {mechanism}", why) for mechanism, why in device["reasons"].items()),
        ("driver", device["driver"]),
        ("UUID", device["uuid"]),
        ("MIG", {True: "on", False: "off"}.get(device["mig"])),
        *((f"to {uuid}", how) for uuid, how in device["links"].items()),
        ("to do", device["mend"] or None),
    ]
    return [(name, value) for name, value in rows if value is not None]


def _vllm_elsewhere() -> dict[str, str]:
    """The vLLM that `has deploy --engine vllm` would start: HAS_VLLM's, or the one on the path."""
    from has.engine.vllm.install import installed

    try:
        found = installed()
    except MissingError:
        return {}
    return {"vllm": f"{found.version}{' (cpu)' if found.cpu else ''} at {found.command}"}


def _size(count: int | None) -> str | None:
    if count is None:
        return None
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"


def _few(names: list[str]) -> str:
    """The names, or where they are many how many and the first."""
    if len(names) <= MANY:
        return ", ".join(names) or "none"
    return f"{len(names)}, {names[0]} and others (all of them: --json)"
