"""The instances of one machine, kept between deployments: only what must change is started anew.

Two kinds of process serve every deployment: encoders, and language instances that take embeddings and
both produce and consume KV, so that prefill, decode, both and (with the media themselves) everything
differ by routing alone. B is the gateway's: it never sends an encoder more than B requests at once, so
encoders are started with the largest. What needs a restart is a GPU that turns from encode to language
or back, or another width.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from has.core.deployment import Deployment
from has.device.host import cache_folder
from has.engine.names import loadable
from has.engine.place import FIRST_PORT, NodePorts, make_plan
from has.engine.plan import Instance, Plan
from has.engine.sizes import Sizes
from has.engine.vllm.commands import command, environment
from has.engine.vllm.install import Installed, site
from has.engine.vllm.launch import READY_S, Engine, Launcher, Start, free_port
from has.engine.vllm.urls import Urls
from has.errors import InfeasibleError

HOST = "127.0.0.1"
PORT_RANGES = 1024
MOST_BATCH = 64
"""Requests an encoder of a fleet takes at once; the gateway bounds them below that."""


def live_plan(deployment: Deployment, sizes: Sizes) -> Plan:
    """What `deployment` needs of one machine. InfeasibleError where vLLM there cannot run it as it is."""
    plan = make_plan(deployment, "vllm", sizes)
    for change in plan.changes:
        if change.knob in ("prefill_offload", "encode_batch"):
            raise InfeasibleError(
                f"vLLM cannot run it as it is: {change}",
                mend="has export --to vllm writes the nearest that it can run",
            )
    if plan.nodes > 1:
        raise InfeasibleError(
            f"it needs {plan.nodes} nodes; live instances run on one",
            mend="has export --to vllm writes what launches it on several",
        )
    return plan


class Fleet:
    """Instances of `model` on up to `gpus` GPUs of this machine.

    swappable  keep them ready for any deployment (trials); else each runs just its role (serving)
    context    most tokens of one request
    """

    def __init__(
        self,
        found: Installed,
        model: str,
        gpus: int,
        *,
        name: str | None = None,
        swappable: bool = True,
        context: int | None = None,
        logs: Path | None = None,
        ready_s: float = READY_S,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.found, self.model, self.gpus = found, model, gpus
        self.name = name or model
        self.swappable = swappable
        self._ready_s = ready_s
        # Logs go with the fleet; what tells of a failure must outlive it.
        keep = cache_folder() / "vllm-logs" if logs is None else None
        # On a tmpfs where there is one: embeddings pass through it.
        shm = Path("/dev/shm")
        self.folder = Path(tempfile.mkdtemp(prefix="has-vllm-", dir=shm if shm.is_dir() else None))
        self.ec_dir = self.folder / "ec"
        self.ec_dir.mkdir()
        self.site = site(found, loadable(model), self.name, self.ec_dir, context=context, swappable=swappable)
        self.launcher = Launcher(logs or self.folder / "logs", keep=keep, say=say)
        self.launcher.remove_at_end(self.folder)
        # A port is tried before the instance binds it, seconds later: fleets that start at once begin apart.
        first = FIRST_PORT + 16 * (os.getpid() % PORT_RANGES)
        self._ports = NodePorts(first, usable=free_port)
        self._running: dict[tuple[str, tuple[int, ...]], Engine] = {}
        self.started = 0

    def plan(self, deployment: Deployment, sizes: Sizes) -> Plan:
        """What `deployment` needs here. InfeasibleError where this machine or vLLM cannot run it as it is."""
        if deployment.gpus > self.gpus:
            raise InfeasibleError(f"{deployment.gpus} GPUs are asked for, {self.gpus} are here")
        return live_plan(deployment, sizes)

    def arrange(self, plan: Plan) -> Urls:
        """Have the instances of `plan` running, and say where. RunError with the engine's reason if one does not start."""
        keys = self._keys(plan)
        wanted = {keys[i.name]: i for i in plan.instances}
        surplus = [key for key, engine in self._running.items() if key not in wanted or not engine.usable()]
        self.launcher.stop([self._running.pop(key) for key in surplus])
        missing = [i for key, i in wanted.items() if key not in self._running]
        try:
            engines = self.launcher.start([self._start(i, plan) for i in missing])
            self._running |= {keys[i.name]: e for i, e in zip(missing, engines, strict=True)}
            self.started += len(engines)
            self.launcher.wait(engines, self._ready_s)
        except BaseException:
            # What does not come up is not kept for the next; what did, is.
            bad = [key for key, engine in self._running.items() if not engine.usable()]
            self.launcher.stop([self._running.pop(key) for key in bad])
            raise
        self.clear()
        url = {i.name: self._running[keys[i.name]].url for i in plan.instances}

        def of(*roles: str) -> tuple[str, ...]:
            return tuple(url[i.name] for i in plan.instances if i.role in roles)

        return Urls(
            encode=of("encode"),
            prefill=of("prefill"),
            decode=of("decode"),
            mixed=of("prefill_decode", "all"),
        )

    def engine_at(self, url: str) -> Engine | None:
        return next((engine for engine in self._running.values() if engine.url == url), None)

    def clear(self) -> None:
        """Forget all embeddings: no trial finds what another has computed."""
        for entry in self.ec_dir.iterdir():
            shutil.rmtree(entry, ignore_errors=True)

    def revive(self, engine: Engine) -> None:
        """Start `engine` anew where it was. RunError with its reason where it does not come back."""
        (key,) = [key for key, running in self._running.items() if running is engine]
        self.launcher.stop([engine])
        (self._running[key],) = self.launcher.start([engine.start])
        self.launcher.wait([self._running[key]], self._ready_s)

    def discard(self) -> None:
        """End all instances: what hangs says that it is well, and must not be met again."""
        self.launcher.stop(list(self._running.values()))
        self._running.clear()

    def close(self) -> None:
        """End all instances, and remove what they passed to each other. May be called twice."""
        self.launcher.close()
        self._running.clear()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _keys(self, plan: Plan) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Instance -> what must be equal for a running one to serve: kind and GPUs; on a CPU kind and number."""
        keys: dict[str, tuple[str, tuple[int, ...]]] = {}
        counts: Counter[str] = Counter()
        for instance in plan.instances:
            kind = "language" if self.swappable and instance.is_language else instance.role
            keys[instance.name] = (kind, (counts[kind],) if self.found.cpu else instance.gpus)
            counts[kind] += 1
        return keys

    def _start(self, instance: Instance, plan: Plan) -> Start:
        ports = {"http": self._ports.take()}
        if instance.is_language:
            ports["nixl"] = self._ports.take(len(instance.gpus))
        seqs = instance.max_num_seqs
        if self.swappable and instance.role == "encode":
            seqs = max(seqs, MOST_BATCH if not self.found.cpu else 16)
        here = replace(instance, ports=ports, max_num_seqs=seqs)
        argv = command(here, plan, self.site, HOST)
        return Start(
            f"{instance.name}-{self.started}-{ports['http']}",
            (str(self.found.command), *argv[1:]),
            environment(here, self.site, HOST),
            f"http://{HOST}:{ports['http']}",
            None if self.found.cpu else instance.gpus,
        )
