"""Columns of the kernel's tables.

The kernel keeps what belongs to one request, worker or group together in one row of an int64 table
(a request's row is read and written as a whole, so rows stay in cache and calls stay short).
Times are integer nanoseconds. NEVER (-1) stands where something has not happened or does not apply;
FOREVER is later than every event.
"""

from __future__ import annotations

FOREVER = 2**62
"""Later than any event; sums of an event's time and FOREVER still fit an int64."""

# What is known of a request before the run: `given`, int64[N, GIVEN].
(ARRIVAL, IS_MEDIA, MEDIA_TOKENS, TOTAL, OUTPUT, PREPROCESS_NS, EMBEDDING_NS, KV_NS, GIVEN) = range(9)

# What happens to it: `out`, int64[N, OUT]. The first fourteen are the columns of `Records`, in its order.
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
    READY,
    NEXT,
    OUT,
) = range(18)
# READY: ready for encode (preprocessed, or arrived). NEXT: the request behind it in whatever line it stands.

# A line of requests, chained by NEXT: the first three columns of every table of workers or groups.
HEAD, TAIL, COUNT = range(3)

# An encode worker: `encoders`, int64[n, ENCODER], and its floats, float64[n, ENCODER_F].
(E_BUSY, E_END, E_SINCE, E_SIZE, E_FIRST, E_FULL, E_LAST_ADD, E_GAP, E_DEFICIT, ENCODER) = range(3, 13)
(E_LEFT, E_LATENCY, E_ALONE, E_BESIDE, ENCODER_F) = range(5)
# E_FIRST: first request of the running batch. E_LEFT: fraction of the work left at E_SINCE, from which
# E_LATENCY (ns for the whole batch) has ruled. E_ALONE, E_BESIDE: that latency without and with a prefill.

# A local prefill group: `groups`, int64[n, GROUP], float64[n, GROUP_F].
(G_BUSY, G_END, G_SINCE, G_SIZE, G_FIRST, G_NEXT, GROUP) = range(3, 10)
(G_LEFT, G_LATENCY, G_MEAN, GROUP_F) = range(4)
# G_NEXT: when something next happens to the group, its encoders and batchers.

# A worker that steps (decode; or decode and prefill chunks): `steppers`, int64[n, STEPPER].
(
    S_RUNNING,  # sequences that decode
    S_ADMITTED,  # those, and the ones whose prefill has begun here
    S_STEP,  # steps done so far
    S_PLAN,  # steps of the run under way
    S_SINCE,  # when it began
    S_NEXT,  # when it ends, or when the worker next looks up
    S_CONTEXT,  # sum of the running sequences' contexts at its first step
    S_KV_HELD,  # KV tokens that running sequences reserve
    S_KV_ALL,  # those and the waiting ones'
    S_PART,  # the request partly prefilled
    S_DONE,  # its tokens done
    S_PREFILLED,  # requests whose prefill this iteration completes, chained by NEXT
    S_PREFILLED_COUNT,
    S_DECODE_NS,  # decode's part of a mixed iteration
    STEPPER,
) = range(3, 18)

# Service logs: int64[K, LOG]. MARK: launched full (encode), steps (decode).
(LOG_START, LOG_END, LOG_SIZE, LOG_MARK, LOG) = range(5)

# Which log, and which row of `reach` (int64[3, 2]: largest batch and mean tokens looked up).
(LOG_ENCODE, LOG_LOCAL, LOG_PREFILL, LOG_DECODE, LOGS) = range(5)
(AT_ENCODE, AT_PREFILL, AT_DECODE, STAGES) = range(4)

# Small counters of a run: `tally`, int64[TALLY].
(DRAWN, TURN, TURN_PD, UNANSWERED, NEGATIVE, OVERFLOW, TALLY) = range(7)
# NEGATIVE: 1 + the stage whose look-up went negative. OVERFLOW: a log was too short.

DISAGGREGATED, E_PD, MONOLITHIC = range(3)
RANDOM, ROUND_ROBIN, SHORTEST_QUEUE = range(3)
LOCAL, REMOTE = range(2)
NEVER = -1
