"""How many descriptors a process may have open: every client and every request to an engine holds one."""

from __future__ import annotations

import resource
from contextlib import suppress

FILES = 65_536
"""Many shells allow a process 1,024."""


def allow_files(wanted: int = FILES) -> int:
    """Raise how many descriptors this process may have open to `wanted`, or as far as the system lets it; returns the number."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft == resource.RLIM_INFINITY or soft >= allowed:
        return soft
    with suppress(OSError, ValueError):  # a system may allow less than it says
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
