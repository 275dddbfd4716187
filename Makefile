# A fresh clone needs nothing but Python >= 3.11 and make: every target makes .venv first.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --constraint constraints.txt

.PHONY: help demo test quick lint docs bench clean

help: ## list the targets
	@grep -E '^[a-z]+:.*##' Makefile | sed 's/:.*## /\t/'

.venv/installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) --editable .
	$(BIN)/python -m compileall -q initdiag
	touch $@

.venv/tested: .venv/installed requirements-originals.txt
	$(PIP) --editable '.[dev]'
	rm -rf .venv/originals
	$(PIP) --no-deps --target .venv/originals --requirement requirements-originals.txt
	touch $@

demo: .venv/installed ## what GPT-2 small does before its first step
	$(BIN)/initdiag check configs/gpt2.yaml
	@echo "The program is $(BIN)/initdiag; '. $(BIN)/activate' puts it on your PATH."

test: .venv/tested ## the whole suite, linters and type checks included
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder $(T)

quick: .venv/tested ## the tests that take no more than a few seconds
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile -m 'not slow' $(T)

docs: .venv/tested ## write again what is generated: docs, README blocks, the JSON schema
	$(BIN)/cog -r -I docs README.md docs/*.md
	$(BIN)/initdiag schema > configs/initdiag.schema.json
	$(BIN)/python docs/console.py README.md docs/*.md

bench: .venv/tested ## ratios against scripts written by hand, measured in the same run
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/overhead.py --modules
	$(BIN)/python benchmarks/tracing.py
	$(BIN)/python benchmarks/predict.py

clean: ## remove what the targets made
	rm -rf .venv build dist *.egg-info
