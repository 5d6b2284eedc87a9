# Every command of the project; `make help` lists them. CI calls only these.
SHELL := /bin/bash
.DEFAULT_GOAL := help

PYTHON ?= $(firstword $(shell command -v python3.11 python3) python3)
VENV ?= .venv
RUN_PYTHON := "$(if $(filter /%,$(VENV)),$(VENV),$(CURDIR)/$(VENV))/bin/python"
# The scripts take PYTHON too: theirs is the one of the environment that is set up, not the one that makes it.
RUN_SCRIPT := PYTHON=$(RUN_PYTHON) bash
CONFIG ?= configs/auto.yaml
INPUT ?= data/dac.tar.gz
OUTPUT ?= prepared
DATASET ?= $(OUTPUT)
EPOCHS ?= -
RANK_TABLE_FILE ?= -
RUN ?= device_0
SPLIT ?= test
CHECKPOINT ?=
BUNDLE ?= bundle
SCORES ?= scores.csv
PORT ?= 8000
RANKS ?= 1
ROWS ?= 1000000
SEED ?= 1
NUM_KILLS ?= 100
MINUTES ?= 10
ARGS ?=

# A default that is not there stands for what `make demo` left: $(call or_demo,PATH,VARIABLES that may have named it)
or_demo = $(if $(filter-out file,$(foreach name,$(2),$(origin $(name))))$(wildcard $(1)),,$(if $(wildcard demo/$(1)),demo/))$(1)
DEMO_RUN = $(call or_demo,$(RUN),RUN)

.PHONY: help
help:  ## list every target
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sort | awk -F ':.*## ' '{printf "  make %-18s %s\n", $$1, $$2}'

$(VENV)/.installed: pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || { echo "error: MindSpore 2.10 is set up \
	on Python 3.11 here, $(PYTHON) is $$($(PYTHON) -V 2>&1); install it or give PYTHON=..." >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	# Headers alone: the library is the one that MindSpore ships.
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps onednn-devel==2025.3.0
	touch $@

.PHONY: setup
setup: $(VENV)/.installed  ## make .venv with the pinned packages, and the native parts where there is a compiler
	@if command -v $(CXX) > /dev/null; then $(MAKE) --no-print-directory native; \
	else echo "warning: no C++ compiler ($(CXX)): the native parts are not built and training is slower;" \
	     "install g++ and run 'make native'" >&2; fi

NATIVE_PARTS := data_prep/kernels app/tables/native app/model
.PHONY: native $(NATIVE_PARTS)
native: $(VENV)/.installed  ## build the native parts: log kernels, host tables, dense layer
	@$(MAKE) --no-print-directory -s -j "$$(nproc)" $(NATIVE_PARTS)

$(NATIVE_PARTS):
	@$(MAKE) --no-print-directory -s -C $@/csrc PYTHON=$(RUN_PYTHON) all

.PHONY: native-sanitize
native-sanitize: setup  ## run the tests of all native parts under AddressSanitizer and UBSan
	$(MAKE) -C data_prep/kernels/csrc PYTHON=$(RUN_PYTHON) sanitize
	$(MAKE) -C app/tables/native/csrc PYTHON=$(RUN_PYTHON) sanitize
	$(MAKE) -C app/model/csrc PYTHON=$(RUN_PYTHON) sanitize

.PHONY: synthesize
synthesize: setup  ## make a synthetic log: ROWS=1000000 SEED=1 -> data/synthetic.txt
	mkdir -p data
	$(RUN_PYTHON) -m data_prep synthesize data/synthetic.txt --rows $(ROWS) --seed $(SEED)

.PHONY: pre-check
pre-check: setup  ## check the first rows of a log in seconds: INPUT=data/dac.tar.gz ARGS='--rows 1000000'
	$(RUN_PYTHON) -m data_prep pre-check "$(INPUT)" $(ARGS)

.PHONY: download
download: setup  ## download Criteo's dac.tar.gz into data/, under Criteo's terms, or resume that: ARGS=--accept-terms
	mkdir -p data
	$(RUN_PYTHON) -m data_prep download data $(ARGS)

.PHONY: preprocess
preprocess: setup  ## raw log to MindRecord: INPUT=data/dac.tar.gz OUTPUT=prepared CONFIG=configs/auto.yaml ARGS=
	$(RUN_PYTHON) -m data_prep prepare "$(INPUT)" "$(OUTPUT)" --config "$(CONFIG)" $(ARGS)

.PHONY: inspect
inspect: setup  ## check a prepared folder and show what it holds, or only draw its report again: OUTPUT=prepared ARGS=--report
	$(RUN_PYTHON) -m data_prep inspect "$(OUTPUT)" $(ARGS)

.PHONY: train
train: setup  ## train a new run, or resume the one in device_0: DATASET=prepared EPOCHS=9 CONFIG=... ARGS=section.key=value
	CONFIG="$(CONFIG)" $(RUN_SCRIPT) scripts/run_auto_parallel_train.sh 1 "$(EPOCHS)" "$(DATASET)" \
		"$(RANK_TABLE_FILE)" $(ARGS)

.PHONY: eval
eval: setup  ## evaluate a run's best checkpoint: RUN=device_0 SPLIT=test CHECKPOINT= DATASET= RANKS=1 ARGS=eval.key=value
	$(RUN_PYTHON) -m app evaluate --run "$(DEMO_RUN)" --split "$(SPLIT)" --ranks "$(RANKS)" $(if $(CHECKPOINT),--checkpoint "$(CHECKPOINT)") \
		$(if $(filter command environment,$(firstword $(origin DATASET))),--dataset "$(DATASET)") $(ARGS)

.PHONY: baseline
baseline: setup  ## fit logistic regression, the floor for a model: DATASET=prepared ARGS='--run device_0 --max-rows 1000000'
	$(RUN_PYTHON) -m app baseline "$(call or_demo,$(DATASET),DATASET OUTPUT)" $(ARGS)

.PHONY: export
export: setup  ## write a bundle that scores raw rows without MindSpore: RUN=device_0 BUNDLE=bundle CHECKPOINT= ARGS='rows=float16 --overwrite'
	$(RUN_PYTHON) -m app export "$(or $(CHECKPOINT),$(DEMO_RUN))" "$(BUNDLE)" \
		$(if $(filter command environment,$(firstword $(origin DATASET))),--dataset "$(DATASET)") $(ARGS)

.PHONY: predict
predict: setup  ## score a log by a bundle: BUNDLE=bundle INPUT=data/dac.tar.gz SCORES=scores.csv ARGS='--keep COLUMN --overwrite'
	$(RUN_PYTHON) -m app.cli.predict "$(BUNDLE)" \
		"$(if $(filter-out file,$(origin INPUT))$(wildcard $(INPUT)),$(INPUT),$(or $(wildcard demo/log.txt),$(INPUT)))" "$(SCORES)" $(ARGS)

.PHONY: serve
serve: setup  ## score rows over HTTP by a bundle, or the newest of a folder: BUNDLE=bundle PORT=8000 ARGS='--workers 2'
	$(RUN_PYTHON) -m app.cli.serve "$(BUNDLE)" --port "$(PORT)" $(ARGS)

.PHONY: report
report: setup  ## draw a run, or several over one another: RUN=device_0 ARGS="device_0.1 --output both.html"
	$(RUN_PYTHON) -m app report "$(DEMO_RUN)" $(ARGS)

.PHONY: demo
demo: setup  ## the whole way on a synthetic log, in minutes: DEMO_ROWS=400000 DEMO_EPOCHS=3 -> demo/
	$(RUN_SCRIPT) scripts/run_demo.sh

# Two workers, but one test after another where that starts ranks or kills processes.
ONE_BY_ONE = ranks or kills or parallel or slow
.PHONY: test
test: setup  ## run the tests in ten minutes: all but ranks, kills and whole parallel modes
	$(RUN_PYTHON) -m pytest -n 2 --dist worksteal -m "not ($(ONE_BY_ONE))" $(ARGS)

.PHONY: test-all
test-all: test  ## run all tests
	$(RUN_PYTHON) -m pytest -m "$(ONE_BY_ONE)" $(ARGS)

.PHONY: fuzz
fuzz: setup  ## draw other examples for MINUTES=10; what fails is saved in build/fuzz/ with how to repeat it: ARGS='--seed 1'
	$(RUN_PYTHON) -m tests.fuzz --minutes "$(MINUTES)" $(ARGS)

.PHONY: test-faults
test-faults: setup  ## kill trainings, ranks, servers, preparations and checkpoint commands NUM_KILLS=100 times and resume; write errors, kills and flips in every checkpoint call
	NUM_KILLS=$(NUM_KILLS) $(RUN_PYTHON) -m pytest tests/app/checkpoint/test_checkpoint_faults.py tests/app/training/test_loop.py \
		tests/ranks/test_kills.py tests/data_prep/pipeline/test_restart.py tests/app/cli/test_commands_beside_training.py \
		tests/app/serving/test_life.py tests/faults $(ARGS)

.PHONY: lint
lint: setup  ## ruff and mypy
	$(RUN_PYTHON) -m ruff check .
	$(RUN_PYTHON) -m ruff format --check .
	$(RUN_PYTHON) -m mypy

# The peers are large (PyTorch, FBGEMM) and nothing else needs them, so they are no part of setup.
BENCH_EXTRA = import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["bench"])
$(VENV)/.bench-installed: $(VENV)/.installed
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check $$($(VENV)/bin/python -c '$(BENCH_EXTRA)')
	touch $@

.PHONY: docs
docs: setup  ## write docs/configuration.md from the settings' dataclasses
	$(RUN_PYTHON) -m scripts.configuration_docs > docs/configuration.md.new
	mv docs/configuration.md.new docs/configuration.md

.PHONY: bench
bench: setup $(VENV)/.bench-installed  ## run all benchmarks, write benchmarks/results/ and docs/results.md: ARGS='--quick', '--only train_step'
	$(RUN_PYTHON) -m benchmarks $(ARGS)

.PHONY: bench-distributed
bench-distributed: setup  ## several ranks and servers against one rank, and what they send: ARGS='--quick'
	$(RUN_PYTHON) -m benchmarks.distributed.ranks_and_servers $(ARGS)

.PHONY: clean
clean:  ## remove caches and the demo; data, prepared folders, runs and .venv stay
	rm -rf demo build .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
