# Build rules of the native parts. Before a Makefile includes this file, it sets LIBRARY (for lib$(LIBRARY).so),
# OBJECTS, FLAGS (which contain $(BASE_FLAGS)) and TESTS (the arguments of pytest in `make sanitize`), and if necessary LIBRARIES
# and TEST_ENVIRONMENT.
#
#   make            build for this machine
#   make sanitize   build with AddressSanitizer and UndefinedBehaviorSanitizer, and run the tests with this build
#   make clean      remove what was built

CXX ?= g++
PYTHON ?= python3
BUILD ?= build

RULES := $(abspath $(lastword $(MAKEFILE_LIST)))
PROJECT := $(abspath $(dir $(RULES))/..)
BASE_FLAGS = -std=c++17 -O3 -Wall -Wextra -Werror -fPIC -fvisibility=hidden -MMD -MP $(EXTRA_FLAGS)

.DEFAULT_GOAL := all
.PHONY: all sanitize clean
all: $(BUILD)/lib$(LIBRARY).so

$(BUILD)/lib$(LIBRARY).so: $(OBJECTS)
	$(CXX) $(FLAGS) -shared -Wl,-z,defs -o $@.new $^ $(LIBRARIES)
	mv $@.new $@  # renamed, so that a process keeps the old file that it has mapped

$(BUILD)/%.o: %.cc Makefile $(RULES)
	@mkdir -p $(@D)
	@echo "compiling $(patsubst $(PROJECT)/%,%,$(abspath $<))"
	$(CXX) $(FLAGS) -c -o $@ $<

sanitize:
	$(MAKE) BUILD=build/sanitize EXTRA_FLAGS="-O1 -g -fno-omit-frame-pointer \
	  -fsanitize=address,undefined -fno-sanitize-recover=all" all
	cd $(PROJECT) && $(shell echo $(LIBRARY) | tr a-z A-Z)_LIBRARY=$(CURDIR)/build/sanitize/lib$(LIBRARY).so \
	  LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libubsan.so)" \
	  ASAN_OPTIONS=detect_leaks=0 $(TEST_ENVIRONMENT) $(PYTHON) -m pytest $(TESTS)

clean:
	rm -rf build

-include $(OBJECTS:.o=.d)
