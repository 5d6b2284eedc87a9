# Every command of the project; `make help` lists them. CI calls only these.
SHELL := /bin/bash
.DEFAULT_GOAL := help

PYTHON ?= $(firstword $(shell command -v python3.11 python3) python3)
VENV ?= .venv
RUN_PYTHON := "$(if $(filter /%,$(VENV)),$(VENV),$(CURDIR)/$(VENV))/bin/python"
# Scripts also read PYTHON. They get the Python of the environment, not the one that creates the environment.
RUN_SCRIPT := PYTHON=$(RUN_PYTHON) bash
CONFIG ?= configs/auto.yaml
INPUT ?= data/dac.tar.gz
OUTPUT ?= prepared
DATA ?= my.yaml
DATASET ?= $(OUTPUT)
EPOCHS ?= -
RANK_TABLE_FILE ?= -
RUN ?= device_0
SPLIT ?= test
CHECKPOINT ?=
BUNDLE ?= bundle
SCORES ?= scores.csv
PORT ?= 8000
PARTS ?= parts
SERVE ?= bundles
RANKS ?= 1
ROWS ?= 1000000
SEED ?= 1
NUM_KILLS ?= 100
MINUTES ?= 10
DOORS ?= all
ARGS ?=

# $(call or_demo,PATH,VARIABLES) is PATH, or demo/PATH (from `make demo`) if the user set none of VARIABLES and PATH is missing.
or_demo = $(if $(filter-out file,$(foreach name,$(2),$(origin $(name))))$(wildcard $(1)),,$(if $(wildcard demo/$(1)),demo/))$(1)
DEMO_RUN = $(call or_demo,$(RUN),RUN)

.PHONY: help
help:
	@echo "NAME=VALUE replaces the value that is shown. ARGS adds options to the command."
	@awk -F ':.*## ' '/^##@/ {group = substr($$0, 5)} \
		/^[a-z-]+:.*## / {printf "%-8s make %-16s %s\n", group, $$1, $$2; group = ""}' $(MAKEFILE_LIST)

##@ start

$(VENV)/.installed: pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || { echo "error: MindSpore 2.10 is set up \
	on Python 3.11 here, $(PYTHON) is $$($(PYTHON) -V 2>&1); install it or give PYTHON=..." >&2; exit 2; }
	@case "$$($(PYTHON) -c 'import platform as p; print(p.system(), p.machine(), p.libc_ver()[0])')" in \
	"Linux x86_64 glibc") ;; \
	"Linux aarch64 glibc") echo "warning: this project was never run on an Arm machine (docs/compatibility.md says what was tried)" >&2 ;; \
	*) echo "error: MindSpore has packages for Linux with glibc on x86-64 and Arm only; this is $$(uname -sm). Use a" \
	"container or a virtual machine (docs/compatibility.md)" >&2; exit 2 ;; esac
	@echo "installing $$(grep -cE "^[a-z0-9-]+==" requirements.lock) packages into $(VENV): 1 GB to download, 3.6 GB on disk, two to eight minutes"
	$(PYTHON) -m venv $(VENV)
	@# The headers of oneDNN serve all processors, but their package is for x86-64 only. The other packages have wheels for Arm.
	awk '/^[a-z]/ {name = /^onednn-devel/ ? "headers" : "packages"} name {print > ("$(VENV)/" name ".lock")}' requirements.lock
	$(VENV)/bin/python -m pip install --disable-pip-version-check --require-hashes --no-deps -r $(VENV)/packages.lock
	$(VENV)/bin/python -m pip install --disable-pip-version-check --require-hashes --no-deps --only-binary=:all: \
		--platform manylinux_2_28_x86_64 --upgrade --target $(VENV)/onednn -r $(VENV)/headers.lock
	cp -r $(VENV)/onednn/include $(VENV)/
	@# This file lets the Python of .venv find the project's packages from any folder.
	@$(VENV)/bin/python -c 'import pathlib, sys, sysconfig; \
	pathlib.Path(sysconfig.get_path("purelib"), "wide_deep.pth").write_text(sys.argv[1] + "\n")' "$(CURDIR)"
	touch $@

.PHONY: setup
setup: $(VENV)/.installed  ## create .venv with the pinned packages, and build the native parts if there is a compiler
	@if command -v $(CXX) > /dev/null; then $(MAKE) --no-print-directory native; \
	else echo "warning: no C++ compiler ($(CXX)): the native parts are not built and training is slower;" \
	     "install g++ and run 'make native'" >&2; fi

NATIVE_PARTS := data_prep/kernels app/tables/native app/model

.PHONY: doctor
doctor: $(VENV)/.installed  ## print what this machine has, what a training will use, and which native parts are stale
	$(RUN_PYTHON) -m scripts.doctor

.PHONY: demo
demo: setup  ## synthesize, prepare, train, evaluate in minutes: DEMO_ROWS=400000 DEMO_EPOCHS=3 -> demo/
	$(RUN_SCRIPT) scripts/run_demo.sh

##@ data

.PHONY: synthesize
synthesize: setup  ## write a synthetic log: ROWS=1000000 SEED=1 -> data/synthetic.txt
	mkdir -p data
	$(RUN_PYTHON) -m data_prep synthesize data/synthetic.txt --rows $(ROWS) --seed $(SEED)

.PHONY: download
download: setup  ## download Criteo's dac.tar.gz to data/ (Criteo's terms apply), or resume: ARGS=--accept-terms
	mkdir -p data
	$(RUN_PYTHON) -m data_prep download data $(ARGS)

.PHONY: describe
describe: setup  ## propose a description of a log: INPUT=log.csv DATA=my.yaml ARGS='--label NAME'
	$(RUN_PYTHON) -m data_prep describe "$(INPUT)" $(ARGS) > "$(DATA).new"
	mv "$(DATA).new" "$(DATA)"

.PHONY: pre-check
pre-check: setup  ## check the first rows of a log in seconds: INPUT=data/dac.tar.gz ARGS='--rows 1000000'
	$(RUN_PYTHON) -m data_prep pre-check "$(INPUT)" $(ARGS)

.PHONY: preprocess
preprocess: setup  ## convert a log to MindRecord: INPUT=data/dac.tar.gz OUTPUT=prepared CONFIG=configs/auto.yaml
	$(RUN_PYTHON) -m data_prep prepare "$(INPUT)" "$(OUTPUT)" --config "$(CONFIG)" $(ARGS)

##@ model

.PHONY: train
train: setup  ## train, or resume the run in RUN=device_0: DATASET=prepared EPOCHS=9 ARGS=section.key=value
	CONFIG="$(CONFIG)" $(RUN_SCRIPT) scripts/run_auto_parallel_train.sh 1 "$(EPOCHS)" "$(DATASET)" \
		"$(RANK_TABLE_FILE)" $(if $(filter command environment,$(firstword $(origin RUN))),--name "$(RUN)") $(ARGS)

.PHONY: eval
eval: setup  ## evaluate the best checkpoint: RUN=device_0 SPLIT=test CHECKPOINT= RANKS=1 ARGS=eval.key=value
	$(RUN_PYTHON) -m app evaluate --run "$(DEMO_RUN)" --split "$(SPLIT)" --ranks "$(RANKS)" $(if $(CHECKPOINT),--checkpoint "$(CHECKPOINT)") \
		$(if $(filter command environment,$(firstword $(origin DATASET))),--dataset "$(DATASET)") $(ARGS)

.PHONY: baseline
baseline: setup  ## fit a logistic regression to compare a model with: DATASET=prepared ARGS='--run device_0'
	$(RUN_PYTHON) -m app baseline "$(call or_demo,$(DATASET),DATASET OUTPUT)" $(ARGS)

.PHONY: report
report: setup  ## draw the report of one run or several: RUN=device_0 ARGS='device_0.1 --output both.html'
	$(RUN_PYTHON) -m app report "$(DEMO_RUN)" $(ARGS)

##@ scores

.PHONY: export
export: setup  ## write a bundle that scores without MindSpore: RUN=device_0 BUNDLE=bundle ARGS=rows=float16
	$(RUN_PYTHON) -m app export "$(or $(CHECKPOINT),$(DEMO_RUN))" "$(BUNDLE)" \
		$(if $(filter command environment,$(firstword $(origin DATASET))),--dataset "$(DATASET)") $(ARGS)

.PHONY: predict
predict: setup  ## score a log: BUNDLE=bundle INPUT=data/dac.tar.gz SCORES=scores.csv ARGS='--keep COLUMN'
	$(RUN_PYTHON) -m app.cli.predict "$(BUNDLE)" \
		"$(if $(filter-out file,$(origin INPUT))$(wildcard $(INPUT)),$(INPUT),$(or $(wildcard demo/log.txt),$(INPUT)))" "$(SCORES)" $(ARGS)

.PHONY: serve
serve: setup  ## score over HTTP with a bundle, or the newest one in a folder: BUNDLE=bundle PORT=8000
	$(RUN_PYTHON) -m app.cli.serve "$(BUNDLE)" --port "$(PORT)" $(ARGS)

.PHONY: online
online: setup  ## train on each new part of a log and publish bundles: PARTS=parts RUN=device_0 SERVE=bundles
	$(RUN_PYTHON) -m app online "$(PARTS)" --from "$(DEMO_RUN)" --serve "$(SERVE)" $(ARGS)

.PHONY: online-demo
online-demo: setup  ## run the online trainer and a service on a drifting log in two minutes -> demo/online/
	$(RUN_PYTHON) -m examples.online_demo

##@ project

.PHONY: lint
lint: setup  ## run ruff and mypy
	$(RUN_PYTHON) -m ruff check .
	$(RUN_PYTHON) -m ruff format --check .
	$(RUN_PYTHON) -m mypy

# Three workers are best on two cores, because many tests wait. Tests that start ranks or kill processes run one at a time.
ONE_BY_ONE = ranks or kills or parallel or slow
# The tests start hundreds of processes. Python must write .pyc files for them, even if the environment forbids it.
test test-long test-faults fuzz: export PYTHONDONTWRITEBYTECODE =
.PHONY: test
test: setup  ## run the tests, without those of make test-long, in seven to fifteen minutes
	$(RUN_PYTHON) -m pytest -n 3 --dist worksteal -m "not ($(ONE_BY_ONE))" $(ARGS)

.PHONY: test-long
test-long: setup  ## run the slow tests (ranks, kills, parallel modes) in half an hour
	$(RUN_PYTHON) -m pytest -m "$(ONE_BY_ONE)" $(ARGS)

.PHONY: door doors
door: setup  ## make the environment of an example of docs/integrations.md: DOORS=mlflow -> .venv-doors/
	$(RUN_PYTHON) examples/doors/run.py --install-only $(DOORS)

doors: setup  ## try the examples of docs/integrations.md with other tools: DOORS=all (or quick, or names)
	$(RUN_PYTHON) examples/doors/run.py $(DOORS)

.PHONY: fuzz
fuzz: setup  ## run property tests on new examples; failures go to build/fuzz/: MINUTES=10 ARGS='--seed 1'
	$(RUN_PYTHON) -m tests.fuzz --minutes "$(MINUTES)" $(ARGS)

.PHONY: test-faults
test-faults: setup  ## kill and resume each command NUM_KILLS=100 times; inject write errors and bit flips
	NUM_KILLS=$(NUM_KILLS) $(RUN_PYTHON) -m pytest tests/app/checkpoint/test_checkpoint_faults.py tests/app/training/test_loop.py \
		tests/ranks/test_kills.py tests/data_prep/pipeline/test_restart.py tests/app/cli/test_commands_beside_training.py \
		tests/app/serving/test_life.py tests/app/online/test_online_trainer.py tests/faults $(ARGS)

.PHONY: native $(NATIVE_PARTS)
native: $(VENV)/.installed  ## build the native parts: log kernels, host tables, dense layer
	@$(MAKE) --no-print-directory -s -j "$$(nproc)" $(NATIVE_PARTS)

$(NATIVE_PARTS):
	@$(MAKE) --no-print-directory -s -C $@/csrc PYTHON=$(RUN_PYTHON) all

.PHONY: native-sanitize
native-sanitize: setup  ## test the native parts under AddressSanitizer and UBSan, and with clang ThreadSanitizer
	$(MAKE) -C data_prep/kernels/csrc PYTHON=$(RUN_PYTHON) sanitize
	$(MAKE) -C app/tables/native/csrc PYTHON=$(RUN_PYTHON) sanitize
	$(MAKE) -C app/model/csrc PYTHON=$(RUN_PYTHON) sanitize
	@if command -v clang++ > /dev/null; then $(MAKE) -C app/tables/native/csrc PYTHON=$(RUN_PYTHON) tsan; \
	else echo "warning: without clang and libomp-dev, the threads of the tables are not tested" >&2; fi

.PHONY: docs
docs: setup  ## write docs/configuration.md from the settings
	$(RUN_PYTHON) -m scripts.configuration_docs > docs/configuration.md.new
	mv docs/configuration.md.new docs/configuration.md

# The libraries to compare with (PyTorch, FBGEMM) are large and not needed elsewhere, so setup does not install them.
BENCH_EXTRA = import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["bench"])
$(VENV)/.bench-installed: $(VENV)/.installed
	$(VENV)/bin/python -m pip install --disable-pip-version-check $$($(VENV)/bin/python -c '$(BENCH_EXTRA)')
	touch $@

.PHONY: bench
bench: setup $(VENV)/.bench-installed  ## run all benchmarks and write their results: ARGS='--quick --only train_step'
	$(RUN_PYTHON) -m benchmarks $(ARGS)

.PHONY: rehearsal
rehearsal: ROWS := $(if $(filter file,$(origin ROWS)),45840617,$(ROWS))
rehearsal: setup  ## run or resume all stages on a log of Criteo's size: ROWS=45840617 -> rehearsal/
	$(RUN_PYTHON) -m benchmarks.end_to_end.rehearsal rehearsal --rows $(ROWS) $(ARGS)

.PHONY: matrix
matrix: setup  ## try other versions of MindSpore, five minutes each: VERSIONS="2.8.0 2.9.0" -> build/matrix/
	$(RUN_SCRIPT) scripts/matrix.sh $(VERSIONS)

.PHONY: clean
clean:  ## remove caches and the demo, but no data, prepared folders, runs or .venv
	rm -rf demo build .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
