# Every target calls what it needs: nothing has to be typed before it.

SHELL := /bin/bash
.SHELLFLAGS := -eo pipefail -c

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SERVER_ADDRESS ?= 127.0.0.1:8001
DEMO_ARGS ?=
PYTEST_ARGS ?=

# Ninja uses all cores; `make JOBS=2 test` bounds it.
ifdef JOBS
export CMAKE_BUILD_PARALLEL_LEVEL := $(JOBS)
endif

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

## Run and test

.PHONY: run
run: release-server $(VENV)/.demo ## install what is missing, build, and run a federated job on real text
	$(BIN)/sparseagg demo --server build/release/service/sparseagg-server --out out/demo $(DEMO_ARGS)

.PHONY: serve
serve: release-server ## a server in the foreground (SERVER_ADDRESS=127.0.0.1:8001)
	build/release/service/sparseagg-server --grpc-address $(SERVER_ADDRESS)

.PHONY: test
test: test-cpp test-python ## all tests

.PHONY: test-cpp
test-cpp: build ## the C++ tests
	ctest --preset dev

.PHONY: test-python
test-python: build $(VENV)/.test ## the Python tests, against a real server
	SPARSEAGG_SERVER=$(CURDIR)/build/dev/service/sparseagg-server \
	  $(BIN)/python -m pytest tests/python $(PYTEST_ARGS)

.PHONY: cuda
cuda: build/cuda/build.ninja ## the CUDA engine for one architecture, and the tests of the engines; needs nvcc
	cmake --build --preset cuda
	ctest --preset cuda

.PHONY: asan
asan: build/asan-ubsan/build.ninja ## the C++ tests under the address and undefined-behaviour sanitizers
	cmake --build --preset asan-ubsan
	ctest --preset asan-ubsan

.PHONY: tsan
tsan: build/tsan/build.ninja ## the C++ tests under the thread sanitizer
	cmake --build --preset tsan
	ctest --preset tsan

## Measure

BENCH_OUT ?= out/bench/merge.json
BENCH_ARGS ?=

.PHONY: bench
bench: build/release/build.ninja ## the CPU engine on workloads A to G (BENCH_OUT=out/bench/merge.json)
	cmake --build --preset release --target merge_bench
	@mkdir -p $(dir $(BENCH_OUT))
	build/release/bench/merge_bench --out $(BENCH_OUT) $(BENCH_ARGS)

## Build

.PHONY: deps
deps: deps-build deps-test $(VENV)/.demo $(VENV)/.test ## Debian packages and the Python environment, where missing

.PHONY: build
build: build/dev/build.ninja ## everything, with tests, in build/dev
	cmake --build --preset dev

.PHONY: release-server
release-server: build/release/build.ninja
	cmake --build --preset release --target sparseagg-server

build/release/build.ninja: CMakePresets.json | deps-build
	cmake --preset release

build/dev/build.ninja build/asan-ubsan/build.ninja build/tsan/build.ninja build/tidy/build.ninja build/cuda/build.ninja: \
  build/%/build.ninja: CMakePresets.json | deps-build deps-test
	cmake --preset $*

# Packages by group, so that running needs no test or lint tools. Phony, and order-only where files depend on them: a
# look that finds nothing missing takes a tenth of a second and makes nothing out of date.
.PHONY: deps-build deps-python deps-test deps-lint
deps-build deps-python deps-test deps-lint: deps-%:
	@PYTHON='$(PYTHON)' scripts/deps.sh $*

# The Python environment, likewise by group. The package is installed in place, so that only its requirements matter.
$(VENV)/bin/python: | deps-python
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: python/pyproject.toml | $(VENV)/bin/python
	$(BIN)/pip install -q -e './python[demo]'
	@touch $@

$(VENV)/.test: $(VENV)/.demo
	$(BIN)/pip install -q -e './python[demo,test]'
	@touch $@

$(VENV)/.lint: $(VENV)/.test scripts/requirements-lint.txt
	$(BIN)/pip install -q -r scripts/requirements-lint.txt
	@touch $@

## Care

CXX_FILES = $(shell git ls-files '*.h' '*.cc' '*.cu' '*.cuh')
PYTHON_DIRS := python tests scripts
# What clang-tidy reads: a regular expression of paths, as run-clang-tidy takes it.
TIDY ?= ^$(CURDIR)/(host|service)/.*\.cc$$

.PHONY: lint
lint: lint-format lint-shell lint-rooms lint-proto lint-python lint-tidy ## every check of form, and clang-tidy

.PHONY: lint-format
lint-format: deps-lint
	@echo 'clang-format-14 --dry-run -Werror, $(words $(CXX_FILES)) files'
	@clang-format-14 --dry-run -Werror $(CXX_FILES)

.PHONY: lint-shell
lint-shell: deps-lint
	shellcheck .ci/run $(shell git ls-files '*.sh')

.PHONY: lint-rooms
lint-rooms: deps-python
	$(PYTHON) scripts/check_rooms.py

.PHONY: lint-proto
lint-proto: deps-build
	python/generate.sh --check

.PHONY: lint-python
lint-python: $(VENV)/.lint
	$(BIN)/ruff check $(PYTHON_DIRS)
	$(BIN)/ruff format --check $(PYTHON_DIRS)
	$(BIN)/mypy

.PHONY: lint-tidy
lint-tidy: build/tidy/build.ninja deps-lint
	cmake --build build/tidy --target proto/sparseagg/v1/aggregation.grpc.pb.h tests/service/golden/golden.pb.h
	@echo "run-clang-tidy-14 '$(TIDY)'"
	@run-clang-tidy-14 -quiet -p build/tidy $(if $(JOBS),-j $(JOBS)) '$(TIDY)' 2>&1 \
	  | sed -E '/^[0-9]+ warnings? generated|^clang-tidy-14 |^$$/d'

.PHONY: tidy
tidy: ## clang-tidy over everything, tests included
	$(MAKE) lint-tidy TIDY='^$(CURDIR)/(host|cuda|service|bench|tests)/.*\.cc$$'

.PHONY: proto
proto: deps-build ## write the Python files that are generated from proto/
	python/generate.sh

.PHONY: format
format: deps-lint $(VENV)/.lint ## format all C++ and Python files
	clang-format-14 -i $(CXX_FILES)
	$(BIN)/ruff check --fix $(PYTHON_DIRS)
	$(BIN)/ruff format $(PYTHON_DIRS)

.PHONY: clean
clean: ## remove build outputs, the Python environment and the demo's output
	rm -rf build $(VENV) out

.PHONY: help
help: ## this list
	@awk -F ':.*## ' '/^## / { printf "\n%s\n", substr($$0, 4) } \
	  /^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
