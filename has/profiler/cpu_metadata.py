"""What a profile says of the CPU device."""

from __future__ import annotations

from typing import Any

from has.core.words import percent
from has.device import host
from has.device.device_model import VIRTUAL_GPU
from has.device.nominal import Nominal


def device_of(table: Nominal) -> dict[str, Any]:
    return {
        "device": "cpu (emulated)",
        "sm_count": VIRTUAL_GPU.sm_count,
        "memory_bytes": VIRTUAL_GPU.memory_bytes,
        "partition_mechanism": "deadline pacing (emulated)",
        "device_model": VIRTUAL_GPU.text(),
        "device_model_digest": VIRTUAL_GPU.digest(),
        "cpu": host.cpu_name(),
        "cpu_share": table.total_share,
        "nominal_digest": table.digest(),
    }


def notes_of(table: Nominal) -> dict[str, str]:
    notes = {
        "emulated": "virtual GPUs: real computation on slices of this CPU, paced by the device model below"
    }
    if table.disturbed:
        notes["calibration"] = (
            f"costs were measured while other processes used {table.others:.1f} of {host.cores()} cores, and may be"
            " up to twice those of a quiet machine: has profile --fresh, once it is quiet"
        )
    elif not table.sound:
        notes["calibration"] = (
            f"this CPU's speed wavered while costs were measured: two halves of the measurement are {percent(table.wavers, 0)} apart"
            " at nine works in ten; has profile --fresh measures them again"
        )
    return notes
