"""What a conversion says of a trace is so: against numpy, against the sources, against draws from the fit."""

from __future__ import annotations

import ast
import csv
import json
import os
import subprocess
import sys
import tracemalloc
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from has.core.requests import Requests
from has.files.formats.convert import Options, convert
from has.files.formats.fit import fit, largest_error
from has.files.formats.histogram import EXACT, Histogram
from has.files.formats.statistics import Statistics
from has.files.trace import load_trace
from has.files.workload import load_workload
from has.sim.draw import draw_requests
from tests.files.foreign import WRITERS, asks, azure_lmm, servegen

SHARED = Path(os.environ.get("HAS_SHARED") or Path(__file__).parents[3] / "shared") / "data"
QS = (50, 90, 99)


def source(name: str) -> Path:
    path = SHARED / name
    if not path.exists():
        pytest.skip(f"the trace {name} is not here (HAS_SHARED names the folder that holds data/{name})")
    return path


def figures(arrival_s, prompt, output) -> dict[str, float]:
    """Rate, CV and percentiles by numpy alone."""
    gaps = np.diff(np.asarray(arrival_s, np.float64))
    return {
        "requests": len(prompt),
        "rate": 1 / gaps.mean(),
        "cv": gaps.std() / gaps.mean(),
        **{f"prompt p{q}": np.percentile(prompt, q) for q in QS},
        **{f"output p{q}": np.percentile(output, q) for q in QS},
    }


def of_trace(trace: Requests) -> dict[str, float]:
    return figures(trace.arrival_ns / 1e9, trace.total_tokens, trace.output_tokens)


def of_statistics(statistics: Statistics) -> dict[str, float]:
    sizes = statistics.sizes
    return {
        "requests": statistics.requests,
        "rate": statistics.rate,
        "cv": statistics.cv,
        **{f"prompt p{q}": sizes["prompt_tokens"].percentile(q) for q in QS},
        **{f"output p{q}": sizes["output_tokens"].percentile(q) for q in QS},
    }


@pytest.mark.parametrize("kind", [kind for kind in WRITERS if kind != "azure-lmm"])
def test_generated_traces_keep_their_statistics(kind, tmp_path):
    rows = asks(5000, seed=3)
    (tmp_path / "in").write_text(WRITERS[kind][1](rows))
    conversion = convert(tmp_path / "in", WRITERS[kind][0], tmp_path / "out.csv")
    truth = figures([a.ms / 1e3 for a in rows], [a.context for a in rows], [a.output for a in rows])
    assert of_trace(load_trace(tmp_path / "out.csv")) == pytest.approx(truth, rel=1e-9)
    assert of_statistics(conversion.statistics) == pytest.approx(truth, rel=1e-9)


def test_azure_2023_keeps_its_statistics(tmp_path):
    path = source("azure-2023/AzureLLMInferenceTrace_conv.csv")
    with path.open() as file:
        rows = list(csv.DictReader(file))
    times = [datetime.fromisoformat(r["TIMESTAMP"][:26]).timestamp() for r in rows]
    truth = figures(times, [int(r["ContextTokens"]) for r in rows], [int(r["GeneratedTokens"]) for r in rows])
    conversion = convert(path, "azure", tmp_path / "out.parquet")
    assert of_trace(load_trace(tmp_path / "out.parquet")) == pytest.approx(truth, rel=0.01)
    assert of_statistics(conversion.statistics) == pytest.approx(truth, rel=0.01)
    assert truth["rate"] == pytest.approx(5.53, abs=0.005)
    assert truth["cv"] == pytest.approx(1.09, abs=0.005)


def test_mooncake_keeps_its_statistics(tmp_path):
    path = source("mooncake/conversation_trace.jsonl")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    truth = figures(
        [r["timestamp"] / 1e3 for r in rows],
        [r["input_length"] for r in rows],
        [r["output_length"] for r in rows],
    )
    conversion = convert(path, "mooncake", tmp_path / "out.jsonl")
    assert of_trace(load_trace(tmp_path / "out.jsonl")) == pytest.approx(truth, rel=0.01)
    assert conversion.statistics.same_instant == len(rows) - len({r["timestamp"] for r in rows})


def servegen_truth(folder: Path) -> tuple[float, dict[str, dict[int, float]]]:
    """Expected number of requests and the mixture of sizes, read without HAS."""
    expected = 0.0
    mixtures: dict[str, dict[int, float]] = {}
    for file in folder.glob("chunk-*-trace.csv"):
        dataset = json.loads(Path(str(file).replace("-trace.csv", "-dataset.json")).read_text())
        requests = dict.fromkeys(dataset, 0.0)
        for start, rate, _, family, _, _ in csv.reader(file.open()):
            if family:
                requests[str(max(int(key) for key in dataset if int(key) <= float(start)))] += (
                    float(rate) * 600
                )
        expected += sum(requests.values())
        for key, count in requests.items():
            for name in ("text_tokens", "output_tokens", "image_count"):
                table = ast.literal_eval(dataset[key][name])
                total = sum(table.values())
                mixture = mixtures.setdefault(name, {})
                for value, weight in table.items():
                    value = max(value, 1) if name == "output_tokens" else value
                    mixture[value] = mixture.get(value, 0.0) + count * weight / total
    return expected, mixtures


def is_percentile(value: float, q: float, mixture: dict[int, float]) -> bool:
    """Within 1 % of the mixture's q-th percentile (give or take 0.2 points of probability: it is a draw)."""
    values = np.array(sorted(mixture))
    cumulated = np.cumsum([mixture[v] for v in values]) / sum(mixture.values())
    low, high = (values[min(np.searchsorted(cumulated, (q + d) / 100), len(values) - 1)] for d in (-0.2, 0.2))
    return 0.99 * low <= value <= 1.01 * high


def test_servegen_images_keep_their_statistics(tmp_path):
    folder = source("servegen-mm-image")
    expected, mixtures = servegen_truth(folder)
    conversion = convert(folder, "servegen", tmp_path / "out.yaml", compact=True)
    statistics = conversion.statistics
    assert conversion.account.bad == 0
    assert expected == pytest.approx(732_170)
    assert expected / 86_400 == pytest.approx(8.5, abs=0.05)  # as examples/workloads/image.yaml says
    assert statistics.requests == pytest.approx(expected, rel=0.01)
    for name, size in (
        ("text_tokens", "prompt_tokens"),
        ("output_tokens", "output_tokens"),
        ("image_count", "items"),
    ):
        mixture = mixtures[name]
        mean = sum(v * w for v, w in mixture.items()) / sum(mixture.values())
        assert statistics.sizes[size].mean == pytest.approx(mean, rel=0.01), name
        for q in QS:
            assert is_percentile(statistics.sizes[size].percentile(q), q, mixture), (name, q)


def test_azure_lmm_as_published_keeps_its_percentiles(tmp_path):
    published = json.loads(source("azure-lmm/azure_lmm_digitised.json").read_text())
    rng = np.random.default_rng(0)
    n = 20_000

    def sizes(name, count):
        at = {int(q): v for q, v in published[name].items()}
        return np.rint(np.interp(rng.random(count) * 100, [0, *at, 100], [1, *at.values(), at[99]])).astype(
            int
        )

    images = rng.random(n) < 0.5
    context = np.where(images, sizes("ContextTokens_image", n), sizes("ContextTokens_text", n))
    output = np.where(images, sizes("GeneratedTokens_image", n), sizes("GeneratedTokens_text", n))
    count = np.where(images, rng.choice([1, 4, 9, 16, 25], n, p=[0.66, 0.05, 0.15, 0.02, 0.12]), 0)
    ms = np.cumsum(rng.exponential(606, n)).astype(int)
    rows = [type(asks(1)[0])(*map(int, row)) for row in zip(ms, count, context, output, strict=True)]
    (tmp_path / "in.csv").write_text(azure_lmm(rows, power=1))
    convert(tmp_path / "in.csv", "azure-lmm", tmp_path / "out.parquet")
    trace = load_trace(tmp_path / "out.parquet")
    truth = figures(ms / 1e3, context, output)
    assert of_trace(trace) == pytest.approx(truth, rel=0.01)
    assert set(trace.items.tolist()) == {0, 1, 2, 3, 4, 5}
    for q in (50, 75, 90):
        found = np.percentile(trace.total_tokens[trace.is_media], q)
        assert found == pytest.approx(published["ContextTokens_image"][str(q)], rel=0.05)


# Arrivals of ServeGen


@pytest.mark.parametrize(
    ("family", "shape", "cv"), [("Gamma", 0.25, 2.0), ("Gamma", 4.0, 0.5), ("Weibull", 0.5, 5**0.5)]
)
def test_the_rate_column_rules_and_the_shape_gives_the_cv(family, shape, cv, tmp_path):
    servegen(tmp_path / "in", [[(20.0, family, shape)] * 40])
    statistics = convert(tmp_path / "in", "servegen", tmp_path / "o.yaml", compact=True).statistics
    assert statistics.rate == pytest.approx(20, rel=0.01)
    assert statistics.cv == pytest.approx(cv, rel=0.01)


def test_a_window_expects_its_rate_from_the_first_on(tmp_path):
    """A process that began with a whole gap would bring (cv² - 1)/2 = 9.5 requests too many to the first window."""
    servegen(tmp_path / "in", [[(1.0, "Gamma", 0.05)] for _ in range(2000)], window_s=600)
    statistics = convert(tmp_path / "in", "servegen", tmp_path / "o.yaml", compact=True).statistics
    standard_error = (0.05**-1 * 600 / 2000) ** 0.5
    assert statistics.requests / 2000 == pytest.approx(600, abs=3 * standard_error)


def test_gaps_longer_than_a_window_go_on_in_the_next(tmp_path):
    servegen(tmp_path / "in", [[(0.002, "Gamma", 0.1)] * 100 for _ in range(100)])
    statistics = convert(tmp_path / "in", "servegen", tmp_path / "o.yaml", compact=True).statistics
    assert statistics.requests == pytest.approx(0.002 * 600 * 1e4, rel=0.1)


# One pass, bounded memory, any batches


@given(
    st.lists(st.integers(0, 3 * EXACT), min_size=1, max_size=300),
    st.integers(1, 50),
    st.sampled_from([0, 1, 25, 50, 90, 99, 100]),
)
def test_a_histogram_is_as_numpy(values, cut, q):
    histogram = Histogram()
    for i in range(0, len(values), cut):
        histogram.add(np.array(values[i : i + cut], np.int64))
    assert (histogram.total, histogram.sum, histogram.most) == (len(values), sum(values), max(values))
    exact = max(values) < EXACT
    assert histogram.percentile(q) == pytest.approx(np.percentile(values, q), rel=1e-12 if exact else 1e-3)
    assert histogram.slices(7).mean() == pytest.approx(np.mean(values), rel=2e-3, abs=0.5)


@given(st.lists(st.integers(0, 10**13), min_size=3, max_size=200), st.integers(1, 70))
def test_statistics_do_not_depend_on_the_batches(arrivals, cut):
    batch = np.zeros((len(arrivals), 6), np.int64)
    batch[:, 0] = np.sort(arrivals)
    batch[:, 4:] = 7
    whole, parts = Statistics(), Statistics()
    whole.add(batch)
    for i in range(0, len(batch), cut):
        parts.add(batch[i : i + cut])
    assert parts.rate == whole.rate
    assert parts.cv == pytest.approx(whole.cv)
    assert parts.timeline.bin_s == whole.timeline.bin_s
    assert parts.timeline.counts.tolist() == whole.timeline.counts.tolist()
    assert parts.timeline.counts.sum() == len(arrivals)
    gaps = np.diff(batch[:, 0])
    if gaps.any():
        assert whole.cv == pytest.approx(gaps.std() / gaps.mean(), rel=1e-6, abs=1e-6)


def generated(path: Path, count: int) -> Path:
    with path.open("w") as out:
        out.write("Timestamp,Request tokens,Response tokens\n")
        for i in range(count):
            out.write(f"{i // 10},{1 + i % 4000},{1 + i % 900}\n")
    return path


@pytest.mark.long
def test_memory_does_not_grow_with_the_file(tmp_path):
    """Batches hold 65,536 rows: three of them or nine make no difference to the peak."""
    convert(generated(tmp_path / "warm.csv", 100), "burstgpt", tmp_path / "o.csv")
    peaks = []
    for count in (200_000, 600_000):
        path = generated(tmp_path / "t.csv", count)
        tracemalloc.start()
        convert(path, "burstgpt", tmp_path / "o.csv")
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.1 * peaks[0]
    assert peaks[1] < 64e6


@pytest.mark.long
def test_ten_million_rows_fit_in_little_memory(tmp_path):
    path = generated(tmp_path / "t.csv", 10_000_000)
    code = (
        "import sys; from has.files.formats.convert import convert; from has.files.trace import trace_blocks;"
        "c = convert(sys.argv[1], 'burstgpt', sys.argv[2]);"
        "n = sum(map(len, trace_blocks(sys.argv[2])));"
        # Not ru_maxrss: that begins with the peak of the process that this one was started from.
        "peak = next(line for line in open('/proc/self/status') if line.startswith('VmHWM'));"
        "print(c.statistics.requests, n, peak.split()[1])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path), str(tmp_path / "o.csv")],
        capture_output=True,
        text=True,
        check=True,
    )
    requests, read_again, kibibytes = map(int, done.stdout.split())
    assert requests == read_again == 10_000_000
    assert kibibytes < 300 * 1024


# The fit


def fitted(path: Path, rows, tmp_path: Path, **options):
    path.write_text(WRITERS["burstgpt"][1](rows))
    return convert(path, "burstgpt", tmp_path / "fit.yaml", Options(**options), compact=True)


def test_a_fit_finds_the_families_again(tmp_path):
    rng = np.random.default_rng(0)
    n = 20_000
    gaps = rng.gamma(0.25, 4.0, n) * 400
    prompt = np.maximum(np.rint(np.exp(rng.normal(np.log(500), 1.0, n))), 1)
    rows = [
        type(asks(1)[0])(int(t), 0, int(p), int(o))
        for t, p, o in zip(
            np.cumsum(gaps), prompt, rng.choice([5, 10, 50], n, p=[0.5, 0.3, 0.2]), strict=True
        )
    ]
    conversion = fitted(tmp_path / "in", rows, tmp_path, time_scale=0.5)
    workload = load_workload(tmp_path / "fit.yaml")
    assert workload.arrivals.process == "gamma"
    assert workload.arrivals.rate == pytest.approx(2 * 2.5, rel=0.05)
    assert workload.arrivals.cv == pytest.approx(2.0, rel=0.05)
    (entry,) = workload.requests
    assert entry.prompt_tokens.lognormal.p50 == pytest.approx(500, rel=0.03)
    assert entry.output_tokens.choice == pytest.approx({5: 0.5, 10: 0.3, 50: 0.2}, abs=0.02)
    assert abs(largest_error(conversion.fit_errors)[1]) < 0.05
    assert "Error against the source" in workload.description


def test_even_arrivals_are_constant(tmp_path):
    rows = [type(asks(1)[0])(i * 500, 0, 10, 20) for i in range(100)]
    fitted(tmp_path / "in", rows, tmp_path)
    workload = load_workload(tmp_path / "fit.yaml")
    assert (workload.arrivals.process, workload.arrivals.rate) == ("constant", 2)
    assert workload.requests[0].prompt_tokens.constant == 10


def test_too_short_to_fit(tmp_path):
    from has.errors import InputError

    with pytest.raises(InputError, match="too short"):
        fitted(tmp_path / "in", asks(2), tmp_path)


def test_the_stated_error_is_the_error(tmp_path):
    """What a draw from the fit is like, against the source: as stated, but for the draw's own noise."""
    servegen(tmp_path / "in", [[(5.0, "Gamma", 0.5)] * 20, [(10.0, "Weibull", 0.7)] * 20])
    conversion = convert(tmp_path / "in", "servegen", tmp_path / "fit.yaml", compact=True)
    drawn = Statistics.of(draw_requests(load_workload(tmp_path / "fit.yaml"), requests=200_000, seed=5))
    stated, statistics = conversion.fit_errors, conversion.statistics
    assert drawn.rate / statistics.rate - 1 == pytest.approx(stated["rate"], abs=0.01)
    assert drawn.cv / statistics.cv - 1 == pytest.approx(stated["cv"], abs=0.02)
    assert drawn.kinds.keys() == statistics.kinds.keys()
    for key, kind in statistics.kinds.items():
        errors = stated["sizes"][" ".join(filter(None, key))]
        pairs = {
            "prompt_tokens": (kind.sizes["prompt_tokens"], drawn.kinds[key].sizes["prompt_tokens"]),
            "output_tokens": (kind.sizes["output_tokens"], drawn.kinds[key].sizes["output_tokens"]),
            "media_tokens of all items": (kind.sizes["media_tokens"], drawn.kinds[key].sizes["media_tokens"]),
        }
        for name, (source_sizes, drawn_sizes) in pairs.items():
            assert drawn_sizes.mean / source_sizes.mean - 1 == pytest.approx(errors[name]["mean"], abs=0.02)
            for q in (90, 99):
                found = drawn_sizes.percentile(q) / source_sizes.percentile(q) - 1
                assert found == pytest.approx(errors[name][f"p{q}"], abs=0.03), (key, name, q)


def test_the_fit_of_real_traces_states_small_errors(tmp_path):
    for name, format, bound in (
        ("azure-2023/AzureLLMInferenceTrace_conv.csv", "azure", 0.03),
        ("mooncake/conversation_trace.jsonl", "mooncake", 0.03),
    ):
        conversion = convert(source(name), format, tmp_path / "fit.yaml", compact=True)
        assert abs(largest_error(conversion.fit_errors)[1]) < bound
        assert abs(conversion.fit_errors["rate"]) < 0.001


def test_fit_keeps_nothing_it_does_not_state():
    statistics = Statistics()
    batch = np.zeros((1000, 6), np.int64)
    batch[:, 0] = np.concatenate([np.arange(500) * 10**8, 50 * 10**9 + np.arange(500) * 10**9])
    batch[:, 4:] = 3
    statistics.add(batch)
    workload, _ = fit(statistics, "w", "x")
    assert "busiest 60 s have 4.7 times" in workload.description
