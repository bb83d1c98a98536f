"""The run folder: inputs, journal, tables. `trials.jsonl` is the truth; all else can be made again from it.

A finished trial is one line, fsynced before the search goes on. A search that resumes runs its loop
from the start and takes from the journal what the journal has: proposals depend on the seed and on
what was measured, so it makes the same ones, and goes on where it was cut.

One search at a time works in a folder: it holds a lock on it, which the kernel lets go of with the
process, however that ends.
"""

from __future__ import annotations

import errno
import fcntl
import itertools
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from has.core.deployment import Deployment
from has.core.profile import Profile
from has.core.space import SearchSpace
from has.core.trial import Trial, TrialState
from has.core.workload import Workload
from has.errors import InputError, RunError
from has.files.atomic import clear_temporaries, write_atomic
from has.files.deployment import load_deployment
from has.files.folders import make_folder
from has.files.jsonl import append_line, read_lines
from has.files.names import did_you_mean
from has.files.profile import load_profile
from has.files.reading import alike
from has.files.space import load_space
from has.files.validate import validate
from has.files.workload import load_workload
from has.search.inputs import TRIAL_PROFILE, baseline_file
from has.search.inputs import Inputs as Inputs
from has.search.pools import POOL_NAMES

MANIFEST = "manifest.json"


def trial_to_line(trial: Trial) -> dict[str, Any]:
    """As `trials.jsonl` holds it."""
    return {
        "number": trial.number,
        "kind": trial.kind,
        "state": trial.state.value,
        "deployment": trial.deployment.model_dump(mode="json", exclude_none=True),
        "rate": trial.rate,
        "objective": trial.objective,
        "figures": trial.figures,
        "reason": trial.reason,
        "seed": trial.seed,
        "started_at": trial.started_at,
        "duration_s": trial.duration_s,
        "telemetry": dict(trial.telemetry),
    }


def trial_from_line(line: Mapping[str, Any], where: str) -> Trial:
    """The inverse. InputError where a line is not a trial."""
    try:
        return Trial(
            number=line["number"],
            kind=line.get("kind", "search"),
            state=TrialState(line["state"]),
            deployment=validate(Deployment, line["deployment"], where),
            rate=line.get("rate"),
            objective=line["objective"],
            figures=line["figures"],
            reason=line["reason"],
            seed=line["seed"],
            started_at=line["started_at"],
            duration_s=line["duration_s"],
            telemetry=line.get("telemetry", {}),
        )
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"not a trial: {error}", where=where, mend="remove that line, or start a new run"
        ) from error


class Journal:
    """An append-only file of trials; what it already holds is answered from it.

    Without a path it lives in memory. Opening cuts off a torn last line.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._trials: list[Trial] = []
        if path is not None and path.exists():
            self._trials = [trial_from_line(line, str(path)) for line in read_lines(path, repair=True)]

    def __len__(self) -> int:
        return len(self._trials)

    def __iter__(self) -> Iterator[Trial]:
        return iter(self._trials)

    def get(self, number: int) -> Trial | None:
        """Trial `number`, if it was finished before."""
        return self._trials[number] if number < len(self._trials) else None

    def find(
        self, deployment: Deployment, *, kind: str, seed: int, rate: float | None = None
    ) -> Trial | None:
        """The run of this configuration, kind and seed at the `rate` asked for (None: any), if it was finished before.

        For runs outside the budget: which of them there are, and in what order, changes with the trials
        that a resumed search adds.
        """
        sought = deployment.digest()
        for trial in self._trials:
            if (trial.kind, trial.seed) != (kind, seed) or trial.deployment.digest() != sought:
                continue
            # A rate comes from the posterior, whose last digit depends on how many cores computed it.
            if rate is None or (trial.rate is not None and math.isclose(trial.rate, rate)):
                return trial
        return None

    def append(self, trial: Trial) -> None:
        """Keep a finished trial; on return it is on disk."""
        if self.path is not None:
            if not self.path.parent.is_dir():  # a new one would hold this trial alone, and look like a run
                raise RunError(f"{self.path.parent}: the run folder is gone", mend="start the search again")
            try:
                append_line(self.path, trial_to_line(trial))
            except OSError as error:
                raise RunError(
                    f"{self.path}: cannot be written: {error.strerror or error}",
                    mend="make room there, then go on with the run",
                ) from error
        self._trials.append(trial)


class RunFolder:
    """`results/<run>/` as has explain, report and resume expect it; None keeps nothing."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._lock: int | None = None

    def file(self, name: str) -> Path | None:
        return None if self.path is None else self.path / name

    def open(
        self,
        manifest: Mapping[str, Any],
        inputs: Inputs,
        *,
        resume: bool,
    ) -> None:
        """Make the folder, or on `resume` hold its manifest against this one's inputs, and take over what may change.

        InputError if a new run would overwrite an old one, a resumed one asks something else, or
        another search is at work in the folder.
        """
        if self.path is None:
            return
        path = self.path / MANIFEST
        if resume and not path.exists():
            raise InputError("no run is there", where="argument", field="resume", value=str(self.path))
        make_folder(self.path, "--run")
        self._take("resume" if resume else "run")
        clear_temporaries(self.path)
        if path.exists():
            if not resume:
                raise InputError(
                    "a run is already there",
                    where="argument",
                    field="run",
                    value=str(self.path),
                    mend=f"choose another folder, or go on with it: --resume {self.path}",
                )
            old = read_manifest(self.path)
            _same_question(old, manifest, str(path))
            # What is asked now is what a search that goes on from here is asked.
            now = {**old["question"], **{key: manifest["question"][key] for key in MAY_CHANGE}}
            digests = {**old["digests"], "baselines": manifest["digests"]["baselines"]}
            if now != old["question"] or digests != old["digests"]:
                inputs.save_baselines(self.path)
                _write_manifest(path, {**old, "question": now, "digests": digests})
            # Optuna's own lock on its log would outlive a kill; nobody else can hold it now.
            for stale in self.path.glob("optuna.log.lock*"):
                stale.unlink(missing_ok=True)
            return
        inputs.save(self.path)
        # Last, so that a folder with a manifest has everything a resumed run reads.
        _write_manifest(path, manifest)

    def close(self) -> None:
        """Let others in. May be called twice."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _take(self, field: str) -> None:
        """Lock the folder itself, so that no file is left behind and a killed search leaves no lock."""
        self._lock = os.open(self.path or ".", os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                return  # a file system without locks: nothing can be promised there
            self.close()
            raise InputError(
                "another search is at work in this folder",
                where="argument",
                field=field,
                value=str(self.path),
                mend="wait until it has ended, or end it: all its finished trials are kept",
            ) from None

    def write(self, name: str, text: str) -> None:
        if self.path is not None:
            write_atomic(self.path / name, text)


def no_run(folder: Path, problem: str) -> InputError:
    """What is said where `folder` should be one of a run, and what there is instead."""
    return InputError(
        problem,
        where=str(folder),
        allowed="a run folder as has search writes it, results/<date>-<name>",
        mend=did_you_mean([str(near) for near in alike(folder, folders=True)]) or "look for it: ls results",
    )


def read_manifest(folder: Path) -> dict[str, Any]:
    """`manifest.json` of a run. InputError if there is none or it cannot be read."""
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise no_run(folder, "is no folder of a run: manifest.json is not in it") from None
    except (OSError, ValueError) as error:
        raise InputError(f"no readable run: {error}", where=str(path)) from error
    if not isinstance(manifest, dict) or not isinstance(manifest.get("question"), dict):
        raise InputError("not the manifest of a run", where=str(path))
    return manifest


def _write_manifest(path: Path, manifest: Mapping[str, Any]) -> None:
    write_atomic(path, json.dumps(manifest, indent=1, default=str) + "\n")


def read_pool_profiles(folder: Path) -> dict[str, Profile]:
    """The copies a run keeps of profiles of pools with other GPUs, by pool."""
    paths = {pool: folder / f"profile-{pool}.parquet" for pool in POOL_NAMES}
    return {pool: load_profile(path) for pool, path in paths.items() if path.is_file()}


def read_all_inputs(folder: Path) -> Inputs:
    """The copies a run keeps of everything it was given."""
    profile, workload, space = read_inputs(folder)
    names = read_manifest(folder).get("digests", {}).get("baselines", {})
    copies = {name: folder / baseline_file(n) for n, name in enumerate(names, 1)}
    baselines = {name: load_deployment(path) for name, path in copies.items() if path.is_file()}
    truth = folder / TRIAL_PROFILE
    return Inputs(
        profile,
        (workload, *map(load_workload, further_workloads(folder))),
        space,
        read_pool_profiles(folder),
        baselines,
        load_profile(truth) if truth.is_file() else None,
    )


def further_workloads(folder: Path) -> list[Path]:
    """The copies a run keeps of its workloads after the first."""
    paths = (folder / f"workload-{n}.yaml" for n in itertools.count(2))
    return list(itertools.takewhile(Path.is_file, paths))


def read_inputs(folder: Path) -> tuple[Profile, Workload, SearchSpace]:
    """The copies a run keeps of its profile, its (first) workload and its space."""
    return (
        load_profile(folder / "profile.parquet"),
        load_workload(folder / "workload.yaml"),
        load_space(folder / "space.yaml"),
    )


MAY_CHANGE = ("trials",)
"""Parts of the question a resumed run may answer differently: more trials is the point of resuming."""
_ELSE = {"traces": "a trace is not what it was when the run in this folder began"}
"""What is said of a part that differs, where not that the run was asked something else."""


def _same_question(old: Mapping[str, Any], new: Mapping[str, Any], where: str) -> None:
    for part in ("question", "digests"):
        before, now = old.get(part, {}), json.loads(json.dumps(new[part], default=str))
        for key in {**now, **before}:
            if key not in MAY_CHANGE and not _still(key, before.get(key), now.get(key)):
                raise InputError(
                    _ELSE.get(key, "the run in this folder was asked something else"),
                    where=where,
                    field=f"{part}.{key}",
                    value=now.get(key),
                    allowed=str(before.get(key)),
                    mend="resume with the same inputs, or start a new run",
                )


def _still(key: str, before: Any, now: Any) -> bool:
    """Whether a part is what it was; to the baselines, which are scored apart, others may be added."""
    if key == "baselines":
        return (before or {}).items() <= (now or {}).items()
    return bool(before == now)


def pruned_rows(cuts: Sequence[Any]) -> list[dict[str, Any]]:
    """`pruned.csv`: every cut candidate with rule, bound, value and margin."""
    return [
        {
            "candidate": cut.candidate.label,
            "topology": cut.candidate.topology,
            "alloc": "/".join(map(str, cut.candidate.gpus)),
            "tensor_parallel": "/".join(map(str, cut.candidate.tp)),
            "encode_batch": cut.candidate.encode_batch or None,
            "prefill_offload": cut.candidate.share if cut.candidate.topology == "disaggregated" else None,
            "rule": cut.rule,
            "bound": cut.bound,
            "value": cut.value,
            "margin": cut.margin,
            "reason": cut.reason,
        }
        for cut in cuts
    ]


STAGES = ("preprocess", "encode", "prefill", "prefill_local", "prefill_remote", "decode")
"""Whose utilisation `trials.csv` has a column for, whatever the topologies tried: the columns of a table are fixed."""


def trial_rows(trials: Sequence[Trial]) -> list[dict[str, Any]]:
    """`trials.csv`: one row a trial, its main figures flat."""
    rows = []
    for trial in trials:
        figures = trial.figures or {}
        row: dict[str, Any] = {
            "number": trial.number,
            "kind": trial.kind,
            "state": trial.state.value,
            "candidate": trial.deployment.label,
            "topology": trial.deployment.topology,
            "alloc": "/".join(str(trial.deployment.alloc[p]) for p in trial.deployment.alloc.pools),
            "encode_batch": trial.deployment.encode_batch,
            "prefill_offload": trial.deployment.prefill_offload,
            "rate": trial.rate,
            "objective": trial.objective,
        }
        for name in ("attainment", "goodput_rps", "throughput_rps", "offered_rps", "completed", "failed"):
            row[name] = figures.get(name)
        for name in ("ttft_ms", "tpot_ms"):
            for statistic in ("mean", "p50", "p90", "p99"):
                row[f"{name[:-3]}_{statistic}_ms"] = (figures.get(name) or {}).get(statistic)
        for stage in STAGES:
            row[f"{stage}_utilisation"] = ((figures.get("stages") or {}).get(stage) or {}).get("utilisation")
        row |= {
            "reason": trial.reason,
            "seed": trial.seed,
            "started_at": trial.started_at,
            "duration_s": trial.duration_s,
        }
        rows.append(row)
    return rows
