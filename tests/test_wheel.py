"""The built wheel carries what it needs: it runs from an empty folder, away from the repository."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_the_wheel_runs_away_from_the_repository(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    code = (
        "import has, pathlib\n"
        "from has.files.shipped import shipped\n"
        f"site = pathlib.Path({str(site)!r})\n"
        "assert pathlib.Path(has.__file__).is_relative_to(site)\n"
        "for kind in ('profiles', 'search_spaces', 'workloads'):\n"
        "    folder = shipped(kind)\n"
        "    assert folder.is_relative_to(site), folder\n"
        "    assert any(folder.rglob('*.*')), folder\n"
        "print(has.__version__)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": str(site), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    helped = subprocess.run(
        [sys.executable, "-m", "has", "--help"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(site), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert helped.returncode == 0, helped.stderr
    assert "search" in helped.stdout
