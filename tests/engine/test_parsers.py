"""Every emitted command, through the argument parser of the very engine version it is for."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path

from has.engine.artefacts import dynamo, llmd, sglang
from has.engine.engines import VLLM_CPU
from has.engine.export import render
from has.engine.flags import FOLDER
from tests.engine.cases import SEEDS, VLLM_RUNS, plan, read_script
from tests.engine.engines import PYTHON, needs_engines, parser_of

pytestmark = needs_engines

VLLM = """
try:
    from vllm.entrypoints.common.cli_args import make_arg_parser
except ModuleNotFoundError:
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = make_arg_parser(FlexibleArgumentParser())
parse = parser.parse_args
import vllm
version = vllm.__version__
"""
SGLANG = """
import argparse
from sglang.srt.server_args import ServerArgs
parser = argparse.ArgumentParser()
ServerArgs.add_cli_args(parser)
parse = parser.parse_args
from importlib.metadata import version as of
version = of("sglang")
"""
ROUTER = """
from sglang_router.launch_router import parse_router_args as parse
from importlib.metadata import version as of
version = of("sglang-router")
parser = None
"""
DYNAMO = """
import argparse
from dynamo.vllm.backend_args import DynamoVllmArgGroup
from dynamo.common.configuration.groups.runtime_args import DynamoRuntimeArgGroup
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = argparse.ArgumentParser(allow_abbrev=False)
DynamoRuntimeArgGroup().add_arguments(parser)
DynamoVllmArgGroup().add_arguments(parser)
rest_of = FlexibleArgumentParser(add_help=False)
AsyncEngineArgs.add_cli_args(rest_of, async_args_only=False)
def parse(argv):
    known, rest = parser.parse_known_args(argv)
    return rest_of.parse_args(rest)
from importlib.metadata import version as of
version = of("ai-dynamo")
"""
RUN = """
import json, sys
failed = []
for argv in json.load(open(sys.argv[1])):
    try:
        parse(argv)
    except (SystemExit, Exception) as error:
        failed.append([repr(error), argv])
flags = [] if parser is None else sorted({o for a in parser._actions for o in a.option_strings if o.startswith("--")})
json.dump({"version": version, "failed": failed, "flags": flags}, open(sys.argv[2], "w"))
"""


def parsed(code: str, paths: list[str], commands: list[list[str]]) -> dict[str, object]:
    """What the parser says of all `commands`, in one process: importing an engine takes ten seconds."""
    unique = [json.loads(text) for text in dict.fromkeys(map(json.dumps, commands))]
    with tempfile.TemporaryDirectory() as folder:
        asked, told = Path(folder, "asked.json"), Path(folder, "told.json")
        asked.write_text(json.dumps(unique))
        done = subprocess.run(
            [PYTHON, "-c", code + RUN, asked, told],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return json.loads(told.read_text())


def kept_flags(name: str) -> list[str]:
    return json.loads((FOLDER / f"{name}.json").read_text())["flags"]


def test_vllm() -> None:
    commands = []
    for seed, split in VLLM_RUNS:
        text = render(plan(seed, "vllm", sm_split=split))[0].text
        commands += [one.argv[2:] for one in read_script(text).started.values()]
    for seed in SEEDS:
        made = plan(seed, "llm-d")
        commands += [llmd.arguments(instance, made)[1:] for instance in made.instances]
    said = parsed(VLLM, [str(parser_of("vllm"))], commands)
    assert said["version"] == "0.33.0"
    assert said["failed"] == []
    assert said["flags"] == kept_flags("vllm-0.33.0")


def test_the_installed_vllm_has_the_flags_that_are_kept() -> None:
    said = parsed(VLLM, [], [])
    assert str(said["version"]).startswith(VLLM_CPU)
    assert said["flags"] == kept_flags(f"vllm-{VLLM_CPU}")


def test_sglang() -> None:
    commands = []
    for seed in SEEDS:
        made = plan(seed, "sglang")
        commands += [sglang.command(instance, made)[3:] for instance in made.instances]
    said = parsed(SGLANG, [str(parser_of("sglang"))], commands)
    assert said["version"] == "0.5.23"
    assert said["failed"] == []
    assert said["flags"] == kept_flags("sglang-0.5.23")


def test_sglang_router() -> None:
    commands = [
        [
            word.replace("${HOST0}", "10.0.0.1").replace("${HOST1}", "10.0.0.2")
            for word in sglang.router_command(plan(seed, "sglang"))[3:]
        ]
        for seed in SEEDS
    ]
    said = parsed(ROUTER, [str(parser_of("sglang-router"))], commands)
    assert said["version"] == "0.3.2"
    assert said["failed"] == []


def test_dynamo() -> None:
    commands = []
    for seed in SEEDS:
        made = plan(seed, "dynamo")
        commands += [dynamo.arguments(instance, made) for instance in made.instances]
    said = parsed(DYNAMO, [str(parser_of("ai-dynamo")), str(parser_of("vllm"))], commands)
    assert said["version"] == "1.6.1"
    assert said["failed"] == []
    assert said["flags"] == kept_flags("dynamo-1.6.1")
