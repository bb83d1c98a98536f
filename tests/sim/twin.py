"""The simulator's rules once more, slowly: one global event loop, step by step, no arrays, no short cuts.

It shares nothing with the kernel. Look-up, gap, deficit, rate estimate and SM table are written out
again, plainly; time is integer nanoseconds; what happens at one instant happens in the order that the
rules state. Input: a deployment and a profile as plain mappings (as their files hold them, nothing
derived) and rows of requests; output: one mapping a request, times in ns, None where nothing happened.
"""

from __future__ import annotations

import heapq
import math
from decimal import Decimal
from fractions import Fraction

import numpy as np

INF = float("inf")
COMPLETED, FAILED, REFUSED = "completed", "failed", "refused"
COLUMNS = (
    "preprocessed",
    "encode_worker",
    "encode_start",
    "encode_end",
    "batch",
    "route",
    "prefill_ready",
    "prefill_worker",
    "prefill_start",
    "first_token",
    "decode_ready",
    "decode_worker",
    "decode_start",
    "finish",
)


class Profile:
    """Piecewise multilinear look-up, seconds."""

    def __init__(self, rows):
        self.grids = {}
        for row in rows:
            key = row["stage"], row.get("beside", "none")
            point = row["sm_percent"], row["batch"], row["tokens"]
            self.grids.setdefault(key, {})[point] = row["latency_s"]

    def has(self, stage, beside="none"):
        return (stage, beside) in self.grids

    def __call__(self, stage, batch, tokens, sm=100.0, beside="none"):
        if not self.has(stage):
            return 0.0
        grid = self.grids[stage, beside]
        axes = [sorted({point[i] for point in grid}) for i in range(3)]
        scale = 1.0
        if len(axes[0]) > 1:
            if sm < axes[0][0]:
                scale = axes[0][0] / sm
            sm = min(max(sm, axes[0][0]), axes[0][-1])

        def along(axis, x):
            if len(axis) == 1:
                return [(axis[0], 1.0)]
            i = max(k for k in range(len(axis) - 1) if k == 0 or x >= axis[k])
            w = (x - axis[i]) / (axis[i + 1] - axis[i])
            return [(axis[i], 1.0 - w), (axis[i + 1], w)]

        return scale * sum(
            ws * wb * wt * grid[s, b, t]
            for s, ws in along(axes[0], sm)
            for b, wb in along(axes[1], batch)
            for t, wt in along(axes[2], tokens)
        )


def ns(seconds):
    return round(seconds * 1e9)


class Rate:
    """(n - 1/3) over the span of the last n = 60 gaps; an initial rate stands for 60 gaps before the first."""

    def __init__(self, initial):
        self.times, self.initial = [], initial

    def arrive(self, now):
        if not self.times and self.initial:
            spacing = max(1, min(round(1e9 / self.initial), 2**55))
            self.times = [now - spacing * k + spacing * k // 180 for k in range(60, 0, -1)]
        self.times = [*self.times, now][-61:]
        gaps = len(self.times) - 1
        return (gaps - 1 / 3) * 1e9 / max(self.times[-1] - self.times[0], 1) if gaps else 0.0


class Request:
    def __init__(self, index, row):
        self.index = index
        self.arrival = ns(row["arrival_s"])
        self.media = row["modality"] != "text"
        self.media_tokens = row["media_tokens"]
        self.total = row["media_tokens"] + row["prompt_tokens"]
        self.output = row["output_tokens"]
        self.kv = self.total + self.output
        self.status = FAILED
        self.entered = False
        self.out = dict.fromkeys(COLUMNS)
        self.produced = 0
        self.prefilled_tokens = 0


class Service:
    """A batch in service: its end moves when its pace changes."""

    def __init__(self, batch, now, pace_s):
        self.batch, self.start, self.since = batch, now, now
        self.left, self.pace = 1.0, None
        self.set_pace(now, pace_s)

    def set_pace(self, now, pace_s):
        if pace_s == self.pace:
            return
        if self.pace not in (None, INF) and now > self.since:
            self.left = max(0.0, self.left - (now - self.since) / (self.pace * 1e9)) if self.pace else 0.0
        self.since, self.pace = now, pace_s
        self.end = INF if pace_s == INF else now + ns(self.left * pace_s)


class Encoder:
    def __init__(self, index, rate):
        self.index, self.waiting, self.last_add = index, [], None
        self.running, self.deficit, self.rate, self.gap = None, Fraction(0), Rate(rate), None

    @property
    def load(self):
        return len(self.waiting) + (len(self.running.batch) if self.running else 0)


class Group:
    def __init__(self, encoders):
        self.encoders, self.waiting, self.running = encoders, [], None


class Decoder:
    def __init__(self):
        self.waiting, self.running, self.step_end = [], [], None


class Iterator:
    def __init__(self):
        self.waiting, self.decoding, self.chunks, self.part, self.end = [], [], [], None, None
        self.decoded = []

    @property
    def admitted(self):
        return self.decoding + [r for r, _, _ in self.chunks] + ([self.part] if self.part else [])


class Twin:
    def __init__(self, deployment, profile, rows, *, rate=None, seed=0, media_share=None, pools=None):
        d = self.d = deployment
        self.profiles = {name: Profile(own["rows"]) for name, own in (pools or {}).items()}
        self.profile = Profile(profile["rows"])
        self.requests = [Request(i, row) for i, row in enumerate(rows)]
        self.topology = d["topology"]
        tp = d.get("tensor_parallel", {})
        alloc = d["alloc"]
        self.B = d.get("encode_batch") or 1
        self.s = Fraction(Decimal(repr(float(d.get("prefill_offload") or 0))))
        if self.topology != "disaggregated":
            self.s = Fraction(1)
        self.max_wait = None if d.get("max_wait_ms") is None else ns(d["max_wait_ms"] / 1e3)
        self.token_cap = d.get("max_num_batched_tokens") or (
            8192 if self.topology == "disaggregated" else 2048
        )
        self.count_cap = d.get("max_prefill_requests") or INF
        self.max_seqs = d.get("max_num_seqs", 256)
        self.max_queue = d.get("max_queue")
        self.first_by_decode = self.topology == "disaggregated" and d.get("first_token") == "decode"
        self.rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed).spawn(3)[2]))
        self.turns = {}

        n_e = alloc.get("encode", 0)
        rate = d.get("rate") if rate is None else rate
        share = media_share
        if share is None:
            share = sum(r.media for r in self.requests) / len(self.requests)
        self.rate = rate * share / n_e if rate and n_e and share else None
        p = d.get("fill_probability", 0.6)
        if self.B == 1 or p == 0:
            self.kappa = 0.0
        else:
            self.kappa = INF if p == 1 else -math.log(1 - p ** (1 / (self.B - 1)))
        self.online = d.get("rate_estimate") == "online"

        self.servers = [None] * (d.get("preprocess_workers") or d["gpus"])
        self.preprocess_line = []
        self.encoders = [Encoder(i, self.rate) for i in range(n_e)]
        for encoder in self.encoders:
            encoder.gap = self.gap(self.rate)
        k = 1
        if self.s < 1:
            k = tp.get("local_prefill") or tp.get("prefill") or 1
        self.groups = [Group(self.encoders[i : i + k]) for i in range(0, n_e, k)]
        self.remote_line = []
        self.pool = [None] * (alloc.get("prefill", 0) // (tp.get("prefill") or 1))
        self.decoders, self.iterators = [], []
        if self.topology == "disaggregated":
            pool = "decode"
            self.decoders = [Decoder() for _ in range(alloc[pool] // (tp.get(pool) or 1))]
        else:
            pool = "prefill_decode" if self.topology == "e_pd" else "all"
            self.iterators = [Iterator() for _ in range(alloc[pool] // (tp.get(pool) or 1))]
        self.pool_profile = self.on(pool)
        self.kv = d.get("kv_tokens")
        meta = (pools or {}).get(pool, profile)["metadata"]
        if self.kv is None and meta.get("memory_bytes") and meta.get("kv_bytes_per_token"):
            weights = meta.get("weights_bytes") or {}
            held = weights.get("lm", 0) + (weights.get("encoder", 0) if pool == "all" else 0)
            use = Fraction(repr(d.get("gpu_memory_utilization", 0.9)))
            gpus = tp.get(pool) or 1
            room = use * meta["memory_bytes"] * gpus - held
            copies = max(Fraction(1), Fraction(gpus, meta.get("kv_heads") or gpus))
            self.kv = max(0, math.floor(room / (meta["kv_bytes_per_token"] * copies)))

        self.wakes = []
        self.embeddings = []  # (when, began, stage, worker, who moved first, request) on their way to prefill
        self.transfers = []  # ... to decode
        self.moved = 0
        self.batch_log, self.decode_steps = [], []

    def on(self, pool):
        """The profile of this pool's GPUs."""
        return self.profiles.get(pool, self.profile)

    # --- rules -----------------------------------------------------------------------------------

    def gap(self, rate):
        """ns; None: no gap rule."""
        if self.kappa == 0:
            return 0
        return None if not rate or self.kappa == INF else ns(self.kappa / rate)

    def encode_share(self, n):
        """x*(n), or 100 under `streams` and where this worker never prefills."""
        table = self.d.get("sm_table")
        if self.s == 1 or table == "streams":
            return 100.0
        rows = sorted((row["batch"], row["encode_sm"]) for row in table)
        return float(next((x for b, x in reversed(rows) if b <= n), rows[0][1]))

    def prefill_share(self, group):
        """What the encoders of a group leave local prefill: the least of them."""
        if self.d.get("sm_table") == "streams":
            return 100.0
        sizes = [len(e.running.batch) for e in group.encoders if e.running]
        return min([100.0, *(100.0 - self.encode_share(n) for n in sizes)])

    def route(self, encoder, request):
        if self.s in (0, 1):
            return "remote" if self.s else "local"
        token = self.d.get("offload_unit") == "token"
        w = request.total if token else 1
        encoder.deficit += self.s * w
        if encoder.deficit >= (Fraction(w, 2) if token else 1):
            encoder.deficit -= w
            return "remote"
        return "local"

    def choose(self, what, loads):
        rule = self.d.get("dispatch", "random")
        if rule == "random":
            return int(self.rng.integers(len(loads)))
        if rule == "round_robin":
            turn = self.turns.get(what, 0)
            self.turns[what] = turn + 1
            return turn % len(loads)
        return loads.index(min(loads))

    def wake(self, when):
        if when is not None and when != INF:
            heapq.heappush(self.wakes, when)

    # --- the loop ----------------------------------------------------------------------------------

    def run(self):
        for request in self.requests:
            self.wake(request.arrival)
        arrivals = list(self.requests)
        while self.wakes:
            now = heapq.heappop(self.wakes)
            while self.wakes and self.wakes[0] == now:
                heapq.heappop(self.wakes)
            self.completions(now)
            while arrivals and arrivals[0].arrival == now:
                self.arrive(arrivals.pop(0), now)
            while self.starts(now):
                pass
            self.timers(now)
        return self.rows()

    def rows(self):
        """Routes are those of a deployment that has two prefill pools."""
        if self.topology != "disaggregated":
            for request in self.requests:
                request.out["route"] = None
        return [{**r.out, "status": r.status} for r in self.requests]

    def timers(self, now):
        for encoder in self.encoders:
            if encoder.running:
                self.wake(encoder.running.end)
            elif encoder.waiting:
                due = self.due_at(encoder)
                if due > now:
                    self.wake(due)
        for group in self.groups:
            if group.running:
                self.wake(group.running.end)

    def completions(self, now):
        """Everything that ends at `now`: first workers are freed, stage by stage, then requests move on."""
        preprocessed = []
        for i, busy in enumerate(self.servers):
            if busy and busy[1] == now:
                preprocessed.append(busy[0])
                self.servers[i] = None
        for encoder in self.encoders:
            if encoder.running and encoder.running.end == now:
                self.encoded(encoder, now)
        for g, group in enumerate(self.groups):
            if group.running and group.running.end == now:
                self.locally_prefilled(g, group, now)
        for w, busy in enumerate(self.pool):
            if busy and busy[1] == now:
                self.pool[w] = None
                for request in busy[0]:
                    self.prefilled(request, now, (1, w))
        for decoder in self.decoders:
            if decoder.step_end == now:
                self.stepped(decoder, now)
        for w, iterator in enumerate(self.iterators):
            if iterator.end == now:
                self.iterated(iterator, w, now)
        for request in sorted(preprocessed, key=lambda r: r.index):
            self.ready_for_encode(request, now)
        self.deliver(now)

    def deliver(self, now):
        """Delays that end at `now`."""
        while self.embeddings and self.embeddings[0][0] <= now:
            request = heapq.heappop(self.embeddings)[-1]
            if self.topology == "disaggregated":
                self.remote_line.append(request)
            else:
                self.to_iterator(request, now)
        while self.transfers and self.transfers[0][0] <= now:
            self.place(heapq.heappop(self.transfers)[-1], now)

    def arrive(self, request, now):
        if self.max_queue is not None:
            unanswered = sum(
                r.entered and (r.out["first_token"] is None or r.out["first_token"] > now)
                for r in self.requests[: request.index]
            )
            if unanswered >= self.max_queue:
                request.status = REFUSED
                return
        request.entered = not (self.kv is not None and request.kv > self.kv)
        if not request.entered:
            return
        if request.media:
            if self.on("encode").has("preprocess"):
                self.preprocess_line.append(request)
            else:
                self.ready_for_encode(request, now)
        elif self.topology == "disaggregated":
            encoder = self.encoders[self.choose("encode", [e.load for e in self.encoders])]
            request.out["encode_worker"] = encoder.index
            request.out["prefill_ready"] = now
            request.out["route"] = self.route(encoder, request)
            if request.out["route"] == "remote":
                self.remote_line.append(request)
            else:
                self.group_of(encoder).waiting.append(request)
        else:
            self.to_iterator(request, now)

    def starts(self, now):
        """One round of starts in the order of the stages; says whether anything began or ended."""
        changed = False
        while self.preprocess_line and None in self.servers:
            request = self.preprocess_line.pop(0)
            took = ns(self.on("encode")("preprocess", 1, request.media_tokens))
            changed = True
            if took:
                self.servers[self.servers.index(None)] = (request, now + took)
                self.wake(now + took)
            else:
                self.ready_for_encode(request, now)
        for g, group in enumerate(self.groups):
            while self.start_group(g, group, now):
                changed = True
        self.deliver(now)
        changed = self.start_pool(now) or changed
        self.deliver(now)
        for decoder in self.decoders:
            changed = self.start_step(decoder, now) or changed
        for w, iterator in enumerate(self.iterators):
            changed = self.start_iteration(iterator, w, now) or changed
        return changed

    def start_group(self, g, group, now):
        """Encode by worker, then local prefill, then what runs is repriced; says whether anything began or ended."""
        changed = False
        for encoder in group.encoders:
            while not encoder.running and encoder.waiting and self.due_at(encoder) <= now:
                self.launch(encoder, now)
                changed = True
                if encoder.running.end == now:
                    self.encoded(encoder, now)
        while not group.running and group.waiting and self.prefill_share(group) > 0:
            batch = self.take(group.waiting)
            for request in batch:
                request.out.update(prefill_start=now, prefill_worker=g)
            group.running = Service(batch, now, self.prefill_pace(group, batch))
            changed = True
            if group.running.end == now:
                self.locally_prefilled(g, group, now)
        self.reprice(group, now)
        for encoder in group.encoders:
            if encoder.running and encoder.running.end == now:
                self.encoded(encoder, now)
                changed = True
        if group.running and group.running.end == now:
            self.locally_prefilled(g, group, now)
            changed = True
        return changed

    def locally_prefilled(self, g, group, now):
        batch, group.running = group.running.batch, None
        for request in batch:
            self.prefilled(request, now, (0, g))

    # --- encode and local prefill --------------------------------------------------------------------

    def ready_for_encode(self, request, now):
        if self.on("encode").has("preprocess"):
            request.out["preprocessed"] = now
        if self.topology == "monolithic":
            self.to_iterator(request, now)
            return
        encoder = self.encoders[self.choose("encode", [e.load for e in self.encoders])]
        request.out["encode_worker"] = encoder.index
        encoder.waiting.append((now, request))
        encoder.last_add = now
        if self.online:
            encoder.gap = self.gap(encoder.rate.arrive(now))

    def due_at(self, encoder):
        due = INF
        if len(encoder.waiting) >= self.B:
            due = encoder.last_add
        if self.max_wait is not None:
            due = min(due, encoder.waiting[0][0] + self.max_wait)
        if encoder.gap is not None:
            due = min(due, encoder.last_add + encoder.gap)
        return due

    def launch(self, encoder, now):
        full = len(encoder.waiting) >= self.B
        batch = [request for _, request in encoder.waiting[: self.B]]
        del encoder.waiting[: self.B]
        for request in batch:
            request.out.update(encode_start=now, batch=len(batch), route=self.route(encoder, request))
        encoder.running = Service(batch, now, self.encode_pace(encoder, batch))
        self.batch_log.append((len(batch), full))

    def encode_pace(self, encoder, batch):
        mean = sum(r.media_tokens for r in batch) / len(batch)
        group = self.group_of(encoder)
        beside = "none"
        partner = group.running and self.prefill_share(group) > 0  # at share 0 it stands still
        if self.s < 1 and self.on("encode").has("encode", "prefill") and partner:
            beside = "prefill"
        return self.on("encode")("encode", len(batch), mean, self.encode_share(len(batch)), beside)

    def prefill_pace(self, group, batch):
        share = self.prefill_share(group)
        if share == 0:
            return INF
        mean = sum(r.total for r in batch) / len(batch)
        beside = "none"
        if self.on("encode").has("prefill", "encode") and any(e.running for e in group.encoders):
            beside = "encode"
        return self.on("encode")("prefill", len(batch), mean, share, beside)

    def reprice(self, group, now):
        """What is left of each running batch goes on at the pace that now rules."""
        if group.running:
            group.running.set_pace(now, self.prefill_pace(group, group.running.batch))
        for encoder in group.encoders:
            if encoder.running:
                encoder.running.set_pace(now, self.encode_pace(encoder, encoder.running.batch))

    def encoded(self, encoder, now):
        batch, encoder.running = encoder.running.batch, None
        for request in batch:
            request.out["encode_end"] = now
            if request.out["route"] == "remote":
                ready = now + ns(self.on("encode")("embedding_transfer", 1, request.media_tokens))
                request.out["prefill_ready"] = ready
                self.move(
                    self.embeddings, request, request.out["encode_start"], now, ready, (0, encoder.index)
                )
            else:
                request.out["prefill_ready"] = now
                self.group_of(encoder).waiting.append(request)

    def group_of(self, encoder):
        return next(group for group in self.groups if encoder in group.encoders)

    # --- prefill ---------------------------------------------------------------------------------------

    def take(self, line):
        """The head, then whole requests while both caps hold."""
        batch = [line.pop(0)]
        while (
            line
            and len(batch) < self.count_cap
            and sum(r.total for r in batch) + line[0].total <= self.token_cap
        ):
            batch.append(line.pop(0))
        return batch

    def start_pool(self, now):
        changed = False
        while self.remote_line and None in self.pool:
            worker = self.pool.index(None)
            batch = self.take(self.remote_line)
            took = ns(self.on("prefill")("prefill", len(batch), sum(r.total for r in batch) / len(batch)))
            for request in batch:
                request.out.update(prefill_start=now, prefill_worker=worker)
            changed = True
            if took:
                self.pool[worker] = (batch, now + took)
                self.wake(now + took)
            else:
                for request in batch:
                    self.prefilled(request, now, (1, worker))
        return changed

    def prefilled(self, request, now, rank):
        if request.output == 1 or not self.first_by_decode:
            request.out["first_token"] = now
        if request.output == 1:
            request.out["finish"], request.status = now, COMPLETED
            return
        ready = now + ns(self.on("decode")("kv_transfer", 1, request.total))
        request.out["decode_ready"] = ready
        self.move(self.transfers, request, request.out["prefill_start"], now, ready, rank)

    def move(self, line, request, start, now, ready, rank):
        """On the way until `ready`; what is begun and done in no time comes last of its instant."""
        self.moved += 1
        heapq.heappush(line, (ready, INF if start == ready else now, *rank, self.moved, request))
        self.wake(ready if ready > now else None)

    # --- decode ------------------------------------------------------------------------------------------

    def place(self, request, now):
        def load(decoder):
            there = decoder.waiting + decoder.running
            return len(there) if self.kv is None else sum(r.kv for r in there)

        loads = [load(decoder) for decoder in self.decoders]
        worker = loads.index(min(loads))
        request.out["decode_worker"] = worker
        self.decoders[worker].waiting.append(request)

    def fits(self, there, request):
        return len(there) < self.max_seqs and (
            self.kv is None or sum(r.kv for r in there) + request.kv <= self.kv
        )

    def start_step(self, decoder, now):
        changed = False
        while decoder.step_end is None:
            while decoder.waiting and self.fits(decoder.running, decoder.waiting[0]):
                request = decoder.waiting.pop(0)
                request.out["decode_start"] = now
                request.produced = 1
                decoder.running.append(request)
            if not decoder.running:
                return changed
            changed = True
            context = sum(r.total + r.produced for r in decoder.running) / len(decoder.running)
            took = ns(self.on("decode")("decode", len(decoder.running), context))
            self.decode_steps.append(len(decoder.running))
            decoder.step_end = now + took
            self.wake(now + took if took else None)
            if not took:
                self.stepped(decoder, now)
        return changed

    def stepped(self, decoder, now):
        decoder.step_end = None
        for request in list(decoder.running):
            request.produced += 1
            if request.out["first_token"] is None:
                request.out["first_token"] = now
            if request.produced == request.output:
                request.out["finish"], request.status = now, COMPLETED
                decoder.running.remove(request)

    # --- workers that prefill and decode in one loop --------------------------------------------------------

    def to_iterator(self, request, now):
        loads = [len(it.waiting) + len(it.admitted) for it in self.iterators]
        worker = self.choose("iterate", loads)
        request.out.update(prefill_ready=now, prefill_worker=worker)
        self.iterators[worker].waiting.append(request)

    def start_iteration(self, it, worker, now):
        changed = False
        while it.end is None:
            left = self.token_cap - len(it.decoding)
            it.chunks, encode_s = [], 0.0
            while left > 0:
                request = it.part
                if request is None:
                    if not it.waiting or not self.fits(it.admitted, it.waiting[0]):
                        break
                    request = it.waiting.pop(0)
                    request.out["prefill_start"] = now
                    if self.topology == "monolithic" and request.media:
                        encode_s += self.pool_profile("encode", 1, request.media_tokens)
                it.part = None
                chunk = min(left, request.total - request.prefilled_tokens)
                it.chunks.append((request, request.prefilled_tokens, chunk))
                left -= chunk
                if request.prefilled_tokens + chunk < request.total:
                    break
            if not it.chunks and not it.decoding:
                return changed
            changed = True
            time_s = encode_s
            it.decoded = list(it.decoding)
            if it.decoding:
                context = sum(r.total + r.produced for r in it.decoding) / len(it.decoding)
                time_s += self.pool_profile("decode", len(it.decoding), context)
                self.decode_steps.append(len(it.decoding))
            prefill_s = 0.0
            if it.chunks:
                mean = sum(chunk for _, _, chunk in it.chunks) / len(it.chunks)
                prefill_s = self.pool_profile("prefill", len(it.chunks), mean)
            for _, done, chunk in it.chunks:
                if done:
                    prefill_s += (
                        self.pool_profile("prefill", 1, done + chunk)
                        - self.pool_profile("prefill", 1, done)
                        - self.pool_profile("prefill", 1, chunk)
                        + self.pool_profile("prefill", 1, 0)
                    )
            it.end = now + ns(time_s + max(0.0, prefill_s))
            for request, done, chunk in it.chunks:
                if done + chunk == request.total:
                    request.out["first_token"] = it.end
            self.wake(it.end if it.end > now else None)
            if it.end == now:
                self.iterated(it, worker, now)
        return changed

    def iterated(self, it, worker, now):
        it.end = None
        for request in it.decoded:
            request.produced += 1
            if request.produced == request.output:
                request.out["finish"], request.status = now, COMPLETED
                it.decoding.remove(request)
        chunks, it.chunks, it.part = it.chunks, [], None
        for request, done, chunk in chunks:
            request.prefilled_tokens = done + chunk
            if request.prefilled_tokens < request.total:
                it.part = request
            elif request.output == 1:
                request.out["finish"], request.status = now, COMPLETED
            else:
                request.produced = 1
                request.out.update(decode_ready=now, decode_start=now, decode_worker=worker)
                it.decoding.append(request)
