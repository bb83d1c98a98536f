"""A recorded NVIDIA driver: answers of `cuda.bindings.driver` and `pynvml` for an L40S, with faults to switch on.

What is recorded: 142 SMs in steps of 2; 120 asked give 114; a second split of the whole GPU begins at SM 0 again;
cuInit without a driver raises; NVML says "not supported" by raising.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

L40S = "GPU-00112233-4455-6677-8899-aabbccddeeff"
ROUNDED = {120: 114}


class CUresult(IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1
    CUDA_ERROR_NO_DEVICE = 100
    CUDA_ERROR_NOT_PERMITTED = 800
    CUDA_ERROR_NOT_SUPPORTED = 801


OK = CUresult.CUDA_SUCCESS


@dataclass
class Resource:
    sms: range
    sm: Any = None

    def __post_init__(self) -> None:
        self.sm = SimpleNamespace(smCount=len(self.sms))


@dataclass
class FakeDriver:
    """Stands where the module `cuda.bindings.driver` would. `live` holds what was made and not given back."""

    version: int = 12080
    sm_count: int = 142
    capability: tuple[int, int] = (8, 9)
    init: CUresult = OK
    absent: bool = False
    no_green: bool = False
    splits_twice: bool = False
    fail_context: int = 0
    says_granularity: tuple[int, int] | None = None
    name: str = "NVIDIA L40S"
    uuid: str = L40S
    lost: int = 0
    """SMs that a split leaves in neither part."""
    live: set[int] = field(default_factory=set)
    contexts: dict[int, Resource] = field(default_factory=dict)
    splits: list[int] = field(default_factory=list)
    _next: int = 0

    CUdevResourceType = SimpleNamespace(CU_DEV_RESOURCE_TYPE_SM=1)
    CUgreenCtxCreate_flags = SimpleNamespace(CU_GREEN_CTX_DEFAULT_STREAM=1)
    CUstream_flags = SimpleNamespace(CU_STREAM_NON_BLOCKING=1)
    CUdevice_attribute = SimpleNamespace(
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR="major",
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR="minor",
        CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT="sms",
    )

    def cuInit(self, flags: int):
        if self.absent:
            raise RuntimeError('"cuda" is an NVIDIA driver library and can only be found via system search.')
        return (self.init,)

    def cuDriverGetVersion(self):
        return OK, self.version

    def cuDeviceGetCount(self):
        return OK, 1

    def cuDeviceGet(self, index: int):
        return OK, index

    def cuDeviceGetName(self, length: int, device: int):
        return OK, self.name.encode() + b"\0\0"

    def cuDeviceGetUuid(self, device: int):
        bare = self.uuid.removeprefix("GPU-").removeprefix("MIG-")
        return OK, SimpleNamespace(bytes=bytes.fromhex(bare.replace("-", "")))

    def cuDeviceTotalMem(self, device: int):
        return OK, 48 * 2**30

    def cuDeviceGetAttribute(self, which: str, device: int):
        return OK, {"major": self.capability[0], "minor": self.capability[1], "sms": self.sm_count}[which]

    def cuDeviceGetDevResource(self, device: int, kind: int):
        if self.no_green:
            return CUresult.CUDA_ERROR_NOT_SUPPORTED, None
        whole = Resource(range(self.sm_count))
        if self.says_granularity:
            whole.sm.minSmPartitionSize, whole.sm.smCoscheduledAlignment = self.says_granularity
        return OK, whole

    def cuDevSmResourceSplitByCount(self, groups: int, whole: Resource, flags: int, least: int):
        self.splits.append(least)
        count = ROUNDED.get(least, least)
        group = Resource(whole.sms[:count])
        rest = Resource(whole.sms[:count] if self.splits_twice else whole.sms[count + self.lost :])
        return OK, [group], 1, rest

    def cuDevResourceGenerateDesc(self, resources: list[Resource], count: int):
        return OK, resources[0]

    def cuGreenCtxCreate(self, description: Resource, device: int, flags: int):
        if self.fail_context and len(self.contexts) + 1 >= self.fail_context:
            return CUresult.CUDA_ERROR_NOT_PERMITTED, None
        made = self._make()
        self.contexts[made] = description
        return OK, made

    def cuGreenCtxStreamCreate(self, context: int, flags: int, priority: int):
        return OK, self._make()

    def cuGreenCtxGetDevResource(self, context: int, kind: int):
        return OK, self.contexts[context]

    def cuStreamDestroy(self, stream: int):
        self.live.remove(stream)
        return (OK,)

    def cuGreenCtxDestroy(self, context: int):
        self.live.remove(context)
        return (OK,)

    def _make(self) -> int:
        self._next += 1
        self.live.add(self._next)
        return self._next


class NVMLError(Exception):
    pass


@dataclass
class FakeNvml:
    """Stands where the module `pynvml` would."""

    reasons: int = 0
    sm_mhz: int | None = 2520
    processes: tuple[int, ...] = ()
    mig: int | None = 0
    slices: tuple[str, ...] = ()
    in_slices: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Processes of each slice."""
    bytes_names: bool = False

    NVMLError = NVMLError
    NVML_CLOCK_SM = 1
    NVML_TEMPERATURE_GPU = 0
    nvmlClocksEventReasonSwPowerCap = 4
    nvmlClocksEventReasonHwSlowdown = 8
    nvmlClocksEventReasonSwThermalSlowdown = 32
    nvmlClocksEventReasonHwThermalSlowdown = 64
    nvmlClocksEventReasonHwPowerBrakeSlowdown = 128

    def nvmlDeviceGetCount(self):
        return 1

    def nvmlDeviceGetHandleByIndex(self, index: int):
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid: str):
        assert uuid == L40S or uuid in self.slices
        return uuid if uuid in self.slices else 0

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: int):
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: int, index: int):
        if index >= len(self.slices):
            raise NVMLError("Not Found")
        return self.slices[index]

    def nvmlDeviceGetUUID(self, handle: int | str):
        if isinstance(handle, str):
            return handle
        return L40S.encode() if self.bytes_names else L40S

    def nvmlDeviceGetName(self, handle: int | str):
        if isinstance(handle, str):
            return "NVIDIA L40S MIG 3g.24gb"
        return "NVIDIA L40S"

    def nvmlSystemGetDriverVersion(self):
        return "570.86.15"

    def nvmlDeviceGetMemoryInfo(self, handle: int | str):
        return SimpleNamespace(total=(24 if isinstance(handle, str) else 48) * 2**30)

    def nvmlDeviceGetMigMode(self, handle: int):
        if self.mig is None:
            raise NVMLError("Not Supported")
        return [self.mig, self.mig]

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: int):
        return self.reasons

    def nvmlDeviceGetClockInfo(self, handle: int, clock: int):
        if self.sm_mhz is None:
            raise NVMLError("Not Supported")
        return self.sm_mhz

    def nvmlDeviceGetTemperature(self, handle: int, sensor: int):
        return 54

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int | str):
        pids = self.in_slices.get(handle, ()) if isinstance(handle, str) else self.processes
        return [SimpleNamespace(pid=pid) for pid in pids]

    def nvmlDeviceGetMPSComputeRunningProcesses(self, handle: int):
        raise NVMLError("Not Supported")


class FakeTimer:
    """Stands where torch.cuda's streams and events would. A work on a stream takes `took_s[stream]` seconds of the GPU.

    The GPU's clock began at another instant than the host's, which moves when someone waits.
    """

    def __init__(self, priorities: tuple[int, int] = (0, -5), began_s: float = 1000.0) -> None:
        self.clock_s = 50.0
        self.began_s = began_s
        self.took_s: dict[Any, float] = {}
        self.made: list[tuple[Any, int]] = []
        self.launched: list[Any] = []
        self._priorities = priorities
        self._records = 0

    def clock(self) -> float:
        return self.clock_s

    def stream(self, handle: int | None = None, priority: int = 0) -> Any:
        name = f"context {handle}" if handle is not None else f"stream {len(self.made)}"
        self.made.append((name, priority))
        return name

    def priorities(self) -> tuple[int, int]:
        return self._priorities

    @contextmanager
    def on(self, stream: Any) -> Iterator[None]:
        self.launched.append(stream)
        self._records = 0
        yield

    def record(self, stream: Any) -> float:
        """The GPU's time: of the second event on a stream that is launched on, when the work is done."""
        self._records += 1
        last = self._records == 2 and self.launched[-1:] == [stream]
        return self.clock_s - self.began_s + (self.took_s.get(stream, 0.0) if last else 0.0)

    def wait(self, event: float) -> None:
        self.clock_s = max(self.clock_s, event + self.began_s)

    def between_s(self, first: float, second: float) -> float:
        return second - first
