"""What exporters write, and the words they share."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from has.engine.express import NAMES
from has.engine.plan import Plan
from has.files.deployment import deployment_yaml
from has.version import __version__


@dataclass(frozen=True, slots=True)
class Artefact:
    """A file of an export. `name` is relative to the folder it goes to."""

    name: str
    text: str
    executable: bool = False


def header(plan: Plan, *, status: str) -> list[str]:
    """Comment lines that stand at the top of every artefact: for which engine version, and what changed."""
    lines = [
        f"Written by has {__version__} for {NAMES[plan.engine]} {plan.version}: names of flags and fields are that version's.",
        f"{plan.emitted.label}, {plan.gpus} GPUs on {plan.nodes} node{'s' if plan.nodes > 1 else ''}, model {plan.emitted.model}.",
        status,
    ]
    lines += [f"Node {node} has {gpu}." for node in range(plan.nodes) if (gpu := plan.gpu_on(node))]
    lines += [f"Changed from the recommendation: {change}" for change in plan.changes]
    lines += [f"Note: {note}" for note in plan.notes]
    return lines


def commented(lines: Iterable[str]) -> str:
    return "".join(f"# {line}\n" for line in lines)


def emitted_file(plan: Plan) -> Artefact:
    """The deployment as emitted, for `has simulate`, `has explain` and the gateway."""
    return Artefact("deployment.yaml", deployment_yaml(plan.emitted))


def shell_word(word: str) -> str:
    """`word` for a shell; variables such as ${HOST0} in it are expanded there."""
    if "${" not in word:
        return shlex.quote(word)
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("`", "\\`")
    return f'"{escaped}"'


def shell_line(words: Sequence[str]) -> str:
    return " ".join(map(shell_word, words))


def host_variable(node: int) -> str:
    return f"${{HOST{node}}}"


def script_head(plan: Plan, *, status: str) -> str:
    """Interpreter, comments, hosts, and the functions that start and watch what runs on this node."""
    hosts = "\n".join(
        f"HOST{node}=${{HOST{node}:-127.0.0.1}}"
        if plan.nodes == 1
        else f"HOST{node}=${{HOST{node}:?set HOST{node} to the address of node {node}}}"
        for node in range(plan.nodes)
    )
    return (
        "#!/bin/bash\n"
        + commented(header(plan, status=status))
        + f"""# Run it on every node with NODE set (0..{plan.nodes - 1}); Ctrl-C ends all that it started.
set -euo pipefail
cd "$(dirname "$0")"
NODE=${{NODE:-0}}
{hosts}
READY_S=${{READY_S:-900}}
LOGS=${{LOGS:-logs}}
mkdir -p "$LOGS"
pids=()
stop() {{ trap - EXIT INT TERM; kill "${{pids[@]}}" 2>/dev/null || true; wait || true; }}
trap stop EXIT INT TERM

start() {{ # node name command...
  [ "$1" = "$NODE" ] || return 0
  "${{@:3}}" >"$LOGS/$2.log" 2>&1 &
  pids+=($!)
}}
ready() {{ # name url: until it answers; a process that died ends the wait
  local until=$((SECONDS + READY_S))
  until curl -sf -o /dev/null "$2"; do
    if [ $SECONDS -ge $until ]; then echo "$1 is not ready after $READY_S s; see $LOGS/$1.log" >&2; exit 1; fi
    for pid in "${{pids[@]}}"; do
      kill -0 "$pid" 2>/dev/null || {{ echo "a process ended while $1 was awaited; see $LOGS" >&2; exit 1; }}
    done
    sleep 1
  done
}}

"""
    )


SCRIPT_TAIL = """
# The first process that ends ends the rest: half a deployment answers nobody.
[ ${#pids[@]} -eq 0 ] || wait -n "${pids[@]}" || true
echo "a process of node $NODE has ended; see $LOGS" >&2
exit 1
"""


def gpu_list(gpus: Iterable[int]) -> str:
    return ",".join(map(str, gpus))


def one_document(text_lines: Iterable[str], *documents: Any) -> str:
    """YAML documents below comments."""
    from has.files.yaml import dump_yaml

    return commented(text_lines) + "---\n".join(dump_yaml(document) for document in documents)
