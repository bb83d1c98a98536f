"""Where everything lies while the kernel runs.

The kernel works on two blocks: `m`, int64, and `f`, float64. Whatever has several values (a request, a
worker, a line) is a row at an address, and its fields are offsets from that: `m[encoder + END]`. Two
pointers make short calls and one compiled form of every function, and a row is read as a whole, so it
stays in cache. The first addresses are the header: rules, where the rows begin, tallies.

Times are ns. NEVER (-1) stands where something has not happened or does not apply, and for a rule that
is off; FOREVER is later than every event.
"""

from __future__ import annotations

from itertools import count as _count

FOREVER = 2**62
"""Sums of it and any event's time still fit an int64."""
NEVER = -1

DISAGGREGATED, E_PD, MONOLITHIC = range(3)
RANDOM, ROUND_ROBIN, SHORTEST_QUEUE = range(3)
LOCAL, REMOTE = range(2)

# --- the header -----------------------------------------------------------------------------------
_at = _count()
# Rules: a deployment in numbers.
TOPOLOGY = next(_at)
DISPATCH = next(_at)
FIRST_BY_DECODE = next(_at)
MAX_QUEUE = next(_at)
HAS_PREPROCESS = next(_at)
BATCH_BOUND = next(_at)
ONLINE = next(_at)
MAX_WAIT = next(_at)
SHARE_NUMERATOR = next(_at)  # s
SHARE_DENOMINATOR = next(_at)
TOKEN_UNIT = next(_at)
SPAN = next(_at)  # encode workers that one local prefill spans
ENCODE_BESIDE = next(_at)  # the profile has encode beside prefill
PREFILL_BESIDE = next(_at)
TOKEN_BUDGET = next(_at)
PREFILL_REQUESTS = next(_at)
MAX_SEQS = next(_at)
KV_TOKENS = next(_at)
LOCKSTEP = next(_at)
STRIDE = next(_at)
# Rows: address of the first, and how many.
REQUESTS, N_REQUESTS = next(_at), next(_at)
ENCODERS, N_ENCODERS = next(_at), next(_at)
GROUPS, N_GROUPS = next(_at), next(_at)
STEPPERS, N_STEPPERS = next(_at), next(_at)
WORDS, N_WORDS = next(_at), next(_at)  # 32-bit words of the dispatch generator
# Trees over workers (see `tournament`).
POOL = next(_at)  # when each remote prefill worker is free
SERVERS = next(_at)  # when each preprocess server is free
GROUPS_WAKE = next(_at)  # when something next happens to each group
STEPPERS_WAKE = next(_at)
ENCODERS_LOAD = next(_at)  # requests at each encoder; 0 where dispatch does not ask
STEPPERS_LOAD = next(_at)  # what assignment to a worker goes by; 0 likewise
# Heaps of requests on their way to a stage.
PENDING = next(_at)  # to encode, from preprocess
PREFILL_LINE = next(_at)
DECODE_LINE = next(_at)
FIRST_TOKENS = next(_at)  # first tokens to come (kept where MAX_QUEUE asks)
# Logs of services: where, room, used; in the order of LOG_*.
LOG_AT = next(_at)
LOG_ROOM = LOG_AT + 4
LOG_USED = LOG_ROOM + 4
_at = _count(LOG_USED + 4)
# Latency tables in f (see `tables`).
ENCODE_AXIS, ENCODE_POINTS, ENCODE_ROWS = next(_at), next(_at), next(_at)
ENCODE_B_AXIS, ENCODE_B_POINTS, ENCODE_B_ROWS = next(_at), next(_at), next(_at)
# Prefill's tables have a batch axis too: T_AXIS, T_POINTS, … from each of these addresses.
T_AXIS, T_POINTS, T_BATCHES, T_N_BATCHES, T_ROWS, TABLE = range(6)
PREFILL = next(_at)
PREFILL_B = PREFILL + TABLE
WHOLE = PREFILL_B + TABLE
_at = _count(WHOLE + TABLE)
DECODE_AXIS, DECODE_POINTS, DECODE_ROWS, DECODE_SLOPES = next(_at), next(_at), next(_at), next(_at)
DECODE_RISKY = next(_at)  # a step's latency could be extrapolated below zero
SHARES = next(_at)  # percent of the SMs that local prefill has, by size of the encode batch beside it
# Tallies.
DRAWN = next(_at)
TURN = next(_at)
TURN_PD = next(_at)
UNANSWERED = next(_at)
MOVED = next(_at)  # requests that have moved on so far
NEGATIVE = next(_at)  # 1 + the stage whose look-up was negative
OVERFLOW = next(_at)  # a log was too short
REACH = next(_at)  # largest batch and mean tokens looked up, by stage (AT_*)
HEADER = REACH + 6
COEFFICIENT = 0  # in f: the gap coefficient

AT_ENCODE, AT_PREFILL, AT_DECODE = range(3)
LOG_ENCODE, LOG_LOCAL, LOG_PREFILL, LOG_DECODE = range(4)
LOG_START, LOG_END, LOG_SIZE, LOG_MARK, LOG = range(5)
# LOG_MARK: launched full (encode), steps (decode).

# --- rows -----------------------------------------------------------------------------------------
# A request: what happens to it (the first fourteen are the columns of `Records`, in its order), then
# what is known of it before the run.
(
    PREPROCESSED,
    ENCODE_WORKER,
    ENCODE_START,
    ENCODE_END,
    BATCH,
    ROUTE,
    PREFILL_READY,
    PREFILL_WORKER,
    PREFILL_START,
    FIRST_TOKEN,
    DECODE_READY,
    DECODE_WORKER,
    DECODE_START,
    FINISH,
    STATUS,
    READY,  # for encode
    NEXT,  # the request behind it in whatever line it stands
    ARRIVAL,
    IS_MEDIA,
    MEDIA_TOKENS,
    TOTAL,  # prompt and media tokens
    OUTPUT,
    PREPROCESS_NS,
    EMBEDDING_NS,
    KV_NS,
    REQUEST,
) = range(26)

# A line of requests, chained by NEXT: the first fields of whoever has one.
HEAD, TAIL, COUNT, LINE = range(4)

# What works on one batch at a time: an encoder, and a local prefill group.
(BUSY, END, SINCE, SIZE, FIRST, SERVER) = range(LINE, LINE + 6)
# FIRST: first request of the running batch. In f: what of the batch is left at SINCE, and the pace
# (ns for the whole batch) that has ruled from then on.
LEFT, PACE = range(2)
(FULL, LAST_ADD, GAP, DEFICIT, RATE_AT, OF, ENCODER) = range(SERVER, SERVER + 7)  # OF: its group
ALONE, BESIDE = 2, 3  # in f: an encode batch's pace without and with a prefill
(WAKE, LEVEL, GROUP) = range(SERVER, SERVER + 3)
# WAKE: when something next happens to the group. LEVEL: the share its running prefill is priced at.
MEAN = 2  # in f: mean tokens of a prefill batch

# What steps: a decode worker, or one that prefills in chunks too.
(
    RUNNING,  # sequences that decode
    ADMITTED,  # those, and the ones whose prefill has begun here
    STEP,  # steps done so far
    PLAN,  # steps of the run under way
    BEGAN,  # when it began
    NEXT_AT,  # when it ends, or when the worker next looks up
    CONTEXT,  # sum of the running sequences' contexts at its first step
    KV_HELD,  # KV tokens that admitted sequences reserve
    KV_ALL,  # those and the waiting ones'
    ENDS,  # heap of (last step, request) of the running sequences
    PART,  # the request partly prefilled
    DONE,  # its tokens done
    PREFILLED,  # requests whose prefill this iteration completes, chained by NEXT
    N_PREFILLED,
    DECODE_NS,  # decode's part of a mixed iteration, NEVER in a run of plain decode steps
    STEPPER,
) = range(LINE, LINE + 16)
