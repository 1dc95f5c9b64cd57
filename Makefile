# What people type, and what CI runs. Needs Python 3.11 to 3.14 with venv, and make; everything else is installed into .venv and
# .venv-sam, with the versions and hashes of the lock files.
#
# `make demo` takes PROVIDER=NAME (docs/simulator.md lists them), CONSOLE=1 (opens the fleet in a browser) and DEMO_FLAGS="…" (see .venv/bin/shepherdctl demo --help),
# `make test` takes TEST_FLAGS="…" for pytest, `make chaos` CHAOS_FLAGS="…" (see .venv/bin/python -m tests.chaos --help),
# `make mutants` MUTANTS_FLAGS="--size 130 --seed 1" (see .venv/bin/python -m tests.mutants --help),
# `make invoke` and `make local-invoke` take FUNCTION=migrator|provisioner|initializer|agent_api|recoverer|updater
# (without it: all) and EVENT=FILE for events/FUNCTION.json, `make bench` takes BENCH="PART …" (see .venv/bin/python -m bench --help),
# `make lock` takes LOCK_FLAGS=--upgrade, and PYTHON=… chooses the interpreter.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

SUPPORTED := import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))
PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11; do \
	if $$python -c '$(SUPPORTED)' 2>/dev/null; then echo $$python; break; fi; done)

BIN := .venv/bin
# The SAM command line pins libraries that ours needs in other versions.
SAM := SAM_CLI_TELEMETRY=0 .venv-sam/bin/sam
SAM_CONFIG := --config-file "$(CURDIR)/samconfig.example.toml"
CFN_LINT := .venv-sam/bin/cfn-lint
# Names the environment of the real Ironic to the simulator.
IRONIC := IRONIC_ENVIRONMENT=$(CURDIR)/.venv-ironic
# The checks ask no AWS account; the region only says which rules apply.
REGION := us-east-1
# Quiet enough to show errors and nothing else.
INSTALL := -m pip install -qq --disable-pip-version-check --no-deps

# Where it is set, each of a test run's hundreds of processes would compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE

LAYER := layers/shepherd_core
# The processor that `make build` builds for; the deployment's parameter of that name.
ARCHITECTURE ?= arm64
PROTOC := $(BIN)/python -m grpc_tools.protoc -I shepherd_core/domain/pb=proto \
	shepherd_core/domain/pb/agent.proto shepherd_core/domain/pb/callback.proto
COMPILE := uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header \
	--no-emit-index-url --no-emit-find-links --exclude-newer "7 days" $(LOCK_FLAGS)

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo
demo: .venv/.ready $(if $(filter ironic,$(PROVIDER)),ironic-if-possible) ## watch machines being created, started, broken and repaired
	@$(IRONIC) $(BIN)/shepherdctl demo $(if $(PROVIDER),--provider $(PROVIDER)) $(if $(CONSOLE),--console) $(DEMO_FLAGS)

# The real Ironic takes some 320 MB.
.PHONY: ironic-if-possible
ironic-if-possible:
	@$(MAKE) --no-print-directory .venv-ironic/.ready || echo "Ironic cannot be installed here: a fake takes its place" >&2

.PHONY: screenshots
screenshots: .venv/.ready ## take the pictures of the console in docs/pictures from a simulated fleet (needs chromium)
	@$(BIN)/python .ci/screenshots.py docs/pictures

# Much of a test is waiting, so that there are more processes than processors. A file's tests stay in one of them,
# because they share its database.
WORKERS = $$($(BIN)/python -c 'import os; print(min(4, 1 + (os.cpu_count() or 1)))')
PYTEST = $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder -rfEs
.PHONY: test
test: .venv/.ready .venv-sam/.ready ## run the unit and integration tests
	@$(PYTEST) --ignore tests/integration/chaos $(TEST_FLAGS)

.PHONY: test-changed
test-changed: .venv/.ready .venv-sam/.ready ## run the tests that reach what changed since main (BASE=COMMIT: since then)
	@files=$$($(BIN)/python -m tests.mutants.changed $(BASE) | grep -v ^tests/integration/chaos/); \
		if [ "$$files" ]; then $(PYTEST) $(TEST_FLAGS) $$files; else echo "no test reaches what changed" >&2; fi

.PHONY: fresh
fresh: ## run the README's commands on a bare Debian (RELEASE=bookworm or trixie: that one; needs root and debootstrap)
	@.ci/fresh

.PHONY: acceptance
acceptance: .venv/.ready .venv-sam/.ready ## test whole environments (builds, demos, the emulator, a browser), and a sample of make chaos
	@$(PYTEST) tests/acceptance tests/integration/chaos $(TEST_FLAGS)

.PHONY: test-ironic
test-ironic: .venv/.ready .venv-ironic/.ready ## run the tests of the provider ironic against the real service
	@$(IRONIC) $(BIN)/python -m pytest --numprocesses 2 $(TEST_FLAGS) tests/integration/providers/contract/test_ironic.py
	@$(IRONIC) $(BIN)/python -m pytest $(TEST_FLAGS) tests/acceptance/test_demo.py -k ironic  # its demo runs in real time: alone

# The emulator runs functions with its own Python. A build folder is deleted first, so the cache is elsewhere.
.PHONY: deploy-local
deploy-local: .venv/.ready .venv-sam/.ready .venv-emulator/.ready ## deploy into an emulator of AWS, with simulated machines, and try what comes of it
	@$(call build-for-here,build/deployed,MAKEFLAGS="VERSION=$$(.venv-emulator/bin/python -c \
		'import sys; print("%d.%d" % sys.version_info[:2])')")
	@$(BIN)/python -m pytest -rfEs $(TEST_FLAGS) tests/deployed

.PHONY: chaos
chaos: .venv/.ready ## kill and interleave invocations at each external side effect, and check the promises
	@$(BIN)/python -m tests.chaos $(CHAOS_FLAGS)

.PHONY: mutants
mutants: .venv/.ready ## change the core in small ways, one at a time, and see whether the tests notice
	@$(BIN)/python -m tests.mutants $(MUTANTS_FLAGS)

# Everything but the processor is as `sam build` does it; the layer is installed by a Python that is sure to have pip.
.PHONY: build
build: .venv-sam/.ready ## build what `sam deploy` deploys (ARCHITECTURE=arm64 or x86_64)
	@$(if $(filter arm64 x86_64,$(ARCHITECTURE)),,echo "ARCHITECTURE is arm64 or x86_64, not $(ARCHITECTURE)" >&2; exit 1)
	@PYTHON="$(CURDIR)/.venv-sam/bin/python" $(SAM) build $(SAM_CONFIG) --parameter-overrides Architecture=$(ARCHITECTURE)
	@.venv-sam/bin/python -c 'import pathlib; [print("%s: %.1f MB unzipped" % (part.name, \
		sum(f.stat().st_size for f in part.rglob("*") if f.is_file()) / 1e6)) \
		for part in sorted(pathlib.Path(".aws-sam/build").glob("*Layer*"))]'

# Of what is committed, so that the same commit makes the same bytes.
.PHONY: release
release: .venv/.ready .venv-sam/.ready .venv-release/.ready ## build what is released, of the last commit, in build/release
	@rm -rf build/release build/source && mkdir -p build/release build/source
	@git archive HEAD | tar -x -C build/source && chmod -R u=rwX,go=rX build/source
	@ln -s ../../.venv-sam build/source/.venv-sam
	@$(MAKE) --silent -C build/source -o .venv-sam/.ready build >build/release.log 2>&1 || { cat build/release.log >&2; exit 1; }
	@cp -a build/source/.aws-sam/build build/source/shepherdctl/deployment/built
	@$(BIN)/python -m shepherdctl.deployment.template build/source/shepherdctl/deployment/built
	@SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(BIN)/python -m pip wheel -qq --disable-pip-version-check --no-deps \
		--no-build-isolation --wheel-dir build/release build/source
	@$(BIN)/python -c 'from shepherd_core.adapters.agent_file import our_agent; from sys import stdout; \
		stdout.buffer.write(our_agent().open().read())' >build/release/shepherd-agent
	@.venv-release/bin/cyclonedx-py requirements --output-reproducible --pyproject build/source/pyproject.toml \
		--output-file build/release/sbom.json build/source/$(LAYER)/requirements.txt 2>build/release.log || { cat build/release.log >&2; exit 1; }
	@cp templates/people.yaml templates/database.yaml build/release
	@cd build/release && sha256sum -- * >SHA256SUMS && cat SHA256SUMS

INVOCATION := $(FUNCTION) $(if $(EVENT),--event $(EVENT))

.PHONY: invoke
invoke: .venv/.ready .venv-sam/.ready ## run the real functions in a simulated environment, without Docker
	@$(BIN)/python -m simulator $(INVOCATION)

# In a folder of its own: what waits there to be deployed may be for another processor.
LOCAL := build/sam

.PHONY: local-invoke
local-invoke: .venv/.ready .venv-sam/.ready ## the same in containers, with `sam build` and `sam local invoke`
	@$(BIN)/python -m simulator.lambda_.sam_local
	@$(call build-for-here,$(LOCAL))
	@$(BIN)/python -m simulator --sam $(LOCAL) $(INVOCATION)

define build-for-here
mkdir -p build; PYTHON="$(CURDIR)/.venv-sam/bin/python" $(2) $(SAM) build $(SAM_CONFIG) \
	--build-dir $(1) --cache-dir $(1)-cache \
	--parameter-overrides Architecture=$(patsubst aarch64,arm64,$(shell uname -m)) >$(1).log 2>&1 || { cat $(1).log >&2; exit 1; }
endef

.PHONY: check
check: check-code check-proto check-template check-docs site ## run every check that is not a test

.PHONY: check-code
check-code: .venv/.ready
	@$(BIN)/ruff check --quiet
	@$(BIN)/ruff format --check --quiet
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache --no-logo
	@git log -20 --format=%s 2>/dev/null | awk 'length > 72 || !/^[^:]+: [a-z].*[^.]$$/ || /^[^:]+: (an?|the|what|who|no|it|there) / \
		{ print "a commit\47s subject must be \"area: verb what\", of 72 characters at most: " $$0; bad = 1 } END { exit bad }'

# Generated again, the code for the wire contract must be what is in the repository.
.PHONY: check-proto
check-proto: .venv/.ready
	@mkdir -p build && rm -rf build/proto && mkdir build/proto
	@$(PROTOC) --python_out=build/proto --pyi_out=build/proto
	@for file in build/proto/shepherd_core/domain/pb/*; do diff -u "$(LAYER)/$${file#build/proto/}" "$$file" || \
		{ echo "proto/ and the generated code differ: run make proto" >&2; exit 1; }; done

.PHONY: check-template
check-template: .venv-sam/.ready
	@$(SAM) validate $(SAM_CONFIG) --lint --region $(REGION)
	@mkdir -p build/expanded && .venv-sam/bin/python .ci/transform.py >build/expanded/template.yaml
	@for file in templates/*.yaml; do \
		.venv-sam/bin/python .ci/transform.py --expand $$file >build/expanded/$${file##*/} || exit 1; done
	@$(CFN_LINT) --regions $(REGION) -- template.yaml templates/*.yaml build/expanded/*.yaml

.PHONY: check-docs
check-docs: .venv/.ready
	@$(if $(wildcard tests/unit/test_docs*.py),$(BIN)/python -m pytest $(wildcard tests/unit/test_docs*.py))

# A link that leads nowhere fails it.
.PHONY: site
site: .venv-site/.ready ## build the documentation as a site, in build/site
	@.venv-site/bin/python .ci/site.py
	@.venv-site/bin/zensical build --clean --strict >build/site.log 2>&1 || { cat build/site.log >&2; exit 1; }

.PHONY: bench
bench: .venv/.ready .venv-bench/.ready ## measure everything, side by side (BENCH="claims heartbeats": parts of it)
	@$(BIN)/python -m bench $(BENCH)

.PHONY: bench-coldstart
bench-coldstart: .venv/.ready ## compare each function's cold start with that of its libraries alone
	@$(BIN)/python bench/coldstart.py

.PHONY: cost
cost: .venv/.ready ## compute what a month on AWS costs
	@$(BIN)/python -m simulator.cost

.PHONY: format
format: .venv/.ready ## format the code, and repair what the linter can
	@$(BIN)/ruff check --fix --quiet
	@$(BIN)/ruff format --quiet

.PHONY: settings
settings: .venv/.ready ## write the table of settings in docs/settings.md again
	@$(BIN)/python -m shepherdctl.descriptions.settings_table docs/settings.md

.PHONY: cli-page
cli-page: .venv/.ready ## write docs/cli.md again: all commands, and what they print
	@WRITE_PAGE=1 $(BIN)/python -m pytest -q -n 0 tests/integration/cli/test_page.py

.PHONY: stable
stable: .venv/.ready ## add what is new to what is promised, in tests/data/stable.txt
	@WRITE_STABLE=1 $(BIN)/python -m pytest -q -n 0 tests/unit/test_stable.py

.PHONY: stacks
stacks: .venv/.ready .venv-sam/.ready ## write what CloudFormation makes of template.yaml, in tests/data/stacks, to be read
	@WRITE_STACKS=1 $(BIN)/python -m pytest -q -n 0 tests/integration/deployment/test_template.py -k what_was_read

.PHONY: incident-picture
incident-picture: .venv/.ready ## draw docs/pictures/incident.svg from what the commands of docs/how-to/rack.md print
	@WRITE_PICTURE=1 $(BIN)/python -m pytest -q -n 0 tests/integration/cli/fleet/test_incidents.py -k "what_it_shows and rack"

.PHONY: proto
proto: .venv/.ready ## generate the code for the wire contract from proto/
	@$(PROTOC) --python_out=$(LAYER) --pyi_out=$(LAYER)

# The layer gets no version that the tests did not run with.
.PHONY: lock
lock: ## pin the versions for requirements/*.in that are at least a week old (needs uv and npm)
	@$(COMPILE) --output-file requirements/dev.txt requirements/dev.in
	@$(COMPILE) --constraint requirements/dev.txt --output-file $(LAYER)/requirements.txt $(LAYER)/requirements.in
	@$(COMPILE) --output-file requirements/sam.txt requirements/sam.in
	@$(COMPILE) --output-file requirements/site.txt requirements/site.in
	@$(COMPILE) --output-file requirements/release.txt requirements/release.in
	@$(COMPILE) --output-file requirements/bench.txt requirements/bench.in
	@$(COMPILE) --output-file requirements/ironic.txt requirements/ironic.in
	@$(COMPILE) --output-file requirements/emulator.txt requirements/emulator.in
	@$(COMPILE) --output-file $(LAYER)/bytecode/requirements.txt $(LAYER)/bytecode/requirements.in
	@cd $(LAYER)/bytecode && npm install --package-lock-only --omit-lockfile-registry-resolved --ignore-scripts \
		--before="$$(node -p 'new Date(Date.now() - 7 * 86400000).toISOString()')" --no-audit --no-fund --silent

.PHONY: clean
clean: ## remove environments, caches and build output
	@rm -rf .venv .venv-sam .venv-site .venv-release .venv-bench .venv-ironic .aws-sam build *.egg-info .hypothesis .*_cache
	@find . -name __pycache__ -prune -exec rm -rf {} +

# The lock files are complete, so that pip has nothing to resolve.
.venv/.libraries: requirements/dev.txt
	@$(call make-environment,.venv,requirements/dev.txt)
	@touch $@

# The version is in the agent.
.venv/.ready: .venv/.libraries pyproject.toml agent/shepherd_agent/__init__.py
	@$(BIN)/python $(INSTALL) --no-build-isolation --editable .
	@touch $@

.venv-sam/.ready: requirements/sam.txt
	@$(call make-environment,.venv-sam,requirements/sam.txt)
	@touch $@

.venv-site/.ready: requirements/site.txt
	@$(call make-environment,.venv-site,requirements/site.txt)
	@touch $@

.venv-release/.ready: requirements/release.txt
	@$(call make-environment,.venv-release,requirements/release.txt)
	@touch $@

.venv-bench/.ready: requirements/bench.txt
	@$(call make-environment,.venv-bench,requirements/bench.txt)
	@touch $@

.venv-ironic/.ready: requirements/ironic.txt
	@$(call make-environment,.venv-ironic,requirements/ironic.txt)
	@touch $@

.venv-emulator/.ready: requirements/emulator.txt
	@$(call make-environment,.venv-emulator,requirements/emulator.txt)
	@touch $@

define make-environment
if [ -z "$(PYTHON)" ]; then \
	echo "Shepherd needs Python 3.11 to 3.14 with its venv module (Debian: python3-venv), and finds none as python3," \
		"python3.14, python3.13, python3.12 or python3.11. Name one: make PYTHON=/path/to/python3.14" >&2; \
	exit 1; \
fi; \
echo "installing $(2) into $(1)" >&2; \
$(PYTHON) -m venv $(1) && $(1)/bin/python $(INSTALL) --only-binary :all: --require-hashes --requirement $(2)
endef
