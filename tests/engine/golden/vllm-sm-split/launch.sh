#!/bin/bash
# Written by has VERSION for vLLM 0.33.0: names of flags and fields are that version's.
# 2E3P8D(2) B8 s0.5, 13 GPUs on 2 nodes, model Qwen/Qwen2.5-VL-7B-Instruct.
# Commands are checked with this version's own argument parser; they have not been run on GPUs by us.
# Changed from the recommendation: first_token: prefill becomes decode: vLLM streams from the decode instance
# Changed from the recommendation: max_num_batched_tokens: 8192 becomes 16384: the workload's largest item has 16384 tokens, which one step must hold
# Note: EXPERIMENTAL, not run by us: two processes share each encode GPU under CUDA MPS; MPS caps SMs but isolates neither memory bandwidth nor faults
# Note: no SM table: both processes may use all SMs (streams)
# Note: 8 of the largest requests are 786432 tokens, more than the encoder budget of 114688: such a batch is cut by tokens before B
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

# Embeddings pass through files, in a folder of our own below EC_DIR.
EC_DIR=${EC_DIR:?set EC_DIR to a folder that all nodes share}/has-ec-$HOST0-8000
mkdir -p "$EC_DIR"
[ "$NODE" != 0 ] || rm -rf "${EC_DIR:?}"/*  # what an earlier run left

start 1 e0 env CUDA_VISIBLE_DEVICES=0 vllm serve Qwen/Qwen2.5-VL-7B-Instruct --host "${HOST1}" --port 8100 --served-model-name Qwen/Qwen2.5-VL-7B-Instruct --max-num-seqs 8 --max-num-batched-tokens 114688 --limit-mm-per-prompt '{"audio":0,"image":6,"video":0}' --gpu-memory-utilization 0.01 --mm-encoder-only --enforce-eager --disable-prefix-caching --enable-request-id-headers --ec-transfer-config "{\"ec_connector\":\"ECExampleConnector\",\"ec_role\":\"ec_producer\",\"ec_connector_extra_config\":{\"shared_storage_path\":\"${EC_DIR}\"}}"
start 1 e1 env CUDA_VISIBLE_DEVICES=1 vllm serve Qwen/Qwen2.5-VL-7B-Instruct --host "${HOST1}" --port 8101 --served-model-name Qwen/Qwen2.5-VL-7B-Instruct --max-num-seqs 8 --max-num-batched-tokens 114688 --limit-mm-per-prompt '{"audio":0,"image":6,"video":0}' --gpu-memory-utilization 0.01 --mm-encoder-only --enforce-eager --disable-prefix-caching --enable-request-id-headers --ec-transfer-config "{\"ec_connector\":\"ECExampleConnector\",\"ec_role\":\"ec_producer\",\"ec_connector_extra_config\":{\"shared_storage_path\":\"${EC_DIR}\"}}"
start 1 l0 env CUDA_VISIBLE_DEVICES=0 "VLLM_NIXL_SIDE_CHANNEL_HOST=${HOST1}" VLLM_NIXL_SIDE_CHANNEL_PORT=8109 vllm serve Qwen/Qwen2.5-VL-7B-Instruct --host "${HOST1}" --port 8108 --served-model-name Qwen/Qwen2.5-VL-7B-Instruct --max-num-seqs 3 --max-num-batched-tokens 16384 --limit-mm-per-prompt '{"audio":0,"image":6,"video":0}' --quantization fp8 --gpu-memory-utilization 0.75 --enable-request-id-headers --ec-transfer-config "{\"ec_connector\":\"ECExampleConnector\",\"ec_role\":\"ec_consumer\",\"ec_connector_extra_config\":{\"shared_storage_path\":\"${EC_DIR}\"}}" --kv-transfer-config '{"kv_connector":"NixlConnector","kv_role":"kv_producer"}'
start 1 l1 env CUDA_VISIBLE_DEVICES=1 "VLLM_NIXL_SIDE_CHANNEL_HOST=${HOST1}" VLLM_NIXL_SIDE_CHANNEL_PORT=8111 vllm serve Qwen/Qwen2.5-VL-7B-Instruct --host "${HOST1}" --port 8110 --served-model-name Qwen/Qwen2.5-VL-7B-Instruct --max-num-seqs 3 --max-num-batched-tokens 16384 --limit-mm-per-prompt '{"audio":0,"image":6,"video":0}' --quantization fp8 --gpu-memory-utilization 0.75 --enable-request-id-headers --ec-transfer-config "{\"ec_connector\":\"ECExampleConnector\",\"ec_role\":\"ec_consumer\",\"ec_connector_extra_config\":{\"shared_storage_path\":\"${EC_DIR}\"}}" --kv-transfer-config '{"kv_connector":"NixlConnector","kv_role":"kv_producer"}'
start 1 p0 env CUDA_VISIBLE_DEVICES=2 "VLLM_NIXL_SIDE_CHANNEL_HOST=${HOST1}" VLLM_NIXL_SIDE_CHANNEL_PORT=8103 vllm serve Qwen/Qwen2.5-VL-7B-Instruct --host "${HOST1}" --port 8102 --served-model-name Qwen/Qwen2.5-VL-7B-Instruct --max-num-seqs 3 --max-num-batched-tokens 16384 --limit-mm-per-prompt '{"audio":0,"image":6,"video":0}' --quantization fp8 --gpu-memory-utilization 0.85 --enable-request-id-headers --ec-transfer-config "{\"ec_connector\":\"ECExampleConnector\",\"ec_role\":\"ec_consumer\",\"ec_connector_extra_config\":{\"shared_storage_path\":\"${EC_DIR}\"}}" --kv-transfer-config '{"kv_connector":"NixlConnector","kv_role":"kv_producer"}'
start 1 p1 env CUDA_VISIBLE_DEVICES=3 "VLLM_NIXL_SIDE_CHANNEL_HOST=${HOST1}" VLLM_NIXL_SIDE_CHANNEL_PORT=8105 vllm serve Qwen/Qwen2.5-VL-7B-Instruct --host "${HOST1}" --port 8104 --served-model-name Qwen/Qwen2.5-VL-7B-Instruct --max-num-seqs 3 --max-num-batched-tokens 16384 --limit-mm-per-prompt '{"audio":0,"image":6,"video":0}' --quantization fp8 --gpu-memory-utilization 0.85 --enable-request-id-headers --ec-transfer-config "{\"ec_connector\":\"ECExampleConnector\",\"ec_role\":\"ec_consumer\",\"ec_connector_extra_config\":{\"shared_storage_path\":\"${EC_DIR}\"}}" --kv-transfer-config '{"kv_connector":"NixlConnector","kv_role":"kv_producer"}'
start 1 p2 env CUDA_VISIBLE_DEVICES=4 "VLLM_NIXL_SIDE_CHANNEL_HOST=${HOST1}" VLLM_NIXL_SIDE_CHANNEL_PORT=8107 vllm serve Qwen/Qwen2.5-VL-7B-Instruct --host "${HOST1}" --port 8106 --served-model-name Qwen/Qwen2.5-VL-7B-Instruct --max-num-seqs 3 --max-num-batched-tokens 16384 --limit-mm-per-prompt '{"audio":0,"image":6,"video":0}' --quantization fp8 --gpu-memory-utilization 0.85 --enable-request-id-headers --ec-transfer-config "{\"ec_connector\":\"ECExampleConnector\",\"ec_role\":\"ec_consumer\",\"ec_connector_extra_config\":{\"shared_storage_path\":\"${EC_DIR}\"}}" --kv-transfer-config '{"kv_connector":"NixlConnector","kv_role":"kv_producer"}'
start 0 d0 env CUDA_VISIBLE_DEVICES=0,1 "VLLM_NIXL_SIDE_CHANNEL_HOST=${HOST0}" VLLM_NIXL_SIDE_CHANNEL_PORT=8101 vllm serve Qwen/Qwen2.5-VL-7B-Instruct --host "${HOST0}" --port 8100 --served-model-name Qwen/Qwen2.5-VL-7B-Instruct --max-num-seqs 256 --max-num-batched-tokens 16384 --limit-mm-per-prompt '{"audio":0,"image":6,"video":0}' --tensor-parallel-size 2 --quantization fp8 --gpu-memory-utilization 0.85 --enable-request-id-headers --ec-transfer-config "{\"ec_connector\":\"ECExampleConnector\",\"ec_role\":\"ec_consumer\",\"ec_connector_extra_config\":{\"shared_storage_path\":\"${EC_DIR}\"}}" --kv-transfer-config '{"kv_connector":"NixlConnector","kv_role":"kv_consumer"}'
start 0 d1 env CUDA_VISIBLE_DEVICES=2,3 "VLLM_NIXL_SIDE_CHANNEL_HOST=${HOST0}" VLLM_NIXL_SIDE_CHANNEL_PORT=8104 vllm serve Qwen/Qwen2.5-VL-7B-Instruct --host "${HOST0}" --port 8103 --served-model-name Qwen/Qwen2.5-VL-7B-Instruct --max-num-seqs 256 --max-num-batched-tokens 16384 --limit-mm-per-prompt '{"audio":0,"image":6,"video":0}' --tensor-parallel-size 2 --quantization fp8 --gpu-memory-utilization 0.85 --enable-request-id-headers --ec-transfer-config "{\"ec_connector\":\"ECExampleConnector\",\"ec_role\":\"ec_consumer\",\"ec_connector_extra_config\":{\"shared_storage_path\":\"${EC_DIR}\"}}" --kv-transfer-config '{"kv_connector":"NixlConnector","kv_role":"kv_consumer"}'
start 0 d2 env CUDA_VISIBLE_DEVICES=4,5 "VLLM_NIXL_SIDE_CHANNEL_HOST=${HOST0}" VLLM_NIXL_SIDE_CHANNEL_PORT=8107 vllm serve Qwen/Qwen2.5-VL-7B-Instruct --host "${HOST0}" --port 8106 --served-model-name Qwen/Qwen2.5-VL-7B-Instruct --max-num-seqs 256 --max-num-batched-tokens 16384 --limit-mm-per-prompt '{"audio":0,"image":6,"video":0}' --tensor-parallel-size 2 --quantization fp8 --gpu-memory-utilization 0.85 --enable-request-id-headers --ec-transfer-config "{\"ec_connector\":\"ECExampleConnector\",\"ec_role\":\"ec_consumer\",\"ec_connector_extra_config\":{\"shared_storage_path\":\"${EC_DIR}\"}}" --kv-transfer-config '{"kv_connector":"NixlConnector","kv_role":"kv_consumer"}'
start 0 d3 env CUDA_VISIBLE_DEVICES=6,7 "VLLM_NIXL_SIDE_CHANNEL_HOST=${HOST0}" VLLM_NIXL_SIDE_CHANNEL_PORT=8110 vllm serve Qwen/Qwen2.5-VL-7B-Instruct --host "${HOST0}" --port 8109 --served-model-name Qwen/Qwen2.5-VL-7B-Instruct --max-num-seqs 256 --max-num-batched-tokens 16384 --limit-mm-per-prompt '{"audio":0,"image":6,"video":0}' --tensor-parallel-size 2 --quantization fp8 --gpu-memory-utilization 0.85 --enable-request-id-headers --ec-transfer-config "{\"ec_connector\":\"ECExampleConnector\",\"ec_role\":\"ec_consumer\",\"ec_connector_extra_config\":{\"shared_storage_path\":\"${EC_DIR}\"}}" --kv-transfer-config '{"kv_connector":"NixlConnector","kv_role":"kv_consumer"}'

ready e0 "http://${HOST1}:8100/health"
ready e1 "http://${HOST1}:8101/health"
ready l0 "http://${HOST1}:8108/health"
ready l1 "http://${HOST1}:8110/health"
ready p0 "http://${HOST1}:8102/health"
ready p1 "http://${HOST1}:8104/health"
ready p2 "http://${HOST1}:8106/health"
ready d0 "http://${HOST0}:8100/health"
ready d1 "http://${HOST0}:8103/health"
ready d2 "http://${HOST0}:8106/health"
ready d3 "http://${HOST0}:8109/health"

start 0 gateway has deploy deployment.yaml --engine vllm --attach "encode=http://${HOST1}:8100,encode=http://${HOST1}:8101,local_prefill=http://${HOST1}:8108,local_prefill=http://${HOST1}:8110,prefill=http://${HOST1}:8102,prefill=http://${HOST1}:8104,prefill=http://${HOST1}:8106,decode=http://${HOST0}:8100,decode=http://${HOST0}:8103,decode=http://${HOST0}:8106,decode=http://${HOST0}:8109" --ec-dir "${EC_DIR}" --encoder-budget 114688 --host "${HOST0}" --port 8000

# The first process that ends ends the rest: half a deployment answers nobody.
[ ${#pids[@]} -eq 0 ] || wait -n "${pids[@]}" || true
echo "a process of node $NODE has ended; see $LOGS" >&2
exit 1
