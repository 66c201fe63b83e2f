#!/usr/bin/env bash
# One part of the full check of this machine's GPU: `infra/gpu_full.sh PART [BUNDLE] [ARGUMENTS]`; docs/gpu.md. No part needs
# another; torch and runtimes measure for nine minutes a call, and go on where the last one stopped.
#   PART    torch: the target torch-cuda with the trained models; runtimes: ONNX Runtime, TensorRT and PyTorch's modes, in an
#           environment of its own; whole: the tests of the device, with a run that promotes, in the environment of `make`;
#           all: one after the other, each until it is complete
#   BUNDLE  the folder of models (.quantgate/gpu-check/bundle)
#   PYTHON  a Python with PyTorch (python3)        WHEELS  a folder of wheels, for a machine without a network
#   VENV    the environment to make (.quantgate/gpu-check/venv)
set -euo pipefail
part=${1:-all}
[ $# -eq 0 ] || shift
if [ "$part" = all ]; then
  code=0
  for each in torch runtimes whole; do
    while "$0" "$each" "$@" && found=0 || found=$?; [ "$found" = 3 ]; do :; done
    [ "$found" = 0 ] || code=$found
  done
  exit "$code"
fi
bundle=$(dirname "$0")/../.quantgate/gpu-check/bundle
if [ $# -gt 0 ] && [ "${1#-}" = "$1" ]; then
  bundle=$1
  shift
fi
bundle=$(realpath -m "$bundle")
wheels=${WHEELS:+$(realpath -m "$WHEELS")}
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
venv=$(realpath -m "${VENV:-.quantgate/gpu-check/venv}")

if [ "$part" = whole ]; then
  [ -x .venv/bin/pytest ] || {
    echo "found: no .venv; expected: the environment of make, with a CUDA build of PyTorch; fix: make .venv/.ready" >&2
    exit 2
  }
  exec .venv/bin/pytest -m gpu tests/unit/benchmarks/test_gpu_device.py tests/system/test_torch_inductor.py
fi
compgen -G "$bundle/*.zip*" >/dev/null || {
  echo "found: no models in $bundle; expected: what \`python -m benchmarks.gpu bundle FOLDER\` writes where quantgate is" \
    "installed with its demo; fix: write it there, and name the folder" >&2
  exit 2
}
"$python" -c 'import torch' 2>/dev/null || {
  echo "found: no PyTorch for $python; expected: a Python with PyTorch; fix: set PYTHON to one that has it" >&2
  exit 1
}
# A file without all its parts is told; the others are measured.
"$python" -m benchmarks.gpu join "$bundle" || [ $? = 2 ]
case $part in
  torch) exec "$python" -m benchmarks.gpu torch "$bundle" "$@" ;;
  runtimes) ;;
  *)
    echo "found: the part $part; expected: torch, runtimes, whole or all; fix: name one of them" >&2
    exit 2
    ;;
esac
# Not `--system-site-packages`: from within another virtual environment that would show the packages of neither. Each package of
# that Python is linked, but for a build of ONNX Runtime without the GPU, whose files and ours would be in each other's place.
if [ ! -e "$venv/.ready" ]; then
  rm -rf "$venv"
  "$python" -m venv --without-pip "$venv"
  "$python" - "$venv" <<'PY'
import sys
import sysconfig
from pathlib import Path

venv = Path(sys.argv[1]).resolve()
links = venv / "shared"
links.mkdir()
folders = [Path(entry) for entry in sys.path if Path(entry).name in ("site-packages", "dist-packages")]
entries = [entry for folder in folders if folder.is_dir() for entry in folder.iterdir()]
names = {entry.name.partition("-")[0] for entry in entries if entry.name.endswith(".dist-info")}
keep = "onnxruntime_gpu" in names and "onnxruntime" not in names
for entry in entries:
    link = links / entry.name
    if not link.exists() and (keep or not entry.name.startswith(("onnxruntime-", "onnxruntime_gpu-")) and entry.name != "onnxruntime"):
        link.symlink_to(entry)
site = venv / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"
(site / "shared.pth").write_text(f"import site; site.addsitedir({str(links)!r})\n", encoding="utf-8")
PY
  if [ -n "$wheels" ]; then
    "$venv/bin/python" -m benchmarks.gpu join "$wheels"
    from=(--no-index --find-links "$wheels")
  else
    from=()
  fi
  # ONNX Runtime's CUDA provider is linked with CUDA 13; a PyTorch for another version brings other libraries.
  case $("$python" -c 'import torch; print(torch.version.cuda or "")') in
    "" | 13.*) libraries=() ;;
    *) libraries=("onnxruntime-gpu[cuda,cudnn]") ;;
  esac
  "$python" -m pip --disable-pip-version-check --python "$venv/bin/python" install --quiet "${from[@]}" \
    -r benchmarks/gpu/requirements.txt "${libraries[@]}"
  touch "$venv/.ready"
fi
# ONNX Runtime finds the libraries that PyTorch brings or, before them, those of its own.
for folder in "$venv"/shared/nvidia/*/lib "$venv"/lib/python*/site-packages/nvidia/*/lib; do
  [ ! -d "$folder" ] || LD_LIBRARY_PATH="$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
done
export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}
exec "$venv/bin/python" -m benchmarks.gpu run "$bundle" "$@"
