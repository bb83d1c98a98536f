"""CUDA devices: what each offers, and its SMs split between encode and local prefill.

Not run on a GPU yet: written against the driver API's documentation and held to a recorded fake of it.

A split is one `cuDevSmResourceSplitByCount`: its group is encode's, its remainder local prefill's. Two separate
splits would both begin at the first SM and overlap. A green context is made on each part, with a stream in it; a
pair is made once per level, and changing the split is taking another pair. The driver rounds SM counts as it
likes, so what it gave is read back, and shares are of that. Only `cuda.bindings.driver` is used: torch's own
interface to green contexts changes between releases.

Encode and local prefill must be two threads with two streams of one process: contexts of two processes take
turns on the whole GPU, green or not. A tensor that crosses streams needs an event or `record_stream`.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from has.errors import InputError, MissingError, RunError

Mechanism = Literal["green contexts", "MPS", "stream priority (not spatial)"]

GREEN_DRIVER = 12040
MAX_LEVELS = 8
"""Every stream grows an allocator pool and a cuBLAS workspace of its own."""
LOST_SMS_BOUND = 0.1
"""Alignment may leave a few SMs in neither part; more than this share of them is a sign of overlap."""
LEVELS = (12.5, 25.0, 37.5, 50.0, 62.5, 75.0, 87.5)


@dataclass(frozen=True, slots=True)
class CudaDevice:
    """index as the driver counts; shares come in multiples of align_sms, at least min_sms (0: not splittable).

    reasons: mechanism -> why it is not to be had.
    """

    index: int
    name: str
    uuid: str
    """Without the GPU- or MIG- that NVML puts before it."""
    memory_bytes: int
    sm_count: int
    capability: tuple[int, int]
    driver: int
    mechanism: Mechanism
    min_sms: int = 0
    align_sms: int = 0
    reasons: dict[str, str] = field(default_factory=dict)


def load_driver() -> Any:
    """`cuda.bindings.driver`, initialised. Raises MissingError with the line that mends it."""
    try:
        from cuda.bindings import driver
    except ImportError:
        raise MissingError(
            "the CUDA driver bindings are not installed", mend="pip install 'has-epd[cuda]'"
        ) from None
    initialise(driver)
    return driver


def initialise(driver: Any) -> None:
    try:
        check(driver.cuInit(0), "cuInit")
    except RunError as error:
        raise MissingError(f"the NVIDIA driver does not start: {error.message}", mend=_MEND_DRIVER) from None
    except Exception as error:  # the bindings raise errors of their own where libcuda is not found
        raise MissingError(f"no NVIDIA driver: {error}".splitlines()[0], mend=_MEND_DRIVER) from None


_MEND_DRIVER = "install the NVIDIA driver and see that nvidia-smi lists the GPU; or use --device cpu"


def check(result: tuple[Any, ...], call: str) -> Any:
    """What a driver call returned besides its status; RunError if the status is not success."""
    status, *values = result
    if int(status) != 0:
        raise RunError(f"{call} failed: {getattr(status, 'name', status)}")
    return values[0] if len(values) == 1 else tuple(values)


def devices(driver: Any) -> list[CudaDevice]:
    """All devices of an initialised driver."""
    version = int(check(driver.cuDriverGetVersion(), "cuDriverGetVersion"))
    count = int(check(driver.cuDeviceGetCount(), "cuDeviceGetCount"))
    return [_device(driver, index, version) for index in range(count)]


def _device(driver: Any, index: int, version: int) -> CudaDevice:
    handle = check(driver.cuDeviceGet(index), "cuDeviceGet")

    def attribute(name: str) -> int:
        which = getattr(driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(check(driver.cuDeviceGetAttribute(which, handle), f"cuDeviceGetAttribute {name}"))

    capability = (attribute("COMPUTE_CAPABILITY_MAJOR"), attribute("COMPUTE_CAPABILITY_MINOR"))
    name = check(driver.cuDeviceGetName(96, handle), "cuDeviceGetName")
    # Of a MIG slice only the second version says the slice's own; newer bindings have it under the first's name.
    uuid_of = getattr(driver, "cuDeviceGetUuid_v2", None) or driver.cuDeviceGetUuid
    uuid = bytes(check(uuid_of(handle), "cuDeviceGetUuid").bytes).hex()
    reasons: dict[str, str] = {}
    mechanism: Mechanism = "green contexts"
    min_sms = align_sms = 0
    try:
        min_sms, align_sms = _granularity(driver, handle, version, capability)
    except (MissingError, RunError) as error:
        reasons["green contexts"] = error.message
        mps = mps_state()
        mechanism = "MPS" if mps == "running" else "stream priority (not spatial)"
        if mps != "running":
            reasons["MPS"] = _NO_MPS[mps]
    return CudaDevice(
        index=index,
        name=bytes(name).split(b"\0")[0].decode(),
        uuid="-".join((uuid[:8], uuid[8:12], uuid[12:16], uuid[16:20], uuid[20:])),
        memory_bytes=int(check(driver.cuDeviceTotalMem(handle), "cuDeviceTotalMem")),
        sm_count=attribute("MULTIPROCESSOR_COUNT"),
        capability=capability,
        driver=version,
        mechanism=mechanism,
        min_sms=min_sms,
        align_sms=align_sms,
        reasons=reasons,
    )


def _granularity(driver: Any, handle: Any, version: int, capability: tuple[int, int]) -> tuple[int, int]:
    """(least SMs, alignment) of a split. Raises where green contexts cannot be made."""
    if sys.platform != "linux":
        raise MissingError("green contexts need Linux")
    if version < GREEN_DRIVER:
        raise MissingError(
            f"green contexts need a driver of CUDA 12.4 or newer; this one is {version // 1000}.{version % 1000 // 10}"
        )
    sm = _sm_resource(driver, driver.cuDeviceGetDevResource, handle, "cuDeviceGetDevResource").sm
    least, align = int(getattr(sm, "minSmPartitionSize", 0)), int(getattr(sm, "smCoscheduledAlignment", 0))
    if not least or not align:  # drivers before 13 do not say; these are the documented figures
        least, align = (8, 8) if capability[0] >= 9 else (4, 2) if capability[0] == 8 else (2, 2)
    return least, align


def _sm_resource(driver: Any, call: Any, of: Any, name: str) -> Any:
    return check(call(of, driver.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM), name)


MpsState = Literal["running", "installed", "absent"]


def mps_state() -> MpsState:
    """Whether an MPS daemon runs (its pipe is there), could be started, or is not to be had."""
    pipe = os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or str(Path(tempfile.gettempdir()) / "nvidia-mps")
    if (Path(pipe) / "control").exists():
        return "running"
    return "installed" if shutil.which("nvidia-cuda-mps-control") is not None else "absent"


_NO_MPS = {
    "installed": "no MPS daemon runs: start one with nvidia-cuda-mps-control -d",
    "absent": "no MPS daemon runs, and nvidia-cuda-mps-control is not installed",
}


def mps_environment(share_percent: float) -> dict[str, str]:
    """Environment of a process that is to have this share of the SMs under MPS: fixed once it has started."""
    return {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": f"{share_percent:g}"}


def granted_sms(driver: Any) -> int:
    """SMs that the current context may use, as a process under MPS has them by its percentage."""
    kind = driver.CUexecAffinityType.CU_EXEC_AFFINITY_TYPE_SM_COUNT
    return int(check(driver.cuCtxGetExecAffinity(kind), "cuCtxGetExecAffinity").param.smCount.val)


def mps_servers() -> list[int]:
    """Pids of MPS servers here: NVML lists them as users of the GPU in their clients' name."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/comm"):
        with suppress(OSError):  # it ended meanwhile
            if entry.read_text().startswith("nvidia-cuda-mps"):
                found.append(int(entry.parent.name))
    return found


@dataclass(slots=True)
class Pair:
    """Two streams on disjoint SMs. `asked_sms` were asked for encode; `encode_sms` it got, `prefill_sms` the rest.

    `encode_stream` and `prefill_stream` are CUstream handles; `torch.cuda.ExternalStream(int(handle))` wraps one.
    """

    asked_sms: int
    encode_sms: int
    prefill_sms: int
    encode_stream: Any
    prefill_stream: Any
    contexts: tuple[Any, Any]


class SmPartition:
    """Pairs of green contexts on one device, one per level (percent of its SMs for encode), made once.

    As a context manager it gives them back on leaving. Levels that leave either side less than the device's least
    are left out; two that the driver rounds to the same SMs are one. Raises MissingError where the device has no
    green contexts, InputError for more than eight levels or none that fits, RunError where the driver fails or
    its two parts overlap.
    """

    def __init__(self, driver: Any, device: CudaDevice, levels: Sequence[float] = LEVELS) -> None:
        if device.mechanism != "green contexts":
            raise MissingError(
                f"{device.name} cannot be partitioned: {device.reasons.get('green contexts', 'unknown reason')}"
            )
        if len(levels) > MAX_LEVELS:
            raise InputError(
                "too many levels",
                where="argument",
                field="levels",
                value=list(levels),
                allowed=f"up to {MAX_LEVELS}",
            )
        self._driver = driver
        self._handle = check(driver.cuDeviceGet(device.index), "cuDeviceGet")
        self.device = device
        self.pairs: dict[float, Pair] = {}
        try:
            for level in sorted(levels):
                self._add(level)
        except BaseException:
            self.close()
            raise
        if not self.pairs:
            raise InputError(
                f"no level leaves both sides {device.min_sms} of {device.sm_count} SMs",
                where="argument",
                field="levels",
                value=list(levels),
            )

    def _add(self, level: float) -> None:
        device = self.device
        asked = max(device.min_sms, int(level * device.sm_count / 100) // device.align_sms * device.align_sms)
        if device.sm_count - asked < device.min_sms:
            return
        pair = self._make(asked)
        share = 100.0 * pair.encode_sms / device.sm_count
        if share in self.pairs:
            self._destroy(pair)
            return
        self.pairs[share] = pair

    def _make(self, asked: int) -> Pair:
        driver = self._driver
        whole = _sm_resource(driver, driver.cuDeviceGetDevResource, self._handle, "cuDeviceGetDevResource")
        groups, _, rest = check(
            driver.cuDevSmResourceSplitByCount(1, whole, 0, asked), "cuDevSmResourceSplitByCount"
        )
        made: list[tuple[Any, Any, int]] = []
        try:
            for part in (groups[0], rest):
                made.append(self._context(part))  # noqa: PERF401  # kept one by one, to be undone on failure
            (encode, encode_stream, encode_sms), (prefill, prefill_stream, prefill_sms) = made
            self._check_disjoint(encode_sms, prefill_sms)
        except BaseException:
            for context, stream, _ in made:
                self._undo(context, stream)
            raise
        return Pair(asked, encode_sms, prefill_sms, encode_stream, prefill_stream, (encode, prefill))

    def _check_disjoint(self, encode_sms: int, prefill_sms: int) -> None:
        """Two parts that were each split off the whole GPU begin at the same SM; their sizes give them away."""
        total = self.device.sm_count
        if encode_sms + prefill_sms > total:
            raise RunError(f"the SM partitions overlap: {encode_sms} and {prefill_sms} of {total} SMs")
        if total - encode_sms - prefill_sms > LOST_SMS_BOUND * total:
            raise RunError(
                f"the SM partitions {encode_sms} and {prefill_sms} leave out SMs of {total}: they may overlap"
            )

    def _context(self, part: Any) -> tuple[Any, Any, int]:
        """(green context, stream in it, SMs that it really has)."""
        driver = self._driver
        description = check(driver.cuDevResourceGenerateDesc([part], 1), "cuDevResourceGenerateDesc")
        default = driver.CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM
        context = check(driver.cuGreenCtxCreate(description, self._handle, default), "cuGreenCtxCreate")
        stream = None
        try:
            flags = driver.CUstream_flags.CU_STREAM_NON_BLOCKING
            stream = check(driver.cuGreenCtxStreamCreate(context, flags, 0), "cuGreenCtxStreamCreate")
            given = _sm_resource(driver, driver.cuGreenCtxGetDevResource, context, "cuGreenCtxGetDevResource")
        except BaseException:
            self._undo(context, stream)
            raise
        return context, stream, int(given.sm.smCount)

    def offer(self, share_percent: float) -> float:
        """Encode's share at the level nearest to the one asked for (the larger on a tie)."""
        return min(self.pairs, key=lambda share: (abs(share - share_percent), -share))

    def pair(self, share_percent: float) -> Pair:
        """The pair at `offer(share_percent)`."""
        return self.pairs[self.offer(share_percent)]

    def close(self) -> None:
        for pair in self.pairs.values():
            self._destroy(pair)
        self.pairs.clear()

    def _destroy(self, pair: Pair) -> None:
        self._undo(pair.contexts[0], pair.encode_stream)
        self._undo(pair.contexts[1], pair.prefill_stream)

    def _undo(self, context: Any, stream: Any) -> None:
        with suppress(RunError):  # giving back what a dying driver no longer has is no fault
            if stream is not None:
                check((*self._driver.cuStreamDestroy(stream), None), "cuStreamDestroy")
            check((*self._driver.cuGreenCtxDestroy(context), None), "cuGreenCtxDestroy")

    def __enter__(self) -> SmPartition:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
