# The two commands: `make demo` and `make test`. Each installs what it needs into .venv first, and
# no more: the demo the base package, which has no torch; the tests everything that is tested.
#
#   PYTHON=python3.12            the interpreter that .venv is made from
#   JOBS=1                       processes that `make test` uses; where there are two cores, three if 12 GiB of
#                                memory are free, because many tests wait for other processes, else two
#   BROWSER=no                   leave out the tests in a real browser, and do not install Chromium
#   TORCH_INDEX=URL              another index to take torch from, for the tests; nothing else is taken from it.
#                                Without it, x86_64 machines without a CUDA device try the CPU-only wheels first,
#                                because the usual ones bring 7 GB of CUDA; TORCH_INDEX=usual does not
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PACKAGE := $(VENV)/.installed-base
SERVER := $(VENV)/.installed-serve
STAMP := $(VENV)/.installed
TORCH_INDEX ?=
BROWSER ?= yes
JOBS ?= $(shell free=$$(awk '/MemAvailable/ {print $$2}' /proc/meminfo); \
  [ $$(nproc) -gt 1 ] && { [ "$$free" -gt 12582912 ] && echo 3 || echo 2; } || echo 1)
PIP := "$(BIN)/python" -m pip install --disable-pip-version-check -c constraints.txt
# What pip fetches and how large it is, without its list of what is there already.
SHOWN := | sed -E '/^(Requirement already|Looking in|Obtaining|Building|  )/{/Downloading/!d;}'
# Torch alone, from the index that is named or, on x86_64 without CUDA, from that of the CPU-only wheels if it answers.
define TORCH
case "$(or $(TORCH_INDEX),$(shell [ "$$(uname -sm)" = "Linux x86_64" ] && ! command -v nvidia-smi >/dev/null && echo cpu || echo usual))" in \
  usual) ;; \
  cpu) $(PIP) --retries 0 --timeout 10 --index-url "$(CPU_WHEELS)" torch torchvision 2>/dev/null \
         || echo "the CPU-only torch cannot be had here: taking the usual one" ;; \
  *) $(PIP) --index-url "$(TORCH_INDEX)" torch torchvision ;; \
esac
endef
CPU_WHEELS := https://download.pytorch.org/whl/cpu
export OMP_WAIT_POLICY ?= PASSIVE
export PYTHONDONTWRITEBYTECODE := # tests start many processes: each would compile the sources again

BENCHMARKS := scoring search
PICTURED := $(addprefix open-photos/new/,020.jpg 046.jpg 102.jpg 110.jpg)

.PHONY: audit bench bridges browser check clean demo dist docs faults fuzz hashes help install limits pictures quick schema serve test

help: ## show this list
	@grep -hE '^[a-z]+:.*##' Makefile | sed -E 's/:.*## /\t/' | expand -t 12

# Debian's python3 makes half an environment, without pip, where python3-venv is missing: it is removed again.
$(PACKAGE): pyproject.toml constraints.txt
	@"$(BIN)/python" -m pip --version >/dev/null 2>&1 || { rm -rf "$(VENV)"; $(PYTHON) -m venv "$(VENV)"; } || { rm -rf "$(VENV)"; \
	  echo "$(PYTHON) cannot make an environment. On Debian and Ubuntu: sudo apt-get install python3-venv"; exit 1; }
	@echo "installing labelwise into $(VENV): about 155 MB are fetched, once"
	@set -o pipefail; $(PIP) -e . $(SHOWN)
	@touch "$@"

$(SERVER): $(PACKAGE)
	@set -o pipefail; $(PIP) -e ".[serve]" $(SHOWN)
	@touch "$@"

# Torch comes alone from an index of its own: pip prefers the newest version of a name wherever it
# finds one, so two indexes at once would let either replace a package of the other.
$(STAMP): $(PACKAGE)
	@echo "installing what tests and development need into $(VENV): 1 GB, and 3 GB more where torch brings CUDA"
	@$(TORCH)
	@set -o pipefail; $(PIP) -e ".[dev,docs,onnx,ray,serve,train]" $(SHOWN)
	@touch "$@"

install: $(STAMP) ## create .venv and install labelwise into it, with what development needs

# Before the long install: pages are tested in a real browser, which only root can install.
CHROMIUM := command -v chromium >/dev/null || command -v chromium-browser >/dev/null
browser:
ifneq ($(BROWSER),no)
	@$(CHROMIUM) || { SUDO=$$([ "$$(id -u)" = 0 ] || command -v sudo || echo no); \
	  if [ "$$SUDO" = no ] || ! command -v apt-get >/dev/null; then \
	    echo "Tests in a browser are skipped: Chromium is not here, and only root can install it with apt-get"; \
	  else \
	    echo "The browser tests need Chromium, which is not here: it is installed now, for the whole system,"; \
	    echo "with apt-get (and sudo, where there is one). To leave these tests out: make test BROWSER=no"; \
	    $$SUDO apt-get update -qq && $$SUDO apt-get install -y -qq --no-install-recommends chromium; \
	  fi; }
endif

demo: $(PACKAGE) ## train on 274 real photos, report, and tag 12 new ones (about a minute, no torch)
	"$(BIN)/labelwise" demo

serve: $(SERVER) ## tag, search and review the open photos in the browser, with the demo's model
	"$(BIN)/labelwise" demo
	"$(BIN)/labelwise" index open-photos --model runs/demo -o runs/demo.index
	"$(BIN)/labelwise" serve runs/demo runs/demo.index $(if $(PORT),--port $(PORT)) --open

pictures: browser install ## take the pictures of README and docs again, from the open photos
	"$(BIN)/labelwise" demo
	"$(BIN)/labelwise" index open-photos --model runs/demo -o runs/demo.index
	"$(BIN)/labelwise" compare open-photos/labels.csv --methods bce,spa,two-way -o runs/comparison
	"$(BIN)/python" docs/images/make_pages.py runs/demo runs/demo.index runs/comparison/comparison.html open-photos $(PICTURED) -o docs/images

test: browser install ## run every test (BROWSER=no: but those in a browser)
	BROWSER=$(BROWSER) "$(BIN)/python" -m pytest --durations=25 $(if $(filter-out 1,$(JOBS)),-n $(JOBS) --dist worksteal)

quick: install ## run the tests of the rooms that differ from main (about a minute)
	@rooms=$$({ git diff --name-only main 2>/dev/null; git ls-files --others --exclude-standard; } \
	  | sed -nE 's#^(src/labelwise|tests)/([a-z]+)(/.*|\.py)$$#tests/\2#p' | sort -u | while read -r room; do \
	    ls -d "$$room" "tests/test_$${room#tests/}.py" 2>/dev/null; done); \
	echo "tests of what changed:" $$rooms; \
	BROWSER=no "$(BIN)/python" -m pytest tests/test_architecture.py tests/test_project.py $$rooms $(if $(filter-out 1,$(JOBS)),-n $(JOBS) --dist worksteal)

fuzz: install ## feed damaged input to readers of files and routes of the server, a night's worth (JOBS)
	LABELWISE_FUZZ_SEED=1 "$(BIN)/python" -m pytest -m hypothesis --hypothesis-seed=$(or $(FUZZ_SEED),random) $(if $(filter-out 1,$(JOBS)),-n $(JOBS) --dist worksteal)

faults: install ## plant 100 known faults, one at a time, and count how many the tests catch (JOBS=15: ten minutes)
	"$(BIN)/python" tests/planted_faults.py --jobs $(JOBS)

schema: install ## requests that schemathesis makes up from the API's description: no 5xx (about a minute)
	@test -x .venv-schema/bin/schemathesis || { $(PYTHON) -m venv .venv-schema && \
	  .venv-schema/bin/pip install --quiet --disable-pip-version-check "schemathesis>=4.32"; }
	PYTHONPATH=tests "$(BIN)/python" tests/run_schemathesis.py .venv-schema/bin/schemathesis --max-examples $(or $(EXAMPLES),20)

bridges: install ## install the other programs that labelwise works with, and test against them
	$(PIP) -e ".[bridges]"
	! command -v npm >/dev/null || npm install --silent --no-fund --no-audit --prefix "$(VENV)/immich" @immich/sdk@3.2.2
	"$(BIN)/python" -m pytest tests/bridges -rs

check: install ## format, lint, types, layers
	"$(BIN)/ruff" format --check .
	"$(BIN)/ruff" check .
	"$(BIN)/mypy"
	"$(BIN)/lint-imports"

bench: install ## ratios to peers: kept for evidence/limits.md, others printed (at most 30 minutes)
	$(PIP) -e ".[bench,serve,train]"
	OMP_NUM_THREADS=1 "$(BIN)/python" benchmarks/limits.py run arrays starts
	@for name in $(BENCHMARKS); do \
	  echo "== $$name"; OMP_NUM_THREADS=1 timeout 110 "$(BIN)/python" "benchmarks/$$name.py" || status=1; \
	done; exit $${status:-0}

limits: install ## all that evidence/limits.md shows of this machine, then that page (PARTS="search starts"; 30 minutes)
	$(PIP) -e ".[bench,ray,serve,train]"
	"$(BIN)/python" benchmarks/limits.py run $(PARTS)
	"$(BIN)/python" benchmarks/limits.py page evidence/limits.md
	"$(BIN)/python" benchmarks/limits.py picture evidence/limits.svg

docs: install ## build the documentation into site/ and run every example in it
	NO_MKDOCS_2_WARNING=1 "$(BIN)/mkdocs" build --strict
	"$(BIN)/python" -m pytest tests/test_docs.py

dist: install ## build wheel, sdist and bill of materials (SBOM) into dist/ and check them
	rm -rf dist
	"$(BIN)/python" -m build --no-isolation --outdir dist .
	"$(BIN)/python" tests/distribution.py dist
	@test -x .venv-sbom/bin/cyclonedx-py || { $(PYTHON) -m venv .venv-sbom && \
	  .venv-sbom/bin/pip install --quiet --disable-pip-version-check "cyclonedx-bom>=7"; }
	.venv-sbom/bin/cyclonedx-py requirements constraints.txt --pyproject pyproject.toml \
	  --output-reproducible -o dist/labelwise.cdx.json

audit: ## compare the pinned versions with known vulnerabilities (asks the network)
	@test -x .venv-audit/bin/pip-audit || { $(PYTHON) -m venv .venv-audit && \
	  .venv-audit/bin/pip install --quiet --disable-pip-version-check "pip-audit>=2.9"; }
	.venv-audit/bin/pip-audit --no-deps --disable-pip -r constraints.txt

# Hashes are those of every platform's files, of the packages that the image needs: the base and the server.
HASH := .venv-hashes/bin/uv pip compile --quiet -c constraints.txt --python-version 3.11 --python-platform aarch64-manylinux_2_28 \
  --generate-hashes --no-build --no-header --no-annotate
hashes: ## write the hashes that the server's image holds its packages to (asks the network)
	@test -x .venv-hashes/bin/uv || { $(PYTHON) -m venv .venv-hashes && \
	  .venv-hashes/bin/pip install --quiet --disable-pip-version-check "uv>=0.9"; }
	mkdir -p deploy/hashes
	$(HASH) --extra serve pyproject.toml -o deploy/hashes/server.txt
	echo hatchling | $(HASH) - -o deploy/hashes/build.txt

clean: ## remove .venv and caches (runs/ stays)
	rm -rf "$(VENV)" .venv-audit .venv-hashes .venv-sbom .venv-schema .mypy_cache .ruff_cache .pytest_cache .hypothesis
