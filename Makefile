PYTHON ?= python3
BIN := .venv/bin
# A file is run by one process, which makes its fixtures once; the files with the longest tests come first.
# torch's compiler starts a process that waits for kernels of GPUs, unless it may have one thread alone.
PYTEST = OMP_NUM_THREADS=1 TORCHINDUCTOR_COMPILE_THREADS=1 $(BIN)/pytest --dist loadfile --no-loadscope-reorder
# Tests that wait for other processes leave room for two processes more than there are cores.
PROCESSES = $(shell $(BIN)/python -c 'import os; print(min(8, 2 + (os.cpu_count() or 1)))')

# Pins what the package is built with, too.
export PIP_CONSTRAINT := constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Tests start many processes: without byte code each would compile the package again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test test-fast chaos browser lint format bench clean

help: ## Show this list.
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 18

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --editable '.[dev]'
	# For one recipe's test, and apart: Fabric imports torchmetrics wherever it finds it, at every start.
	$(BIN)/pip install --quiet --no-deps --target .venv/lightning lightning torchmetrics
	touch $@

# What a user installs, without the tools for tests.
.venv-demo/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-demo
	.venv-demo/bin/pip install --quiet --editable .
	touch $@

demo: .venv-demo/installed ## Learn digits by three methods, and compare them.
	for method in finetune gkd rdkd; do \
		.venv-demo/bin/densekd run --data digits --method $$method --steps 5 --memory 2 --out runs/demo || exit; \
	done
	.venv-demo/bin/densekd compare runs/demo --plot runs/demo/comparison.png

test: .venv/installed ## Run all tests (7 to 20 minutes on two cores).
	$(PYTEST) --numprocesses $(PROCESSES)

test-fast: .venv/installed ## Run the tests that train nothing and open no page (about a minute).
	$(PYTEST) --numprocesses auto --maxprocesses 8 --fast -rfE

MINUTES ?= 30
chaos: .venv/installed ## Kill, damage and misuse commands, for at most MINUTES=30, and count what goes wrong.
	OMP_NUM_THREADS=1 PYTHONPATH=tests $(BIN)/python -m chaos --minutes $(MINUTES)

browser: ## Install Chromium, which the tests of pages need (Debian and Ubuntu, as root).
	@command -v chromium >/dev/null || { apt-get update && apt-get install --yes chromium; } >/dev/null 2>&1 \
		|| echo 'Chromium could not be installed: the tests of pages will be skipped.'

lint: .venv/installed ## Check style, types and layers.
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

format: .venv/installed ## Rewrite the code in the project's style.
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: .venv/installed ## Measure what the losses cost, how fast data is, what the engine and prediction cost.
	$(BIN)/python benchmarks/data_speed.py
	$(BIN)/python benchmarks/step_cost.py
	$(BIN)/python benchmarks/throughput.py
	$(BIN)/python benchmarks/predict_speed.py

clean: ## Remove the virtual environments and caches.
	rm -rf .venv .venv-demo .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
