# Build rules of the native parts. Before a Makefile includes this file, it sets LIBRARY (for lib$(LIBRARY).so),
# OBJECTS, FLAGS (which contain $(BASE_FLAGS)) and TESTS (the arguments of pytest in `make sanitize`), and if necessary LIBRARIES
# and TEST_ENVIRONMENT.
#
#   make            build for this machine
#   make sanitize   build with AddressSanitizer and UndefinedBehaviorSanitizer, and run the tests with this build
#   make tsan       build with clang and ThreadSanitizer, check that it finds a planted race, and run the tests with this build
#   make arm        build for aarch64 Linux with Debian's cross compiler g++-aarch64-linux-gnu, into build/arm
#   make clean      remove what was built

CXX ?= g++
PYTHON ?= python3
BUILD ?= build

RULES := $(abspath $(lastword $(MAKEFILE_LIST)))
PROJECT := $(abspath $(dir $(RULES))/..)
BASE_FLAGS = -std=c++17 -O3 -Wall -Wextra -Werror -fPIC -fvisibility=hidden -MMD -MP $(EXTRA_FLAGS)

.DEFAULT_GOAL := all
.PHONY: all arm sanitize tsan clean
all: $(BUILD)/lib$(LIBRARY).so

$(BUILD)/lib$(LIBRARY).so: $(OBJECTS)
	$(CXX) $(FLAGS) -shared -Wl,-z,defs -o $@.new $^ $(LIBRARIES) $(LAST_FLAGS)
	mv $@.new $@  # renamed, so that a process keeps the old file that it has mapped

$(BUILD)/%.o: %.cc Makefile $(RULES)
	@mkdir -p $(@D)
	@echo "compiling $(patsubst $(PROJECT)/%,%,$(abspath $<))"
	$(CXX) $(FLAGS) -c -o $@ $<

arm:
	$(MAKE) CXX=aarch64-linux-gnu-g++ BUILD=build/arm all

sanitize:
	$(MAKE) BUILD=build/sanitize EXTRA_FLAGS="-O1 -g -fno-omit-frame-pointer \
	  -fsanitize=address,undefined -fno-sanitize-recover=all" all
	cd $(PROJECT) && $(shell echo $(LIBRARY) | tr a-z A-Z)_LIBRARY=$(CURDIR)/build/sanitize/lib$(LIBRARY).so \
	  LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libubsan.so)" \
	  ASAN_OPTIONS=detect_leaks=0 $(TEST_ENVIRONMENT) $(PYTHON) -m pytest $(TESTS)

# ThreadSanitizer does not know GCC's OpenMP library and would report races that are none. clang's OpenMP library tells
# it about threads and barriers through libarcher. Other libraries are not instrumented and therefore ignored. The
# sanitizer cannot be loaded with LD_PRELOAD, so a program that contains it runs Python.
TSAN_CXX ?= $(firstword $(foreach name,clang++ clang++-19 clang++-16 clang++-14,$(shell command -v $(name))))
TSAN_FLAGS := -O1 -g -fno-omit-frame-pointer -fsanitize=thread -Wno-unknown-warning-option -Wno-pass-failed
SYSCONFIG = $(shell $(PYTHON) -c "import sysconfig; print($(1))")
TSAN_PYTHON = TSAN_OPTIONS="ignore_noninstrumented_modules=1 halt_on_error=1 exitcode=66 log_path=stderr \
	  suppressions=$(PROJECT)/scripts/tsan.supp" PYTHONPATH="$(call SYSCONFIG,sysconfig.get_path('purelib'))" \
	  OMP_TOOL_LIBRARIES="$(shell $(TSAN_CXX) -print-resource-dir)/../../libarcher.so" $(CURDIR)/build/tsan/python

tsan: LIBPYTHON = $(call SYSCONFIG,sysconfig.get_config_var('LIBDIR'))
tsan:
	@test -n "$(TSAN_CXX)" || { echo "error: make tsan needs clang: apt-get install clang libomp-dev" >&2; exit 2; }
	$(MAKE) CXX=$(TSAN_CXX) BUILD=build/tsan EXTRA_FLAGS="$(TSAN_FLAGS)" LAST_FLAGS=-Wl,-z,undefs all
	$(TSAN_CXX) $(TSAN_FLAGS) -fopenmp -fPIC -shared -o build/tsan/planted_race.so $(PROJECT)/scripts/planted_race.cc
	$(TSAN_CXX) $(TSAN_FLAGS) -rdynamic -o build/tsan/python $(PROJECT)/scripts/tsan_python.cc \
	  -L$(LIBPYTHON) -lpython3.11 -Wl,-rpath,$(LIBPYTHON)
	$(TSAN_PYTHON) -c 'import ctypes; ctypes.CDLL("build/tsan/planted_race.so").planted_race(4)' 2> build/tsan/planted; \
	  test $$? = 66 && grep -q "data race .*planted_race.cc" build/tsan/planted || { cat build/tsan/planted; \
	  echo "error: ThreadSanitizer did not find the planted race" >&2; exit 1; }
	cd $(PROJECT) && $(shell echo $(LIBRARY) | tr a-z A-Z)_LIBRARY=$(CURDIR)/build/tsan/lib$(LIBRARY).so \
	  $(TSAN_PYTHON) -m pytest -p no:cacheprovider $(TSAN_TESTS)

clean:
	rm -rf build

-include $(OBJECTS:.o=.d)
