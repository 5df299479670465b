PYTHON ?= python3
BIN := .venv/bin

# Pins what the package is built with, too.
export PIP_CONSTRAINT := constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help demo test browser lint format bench clean

help: ## Show this list.
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/  make \1\t\2/' | expand -t 16

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --editable '.[dev]'
	# For one recipe's test, and apart: Fabric imports torchmetrics wherever it finds it, at every start.
	$(BIN)/pip install --quiet --no-deps --target .venv/lightning lightning torchmetrics
	touch $@

demo: .venv/installed ## See it learn digits by three methods, and compare them.
	for method in finetune gkd rdkd; do \
		$(BIN)/densekd run --data digits --method $$method --steps 5 --memory 2 --out runs/demo || exit; \
	done
	$(BIN)/densekd compare runs/demo --plot runs/demo/comparison.png

test: .venv/installed browser ## Run every test, in a .venv made for it.
	OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses auto --maxprocesses 8 --dist worksteal

# The pages are tested in Debian's Chromium; without it these tests are skipped and say so.
browser:
	@command -v chromium >/dev/null || { apt-get update && apt-get install --yes chromium; } >/dev/null 2>&1 \
		|| echo 'Chromium is not there and could not be installed: the tests of pages will be skipped.'

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

clean: ## Remove .venv and caches.
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
