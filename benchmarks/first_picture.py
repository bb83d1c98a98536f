#!/usr/bin/env python
"""How soon a report shows its first picture, in headless Chromium: python benchmarks/first_picture.py [REPORT.html]

From the begin of the navigation to the end of the first plot's drawing (`window.firstPictureMs` of the page), and the
page's size. The first load also pays for the browser's own start of its renderer. Needs Chromium (apt-get install chromium).
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.report.chromium import Browser  # noqa: E402  # a checkout's tests are no package that is installed

EXAMPLE = ROOT / "docs" / "examples" / "image-traffic.html"
SCREENS = (("desktop", 1280, 900, False), ("phone", 390, 844, True))


def main(report: Path, loads: int) -> None:
    print(f"{report.name}: {report.stat().st_size / 1e6:.2f} MB")
    with Browser() as browser:
        for name, width, height, phone in SCREENS:
            browser.size(width, height, mobile=phone)
            times = []
            for _ in range(loads):
                browser.open(report)
                browser.wait_for("window.firstPictureMs > 0")
                times.append(float(browser.run("window.firstPictureMs")))
            print(
                f"{name} {width}x{height}: first picture after {statistics.median(times):.0f} ms (median of {loads} loads), "
                f"{min(times):.0f} to {max(times):.0f} ms; first load {times[0]:.0f} ms"
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("report", nargs="?", type=Path, default=EXAMPLE)
    parser.add_argument("--loads", type=int, default=15)
    given = parser.parse_args()
    main(given.report, given.loads)
