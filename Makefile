# Two commands are all a new user needs: `make demo` and `make test`. Both set up what they need first.
VENV := .venv
READY := $(VENV)/.ready
BIN := $(VENV)/bin

.PHONY: demo demo-image test lint format ui lock schemas clean

demo: $(READY)
	@$(BIN)/quantgate demo

demo-image: $(READY)
	@$(BIN)/quantgate demo --image

test: $(READY)
	@$(BIN)/pytest

lint: $(READY)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

format: $(READY)
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

ui: $(READY)
	@$(BIN)/quantgate ui

# The JSON Schemas of job and result, from the code.
schemas: $(READY)
	@$(BIN)/python -m flows.schemas docs

# The lock names no index: whoever installs chooses theirs.
lock: $(READY)
	@$(BIN)/uv pip compile pyproject.toml requirements/torch-needs.in --extra cpu --extra demo --extra dev \
		--override requirements/without-torch.in --universal --python-version 3.11 --generate-hashes --no-annotate \
		--custom-compile-command "make lock" -o requirements/cpu.txt --quiet
	@$(BIN)/uv pip compile requirements/uv.in --universal --python-version 3.11 --generate-hashes --no-annotate \
		--custom-compile-command "make lock" -o requirements/uv.txt --quiet

clean:
	rm -rf $(VENV) .quantgate build *.egg-info

$(READY): requirements/cpu.txt requirements/torch.txt requirements/uv.txt pyproject.toml infra/setup.sh
	@infra/setup.sh $(VENV)
