"""`has trace convert`, and what goes on with what it wrote: show, simulate."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from has.cli.trace import FORMATS
from has.files.formats.convert import FORMATS as KNOWN
from tests.files.foreign import asks, azure_2023, azure_lmm, burstgpt, mooncake, servegen

ROWS = asks(120)


@pytest.fixture
def traces(inputs: Path) -> dict[str, Path]:
    """One small trace of each format."""
    texts = {"azure": azure_2023, "azure-lmm": azure_lmm, "mooncake": mooncake, "burstgpt": burstgpt}
    paths = {}
    for name, write in texts.items():
        paths[name] = inputs / f"{name}.txt"
        paths[name].write_text(write(ROWS))
    paths["servegen"] = servegen(inputs / "servegen", [[(0.2, "Gamma", 0.5)]])
    return paths


def test_the_formats_offered_are_those_that_are_read() -> None:
    assert FORMATS == KNOWN


@pytest.mark.parametrize("format", FORMATS)
def test_from_a_trace_to_figures(format: str, has: Callable, traces: dict[str, Path], inputs: Path) -> None:
    """Converted, shown and simulated, by the commands a person would type."""
    said = has("trace", "convert", traces[format], "--format", format, "--out", "w2.csv")
    assert said.status == 0, said.err
    assert "workload written to w2.yaml" in said.err
    assert "Rate over time" in said.out
    with (inputs / "w2.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == (120 if format != "servegen" else len(rows)) > 50
    shown = has("show", "w2.yaml")
    assert shown.status == 0
    assert "Rate over time" in shown.out
    assert "coefficient of variation" in shown.out
    simulated = has("simulate", "d.yaml", "--profile", "p.csv", "--workload", "w2.yaml", "--json")
    assert simulated.status == 0, simulated.err
    assert simulated.json["requests"] == simulated.json["completed"] == len(rows)


@pytest.mark.parametrize("format", FORMATS)
def test_a_fit_can_be_simulated(format: str, has: Callable, traces: dict[str, Path], inputs: Path) -> None:
    said = has("trace", "convert", traces[format], "--format", format, "--out", "f.yaml", "--fit")
    assert said.status == 0, said.err
    assert "Error against the source" in said.err
    assert not (inputs / "f.csv").exists()
    shown = has("show", "f.yaml")
    assert "Error against the source" in shown.out
    simulated = has(
        "simulate", "d.yaml", "--profile", "p.csv", "--workload", "f.yaml", "--requests", "50", "--json"
    )
    assert simulated.status == 0, simulated.err
    assert simulated.json["completed"] == 50


def test_json_holds_what_was_said(has: Callable, traces: dict[str, Path]) -> None:
    lines = traces["azure"].read_text().splitlines()
    lines[7] = lines[7].replace(",", ",x", 1)
    traces["azure"].write_text("\n".join(lines))
    said = has("trace", "convert", traces["azure"], "--format", "azure", "--out", "o.jsonl", "--json")
    assert said.status == 0
    told = said.json
    assert (told["requests"], told["rows"], told["skipped"]["rows"]) == (119, 120, 1)
    assert told["skipped"]["first"][0].startswith("line 8: ContextTokens: is no number")
    assert told["rate_rps"] > 0
    assert told["sizes"]["prompt_tokens"]["p50"] > 0
    assert "line 8: ContextTokens" in said.err


def test_bad_rows_are_said_also_when_quiet(has: Callable, traces: dict[str, Path]) -> None:
    traces["mooncake"].write_text(traces["mooncake"].read_text() + '{"timest')
    said = has("trace", "convert", traces["mooncake"], "--format", "mooncake", "--out", "o.csv", "-q")
    assert said.status == 0
    assert said.err.startswith("warning: 1 of 121 rows are bad")
    assert "line 121" in said.err


def test_a_text_trace_is_said_to_have_no_media(has: Callable, traces: dict[str, Path]) -> None:
    said = has("trace", "convert", traces["azure"], "--format", "azure", "--out", "o.csv")
    assert "text only" in said.err
    made = has(
        "trace", "convert", traces["azure"], "--format", "azure", "--out", "o.csv",
        "--image-share", "0.5", "--image-tokens", "64",
    )  # fmt: skip
    assert made.status == 0
    assert "made up" in made.err


def test_the_reading_of_squared_images_is_said(has: Callable, traces: dict[str, Path]) -> None:
    said = has("trace", "convert", traces["azure-lmm"], "--format", "azure-lmm", "--out", "o.csv")
    assert "every value is a perfect square" in said.err
    assert "read as the square" in said.err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["absent.csv", "--format", "azure", "--out", "o.csv"], "no such file"),
        (["azure.txt", "--format", "bunny", "--out", "o.csv"], "none of azure"),
        (["azure.txt", "--format", "azure", "--out", "o.xlsx"], "--out"),
        (["azure.txt", "--format", "azure", "--out", "o.csv", "--fit"], "--out"),
        (["azure.txt", "--format", "burstgpt", "--out", "o.csv"], "--format names the right one"),
        (["azure-lmm.txt", "--format", "azure", "--out", "o.csv"], "--format azure-lmm"),
        (["azure.txt", "--format", "azure", "--out", "o.csv", "--sample", "2"], "--sample"),
        (["azure.txt", "--format", "azure", "--out", "o.csv", "--time-scale", "0"], "--time-scale"),
        (["azure.txt", "--format", "azure", "--out", "o.csv", "--start-s", "nan"], "--start-s"),
        (["azure.txt", "--format", "azure", "--out", "o.csv", "--image-tokens", "5"], "--image-share"),
        (["azure.txt", "--format", "azure"], "--out"),
        (["azure.txt", "--out", "o.csv"], "--format"),
    ],
)
def test_what_is_wrong_is_bad_input(
    arguments: list[str], says: str, has: Callable, traces: dict[str, Path]
) -> None:
    said = has("trace", "convert", *arguments)
    assert said.status == 2
    assert says in said.err
    assert not said.out


@pytest.mark.parametrize("name", ["azure.csv", "sub/../azure.csv", "link.csv", "hard.csv"])
def test_a_trace_is_not_written_over_itself(
    name: str, has: Callable, traces: dict[str, Path], inputs: Path
) -> None:
    source = traces["azure"].rename(inputs / "azure.csv")
    text = source.read_text()
    (inputs / "sub").mkdir()
    (inputs / "link.csv").symlink_to("azure.csv")
    (inputs / "hard.csv").hardlink_to(source)
    said = has("trace", "convert", "azure.csv", "--format", "azure", "--out", name, "--json")
    assert said.status == 2
    assert said.json["error"]["field"] == "--out"
    assert said.json["error"]["value"] == name
    assert source.read_text() == text
    assert not list(inputs.glob("**/azure.yaml"))


def test_a_folder_that_is_converted_keeps_its_tables(has: Callable, traces: dict[str, Path]) -> None:
    table = traces["servegen"] / "chunk-0-trace.csv"
    text = table.read_text()
    assert has("trace", "convert", traces["servegen"], "--format", "servegen", "--out", table).status == 2
    assert table.read_text() == text
    beside = traces["servegen"] / "mine.csv"
    for _ in range(2):
        said = has("trace", "convert", traces["servegen"], "--format", "servegen", "--out", beside)
        assert said.status == 0, said.err


def test_a_file_of_the_workload_s_name_is_kept_unless_it_replays_the_table(
    has: Callable, traces: dict[str, Path], inputs: Path
) -> None:
    convert = ("trace", "convert", traces["azure"], "--format", "azure", "--out")
    for name in ("w", "d", "note"):  # a workload of another kind, a deployment, no YAML
        kept = inputs / f"{name}.yaml"
        if name == "note":
            kept.write_text("a: [")
        text = kept.read_text()
        said = has(*convert, f"{name}.csv")
        assert said.status == 2
        assert f"{name}.yaml" in said.err
        assert kept.read_text() == text
        assert not (inputs / f"{name}.csv").exists()
    assert has(*convert, "o.csv").status == 0
    assert has(*convert, "o.csv", "--time-scale", "0.5").status == 0
    assert "time_scale" in (inputs / "o.yaml").read_text()
    assert has(*convert, "w.yaml", "--fit").status == 0  # it was named


def test_the_page_draws_the_rate(has: Callable, traces: dict[str, Path], inputs: Path) -> None:
    has("trace", "convert", traces["mooncake"], "--format", "mooncake", "--out", "o.parquet")
    assert has("show", "o.yaml", "--html", "page.html").status == 0
    page = (inputs / "page.html").read_text()
    assert "<svg" in page
    assert "requests/s in stretches of" in page
    assert has("show", "o.parquet").status == 0


def test_a_workload_shows_its_trace_at_its_time_scale(has: Callable, traces: dict[str, Path]) -> None:
    has("trace", "convert", traces["azure"], "--format", "azure", "--out", "o.csv", "--time-scale", "0.5")

    def rate(file: str) -> float:
        line = next(line for line in has("show", file).out.splitlines() if line.startswith("mean rate"))
        return float(line.split()[-1])

    assert rate("o.yaml") == pytest.approx(2 * rate("o.csv"), rel=0.001)


def test_a_trace_in_pixels_is_not_shown_without_a_model(has: Callable, inputs: Path) -> None:
    (inputs / "t.csv").write_text(
        "arrival_s,modality,image_px,prompt_tokens,output_tokens\n0,image,64x64,1,1\n"
    )
    (inputs / "t.yaml").write_text(
        json.dumps({"version": 1, "name": "t", "arrivals": {"process": "trace", "file": "t.csv"}})
    )
    said = has("show", "t.yaml")
    assert said.status == 0
    assert "not shown" in said.out


def test_a_table_may_stand_where_a_workload_is_asked_for(has: Callable, traces: dict[str, Path]) -> None:
    has("trace", "convert", traces["azure-lmm"], "--format", "azure-lmm", "--out", "o.csv")
    by = {
        file: has("simulate", "d.yaml", "--profile", "p.csv", "--workload", file, "--json")
        for file in ("o.csv", "o.yaml")
    }
    assert by["o.csv"].status == 0, by["o.csv"].err
    assert by["o.csv"].json == by["o.yaml"].json
    assert by["o.csv"].json["requests"] == len(ROWS)


def test_times_since_any_year_are_counted_from_the_first(has: Callable, inputs: Path) -> None:
    """A log's times are often seconds since 1970."""
    figures = []
    for first in (0, 1_700_000_000):
        rows = "".join(f"{first + i},text,0,{20 + i},5\n" for i in range(30))
        (inputs / "log.csv").write_text(
            "arrival_s,modality,media_tokens,prompt_tokens,output_tokens\n" + rows
        )
        said = has("simulate", "d.yaml", "--profile", "p.csv", "--workload", "log.csv", "--json")
        assert said.status == 0, said.err
        figures.append(said.json)
    assert figures[0] == figures[1]


@pytest.mark.parametrize(
    "command", [("show", "{}"), ("simulate", "d.yaml", "--workload", "{}", "--profile", "p.csv")]
)
@pytest.mark.parametrize(
    ("format", "ending"), [("azure", "csv"), ("azure-lmm", "csv"), ("burstgpt", "csv"), ("mooncake", "jsonl")]
)
def test_a_trace_of_others_is_told_with_what_converts_it(
    format: str, ending: str, command: tuple[str, ...], has: Callable, traces: dict[str, Path], inputs: Path
) -> None:
    theirs = inputs / f"theirs.{ending}"
    theirs.write_text(traces[format].read_text())
    said = has(*(word.format("theirs." + ending) for word in command))
    assert said.status == 2
    mend = said.err.split("mend: has ")[1].splitlines()[0].split()
    assert mend[mend.index("--format") + 1] == format
    assert has(*mend).status == 0
    assert has("show", mend[-1]).status == 0


@pytest.mark.parametrize(
    ("header", "says"),
    [
        ("arrival_s;modality;prompt_tokens;output_tokens", "not separated by commas"),
        ("arrival_s\tmodality\tprompt_tokens\toutput_tokens", "not separated by commas"),
        ("arrival_ms,modality,prompt_tokens,output_tokens", "of a trace: arrival_s, modality"),
        ("Arrival_s,Modality,Prompt_tokens,Output_tokens", "of a trace: arrival_s, modality"),
        ("when,what,in,out", "times in seconds, sizes in tokens"),
    ],
)
def test_a_log_with_other_columns_is_told_what_a_trace_has(
    header: str, says: str, has: Callable, inputs: Path
) -> None:
    (inputs / "log.csv").write_text(header + "\n0,text,5,5\n")
    said = has("show", "log.csv")
    assert said.status == 2
    assert says in said.err
    assert "sm_asked" not in said.err
