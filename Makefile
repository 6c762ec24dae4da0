# Every target sets up the virtual environment .venv itself: the demo installs only the package, the others
# also the development tools (the extra `dev` of pyproject.toml).
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install -q --disable-pip-version-check
EXAMPLES := 40
# Tests start hundreds of processes: let Python keep compiled modules, whatever the environment says.
unexport PYTHONDONTWRITEBYTECODE
# Many tests wait: a few more processes than cores keep the cores busy.
CORES := $(shell getconf _NPROCESSORS_ONLN)
PYTEST := $(BIN)/python -m tools.run_tests -q --dist worksteal
SOAK_MINUTES ?= 60
PEERS := .venv-peers

.DEFAULT_GOAL := help
.PHONY: help demo test browser screenshots dashboard lint docs bench soak conformance conformance-% clean

help: ## list the targets
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

$(VENV)/.ready: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "holdfast needs Python 3.11 or newer: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -m venv $(VENV) 2>/dev/null || $(PYTHON) -m virtualenv -q $(VENV) 2>/dev/null \
	  || { echo "no venv module here: install python3-venv, or 'pip install virtualenv', then call make again"; exit 1; }
	@$(PIP) -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.ready
	@$(PIP) -e '.[dev]'
	@touch $@

demo: $(VENV)/.ready ## watch a video pipeline survive a killed worker; needs no server and no setup
	@$(BIN)/holdfast demo

test: $(VENV)/.dev ## run all tests, and the conformance suite on every engine
	@failed=0; $(PYTEST) -n $$(( $(CORES) + 3 )) || failed=1; \
	  $(MAKE) --no-print-directory conformance || failed=1; exit $$failed

SUITE := $(PYTEST) -n $(CORES) --pyargs holdfast.conformance
ENGINES := files postgres redis

conformance: $(VENV)/.dev ## run the conformance suite on every engine
	@$(MAKE) --no-print-directory --keep-going --jobs --output-sync=target $(ENGINES:%=conformance-%)

conformance-files: $(VENV)/.dev
	@$(SUITE) --engine memory: --engine file:checkpoint.json --engine sqlite:///conformance.db --examples $(EXAMPLES)

conformance-postgres: $(VENV)/.dev
	@$(BIN)/python -m tests.support.postgres_server $(SUITE) --engine {url} --examples $$(( $(EXAMPLES) / 6 ))

conformance-postgres-system: $(VENV)/.dev
	@$(BIN)/python -m tests.support.postgres_server --system $(SUITE) --engine {url} --examples 2

conformance-redis: $(VENV)/.dev
	@$(BIN)/python -m tests.support.redis_server $(SUITE) --engine {url} --examples $(EXAMPLES)

lint: $(VENV)/.dev ## check style and types
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

docs: $(VENV)/.dev ## regenerate the docs pages that are made from code
	@$(BIN)/python -m tools.docs_pages

dashboard: $(VENV)/.dev ## build the dashboard from its sources (needs Node; the result is committed)
	@$(BIN)/python -m tools.dashboard

browser: $(VENV)/.dev ## test the dashboard in a real browser, where Chromium or Chrome is installed
	@$(BIN)/python -m tools.dashboard --check
	@$(PYTEST) -n 2 tests/browser

screenshots: $(VENV)/.dev ## take pictures of every page of the dashboard, in both themes
	@$(BIN)/python -m tests.browser.screenshots

bench: $(VENV)/.dev ## measure speed, as ratios to the raw store and to peers in the same run
	@$(BIN)/python benchmarks/spine.py
	@$(BIN)/python benchmarks/isolation.py
	@$(BIN)/python benchmarks/parked.py
	@$(BIN)/python benchmarks/over_http.py
	@$(BIN)/python benchmarks/pruning.py sqlite:///jobs.db
	@$(BIN)/python benchmarks/known_types.py sqlite:///jobs.db
	@$(BIN)/python benchmarks/status.py sqlite:///jobs.db
	@if [ -n "$$HOLDFAST_TEST_BROWSER" ] || command -v chromium google-chrome >/dev/null; then \
	  failed=0; $(BIN)/python benchmarks/dashboard.py sqlite:///jobs.db || failed=1; \
	  $(BIN)/python -m tests.support.postgres_server --safe $(BIN)/python benchmarks/dashboard.py {url} || failed=1; \
	  exit $$failed; else echo "no browser: the dashboard was not measured"; fi
	@$(BIN)/python benchmarks/replays.py
	@$(BIN)/python benchmarks/telemetry.py
	@$(BIN)/python benchmarks/followers.py sqlite:///jobs.db
	@$(BIN)/python benchmarks/search.py sqlite:///jobs.db
	@$(BIN)/python -m tests.support.postgres_server --safe $(BIN)/python benchmarks/search.py {url}
	@for program in 'shared_limits.py {}' 'shared_limits.py {} --steps 2000' 'unique.py {}' 'fairness.py {}' \
	  'schedules.py {}'; do for server in '' '-m tests.support.postgres_server --safe' '-m tests.support.redis_server'; do \
	  if [ -z "$$server" ]; then $(BIN)/python benchmarks/$${program/'{}'/sqlite:///jobs.db}; \
	  else $(BIN)/python $$server $(BIN)/python benchmarks/$${program/'{}'/'{url}'}; fi; done; done
	@test -x $(PEERS)/bin/python || $(PYTHON) -m venv $(PEERS)
	@if $(PEERS)/bin/python -m pip install -q --disable-pip-version-check huey==3.5.4 pgqueuer==1.6.0 asyncpg \
	  'dramatiq[redis]==2.2.1' hiredis; then peers="--peers $(PEERS)/bin/python"; else echo "measured without peers"; fi; \
	  failed=0; $(BIN)/python benchmarks/submit.py sqlite:///jobs.db $$peers || failed=1; \
	  $(BIN)/python -m tests.support.postgres_server --safe $(BIN)/python benchmarks/submit.py {url} $$peers || failed=1; \
	  $(BIN)/python -m tests.support.redis_server $(BIN)/python benchmarks/submit.py {url} $$peers || failed=1; exit $$failed
	@if $(PEERS)/bin/python -m pip install -q --disable-pip-version-check dbos==3.4.0 celery==5.7.0; then \
	  peers="--peers $(PEERS)/bin/python"; else echo "measured without peers"; fi; \
	  $(BIN)/python benchmarks/rates.py sqlite:///jobs.db $$peers
	@if $(PEERS)/bin/python -m pip install -q --disable-pip-version-check dbos==3.4.0 'celery[redis]==5.7.0'; then \
	  peers="--peers $(PEERS)/bin/python"; else echo "measured without peers"; fi; \
	  failed=0; $(BIN)/python benchmarks/flows.py sqlite:///jobs.db $$peers || failed=1; \
	  $(BIN)/python -m tests.support.redis_server $(BIN)/python benchmarks/flows.py {url} $$peers || failed=1; \
	  $(BIN)/python -m tests.support.postgres_server --safe $(BIN)/python benchmarks/flows.py {url} || failed=1; exit $$failed
	@$(BIN)/python benchmarks/blobs.py
	@$(BIN)/python -m tests.support.postgres_server --safe $(BIN)/python benchmarks/pruning.py {url}
	@$(BIN)/python -m tests.support.postgres_server --safe $(BIN)/python benchmarks/known_types.py {url}
	@$(BIN)/python -m tests.support.postgres_server --safe $(BIN)/python benchmarks/status.py {url}
	@$(BIN)/python -m tests.support.redis_server $(BIN)/python benchmarks/pruning.py {url}
	@$(BIN)/python -m tests.support.redis_server $(BIN)/python benchmarks/known_types.py {url}
	@if $(PEERS)/bin/python -m pip install -q --disable-pip-version-check dbos==3.4.0 huey==3.5.4; then \
	  $(BIN)/python benchmarks/running.py --peers $(PEERS)/bin/python; \
	else \
	  echo "DBOS and huey can't be installed here: measured without them"; $(BIN)/python benchmarks/running.py; \
	fi
	@if $(PEERS)/bin/python -m pip install -q --disable-pip-version-check dbos==3.4.0 pgqueuer==1.6.0 asyncpg \
	  procrastinate==3.10.0; then peers="--peers $(PEERS)/bin/python"; else echo "measured without peers"; fi; \
	  $(BIN)/python -m tests.support.postgres_server --safe $(BIN)/python benchmarks/postgres.py {url} --million --long $$peers
	@if $(PEERS)/bin/python -m pip install -q --disable-pip-version-check taskiq==0.13.0 taskiq-redis==1.2.4 \
	  saq==0.26.4 'dramatiq[redis]==2.2.1' huey==3.5.4 hiredis; then peers="--peers $(PEERS)/bin/python"; \
	  else echo "measured without peers"; fi; \
	  $(BIN)/python -m tests.support.redis_server $(BIN)/python benchmarks/redis_engine.py {url} $$peers

soak: $(VENV)/.dev ## run the long tests: kills, random acts, a million jobs, then simulations for SOAK_MINUTES (60; 0: forever)
	@HOLDFAST_KILLS=200 $(PYTEST) -n $$(( $(CORES) + 4 )) --soak
	@$(MAKE) --no-print-directory conformance conformance-postgres-system EXAMPLES=2000
	@$(BIN)/python benchmarks/spine.py --million
	@$(BIN)/python -m tests.simulation --soak $(SOAK_MINUTES)

clean: ## remove everything that make created
	@rm -rf $(VENV) $(PEERS) .pytest_cache .mypy_cache .ruff_cache .hypothesis
