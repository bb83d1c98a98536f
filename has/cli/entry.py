"""Where the command `has` begins. Told to end while it is still loading, it ends as it would later: with one word."""

from __future__ import annotations

import os
import signal
from types import FrameType
from typing import NoReturn


def main() -> NoReturn:
    """Console script: has nothing to keep yet, so a signal ends it at once; then `has.cli.main` takes over."""
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:  # a job in the background is not for Ctrl-C
            signal.signal(number, _end)
    from has.cli.main import main as command

    command()


def _end(_signal: int, _frame: FrameType | None) -> NoReturn:
    os.write(2, b"interrupted\n")
    os._exit(130)


if __name__ == "__main__":
    main()
