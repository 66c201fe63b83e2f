# One worker for the target ort-cpu. Build: docker build -t quantgate .
# Run a job: docker run --rm -v "$PWD:/jobs" quantgate run /jobs/job.yaml --result /jobs/result.json
FROM python:3.11-slim-bookworm AS build
WORKDIR /opt/quantgate
ENV PIP_NO_CACHE_DIR=1 UV_NO_CACHE=1 UV_LINK_MODE=copy
COPY requirements requirements
RUN python -m venv /opt/venv \
    && /opt/venv/bin/pip install --require-hashes -r requirements/uv.txt \
    && VIRTUAL_ENV=/opt/venv /opt/venv/bin/uv pip install --require-hashes -r requirements/cpu.txt \
    && VIRTUAL_ENV=/opt/venv /opt/venv/bin/uv pip install --torch-backend cpu -r requirements/torch.txt
COPY pyproject.toml README.md LICENSE ./
COPY validators validators
COPY tasks tasks
COPY flows flows
COPY examples examples
RUN VIRTUAL_ENV=/opt/venv /opt/venv/bin/uv pip install --no-deps --no-build-isolation -e .

FROM python:3.11-slim-bookworm
COPY --from=build /opt/venv /opt/venv
COPY --from=build /opt/quantgate /opt/quantgate
RUN useradd --create-home --uid 10001 quantgate && mkdir /state && chown quantgate /state
USER quantgate
WORKDIR /jobs
ENV PATH=/opt/venv/bin:$PATH QUANTGATE_STATE=/state PYTHONUNBUFFERED=1
VOLUME /state
HEALTHCHECK --interval=5m --timeout=60s CMD ["quantgate", "doctor"]
ENTRYPOINT ["quantgate"]
CMD ["--help"]
