# Duetime's commands. `make run` needs Python 3.11+ and make; nothing else.

SHELL := /bin/sh
.DEFAULT_GOAL := help
ARGS ?=
# The size of the heavy tests: 1 on a laptop, more in test-full.
FULL_SCALE ?= 10
# Histories that `make faults` simulates; `make test` runs 500.
SEEDS ?= 100000
# How long `make soak` takes.
MINUTES ?= 10
# Processes that run tests side by side; 0 runs them in one, for a debugger.
JOBS ?= auto

# The version of Spark that the tests run on: 4.0 is the oldest that works; empty, the one of the lock.
SPARK ?=

VENV := .venv$(SPARK:%=-spark-%)
BENCH_VENV := .venv-bench
AIRFLOW_VENV := .venv-airflow
DOCS_VENV := .venv-docs
RELEASE_VENV := .venv-release
BIN := $(VENV)/bin
# What decides which JavaScript of others is installed with the project.
ASSETS := tools/console_assets.py tools/npm/package-lock.json
PYTEST := $(BIN)/python -m pytest -n $(JOBS) --dist loadscope --durations 10

# Another active environment must not leak into ours.
unexport VIRTUAL_ENV PYTHONPATH PYTHONHOME

# The parts of `make check`. Each takes one core: `make -j2 check` runs two at a time.
CHECKS := check-files check-types check-imports

.PHONY: help run setup setup-dev setup-bench test test-full check $(CHECKS) quick format faults soak mutants pipeline screenshots docs bench lock release-check lint-tools audit-dependencies clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

run: setup ## Start a server on this machine: make run ARGS="--port 8080"
	@exec $(BIN)/duetime serve --dev $(ARGS)

setup: $(VENV)/.stamp-run ## Create .venv with what the server needs

setup-dev: $(VENV)/.stamp-dev ## Add the test, bench and Spark dependencies and the services the tests use
	@tools/services
	@$(MAKE) --no-print-directory $(VENV)/jars/.stamp $(AIRFLOW_VENV)/.stamp

setup-bench: $(BENCH_VENV)/.stamp ## Create .venv-bench with the peers of the benchmarks

$(VENV)/.stamp-run: requirements/run.lock requirements/installer.lock pyproject.toml tools/venv $(ASSETS)
	@tools/venv $(VENV) requirements/run.lock --editable
	@touch $@

# The dev lock holds every pin of the run lock, so it satisfies `make setup` as well.
$(VENV)/.stamp-dev: requirements/dev.lock requirements/run.lock requirements/installer.lock pyproject.toml tools/venv $(ASSETS)
	@tools/venv $(VENV) requirements/dev.lock --editable
ifneq ($(SPARK),)
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --require-hashes -r requirements/spark-$(SPARK).lock
endif
	@touch $(VENV)/.stamp-run $@

$(BENCH_VENV)/.stamp: requirements/bench.lock requirements/installer.lock tools/venv
	@tools/venv $(BENCH_VENV) requirements/bench.lock
	@touch $@

$(AIRFLOW_VENV)/.stamp: requirements/airflow.lock requirements/installer.lock tools/venv
	@tools/venv $(AIRFLOW_VENV) requirements/airflow.lock --editable
	@touch $@

$(DOCS_VENV)/.stamp: requirements/docs.lock requirements/installer.lock tools/venv
	@tools/venv $(DOCS_VENV) requirements/docs.lock
	@touch $@

$(RELEASE_VENV)/.stamp: requirements/release.lock requirements/installer.lock tools/venv
	@tools/venv $(RELEASE_VENV) requirements/release.lock
	@touch $@

$(VENV)/jars/.stamp: tools/jars/pom.xml tools/jars/fetch
	@tools/jars/fetch $(CURDIR)/$(VENV)/jars
	@touch $@

test: setup-dev ## Run the tests of the short lane: make test ARGS="-k reserve"; make test SPARK=4.0 ARGS=tests/spark
	$(PYTEST) $(ARGS)

test-full: setup-dev setup-bench ## Run every test on every store, at full size
	DUETIME_TEST_SCALE=$(FULL_SCALE) $(PYTEST) --full --timeout 900 $(ARGS)

check: $(CHECKS) ## Check format, lint, types and import rules

check-files: $(VENV)/.stamp-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/python tools/blocking_client.py --check
	$(BIN)/python tools/sdk_reference.py --check
	$(BIN)/python tools/http_reference.py --check

check-types: $(VENV)/.stamp-dev
	$(BIN)/pyright

check-imports: $(VENV)/.stamp-dev
	$(BIN)/lint-imports

quick: check ## The same, and on memory and SQLite the unit and contract tests and Django's own
	$(PYTEST) --stores memory,sqlite tests/unit tests/contract tests/frameworks/test_django_suite.py $(ARGS)

format: $(VENV)/.stamp-dev ## Generate the blocking client and the reference pages, format the code and apply the safe fixes
	$(BIN)/python tools/blocking_client.py
	$(BIN)/python tools/sdk_reference.py
	$(BIN)/python tools/http_reference.py
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# One failing part does not stop the other one.
faults: setup-dev ## Break everything under load on every store and check the guarantees: make faults ARGS="--stores redis"
	@bad=0; $(BIN)/python -m tests.faults.blackbox $(ARGS) || bad=1; \
	DUETIME_SIM_SEEDS=$(SEEDS) $(PYTEST) -q tests/simulation || bad=1; exit $$bad

soak: setup-dev ## Load and faults for a long time; nothing may grow: make soak MINUTES=10 ARGS="--stores redis"
	$(BIN)/python -m tests.faults.blackbox.soak --minutes $(MINUTES) $(ARGS)

mutants: $(VENV)/.stamp-dev ## Plant faults in the code and see that the simulation finds them: make mutants ARGS="--only fence"
	$(BIN)/python -m tests.simulation.mutants $(ARGS)

pipeline: setup-dev ## Tell the pipelines' story: make pipeline ARGS="--rows 10000"
	@exec $(BIN)/duetime pipeline demo $(ARGS)

screenshots: setup-dev ## Take pictures of every page of the console into docs/img
	$(BIN)/python tools/screenshots.py

bench: setup-dev setup-bench ## Run a benchmark: make bench ARGS=sqlite
	$(BIN)/python -m bench $(ARGS)

# One resolution for Python 3.11 and newer, hashes of every file, and no address in the output.
COMPILE := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --no-emit-find-links --custom-compile-command "make lock"

docs: $(DOCS_VENV)/.stamp ## Build the documentation site into build/site: make docs ARGS="site 0.1.0" for a folder and a version
	$(DOCS_VENV)/bin/python tools/docs_site.py $(ARGS)

release-check: $(RELEASE_VENV)/.stamp ## Build, install and try a release, short of publishing: make release-check ARGS="--tag v0.1.0"
	$(RELEASE_VENV)/bin/python tools/release_check.py $(ARGS)

# All extras but airflow, which brings a hundred packages of its own and lives in an environment of its own.
EXTRAS := server redis postgres mysql spark spark-connect otel ship openlineage encrypted mcp test dev

# Programs in Go that lint what is deployed; tests use them if they are there.
GO_TOOLS := github.com/rhysd/actionlint/cmd/actionlint@v1.7.12 helm.sh/helm/v3/cmd/helm@v3.22.0

lint-tools: ## Build actionlint and helm into .venv/go, for the tests of the workflows and the chart (needs Go)
	@for tool in $(GO_TOOLS); do GOBIN=$(CURDIR)/$(VENV)/go go install -ldflags="-s -w" $$tool || exit 1; done

# In an environment of its own. --strict: a package that cannot be looked up is an error, not a pass.
audit-dependencies: ## Check every locked package for known vulnerabilities (needs pipx and pypi.org itself)
	@for lock in requirements/*.lock; do echo "$$lock"; \
	pipx run pip-audit==2.10.1 --strict --disable-pip --require-hashes --progress-spinner off -r $$lock || exit 1; done

lock: $(VENV)/.stamp-dev ## Renew the lock files: make lock ARGS=--upgrade
	$(COMPILE) $(ARGS) pyproject.toml $(EXTRAS:%=--extra %) --group build --group docs -o requirements/dev.lock
	$(COMPILE) $(ARGS) pyproject.toml --extra server --extra redis --extra postgres --extra mysql --group build -c requirements/dev.lock -o requirements/run.lock
	$(COMPILE) $(ARGS) --group docs -c requirements/dev.lock -o requirements/docs.lock
	$(COMPILE) $(ARGS) --group release -c requirements/dev.lock -o requirements/release.lock
	$(COMPILE) $(ARGS) requirements/installer.in -c requirements/dev.lock -o requirements/installer.lock
	$(COMPILE) $(ARGS) requirements/bench.in -o requirements/bench.lock
	echo 'pyspark==4.0.*' | $(COMPILE) $(ARGS) - -o requirements/spark-4.0.lock
	$(COMPILE) $(ARGS) pyproject.toml --extra airflow --group build -o requirements/airflow.lock

clean: ## Remove environments, caches and builds (never data or journals)
	rm -rf .venv .venv-spark-* .venv-bench .venv-airflow .venv-docs .venv-release build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests bench -name __pycache__ -type d -prune -exec rm -rf {} +
