"""What NVML says of a GPU, and whether it was quiet enough for a measurement to be believed.

Not run on a GPU yet: held to a recorded fake.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from has.core.words import percent
from has.errors import MissingError

CLOCK_DRIFT_BOUND = 0.03


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One GPU now. None: the GPU or driver does not say. `throttled` names the slowdowns in force."""

    name: str
    uuid: str
    driver: str | None
    memory_bytes: int | None
    sm_mhz: int | None
    temperature_c: int | None
    throttled: tuple[str, ...]
    power_cap: bool
    processes: tuple[int, ...]
    mig: bool
    slices: tuple[MigSlice, ...] = ()


@dataclass(frozen=True, slots=True)
class MigSlice:
    """A MIG device of a GPU, as its administrator made it; HAS reads them and never makes one."""

    name: str
    uuid: str
    memory_bytes: int | None


def load_nvml() -> Any:
    """The module `pynvml`, initialised. Raises MissingError with the line that mends it."""
    try:
        import pynvml
    except ImportError:
        raise MissingError("NVML is not installed", mend="pip install 'has-epd[cuda]'") from None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise MissingError(
            f"no NVIDIA driver: NVML says {error}", mend="install the NVIDIA driver, or use --device cpu"
        ) from None
    return pynvml


def uuids(nvml: Any) -> list[str]:
    """UUIDs of all GPUs. Devices are matched by UUID: CUDA_VISIBLE_DEVICES renumbers one side only."""
    handles = map(nvml.nvmlDeviceGetHandleByIndex, range(nvml.nvmlDeviceGetCount()))
    return [_text(nvml.nvmlDeviceGetUUID(handle)) for handle in handles]


def find(nvml: Any, device: str) -> tuple[str, str | None] | None:
    """UUID of the GPU that CUDA calls `device` (without GPU- or MIG- before it), or of the GPU that it is a MIG slice of,
    and then of the slice; None where NVML has neither."""
    for uuid in uuids(nvml):
        for known in (uuid, *(part.uuid for part in snapshot(nvml, uuid).slices)):
            if bare(known) == device:
                return uuid, None if known == uuid else known
    return None


def bare(uuid: str) -> str:
    """As CUDA says it: without what NVML puts before it."""
    return uuid.removeprefix("GPU-").removeprefix("MIG-")


def snapshot(nvml: Any, uuid: str, part: str | None = None) -> Snapshot:
    """The GPU as it is now. part: a MIG slice of it, whose processes are asked for: of what runs on another one it has
    nothing but the clock, which is the GPU's."""
    handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
    used = handle if part is None else nvml.nvmlDeviceGetHandleByUUID(part)

    def ask(call: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return call(*arguments)
        except nvml.NVMLError:  # many figures are not supported by many GPUs
            return None

    slowdowns = {
        "hardware slowdown": nvml.nvmlClocksEventReasonHwSlowdown,
        "hardware thermal slowdown": nvml.nvmlClocksEventReasonHwThermalSlowdown,
        "software thermal slowdown": nvml.nvmlClocksEventReasonSwThermalSlowdown,
        "power brake": nvml.nvmlClocksEventReasonHwPowerBrakeSlowdown,
    }
    reasons = ask(nvml.nvmlDeviceGetCurrentClocksEventReasons, handle) or 0
    memory = ask(nvml.nvmlDeviceGetMemoryInfo, handle)
    mig = ask(nvml.nvmlDeviceGetMigMode, handle)
    driver = ask(nvml.nvmlSystemGetDriverVersion)
    processes = [
        *(ask(nvml.nvmlDeviceGetComputeRunningProcesses, used) or []),
        *(ask(nvml.nvmlDeviceGetMPSComputeRunningProcesses, used) or []),
    ]
    return Snapshot(
        name=_text(nvml.nvmlDeviceGetName(handle)),
        uuid=uuid,
        driver=None if driver is None else _text(driver),
        memory_bytes=None if memory is None else int(memory.total),
        sm_mhz=ask(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM),
        temperature_c=ask(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU),
        throttled=tuple(name for name, bit in slowdowns.items() if reasons & bit),
        power_cap=bool(reasons & nvml.nvmlClocksEventReasonSwPowerCap),
        processes=tuple(sorted({process.pid for process in processes})),
        mig=mig is not None and mig[0] == 1,
        slices=_slices(nvml, handle, ask) if mig is not None and mig[0] == 1 else (),
    )


def _slices(nvml: Any, handle: Any, ask: Callable[..., Any]) -> tuple[MigSlice, ...]:
    found = []
    for index in range(ask(nvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
        part = ask(nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, index)
        if part is None:  # fewer slices than there may be
            continue
        memory = ask(nvml.nvmlDeviceGetMemoryInfo, part)
        found.append(
            MigSlice(
                _text(nvml.nvmlDeviceGetName(part)),
                _text(nvml.nvmlDeviceGetUUID(part)),
                None if memory is None else int(memory.total),
            )
        )
    return tuple(found)


def topology(nvml: Any, uuid: str) -> dict[str, str]:
    """UUID of every other GPU -> how it is reached, in the words of `nvidia-smi topo`: NVLink, PIX (one switch), PXB
    (several), PHB (the host bridge), NODE (one NUMA node), SYS (across sockets). A pair that NVML is silent about is absent.
    """
    levels = {
        nvml.NVML_TOPOLOGY_INTERNAL: "same board",
        nvml.NVML_TOPOLOGY_SINGLE: "PIX",
        nvml.NVML_TOPOLOGY_MULTIPLE: "PXB",
        nvml.NVML_TOPOLOGY_HOSTBRIDGE: "PHB",
        nvml.NVML_TOPOLOGY_NODE: "NODE",
        nvml.NVML_TOPOLOGY_SYSTEM: "SYS",
    }
    own = nvml.nvmlDeviceGetHandleByUUID(uuid)
    found = {}
    for other in uuids(nvml):
        if other == uuid:
            continue
        handle = nvml.nvmlDeviceGetHandleByUUID(other)
        try:
            linked = nvml.nvmlDeviceGetP2PStatus(own, handle, nvml.NVML_P2P_CAPS_INDEX_NVLINK)
            if linked == nvml.NVML_P2P_STATUS_OK:
                found[other] = "NVLink"
                continue
        except nvml.NVMLError:
            pass  # GPUs without NVLink do not answer this; the bus below still holds
        try:
            level = nvml.nvmlDeviceGetTopologyCommonAncestor(own, handle)
        except nvml.NVMLError:
            continue
        found[other] = levels.get(level, f"level {level}")
    return found


@dataclass(frozen=True, slots=True)
class Noise:
    """reject: why a measurement must not be used (empty: it may). flags: what to say beside it."""

    reject: tuple[str, ...]
    flags: tuple[str, ...]


def noise(before: Snapshot, after: Snapshot, own: Collection[int] = ()) -> Noise:
    """Judge a measurement between two snapshots. `own`: pids of the measurement, besides this process."""
    reject = list(dict.fromkeys((*before.throttled, *after.throttled)))
    if before.sm_mhz and after.sm_mhz:
        drift = abs(after.sm_mhz - before.sm_mhz) / before.sm_mhz
        if drift > CLOCK_DRIFT_BOUND:
            reject.append(
                f"the SM clock drifted by {percent(drift)}, from {before.sm_mhz} to {after.sm_mhz} MHz"
            )
    foreign = {*before.processes, *after.processes} - {os.getpid(), *own}
    if foreign:
        reject.append(f"other processes used the GPU: {', '.join(map(str, sorted(foreign)))}")
    flags = []
    if before.power_cap or after.power_cap:
        flags.append("the power cap held the clock down")
    if after.mig:
        flags.append("MIG is on: shares are of the MIG slice")
    return Noise(tuple(reject), tuple(flags))


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
