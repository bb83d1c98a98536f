#!/bin/bash
# Written by has VERSION for SGLang 0.5.23: names of flags and fields are that version's.
# 2E3P8D(2) B8 s1, 13 GPUs on 2 nodes, model Qwen/Qwen2.5-VL-7B-Instruct.
# Commands are checked with the own argument parsers of this version and of sglang-router 0.3.2; they have not been run on GPUs by us.
# Changed from the recommendation: max_wait_ms: unset becomes 0: SGLang has no gap rule: its encoder takes what waits when it is idle
# Changed from the recommendation: prefill_offload: 0.5 becomes 1: SGLang has no prefill beside encode on one GPU; all prefill goes to its own pool
# Changed from the recommendation: sm_table: unset becomes streams: nothing runs beside encode, so there is nothing to split
# Changed from the recommendation: first_token: prefill becomes decode: SGLang streams from the decode instance
# Changed from the recommendation: dispatch: round_robin becomes random: SGLang's prefill instances pick encoders at random
# Note: 8 of the largest requests are 786432 tokens, more than the 114688 known to fit in an encoder's memory, and SGLang's encoder merges by requests alone: it may run out of memory on such a batch. Give sizes a max, or lower encode_batch
# Run it on every node with NODE set (0..1); Ctrl-C ends all that it started.
set -euo pipefail
cd "$(dirname "$0")"
NODE=${NODE:-0}
HOST0=${HOST0:?set HOST0 to the address of node 0}
HOST1=${HOST1:?set HOST1 to the address of node 1}
READY_S=${READY_S:-900}
LOGS=${LOGS:-logs}
mkdir -p "$LOGS"
pids=()
stop() { trap - EXIT INT TERM; kill "${pids[@]}" 2>/dev/null || true; wait || true; }
trap stop EXIT INT TERM

start() { # node name command...
  [ "$1" = "$NODE" ] || return 0
  "${@:3}" >"$LOGS/$2.log" 2>&1 &
  pids+=($!)
}
ready() { # name url: until it answers; a process that died ends the wait
  local until=$((SECONDS + READY_S))
  until curl -sf -o /dev/null "$2"; do
    if [ $SECONDS -ge $until ]; then echo "$1 is not ready after $READY_S s; see $LOGS/$1.log" >&2; exit 1; fi
    for pid in "${pids[@]}"; do
      kill -0 "$pid" 2>/dev/null || { echo "a process ended while $1 was awaited; see $LOGS" >&2; exit 1; }
    done
    sleep 1
  done
}

start 1 e0 env CUDA_VISIBLE_DEVICES=0 SGLANG_ENCODER_MAX_BATCH_SIZE=8 python3 -m sglang.launch_server --model-path Qwen/Qwen2.5-VL-7B-Instruct --host "${HOST1}" --port 8100 --nccl-port 8101 --served-model-name Qwen/Qwen2.5-VL-7B-Instruct --enable-metrics --encoder-only --encoder-transfer-backend zmq_to_scheduler
start 1 e1 env CUDA_VISIBLE_DEVICES=1 SGLANG_ENCODER_MAX_BATCH_SIZE=8 python3 -m sglang.launch_server --model-path Qwen/Qwen2.5-VL-7B-Instruct --host "${HOST1}" --port 8102 --nccl-port 8103 --served-model-name Qwen/Qwen2.5-VL-7B-Instruct --enable-metrics --encoder-only --encoder-transfer-backend zmq_to_scheduler
start 1 p0 env CUDA_VISIBLE_DEVICES=2 python3 -m sglang.launch_server --model-path Qwen/Qwen2.5-VL-7B-Instruct --host "${HOST1}" --port 8104 --nccl-port 8105 --served-model-name Qwen/Qwen2.5-VL-7B-Instruct --enable-metrics --quantization fp8 --mem-fraction-static 0.85 --max-running-requests 3 --chunked-prefill-size 16384 --language-only --encoder-transfer-backend zmq_to_scheduler --encoder-urls "http://${HOST1}:8100" "http://${HOST1}:8102" --encoder-bootstrap-port 8107 --disaggregation-mode prefill --disaggregation-transfer-backend nixl --disaggregation-bootstrap-port 8106
start 1 p1 env CUDA_VISIBLE_DEVICES=3 python3 -m sglang.launch_server --model-path Qwen/Qwen2.5-VL-7B-Instruct --host "${HOST1}" --port 8108 --nccl-port 8109 --served-model-name Qwen/Qwen2.5-VL-7B-Instruct --enable-metrics --quantization fp8 --mem-fraction-static 0.85 --max-running-requests 3 --chunked-prefill-size 16384 --language-only --encoder-transfer-backend zmq_to_scheduler --encoder-urls "http://${HOST1}:8100" "http://${HOST1}:8102" --encoder-bootstrap-port 8111 --disaggregation-mode prefill --disaggregation-transfer-backend nixl --disaggregation-bootstrap-port 8110
start 1 p2 env CUDA_VISIBLE_DEVICES=4 python3 -m sglang.launch_server --model-path Qwen/Qwen2.5-VL-7B-Instruct --host "${HOST1}" --port 8112 --nccl-port 8113 --served-model-name Qwen/Qwen2.5-VL-7B-Instruct --enable-metrics --quantization fp8 --mem-fraction-static 0.85 --max-running-requests 3 --chunked-prefill-size 16384 --language-only --encoder-transfer-backend zmq_to_scheduler --encoder-urls "http://${HOST1}:8100" "http://${HOST1}:8102" --encoder-bootstrap-port 8115 --disaggregation-mode prefill --disaggregation-transfer-backend nixl --disaggregation-bootstrap-port 8114
start 0 d0 env CUDA_VISIBLE_DEVICES=0,1 python3 -m sglang.launch_server --model-path Qwen/Qwen2.5-VL-7B-Instruct --host "${HOST0}" --port 8100 --nccl-port 8101 --served-model-name Qwen/Qwen2.5-VL-7B-Instruct --enable-metrics --tp-size 2 --quantization fp8 --mem-fraction-static 0.85 --max-running-requests 256 --chunked-prefill-size 16384 --disaggregation-mode decode --disaggregation-transfer-backend nixl
start 0 d1 env CUDA_VISIBLE_DEVICES=2,3 python3 -m sglang.launch_server --model-path Qwen/Qwen2.5-VL-7B-Instruct --host "${HOST0}" --port 8102 --nccl-port 8103 --served-model-name Qwen/Qwen2.5-VL-7B-Instruct --enable-metrics --tp-size 2 --quantization fp8 --mem-fraction-static 0.85 --max-running-requests 256 --chunked-prefill-size 16384 --disaggregation-mode decode --disaggregation-transfer-backend nixl
start 0 d2 env CUDA_VISIBLE_DEVICES=4,5 python3 -m sglang.launch_server --model-path Qwen/Qwen2.5-VL-7B-Instruct --host "${HOST0}" --port 8104 --nccl-port 8105 --served-model-name Qwen/Qwen2.5-VL-7B-Instruct --enable-metrics --tp-size 2 --quantization fp8 --mem-fraction-static 0.85 --max-running-requests 256 --chunked-prefill-size 16384 --disaggregation-mode decode --disaggregation-transfer-backend nixl
start 0 d3 env CUDA_VISIBLE_DEVICES=6,7 python3 -m sglang.launch_server --model-path Qwen/Qwen2.5-VL-7B-Instruct --host "${HOST0}" --port 8106 --nccl-port 8107 --served-model-name Qwen/Qwen2.5-VL-7B-Instruct --enable-metrics --tp-size 2 --quantization fp8 --mem-fraction-static 0.85 --max-running-requests 256 --chunked-prefill-size 16384 --disaggregation-mode decode --disaggregation-transfer-backend nixl

ready e0 "http://${HOST1}:8100/health"
ready e1 "http://${HOST1}:8102/health"
ready p0 "http://${HOST1}:8104/health"
ready p1 "http://${HOST1}:8108/health"
ready p2 "http://${HOST1}:8112/health"
ready d0 "http://${HOST0}:8100/health"
ready d1 "http://${HOST0}:8102/health"
ready d2 "http://${HOST0}:8104/health"
ready d3 "http://${HOST0}:8106/health"

start 0 router python3 -m sglang_router.launch_router --host "${HOST0}" --port 8000 --prometheus-host "${HOST0}" --prometheus-port 8001 --policy random --pd-disaggregation --prefill "http://${HOST1}:8104" 8106 --prefill "http://${HOST1}:8108" 8110 --prefill "http://${HOST1}:8112" 8114 --decode "http://${HOST0}:8100" --decode "http://${HOST0}:8102" --decode "http://${HOST0}:8104" --decode "http://${HOST0}:8106"

# The first process that ends ends the rest: half a deployment answers nobody.
[ ${#pids[@]} -eq 0 ] || wait -n "${pids[@]}" || true
echo "a process of node $NODE has ended; see $LOGS" >&2
exit 1
