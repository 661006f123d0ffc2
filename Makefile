# `make` lists the targets. PYTHON, STUDY, ARGS and PIP_ARGS can be set on the command line:
#   make bench STUDY=smoke ARGS='sampling.temperature=0'
#   make test ARGS='tests/exact -x'
#   make tiny WEIGHTS=DIR ARGS='steps=50'
#   make tiny SIZE=large
#   make setup PYTHON=python3.12 PIP_ARGS='--index-url <an index of CPU-only torch wheels>'
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
STUDY ?= main
SIZE ?= tiny
WEIGHTS ?= work/$(SIZE)
ARGS ?=
PIP_ARGS ?=

VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed
ROOMS := bench decoders metrics recipes

export PIP_DISABLE_PIP_VERSION_CHECK := 1

# Runs under any Python, also a 2.7 that is called python3 somewhere.
define CHECK_PYTHON
import sys
v = sys.version_info
if v < (3, 11):
    sys.exit("error: lantern-bench needs Python 3.11 or newer, but $(PYTHON) is %d.%d.%d (%s).\n"
             "Install a newer one, or name it: make PYTHON=python3.12 ..." % (v[0], v[1], v[2], sys.executable))
try:
    import ensurepip, venv
except ImportError:
    sys.exit("error: %s cannot create virtual environments (no module ensurepip or venv).\n"
             "On Debian and Ubuntu: apt-get install python%d.%d-venv; or name another Python: "
             "make PYTHON=python3.12 ..." % (sys.executable, v[0], v[1]))
endef
export CHECK_PYTHON

.PHONY: help setup bench report gpu-check tiny test test-fast check format clean clean-runs

help: ## list the targets
	@echo "usage: make TARGET [STUDY=main] [ARGS='...'] [PYTHON=python3]"; echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## create .venv and install everything (the other targets do it when needed)

bench: $(STAMP) ## run a study and write its report; STUDY=smoke|main|..., ARGS='hydra.overrides=...'
	$(PY) -m bench run study=$(STUDY) $(ARGS)

report: $(STAMP) ## table, plots and page again from the records of STUDY
	$(PY) -m bench report study=$(STUDY) $(ARGS)

# Without .venv it runs in PYTHON where that has what it needs, and installs nothing.
gpu-check: ## check an NVIDIA card in an hour at most; ARGS='DIR STAGE...' (docs/gpu.md)
	@if [ ! -e $(STAMP) ] && "$(PYTHON)" -c 'import hydra, torch, pyarrow, scipy' 2>/dev/null; then \
	    PYTHON="$(PYTHON)" scripts/gpu_check.sh $(ARGS); \
	else $(MAKE) -s setup && PYTHON=$(PY) scripts/gpu_check.sh $(ARGS); fi

tiny: $(STAMP) ## train the embedded models from nothing into WEIGHTS (three hours on two cores; resumes); SIZE=large: on a GPU
	$(PY) -m bench train recipe=$(SIZE) weights=$(WEIGHTS) $(ARGS)
	$(if $(filter tiny,$(SIZE)),$(PY) -m bench train recipe=clip weights=$(WEIGHTS) $(ARGS))

# Two processes of one thread: the tests' models are tiny, so threads would mostly wait for each other, and for
# long where the cores are taken (hence a passive wait). ARGS='-n 0' for one process, to debug in;
# ARGS='--shuffle 7' for an order of its own, the same whenever 7 is given.
PYTEST = OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} OMP_WAIT_POLICY=$${OMP_WAIT_POLICY:-passive} \
    $(PY) -m pytest -q -n 2 --dist worksteal
# What a change is likely to break: imports, settings, bad inputs, rules, drafts and loops on small models, figures, and
# the codes of every decoder as they are kept in tests/golden.
FAST := tests/test_imports.py tests/edge tests/golden tests/metrics tests/bench/config tests/bench/prompts \
    tests/decoders/verify tests/decoders/propose tests/decoders/loops/test_loops.py tests/decoders/test_contracts.py

test: $(STAMP) ## run the tests and name the 25 slowest; ARGS='tests/exact -x' for some of them
	$(PYTEST) --durations=25 $(ARGS)

test-fast: $(STAMP) ## tell in two minutes whether something is broken: tests that find most for their time
	$(PYTEST) -m 'not codegen and not slow' $(FAST) $(ARGS)

check: $(STAMP) ## lint, formatting and types
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy $(ROOMS)

format: $(STAMP) ## format the code and mend what the linter can
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

clean: ## remove caches and build files (keeps .venv and every result)
	rm -rf build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .coverage htmlcov outputs multirun
	find $(wildcard $(ROOMS) conf tests) -name __pycache__ -type d -prune -exec rm -rf {} +

clean-runs: ## remove results/runs: records, images and reports of this machine
	rm -rf results/runs

$(PY):
	@command -v "$(PYTHON)" >/dev/null || { \
	    echo "error: no '$(PYTHON)' on PATH; Python 3.11 or newer is needed." >&2; \
	    echo "Install it, or name one: make PYTHON=/path/to/python3.12 ..." >&2; exit 1; }
	@"$(PYTHON)" -c "$$CHECK_PYTHON"
	"$(PYTHON)" -m venv $(VENV)

# The stamp comes last: an interrupted installation is taken up again by the next make.
$(STAMP): pyproject.toml constraints.txt | $(PY)
	@$(PY) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "error: $(VENV) does not work, or its Python is older than 3.11 ($$($(PY) --version 2>&1))." >&2; \
	    echo "Remove the folder $(VENV) and run make again." >&2; exit 1; }
	@echo "installing into $(VENV) (a few minutes and up to 7 GB the first time, where torch comes with CUDA)"
	@$(PY) -m pip install -q $(PIP_ARGS) -c constraints.txt torch torchvision -e '.[dev]' || { \
	    echo "error: the installation failed, see above; nothing outside $(VENV) was changed." >&2; \
	    echo "Without a network, point pip at your wheels: make setup PIP_ARGS='--no-index --find-links DIR'" >&2; exit 1; }
	@touch $@
