# Two commands are all a new user needs: `make demo` and `make test`. Both set up what they need first.
VENV := .venv
READY := $(VENV)/.ready
FLAVORS := $(VENV)/.flavors
BIN := $(VENV)/bin

.PHONY: setup demo demo-all demo-image demo-llm test test-all test-rest test-avx2 test-faults docs lint format ui serve deploy worker audit gpu-first gpu-full image-check lock schemas clean

setup: $(READY)

demo: $(READY)
	@$(BIN)/quantgate demo

# The same with every default candidate.
demo-all: $(READY)
	@$(BIN)/quantgate demo --all

demo-image: $(READY)
	@$(BIN)/quantgate demo --image

# A decoder; its libraries are those of the flavors.
demo-llm: $(FLAVORS)
	@$(BIN)/quantgate demo --llm

# Two processes, a file of tests at a time; more where there is room: each brings models and servers of its own, up to 4 GB.
TEST_PROCESSES := 2
# In the order of the folders: the slow files of system tests before units, so that no process waits for the last of them.
# A process that dies ends the run with the test that it was in: xdist's restart can leave the others waiting for ever.
PYTEST := $(BIN)/pytest -n $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder --max-worker-restart=0

# Units, documentation, one run on each CPU target and a promotion that is killed.
test: $(READY)
	@$(PYTEST) -m "golden or not slow"

# All tests. They need Chromium and PostgreSQL, which pip does not install.
test-all: $(FLAVORS)
	@$(PYTEST)

# What `make test` leaves out.
test-rest: $(FLAVORS)
	@$(PYTEST) tests -m "slow and not golden"

# Tests of kernels, as a processor with AVX2 alone would run them, without VNNI. The script runs any command so, on any kind.
AVX2_TESTS := tests/unit/tasks/ptq tests/unit/tasks/runtimes tests/unit/tasks/engines \
  tests/system/test_golden.py::test_registered_model_becomes_an_answering_champion tests/unit/validators/graph/test_ort_rules.py \
  $(addprefix tests/integration/test_,openvino.py opset_matrix.py portable.py torch_inductor.py)
test-avx2: $(READY)
	@$(BIN)/python tests/support/other_processor.py avx2 $(PYTEST) -m "golden or not slow" $(AVX2_TESTS)

# Every kill at every stage of a run, on real servers: minutes to an hour; docs/faults.md.
test-faults: $(READY)
	@$(BIN)/pytest -m faults

# The documentation as a site, in build/docs; any link that leads nowhere ends it.
docs: $(READY)
	@NO_MKDOCS_2_WARNING=true $(BIN)/mkdocs build --clean

lint: $(READY)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/hadolint Dockerfile

format: $(READY)
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

ui: $(READY)
	@$(BIN)/quantgate ui

# The whole service on this machine, without containers: docs/service.md.
serve: $(READY)
	@$(BIN)/quantgate serve

# What the service needs on the Prefect server of PREFECT_API_URL.
deploy: $(READY)
	@$(BIN)/quantgate deploy

# A worker of one target; docs/workers.md. Needs PREFECT_API_URL, and the state folder of the runs.
TARGET := ort-cpu
worker: $(READY)
	@$(BIN)/quantgate worker --target $(TARGET)

# On a machine with a GPU: what PyTorch alone shows in ten minutes, from nothing; docs/gpu.md.
PYTHON := python3
gpu-first:
	@$(PYTHON) -m benchmarks.gpu first $(ARGS)

# There, too: trained models, the other runtimes and a whole run, part by part; docs/gpu.md.
gpu-full:
	@PYTHON="$(PYTHON)" WHEELS="$(WHEELS)" infra/gpu_full.sh $(or $(PART),all) $(BUNDLE)

# Builds the CPU image without a registry and runs it. Needs podman and mmdebstrap: docs/image.md.
image-check:
	@infra/image_check.sh

# The JSON Schemas of job and result, from the code.
schemas: $(READY)
	@$(BIN)/python -m flows.docs.schemas docs

# The locks name no index: whoever installs chooses theirs. dev.txt is what tests run on, and the images take from it.
LOCK := $(BIN)/uv pip compile --universal --fork-strategy fewest --python-version 3.11 --generate-hashes --no-annotate --quiet \
	--custom-compile-command "make lock"
PROJECT := pyproject.toml requirements/torch-needs.in --override requirements/without-torch.in
lock: $(READY)
	@$(LOCK) $(PROJECT) --extra cpu --extra openvino --extra inductor --extra demo --extra server --extra dev --extra tensorrt-aot -o requirements/dev.txt
	@$(LOCK) $(PROJECT) --extra sklearn --extra keras --extra transformers --extra genai --extra receivers -c requirements/dev.txt -o requirements/flavors.txt
	@$(LOCK) $(PROJECT) --extra cpu --extra openvino --extra server -c requirements/dev.txt -o requirements/cpu.txt
	@$(LOCK) $(PROJECT) --extra gpu -c requirements/dev.txt -o requirements/gpu.txt
	@$(LOCK) $(PROJECT) --extra cpu --resolution lowest-direct -o requirements/oldest.txt
	@$(LOCK) requirements/uv.in -o requirements/uv.txt
	@$(LOCK) requirements/vllm.in requirements/torch-needs.in --override requirements/without-torch.in --override requirements/without-media.in -o requirements/vllm.txt

# Known vulnerabilities of what is locked, from a database on the network; what it cannot look up fails too (--strict). No part of
# what a change must pass: what can be known without a network is in tests/unit/tasks/storage/test_locks.py and tests/docs/test_environment.py.
AUDIT := $(BIN)/uv tool run pip-audit==2.9.0 --strict --require-hashes --disable-pip
audit: $(READY)
	@$(AUDIT) -r requirements/cpu.txt
	@$(AUDIT) -r requirements/gpu.txt
	@$(AUDIT) -r requirements/dev.txt

clean:
	rm -rf $(VENV) .quantgate build *.egg-info

# Libraries of the MLflow flavors that only slow tests need; in environments of their own, vLLM and the oldest versions that are
# allowed. With them the set-up would take a minute longer.
$(FLAVORS): $(READY) requirements/flavors.txt requirements/vllm.txt requirements/oldest.txt
	@infra/setup.sh $(VENV) flavors

$(READY): requirements/dev.txt requirements/torch.txt requirements/uv.txt pyproject.toml infra/setup.sh
	@infra/setup.sh $(VENV)
