# Workers, and runs: `cpu` (the default) for the target ort-cpu, `gpu` for ort-cuda and, with TENSORRT, tensorrt.
# Build:  docker build -t quantgate .
#         docker build -t quantgate-gpu --target gpu .
#         docker build -t quantgate-tensorrt --target gpu --build-arg TENSORRT=11.4.0.106 .
# Run:    docker run --rm -v "$PWD:/jobs" quantgate run /jobs/job.yaml --result /jobs/result.json
# Worker: docs/workers.md. Without a registry: docs/image.md.
# Each image has three parts: the base, the environment of locked packages (gigabytes, changed by a lock alone), and our code.

# Both digests are those of the multi-platform index, as other public Dockerfiles pin them; another image does not pull by them.
FROM python:3.11.14-slim-bookworm@sha256:65a93d69fa75478d554f4ad27c85c1e69fa184956261b4301ebaf6dbb0a3543d AS python

# ONNX Runtime's CUDA provider is linked with CUDA 13 and cuDNN 9, which this has; Ubuntu 24.04 brings Python 3.12.
FROM nvidia/cuda:13.0.2-cudnn-runtime-ubuntu24.04@sha256:14d94b039cb94bbd5da559f303b46bc4b0d5d6c24ab1a9d7b186e566ed3400dc AS cuda
# The archive of a release has one version at a time: a pinned one would be gone with the next security update.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends python3 \
    && rm -rf /var/lib/apt/lists/*

FROM python AS build-cpu
WORKDIR /build
ENV PIP_NO_CACHE_DIR=1 UV_NO_CACHE=1 UV_LINK_MODE=copy UV_COMPILE_BYTECODE=1 VIRTUAL_ENV=/opt/venv
# Empty: torch from the folder of wheels that uv's configuration names. What its CPU build needs is in the lock, with hashes.
ARG TORCH_BACKEND=cpu
COPY requirements/uv.txt requirements/cpu.txt requirements/torch.txt requirements/
RUN python -m venv /opt/venv \
    && /opt/venv/bin/pip install --require-hashes -r requirements/uv.txt \
    && /opt/venv/bin/uv pip install --require-hashes -r requirements/cpu.txt \
    && /opt/venv/bin/uv pip install --no-deps ${TORCH_BACKEND:+--torch-backend "$TORCH_BACKEND"} -r requirements/torch.txt \
    && /opt/venv/bin/uv pip uninstall uv

FROM cuda AS build-gpu
# Not pinned, for the same reason.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends python3-venv \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /build
ENV PIP_NO_CACHE_DIR=1 UV_NO_CACHE=1 UV_LINK_MODE=copy UV_COMPILE_BYTECODE=1 VIRTUAL_ENV=/opt/venv
# torch reads programs that are to be exported, and runs nothing on the GPU: its CPU build is gigabytes smaller.
ARG TORCH_BACKEND=cpu
COPY requirements/uv.txt requirements/gpu.txt requirements/torch.txt requirements/
RUN python3 -m venv /opt/venv \
    && /opt/venv/bin/pip install --require-hashes -r requirements/uv.txt \
    && /opt/venv/bin/uv pip install --require-hashes -r requirements/gpu.txt \
    && /opt/venv/bin/uv pip install --no-deps ${TORCH_BACKEND:+--torch-backend "$TORCH_BACKEND"} -r requirements/torch.txt
COPY pyproject.toml ./
# TensorRT is proprietary: an image with it is for whoever built it, and none that is published may have it.
ARG TENSORRT=
RUN if [ -n "$TENSORRT" ]; then \
        /opt/venv/bin/uv pip install --extra tensorrt -r pyproject.toml "tensorrt==$TENSORRT"; \
    fi \
    && /opt/venv/bin/uv pip uninstall uv

FROM cuda AS gpu
COPY --from=build-gpu /opt/venv /opt/venv
WORKDIR /opt/quantgate
# The evidence of a run names the locks by their digests.
COPY requirements/uv.txt requirements/gpu.txt requirements/torch.txt requirements/
COPY pyproject.toml README.md LICENSE ./
COPY validators validators
COPY tasks tasks
COPY flows flows
COPY examples examples
COPY infra infra
# The user owns the state folder alone. Its home is one that is writable where the root is read-only.
RUN /opt/venv/bin/pip install --no-cache-dir --no-deps --no-build-isolation --no-index --root-user-action ignore -e . \
    && /opt/venv/bin/python -m compileall -q validators tasks flows \
    && useradd --no-create-home --home-dir /tmp --uid 10001 quantgate \
    && mkdir /state \
    && chown quantgate /state
WORKDIR /jobs
USER 10001
ENV PATH=/opt/venv/bin:$PATH HOME=/tmp QUANTGATE_STATE=/state PYTHONUNBUFFERED=1
# Prefect's server copies its UI when it starts, else beside its code.
ENV PREFECT_SERVER_UI_STATIC_DIRECTORY=/tmp/prefect-ui
VOLUME /state
HEALTHCHECK --interval=5m --timeout=60s CMD ["quantgate", "doctor", "--light"]
ENTRYPOINT ["quantgate"]
CMD ["--help"]

FROM python AS cpu
COPY --from=build-cpu /opt/venv /opt/venv
WORKDIR /opt/quantgate
# The evidence of a run names the locks by their digests.
COPY requirements/uv.txt requirements/cpu.txt requirements/torch.txt requirements/
COPY pyproject.toml README.md LICENSE ./
COPY validators validators
COPY tasks tasks
COPY flows flows
COPY examples examples
COPY infra infra
# The user owns the state folder alone. Its home is one that is writable where the root is read-only.
RUN /opt/venv/bin/pip install --no-cache-dir --no-deps --no-build-isolation --no-index --root-user-action ignore -e . \
    && /opt/venv/bin/python -m compileall -q validators tasks flows \
    && useradd --no-create-home --home-dir /tmp --uid 10001 quantgate \
    && mkdir /state \
    && chown quantgate /state
WORKDIR /jobs
USER 10001
ENV PATH=/opt/venv/bin:$PATH HOME=/tmp QUANTGATE_STATE=/state PYTHONUNBUFFERED=1
# Prefect's server copies its UI when it starts, else beside its code.
ENV PREFECT_SERVER_UI_STATIC_DIRECTORY=/tmp/prefect-ui
VOLUME /state
HEALTHCHECK --interval=5m --timeout=60s CMD ["quantgate", "doctor", "--light"]
ENTRYPOINT ["quantgate"]
CMD ["--help"]
