#!/usr/bin/env bash
# Makes the virtual environment: `infra/setup.sh .venv`. Needs python3 (3.11 or newer) with venv, and a package index.
# `infra/setup.sh .venv flavors` adds the libraries of MLflow flavors to one that is made, the oldest versions that are allowed in
# `.venv/oldest`, and vLLM, on Linux, in `.venv/vllm`.
set -euo pipefail
venv=${1:?usage: infra/setup.sh FOLDER}
python=${PYTHON:-python3}
cd "$(dirname "$0")/.."

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
  echo "found: $("$python" --version 2>&1); expected: Python 3.11 or newer; fix: install one and set PYTHON" >&2
  exit 1
}
[ -x "$venv/bin/pip" ] || "$python" -m venv "$venv" || {
  rm -rf "$venv"
  echo "found: no venv module; expected: python3 with venv; fix: apt-get install python3-venv" >&2
  exit 1
}
pip="$venv/bin/python -m pip --disable-pip-version-check"
$pip install --quiet --require-hashes -r requirements/uv.txt

# uv installs the lock in seconds where pip takes minutes, but reads no pip configuration: hand it what pip knows.
setting() { $pip config list 2>/dev/null | sed -n "s/^global\.$1='\(.*\)'\$/\1/p" | head -n 1; }
index=${UV_DEFAULT_INDEX:-${PIP_INDEX_URL:-$(setting 'index.url')}}
certificates=${SSL_CERT_FILE:-${PIP_CERT:-$(setting cert)}}
[ -z "$index" ] || export UV_DEFAULT_INDEX=$index
[ -z "$certificates" ] || export SSL_CERT_FILE=$certificates
# Compiled once here: where Python may not write bytecode later, each process would compile what it imports, for 10 s.
uv() { VIRTUAL_ENV=$(realpath "$venv") "$venv/bin/uv" pip install --quiet --compile-bytecode "$@"; }

# `torch uv`, or `torch` and another function that installs.
torch() {
  if [ -n "${PIP_FIND_LINKS:-}" ]; then
    links=()
    for link in $PIP_FIND_LINKS; do links+=(--find-links "$link"); done
    "$1" "${links[@]}" -r requirements/torch.txt
  else
    # The CPU build where it can be had; else the index's own, which brings CUDA libraries.
    "$1" --torch-backend cpu -r requirements/torch.txt 2>/dev/null || {
      echo "no CPU build of torch can be had here: taking the package index's own, with its CUDA libraries (several GB)" >&2
      "$1" -r requirements/torch.txt
    }
  fi
}

if [ "${2:-}" = flavors ]; then
  uv --require-hashes --no-deps -r requirements/flavors.txt
  # `beside NAME` installs requirements/NAME.txt and torch into an environment of its own, $venv/NAME.
  beside() {
    "$python" -m venv --without-pip "$venv/$1"
    inside=$(realpath "$venv/$1")
    into() { VIRTUAL_ENV=$inside "$venv/bin/uv" pip install --quiet "$@"; }
    into --require-hashes --no-deps -r "requirements/$1.txt"
    torch into
  }
  [ "$(uname -s)" != Linux ] || beside vllm
  # The oldest versions that pyproject.toml allows.
  beside oldest
  into --no-deps -e .
  touch "$venv/.flavors"
  exit
fi
# The lock is complete but for torch, which some of its packages need: nothing is left to resolve.
uv --require-hashes --no-deps -r requirements/dev.txt
torch uv
uv --no-deps --no-build-isolation -e .
# An editable install leaves the project itself uncompiled.
"$venv/bin/python" -m compileall -q flows tasks validators tests/support
touch "$venv/.ready"
