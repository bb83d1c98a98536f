#!/usr/bin/env python
"""Write the estimated profiles that ship: python scripts/make_profiles.py [FOLDER]

Needs the base install alone, and always gives the same files. Run it after a change of the facts, of the fitted
factors or of the formulas, and read the diff.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from has.cli.estimate import file_name
from has.files.profile import save_profile
from has.files.shipped import shipped
from has.latency.estimate import estimate_profile

GPUS = ("A100 80GB SXM", "H100 SXM", "H200 SXM", "L40S", "RTX 6000 Ada")
MODELS = (
    "llava-v1.6-34b",
    "qwen2.5-vl-7b",
    "qwen2.5-vl-32b",
    "internvl2.5-26b",
    "ultravox-v0.5-llama-3.1-8b",
    "ultravox-v0.6-gemma-3-27b",
)


def main(folder: Path) -> None:
    for gpu in GPUS:
        for model in MODELS:
            path = folder / f"{file_name(gpu, model)}.parquet"
            save_profile(estimate_profile(model, gpu), path)
            print(f"{path}  {path.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=shipped("profiles"))
    main(parser.parse_args().folder)
