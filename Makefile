# The two commands: `make demo` and `make test`. Both install what they need into .venv first.
#
#   PYTHON=python3.12            the interpreter that .venv is made from
#   JOBS=1                       processes that `make test` uses (two, where there are two cores)
#   TORCH_INDEX=URL              another index to take torch from, such as the CPU-only wheels of
#                                https://download.pytorch.org/whl/cpu (pip's own configuration works too)
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
TORCH_INDEX ?=
JOBS ?= $(shell [ $$(nproc) -gt 1 ] && echo 2 || echo 1)
PIP := "$(BIN)/python" -m pip install --quiet --disable-pip-version-check -c constraints.txt \
  $(if $(TORCH_INDEX),--extra-index-url "$(TORCH_INDEX)")
export OMP_WAIT_POLICY ?= PASSIVE
export PYTHONDONTWRITEBYTECODE := # tests start many processes: each would compile the sources again

.PHONY: fuzz schema help install browser demo serve test check bench docs dist clean

help: ## show this list
	@grep -hE '^[a-z]+:.*##' Makefile | sed -E 's/:.*## /\t/' | expand -t 12

$(STAMP): pyproject.toml constraints.txt
	@test -x "$(BIN)/python" || $(PYTHON) -m venv "$(VENV)"
	$(PIP) -e ".[dev,docs,onnx,ray,serve]"
	@touch "$(STAMP)"

install: $(STAMP) ## create .venv and install labelwise into it

browser: # the report is tested in a real browser
	@command -v chromium >/dev/null || { \
	  echo "installing chromium for the browser tests"; \
	  SUDO=$$(command -v sudo || true); \
	  $$SUDO apt-get update -qq && $$SUDO apt-get install -y -qq chromium; }

demo: install ## train, calibrate, evaluate and report on the embedded data (about three minutes)
	"$(BIN)/labelwise" demo

serve: install ## tag, search and review photos in the browser, with the demo's model and photos
	"$(BIN)/labelwise" demo --photos runs/demo-photos
	"$(BIN)/labelwise" index runs/demo-photos --model runs/demo -o runs/demo.index
	"$(BIN)/labelwise" serve runs/demo runs/demo.index $(if $(PORT),--port $(PORT)) --open

test: install browser ## run every test
	"$(BIN)/python" -m pytest $(if $(filter-out 1,$(JOBS)),-n $(JOBS) --dist worksteal)

fuzz: install ## feed damaged input to every reader for ten minutes (FUZZ_SECONDS)
	LABELWISE_FUZZ_SECONDS=$(or $(FUZZ_SECONDS),600) LABELWISE_FUZZ_SEED=$(or $(FUZZ_SEED),$$RANDOM) "$(BIN)/python" -m pytest -s tests/fuzz

schema: install ## requests that schemathesis makes up from the API's description: no 5xx (about a minute)
	@test -x .venv-schema/bin/schemathesis || { $(PYTHON) -m venv .venv-schema && \
	  .venv-schema/bin/pip install --quiet --disable-pip-version-check "schemathesis>=4.32"; }
	PYTHONPATH=tests "$(BIN)/python" tests/run_schemathesis.py .venv-schema/bin/schemathesis --max-examples $(or $(EXAMPLES),20)

check: install ## format, lint, types, layers
	"$(BIN)/ruff" format --check .
	"$(BIN)/ruff" check .
	"$(BIN)/mypy"
	"$(BIN)/lint-imports"

bench: install ## print every benchmark's ratios
	$(PIP) -e ".[bench]"
	@for name in arrays data export heads objectives posterior scoring serve training; do \
	  echo "== $$name"; OMP_NUM_THREADS=1 "$(BIN)/python" "benchmarks/$$name.py" || status=1; \
	done; exit $${status:-0}

docs: install ## build the documentation into site/ and run every example in it
	NO_MKDOCS_2_WARNING=1 "$(BIN)/mkdocs" build --strict
	"$(BIN)/python" -m pytest tests/test_docs.py

dist: install ## build the wheel and the sdist into dist/ and check them
	rm -rf dist
	"$(BIN)/python" -m build --no-isolation --outdir dist .
	"$(BIN)/python" tests/distribution.py dist

clean: ## remove .venv and caches (runs/ stays)
	rm -rf "$(VENV)" .venv-schema .mypy_cache .ruff_cache .pytest_cache .hypothesis
