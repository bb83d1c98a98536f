#!/usr/bin/env python
"""Write the text of every `--help` to tests/cli/golden/. Run it after a wanted change, and read the diff."""

from __future__ import annotations

import contextlib
import io
import os
from pathlib import Path

os.environ["COLUMNS"] = "80"  # before anything asks how wide the terminal is

from has.cli.main import COMMANDS, GROUPS, run

GOLDEN = Path(__file__).resolve().parents[1] / "tests" / "cli" / "golden"


def main() -> None:
    GOLDEN.mkdir(exist_ok=True)
    for name in ("", *COMMANDS, *GROUPS):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            run([*name.split(), "--help"])
        (GOLDEN / f"{name.replace(' ', '-') or 'has'}.txt").write_text(out.getvalue())


if __name__ == "__main__":
    main()
