# `make serve` and `make test` need Python >= 3.11 and a network, nothing else: the first run makes .venv, installs
# into it, fetches the default model and converts it. No step asks for root.
#
#   PYTHON       the Python to make .venv with
#   TORCH_INDEX  a package index to take torch from, for another build of it than pip would choose
#   ARGS         flags for serve, test and bench: make serve ARGS="--port 9000"
#   BENCH        which benchmark bench runs: decode, policies, stream, lookahead, exact, grammar, load, refusals, turns, soak, crash, contract or mutants

PYTHON ?= python3
TORCH_INDEX ?=
ARGS ?=
BENCH ?= decode

BIN := .venv/bin
INSTALLED := .venv/.installed
# the line of pyproject.toml that bounds torch, so that another index gives a version that fits
TORCH := import tomllib; project = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
	print(*[line for line in project["dependencies"] if line.startswith("torch")])

.DEFAULT_GOAL := help
.PHONY: help setup model serve test lint check bench clients docs clean

help: ## show this list
	@sed -n 's/^\([a-z]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 16

serve: setup ## serve the default model on port 8000; settings: docs/configuration.md
	@$(BIN)/sinkahead serve $(ARGS)

test: setup model ## run the tests
	@$(BIN)/python -m pytest $(ARGS)

check: lint test ## the whole gate: format, lint, types, tests

lint: setup ## format, lint and types, without the tests
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy

bench: setup model ## time decoding against transformers' own; others: make bench BENCH=policies, stream, lookahead, exact, grammar, load, refusals, turns, soak, crash, contract or mutants
	@$(BIN)/python -m benchmarks.$(BENCH) $(ARGS)

clients: setup ## try clients of other makers: OpenAI's for Node, Vercel's, LangChain, LiteLLM
	@$(BIN)/python -m tests.clients

setup: $(INSTALLED) ## make .venv and install into it

model: setup ## fetch and convert the default model
	@$(BIN)/sinkahead models fetch

docs: setup ## write docs/configuration.md anew
	@$(BIN)/python -m server.reference > docs/configuration.md

clean: ## remove .venv and what tools keep beside it; fetched models stay
	rm -rf .venv build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(INSTALLED): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo 'Python 3.11 or later is needed. Name one: make PYTHON=/path/to/python3.11'; exit 1; }
	@echo 'Making .venv with '"$$($(PYTHON) --version)"
	@$(PYTHON) -m venv .venv || \
		{ echo 'The venv module is missing: some systems have it in a package of its own (python3-venv)'; exit 1; }
	@echo 'Installing; this takes minutes, most of them for torch (0.2 GB, or several GB with CUDA)'
	@if [ -n '$(TORCH_INDEX)' ]; then \
		$(BIN)/python -m pip install --index-url '$(TORCH_INDEX)' "$$($(BIN)/python -c '$(TORCH)')"; fi
	@$(BIN)/python -m pip install --editable '.[dev]'
	@touch $@
