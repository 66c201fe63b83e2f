#!/usr/bin/env bash
# Builds the CPU image without a registry and runs it with its restrictions: `infra/image_check.sh [FOLDER]`; docs/image.md.
# Needs podman 4.3 or newer with an OCI runtime, and mmdebstrap; for a user other than root also uidmap and subordinate ids.
#   FOLDER   keeps the base, the images and the demo's model between calls (.quantgate/image-check)
#   RUNTIME  the OCI runtime, such as runc; podman's default without it
#   BASE     a root file system of Debian with Python as a tar archive, in place of the one that is made here
# shellcheck disable=SC2016  # single quotes: the container expands
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(realpath -m "${1:-.quantgate/image-check}")
image=localhost/quantgate:check
for program in podman mmdebstrap; do
  command -v "$program" >/dev/null || {
    echo "found: no $program; expected: podman and mmdebstrap; fix: apt-get install podman mmdebstrap uidmap" >&2
    exit 2
  }
done
umask 077
mkdir -p "$work"
# Images of its own: another storage driver than that of the user's images would hide them.
export STORAGE_DRIVER=${STORAGE_DRIVER:-overlay}
podman() {
  command podman --root "$work/storage" --runroot "$work/run" --cgroup-manager cgroupfs --events-backend file --log-level error \
    ${RUNTIME:+--runtime "$RUNTIME"} "$@"
}
title() { printf '\n== %s\n' "$1"; }
seconds() {
  local start=$EPOCHREALTIME code=0
  "$@" || code=$?
  awk -v a="$start" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f s\n", b - a }' >&2
  return "$code"
}

# The package index, certificates and wheels that pip uses here, for the build alone: mounted, so that no layer has them.
setting() { python3 -m pip config list 2>/dev/null | sed -n "s/^global\.$1='\(.*\)'\$/\1/p" | head -n 1; }
index=${UV_DEFAULT_INDEX:-${PIP_INDEX_URL:-$(setting 'index.url')}}
certificates=${SSL_CERT_FILE:-${PIP_CERT:-$(setting cert)}}
inside=/etc/ssl/certs/ca-certificates.crt
mounts=(-v "$work/pip.conf:/etc/pip.conf:ro" -v "$work/uv.toml:/etc/uv/uv.toml:ro" -v "${certificates:-$inside}:$inside:ro")
links=
for link in ${PIP_FIND_LINKS:-}; do
  links+="\"$link\", "
  [ ! -d "$link" ] || mounts+=(-v "$link:$link:ro")
done
{
  printf '[global]\ncert = %s\n' "$inside"
  [ -z "$index" ] || printf 'index_url = %s\n' "$index"
} >"$work/pip.conf"
{
  echo 'system-certs = true'
  [ -z "$index" ] || printf '[[index]]\nurl = "%s"\ndefault = true\n' "$index"
  printf '[pip]\nfind-links = [%s]\n' "${links%, }"
} >"$work/uv.toml"

title "base: Debian 12 with its own Python, which stands for the Dockerfile's Python image"
base=${BASE:-$work/base.tar}
[ -e "$base" ] || seconds mmdebstrap --quiet --variant=minbase --include=python3,python3-venv,ca-certificates,netbase,tzdata \
  --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
  --customize-hook='ln -s python3 "$1/usr/bin/python"' bookworm "$base"
paths=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
podman import --quiet --change "ENV PATH=$paths" --change "ENV LANG=C.UTF-8" "$base" localhost/python:base >/dev/null

title "build, as user $(id -un)"
# The stage `python` becomes the base. Without a registry PyTorch's own index is out of reach, too, where wheels are at hand.
seconds podman build --quiet --isolation chroot --layers --format docker --target cpu --tag "$image" \
  --build-context python=container-image://localhost/python:base ${PIP_FIND_LINKS:+--build-arg TORCH_BACKEND=} "${mounts[@]}" .
podman history --format '{{.Size}}	{{.CreatedBy}}' "$image" | grep -v '^0 B' | cut -c 1-100

# As the image is meant to run: its own user, a read-only root, no capabilities. `contained` also has no network.
state=(-v quantgate-check:/state)
run() {
  podman run --rm --no-healthcheck --read-only --read-only-tmpfs=false --tmpfs /tmp --cap-drop all \
    --security-opt no-new-privileges "${state[@]}" "$@"
}
contained() { run --network none --entrypoint "$1" "$image" "${@:2}"; }

title "user, rights, and folders that can be written"
contained sh -ec '
  id
  grep -E "^(CapEff|CapBnd|NoNewPrivs)" /proc/self/status
  # access(2) denies a read-only file system too. /dev has what the runtime mounts: its own tmpfs and shared memory.
  found=$(find / \( -path /proc -o -path /sys -o -path /dev \) -prune -o -type d -writable -print -prune 2>/dev/null | sort | xargs)
  echo "writable: $found"
  [ "$(id -u)" = 10001 ] && [ "$found" = "/state /tmp" ] && ! touch /opt/quantgate/x 2>/dev/null
'

title "start, and the health check"
seconds contained quantgate --help >/dev/null
seconds contained quantgate --help >/dev/null
seconds contained quantgate doctor --light
seconds contained quantgate doctor

title "the servers that compose starts in it"
answers() {
  contained sh -c '"$@" >/tmp/log 2>&1 & exec python -c "
import sys, time, urllib.request
end = time.monotonic() + 180
while True:
    try:
        print(sys.argv[1], urllib.request.urlopen(sys.argv[1], timeout=5).status)
        break
    except OSError:
        if time.monotonic() > end:
            sys.exit(open(\"/tmp/log\").read())
        time.sleep(1)
" "$0"' "$@"
}
seconds answers http://127.0.0.1:5000/health env MLFLOW_BACKEND_STORE_URI=sqlite:////state/server.db mlflow server --workers 1
# Its first page: the UI copies itself when the server starts.
seconds answers http://127.0.0.1:4200/ env PREFECT_HOME=/state/server PREFECT_SERVER_API_AUTH_STRING=quantgate:image \
  python -m uvicorn --factory tasks.service.prefect_app:create_app --port 4200
seconds answers http://127.0.0.1:4280/healthz env QUANTGATE_WEBHOOK_SECRET=0123456789abcdef QUANTGATE_RECEIVER_STATE=/state/receiver.db \
  PREFECT_API_URL=http://127.0.0.1:4200/api python -m uvicorn --app-dir /opt/quantgate/infra/receiver --port 4280 receiver:app

# The image has neither of these two packages: models come from a registry. Here one container registers the demo's, another runs its job.
title "the demo's model, made once with a network"
mapfile -t packages < <(sed -nE 's/^((tokenizers|safetensors)==[^ ]+).*/\1/p' requirements/dev.txt)
contained test -e /state/demo/text.yaml || seconds run --network host "${mounts[@]}" --entrypoint sh "$image" -ec '
  python -m pip install --quiet --no-deps --target /tmp/packages "$@"
  PYTHONPATH=/tmp/packages python -c "
from flows.cli.console import prepared
prepared()
from flows.cli.demo import prepare_demo
from tasks.run.settings import state_folder
print(prepare_demo(state_folder()))"
' sh "${packages[@]}"

title "the demo's job, without a network"
code=0
seconds contained quantgate run /state/demo/text.yaml || code=$?
# 0: promoted; 3: no variant wins; 1: also where other work kept the processor too busy to time anything: run it again.
echo "exit code $code"
[ "$code" = 0 ] || [ "$code" = 3 ] || exit "$code"
