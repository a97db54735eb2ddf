# Two commands for a stranger: `make demo` and `make test`. Each sets up .venv by itself.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin

.PHONY: demo test check lint bench clean

demo: .venv/installed
	$(BIN)/cobo demo

test: lint
	$(BIN)/python -m pytest -n 2

check: lint
	$(BIN)/python -m pytest -n 2 -m "not slow"

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy src

bench: .venv/installed
	$(BIN)/python benchmarks/round.py

.venv/installed: pyproject.toml constraints.txt
	@echo "installing into .venv, about 2 GB: a few minutes"
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf .venv dist build
