# Every target calls what it needs: nothing has to be typed before it.

SHELL := /bin/bash
.SHELLFLAGS := -eo pipefail -c

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# One build for `make run`, the tests and the benchmarks, so that nothing is compiled twice.
SERVER := build/dev/service/sparseagg-server
SERVER_ADDRESS ?= 127.0.0.1:8001
DEMO_ARGS ?=
WHEELS_ARGS ?=
# Tests of Python run on half as many processes again as there are cores, since they wait for servers and browsers;
# `PYTEST_ARGS='-n 0 -s'` shows what they print.
PYTEST_ARGS ?=
PYTEST := $(BIN)/python -m pytest -n $(or $(JOBS),$(shell echo $$((($$(nproc) * 3 + 1) / 2))))

# Ninja and ctest use all cores; `make JOBS=2 test` bounds it.
ifdef JOBS
export CMAKE_BUILD_PARALLEL_LEVEL := $(JOBS)
endif
export CTEST_PARALLEL_LEVEL := $(or $(JOBS),$(shell nproc))

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

## Run and test

.PHONY: run
run: build/dev/.with-python ## install what is missing, build, and run a federated job on real text
	cmake --build --preset dev --target sparseagg-server sparseagg_python
	$(BIN)/sparseagg demo --server $(SERVER) --out out/demo $(DEMO_ARGS)

.PHONY: cluster-demo
cluster-demo: build/dev/.with-python ## the same job on four servers, whose ranges of keys are merged apart
	cmake --build --preset dev --target sparseagg-server sparseagg_python
	$(BIN)/sparseagg demo --server $(SERVER) --servers 4 --out out/cluster-demo $(DEMO_ARGS)

.PHONY: serve
serve: server ## a server in the foreground (SERVER_ADDRESS=127.0.0.1:8001)
	$(SERVER) --grpc-address $(SERVER_ADDRESS)

# What comes from the network, from Debian's or Python's archive, is there before the minutes of compiling: prerequisites
# are made from left to right. Then both halves run, whatever the first one finds.
.PHONY: test
test: deps-browser build ## all tests
	@status=0; for half in test-cpp test-python; do $(MAKE) $$half || status=1; done; exit $$status

.PHONY: test-cpp
test-cpp: build ## the C++ tests
	ctest --preset dev

.PHONY: test-python
test-python: $(VENV)/.test deps-browser build ## the Python tests, against a real server
	status=0; \
	  SPARSEAGG_SERVER=$(CURDIR)/$(SERVER) $(PYTEST) tests/system tests/python $(PYTEST_ARGS) || status=1; \
	  $(PYTEST) -q -r s tests/integrations/tensors || status=1; \
	  exit $$status  # the latter skips, by name, the libraries that are not here

# OFF: without the C++ tests of the service, where `make asan` runs them, too.
SERVICE_TESTS ?= ON

INTEGRATIONS ?=

.PHONY: test-integrations
test-integrations: build ## the adapters inside the real frameworks from PyPI (INTEGRATIONS=flower; 10 minutes and more)
	SPARSEAGG_SERVER=$(CURDIR)/$(SERVER) \
	  $(BIN)/python scripts/test_integrations.py $(INTEGRATIONS) -- $(PYTEST_ARGS)

RAY_VENV := build/ray-venv

# Workers of Ray have niceness 15 by default, and hardly run where something is built meanwhile.
.PHONY: test-ray
test-ray: build ## rounds over several servers with Ray from PyPI, in an environment of its own (some minutes)
	test -d $(RAY_VENV) || $(PYTHON) -m venv $(RAY_VENV)
	SPARSEAGG_EXTENSION=off $(RAY_VENV)/bin/pip install -q -e './python[ray,test]' 'ray[data]'
	RAY_worker_niceness=0 SPARSEAGG_SERVER=$(CURDIR)/$(SERVER) $(RAY_VENV)/bin/python -m pytest \
	  -p no:cacheprovider -k 'ray or parquet or parts' \
	  tests/python/cluster tests/system/test_cluster_crash_cycles.py

TUTORIALS_VENV := build/tutorials-venv

.PHONY: test-tutorials
test-tutorials: build ## the tutorials of Flower and NVFlare, with these from PyPI in an environment of its own (some minutes)
	test -d $(TUTORIALS_VENV) || $(PYTHON) -m venv $(TUTORIALS_VENV)
	$(TUTORIALS_VENV)/bin/pip install -q 'flwr[simulation]>=1.41' 'nvflare>=2.9,<2.10'
	SPARSEAGG_EXTENSION=off $(TUTORIALS_VENV)/bin/pip install -q -e ./python
	for page in flower nvflare; do RAY_worker_niceness=0 SPARSEAGG_SERVER=$(CURDIR)/$(SERVER) \
	  $(TUTORIALS_VENV)/bin/python scripts/run_page.py docs/tutorials/$$page.md; done

.PHONY: cuda-engine
cuda-engine: | deps-build deps-test ## compiles the CUDA engine for one architecture, where there is an nvcc
	cmake --preset cuda -DSPARSEAGG_CUDA=AUTO
	! grep -q '^SPARSEAGG_NVCC:FILEPATH=/' build/cuda/CMakeCache.txt || cmake --build --preset cuda --target sparseagg_cuda

.PHONY: cuda
cuda: build/cuda/build.ninja ## the CUDA engine for one architecture, and the tests of the engines; needs nvcc
	cmake --build --preset cuda
	ctest --preset cuda

.PHONY: asan
asan: build/asan-ubsan/build.ninja ## the C++ tests under the address and undefined-behaviour sanitizers
	cmake --build --preset asan-ubsan
	ctest --preset asan-ubsan

SECONDS ?= 30

.PHONY: fuzz
fuzz: build/asan-ubsan/build.ninja ## fuzz targets under the sanitizers, SECONDS=30 each, two at a time
	cmake --build --preset asan-ubsan --target fuzz-targets
	$(PYTHON) scripts/fuzz.py --build build/asan-ubsan --seconds $(SECONDS)

.PHONY: tsan
tsan: build/tsan/build.ninja ## the C++ tests under the thread sanitizer
	cmake --build --preset tsan
	ctest --preset tsan

CYCLES ?= 200

.PHONY: crash-test
crash-test: $(VENV)/.test build ## a server is killed and started again CYCLES=200 times; checks that nothing is lost
	$(BIN)/python tests/system/crash_cycles.py --cycles $(CYCLES) --server $(SERVER) $(CRASH_ARGS)
	$(BIN)/python tests/system/cluster_crash_cycles.py --cycles $$(($(CYCLES) / 2)) --server $(SERVER)

# What `.ci/run` leaves out, which takes hours.
.PHONY: ci-full
ci-full: ## all that is checked before a release
	TIDY_BASE= .ci/run
	$(MAKE) tidy tsan tune bench-wire test-integrations crash-test test-matrix

## Package

VERSION := $(shell sed -n 's/^project.sparseagg VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
WHEEL := build/wheel/sparseagg-$(VERSION)-py3-none-any.whl
# The preset of the bundle without CUDA and of the wheels. check-bundle has less to compile, and nothing to give away.
BUNDLE ?= cpu-bundle
BUNDLE_NAME := sparseagg-$(VERSION)-linux-$(shell uname -m)

.PHONY: wheel
wheel: $(WHEEL) ## the Python client in one file, for machines that have neither this repository nor a compiler
	@echo $(WHEEL)

# The programs and the engine are those of the bundle without CUDA: they need no library but libc's.
.PHONY: wheels
wheels: $(VENV)/.wheels build/$(BUNDLE)/build.ninja $(WHEEL) ## client, engine, server and load generator in one file, for each Python that is here
	$(BIN)/python scripts/wheels.py --client $(WHEEL) --build build/$(BUNDLE) --out build/wheels $(WHEELS_ARGS)

.PHONY: wheel-check
wheel-check: ## install such a wheel where there is no network, compiler or root, and merge a round
	$(MAKE) wheels WHEELS_ARGS='--python $(CURDIR)/$(BIN)/python'
	$(BIN)/python scripts/check_wheel.py build/wheels $(patsubst %,--cuda %,$(wildcard build/cuda-wheels/*.whl))

.PHONY: cuda-wheel
cuda-wheel: $(VENV)/.wheels build/static-libs/.done-4 ## the CUDA engine in one file, for sparseagg[cuda13]; needs nvcc
	cmake --preset cuda-wheel -DSPARSEAGG_CUDA_ARCHITECTURES='$(or $(ARCHITECTURES),$(WHEEL_ARCHITECTURES))'
	cmake --build --preset cuda-wheel
	$(BIN)/python scripts/cuda_wheel.py --library build/cuda-wheel/cuda/plugin/libsparseagg_cuda.so --out build/cuda-wheels

.PHONY: gpu-bundle
gpu-bundle: build/gpu-bundle/build.ninja $(WHEEL) ## server, checks and benchmarks in one folder for GPU nodes; needs nvcc
	cmake --preset gpu-bundle -DSPARSEAGG_CUDA_ARCHITECTURES='$(ARCHITECTURES)'
	cmake --build --preset gpu-bundle --target bundle
	scripts/bundle.sh build/gpu-bundle $(BUNDLE_NAME) $(WHEEL) $(if $(ARCHITECTURES),40)

.PHONY: cpu-bundle
cpu-bundle: build/$(BUNDLE)/build.ninja $(WHEEL) ## the same without the CUDA engine
	cmake --build --preset $(BUNDLE) --target bundle
	scripts/bundle.sh build/$(BUNDLE) $(BUNDLE_NAME)-cpu $(WHEEL)

.PHONY: bundle-check
bundle-check: $(VENV)/.test cpu-bundle ## unpack that bundle elsewhere and use it, as on a machine that has nothing
	$(BIN)/python scripts/check_bundle.py build/$(BUNDLE)/$(BUNDLE_NAME)-cpu.tar.xz

.PHONY: release
release: wheels cpu-bundle ## what a release gives away, with hashes and a bill of materials, in build/release-VERSION (docs/release.md)
	shopt -s nullglob; $(BIN)/python scripts/release.py collect build/release-$(VERSION) $(WHEEL) \
	  build/wheels/sparseagg-$(VERSION)-*.whl build/cuda-wheels/*-$(VERSION)-*.whl build/$(BUNDLE)/$(BUNDLE_NAME)-cpu.tar.xz

MATRIX_WHEEL ?= $(WHEEL)
MATRIX_ARGS ?=

.PHONY: test-matrix
test-matrix: $(MATRIX_WHEEL) server ## the wheel under each Python and protobuf, into docs/compatibility.md (30 minutes)
	$(BIN)/python scripts/test_matrix.py $(MATRIX_WHEEL) \
	  --server $(CURDIR)/$(SERVER) $(MATRIX_ARGS)

$(foreach bundle,gpu cpu check,build/$(bundle)-bundle/build.ninja): build/%/build.ninja: \
  CMakePresets.json build/static-libs/.done-4 | deps-build deps-test
	cmake --preset $*

# Of the GPU bundle and the CUDA wheel: 90-real for an H100 or H200 alone. Empty: all that the toolkit knows, and
# WHEEL_ARCHITECTURES.
ARCHITECTURES ?=
WHEEL_ARCHITECTURES := 80-real;90-real;100-real;120-real;120-virtual

build/static-libs/.done-4: scripts/static_libs.sh | deps-build deps-bundle
	scripts/static_libs.sh build/static-libs

# With their folders, which are younger than the wheel when a file has gone.
PACKAGE_FILES = $(wildcard $(shell git ls-files python))

# The client alone, for any Python. Its name has the version that CMake knows, and Python's may be another by mistake.
$(WHEEL): $(PACKAGE_FILES) $(sort $(dir $(PACKAGE_FILES))) | $(VENV)/bin/python
	@rm -f $@
	SPARSEAGG_EXTENSION=off $(BIN)/pip wheel -q --no-deps -w build/wheel ./python
	@test -s $@ || { echo '$@ was not made: is its version that of python/pyproject.toml?' >&2; exit 1; }

## Documentation

DOCS_VENV := build/docs-venv

$(DOCS_VENV)/.done: scripts/requirements-docs.txt | deps-python
	test -d $(DOCS_VENV) || $(PYTHON) -m venv $(DOCS_VENV)
	$(DOCS_VENV)/bin/pip install -q -r scripts/requirements-docs.txt
	@touch $@

.PHONY: docs
docs: $(DOCS_VENV)/.done deps-build ## the site, into build/site; a dead link or a page without a place in it fails
	NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/mkdocs build -q

.PHONY: docs-serve
docs-serve: $(DOCS_VENV)/.done deps-build ## the site in a browser, made again when a page changes
	NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/mkdocs serve

## Measure

PEERS_VENV := .venv-peers
PEERS_PYTHON := $(PEERS_VENV)/bin/python
BENCH_ARGS ?=
BENCH_LIBRARY := build/dev/bench/libsparseagg_bench_native.so
SERVICE_PROGRAMS := --server $(SERVER) --loadgen build/dev/tools/loadgen/sparseagg-loadgen
# What the engine inside the comparison's environment is built from.
ENGINE_FILES = $(wildcard $(shell git ls-files CMakeLists.txt cmake host cuda service python))

.PHONY: bench
bench: bench-build ## workloads A to G, compared with other libraries, into bench/results (20 minutes)
	@mkdir -p bench/results
	build/dev/bench/merge_bench --repetitions 21 --out bench/results/merge.json
	SPARSEAGG_BENCH_NATIVE='$(CURDIR)/$(BENCH_LIBRARY)' $(PEERS_PYTHON) bench/peers/comparison.py \
	  --out bench/results/comparison.json $(BENCH_ARGS)
	$(PEERS_PYTHON) bench/peers/plot.py bench/results/comparison.json --out bench/results/comparison.png

.PHONY: bench-quick
bench-quick: bench-build ## the same on a twentieth of the clients, into out/bench (2 minutes)
	@mkdir -p out/bench
	build/dev/bench/merge_bench --out out/bench/merge.json --divide-clients 20 --repetitions 3
	SPARSEAGG_BENCH_NATIVE='$(CURDIR)/$(BENCH_LIBRARY)' $(PEERS_PYTHON) bench/peers/comparison.py \
	  --divide-clients 20 --repetitions 2 --patience 0.3 --fresh-only --out out/bench/comparison.json $(BENCH_ARGS)
	$(PEERS_PYTHON) bench/peers/plot.py out/bench/comparison.json --out out/bench/comparison.png
	@$(PEERS_PYTHON) bench/peers/table.py out/bench/comparison.json --summary

.PHONY: bench-one-update
bench-one-update: bench-build ## one large update with repeated keys, compared by time and memory, into bench/results (2 minutes)
	@mkdir -p bench/results
	SPARSEAGG_BENCH_NATIVE='$(CURDIR)/$(BENCH_LIBRARY)' $(PEERS_PYTHON) bench/peers/comparison.py --workloads I \
	  --out bench/results/one_update.json $(BENCH_ARGS)

.PHONY: tune
tune: bench-build ## what the CPU planner goes by, measured here, and what that would change (4 minutes)
	@mkdir -p out/bench
	cmake --build --preset dev --target merge_tune
	build/dev/bench/merge_tune --out out/bench/tune.json $(BENCH_ARGS)
	$(PEERS_PYTHON) bench/merge/tune.py out/bench/tune.json --out out/bench/tune.png

.PHONY: bench-service
bench-service: bench-service-build ## the server under load, against bare gRPC, into bench/results (10 minutes)
	$(BIN)/python bench/service/service.py $(SERVICE_PROGRAMS) --out bench/results/service.json $(BENCH_ARGS)

.PHONY: bench-service-quick
bench-service-quick: bench-service-build ## the same on a tenth of the clients, into out/bench (a minute)
	$(BIN)/python bench/service/service.py $(SERVICE_PROGRAMS) --quick --out out/bench/service.json $(BENCH_ARGS)

.PHONY: bench-round
bench-round: build/dev/.with-python ## whole rounds as a coordinator sees them, beside Flower and NVFlare, into bench/results
	cmake --build --preset dev --target sparseagg-server sparseagg_python
	$(BIN)/python scripts/test_integrations.py flower nvflare -- -q --collect-only
	$(BIN)/python bench/round/round_bench.py --server $(SERVER) --out bench/results/round.json \
	  --python flower=$(call INTEGRATION,flower) --python nvflare=$(call INTEGRATION,nvflare) $(BENCH_ARGS)
	$(BIN)/python bench/round/plot.py bench/results/round.json --out bench/results/round.png

.PHONY: bench-cluster
bench-cluster: build/dev/.with-python ## rounds over several servers of this machine, into bench/results (2 minutes)
	cmake --build --preset dev --target sparseagg-server sparseagg_python
	SPARSEAGG_SERVER=$(CURDIR)/$(SERVER) $(BIN)/python bench/cluster/cluster_bench.py \
	  --out bench/results/cluster.json $(BENCH_ARGS)
	SPARSEAGG_SERVER=$(CURDIR)/$(SERVER) $(BIN)/python bench/cluster/close_times.py \
	  --out bench/results/cluster_close.json $(BENCH_ARGS)

# APPFL is beside them with BENCH_ARGS='--python appfl=PYTHON' (docs/howto/flower.md); a play of Shakespeare's as the text
# with BENCH_ARGS=FILE.
.PHONY: bench-streams
bench-streams: build/dev/.with-python ## streams: commits a second, cuts, time to accuracy beside NVFlare, into bench/results
	cmake --build --preset dev --target sparseagg-server sparseagg_python
	$(BIN)/python scripts/test_integrations.py nvflare -- -q --collect-only
	$(BIN)/python bench/service/streams.py --server $(SERVER) --output bench/results/streams.json
	$(BIN)/python bench/streams/time_to_accuracy.py --python nvflare=$(call INTEGRATION,nvflare) $(BENCH_ARGS) \
	  --out bench/results/streams/time_to_accuracy.json --plot bench/results/streams/time_to_accuracy.png

BEFORE ?=

.PHONY: bench-versions
bench-versions: build/dev/.with-python ## what a Python user waits for, against the built checkout BEFORE=DIR, into bench/results
	cmake --build --preset dev --target sparseagg-server sparseagg_python
	$(BIN)/python bench/versions/in_turns.py --before '$(BEFORE)' --out bench/results/versions.json $(BENCH_ARGS)

.PHONY: bench-service-build
bench-service-build: build/dev/build.ninja $(VENV)/.demo
	cmake --build --preset dev --target sparseagg-server sparseagg-loadgen

INTEGRATION = .venv-integrations/$(1)/bin/python
STAND_INS = LD_LIBRARY_PATH=$(CURDIR)/.venv-integrations/$(1)/torch-stand-ins $(INTEGRATION)

.PHONY: bench-coordinators
bench-coordinators: build ## beside the aggregation of Flower and NVFlare themselves, into bench/results (15 GB of memory)
	$(BIN)/python scripts/test_integrations.py flower nvflare -- -q --collect-only
	$(call STAND_INS,flower) bench/coordinators/flower_side_by_side.py --out bench/results/flower.json
	$(call STAND_INS,nvflare) bench/coordinators/nvflare_side_by_side.py --out bench/results/nvflare.json
	$(call STAND_INS,nvflare) bench/coordinators/nvflare_wire.py --out bench/results/nvflare.json
	$(BIN)/python bench/coordinators/dense.py --out bench/results/dense.json \
	  --python flower=$(call INTEGRATION,flower) --python nvflare=$(call INTEGRATION,nvflare) \
	  --python 'torch float32=$(call INTEGRATION,flower)' --server $(SERVER)

.PHONY: bench-wire
bench-wire: build/dev/build.ninja deps-bench $(VENV)/.demo ## bytes a tuple on the wire, and how fast they are packed
	cmake --preset dev $(CUDA_HERE)
	cmake --build --preset dev --target wire_bytes wire_bench
	build/dev/bench/wire_bytes
	build/dev/bench/wire_bench
	$(BIN)/python bench/wire/wire_encode.py

# What the comparisons need besides the time they take: minutes, the first time.
.PHONY: bench-build
bench-build: build/dev/build.ninja $(PEERS_VENV)/.engine
	cmake --build --preset dev --target merge_bench sparseagg_bench_native

## Build

.PHONY: deps
deps: deps-build deps-test deps-extension $(VENV)/.demo $(VENV)/.test ## Debian packages and the Python environment, where missing

.PHONY: build
build: build/dev/.with-tests ## everything, with tests, in build/dev
	cmake build/dev -DSPARSEAGG_SERVICE_TESTS=$(SERVICE_TESTS) >/dev/null
	cmake --build --preset dev

.PHONY: server
server: build/dev/build.ninja
	cmake --build --preset dev --target sparseagg-server

.PHONY: release-server
release-server: | deps-build ## the server for packages, in build/release
	cmake --preset release $(CUDA_HERE)
	cmake --build --preset release --target sparseagg-server

# For this machine alone: for the GPUs that it has, or without CUDA, since kernels for all of them take an hour of two
# cores. What goes to other machines is a bundle.
CUDA_HERE = $(shell nvidia-smi -L >/dev/null 2>&1 && echo -DSPARSEAGG_CUDA=AUTO -DSPARSEAGG_CUDA_ARCHITECTURES=native \
  || echo -DSPARSEAGG_CUDA=OFF)

build/dev/build.ninja: CMakePresets.json | deps-build
	cmake --preset dev $(CUDA_HERE) -DSPARSEAGG_TESTS=OFF

# The Python extension, for the environment's Python; it goes where that environment's package is.
PYTHON_EXTENSION = -DSPARSEAGG_PYTHON=ON -DPython_EXECUTABLE='$(CURDIR)/$(BIN)/python' \
  -Dpybind11_DIR="$$($(BIN)/python -m pybind11 --cmakedir)"

# So that the environment of `make run` has client, engine and server. Beyond what the server's build has anyway, the
# engine takes two more files, 25 s of one core, and the packages python3-dev and pybind11.
build/dev/.with-python: build/dev/build.ninja python/engine/CMakeLists.txt | deps-extension $(VENV)/.demo
	cmake --preset dev $(CUDA_HERE) $(PYTHON_EXTENSION)
	@touch $@

build/dev/.with-tests: build/dev/build.ninja python/engine/CMakeLists.txt | deps-test deps-extension $(VENV)/.test
	cmake --preset dev $(CUDA_HERE) -DSPARSEAGG_TESTS=ON $(PYTHON_EXTENSION)
	@touch $@

build/asan-ubsan/build.ninja: | deps-sanitize
build/asan-ubsan/build.ninja build/tsan/build.ninja build/cuda/build.ninja: build/%/build.ninja: CMakePresets.json \
  | deps-build deps-test
	cmake --preset $*

build/tidy/build.ninja: CMakePresets.json python/engine/CMakeLists.txt | deps-build deps-test deps-extension $(VENV)/.test
	cmake --preset tidy $(PYTHON_EXTENSION)

# Packages by group, so that running needs no test or lint tools. Phony, and order-only where files depend on them: a
# look that finds nothing missing takes a tenth of a second and makes nothing out of date.
.PHONY: deps-build deps-python deps-extension deps-test deps-browser deps-sanitize deps-bundle deps-lint deps-bench
deps-build deps-python deps-extension deps-test deps-browser deps-sanitize deps-bundle deps-lint deps-bench: deps-%:
	@PYTHON='$(PYTHON)' scripts/deps.sh $*

# The Python environment, likewise by group. The package is installed in place, so that only its requirements matter;
# its extension is built with the rest of build/dev.
$(VENV)/bin/python: | deps-python
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: python/pyproject.toml python/setup.py | $(VENV)/bin/python
	SPARSEAGG_EXTENSION=off $(BIN)/pip install -q -e './python[demo,engine]'
	@touch $@

$(VENV)/.test: $(VENV)/.demo
	SPARSEAGG_EXTENSION=off $(BIN)/pip install -q -e './python[demo,engine,test]'
	@touch $@

$(VENV)/.wheels: $(VENV)/.test scripts/requirements-wheels.txt
	$(BIN)/pip install -q -r scripts/requirements-wheels.txt
	@touch $@

$(VENV)/.lint: $(VENV)/.test scripts/requirements-lint.txt
	$(BIN)/pip install -q -r scripts/requirements-lint.txt
	@touch $@

# The comparison's environment: other libraries, and the package as anybody would install it.
$(PEERS_PYTHON): | deps-python
	$(PYTHON) -m venv $(PEERS_VENV)

$(PEERS_VENV)/.peers: bench/peers/requirements.txt bench/peers/install.py bench/peers/torch_on_cpu.py | $(PEERS_PYTHON)
	$(PEERS_PYTHON) bench/peers/install.py
	@touch $@

$(PEERS_VENV)/.engine: $(ENGINE_FILES) $(PEERS_VENV)/.peers | deps-build deps-extension
	SPARSEAGG_EXTENSION=on $(PEERS_PYTHON) -m pip install -q ./python
	@touch $@

## Maintenance

CXX_FILES = $(shell git ls-files '*.h' '*.cc' '*.cu' '*.cuh')
PYTHON_DIRS := python tests scripts bench examples
# clang-tidy reads the sources that changed since TIDY_BASE, the sources named after a changed header, and what CMake
# compiles together with them. The default base is the newest commit six hours older than HEAD; without one it reads all.
TIDY_BASE ?= $(shell git rev-list -1 --before="$$(($$(git log -1 --format=%ct) - 6 * 3600))" HEAD)
.PHONY: print-tidy-base
print-tidy-base:
	@echo '$(TIDY_BASE)'
TIDY_FOLDERS := host service python
TIDY_SOURCES = $(filter $(TIDY_FOLDERS:%=%/%.cc),$(if $(TIDY_BASE),$(wildcard $(sort $(patsubst %.h,%.cc, \
  $(shell git diff --name-only $(TIDY_BASE))))),$(CXX_FILES)))

.PHONY: lint
lint: lint-format lint-shell lint-modules lint-proto lint-python lint-deploy lint-tidy ## every check of form, and clang-tidy

.PHONY: lint-format
lint-format: deps-lint
	@echo 'clang-format-14 --dry-run -Werror, $(words $(CXX_FILES)) files'
	@printf '%s\n' $(CXX_FILES) | xargs -n 40 -P $$(nproc) clang-format-14 --dry-run -Werror

.PHONY: lint-shell
lint-shell: deps-lint
	shellcheck .ci/run $(shell git ls-files '*.sh')

.PHONY: lint-modules
lint-modules: deps-python
	$(PYTHON) scripts/check_modules.py

.PHONY: lint-proto
lint-proto: deps-build
	python/generate.sh --check

.PHONY: lint-python
lint-python: $(VENV)/.lint
	$(BIN)/ruff check $(PYTHON_DIRS)
	$(BIN)/ruff format --check $(PYTHON_DIRS)
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache --no-logo python/pyproject.toml

# Unpacked, not installed: installing the package starts a Prometheus.
PROMTOOL = $(or $(shell command -v promtool),build/lint/prometheus/usr/bin/promtool)

build/lint/prometheus/usr/bin/promtool: | deps-lint
	@mkdir -p build/lint/prometheus
	cd build/lint/prometheus && apt-get -q download prometheus && dpkg -x prometheus_*.deb . && rm prometheus_*.deb

# systemd-analyze wants the program to be there, and calls what it does not know a warning.
.PHONY: lint-deploy
lint-deploy: deps-lint $(VENV)/.lint $(PROMTOOL)
	yamllint -s -c deploy/.yamllint deploy
	$(BIN)/hadolint --ignore DL3008 deploy/container/Containerfile
	@mkdir -p build/lint
	sed 's,^ExecStart=[^ ]*,ExecStart=/bin/true,' deploy/systemd/sparseagg.service >build/lint/sparseagg.service
	systemd-analyze verify build/lint/sparseagg.service 2>&1 | tee build/lint/sparseagg.log
	! grep -F sparseagg.service build/lint/sparseagg.log
	$(BIN)/python scripts/check_deploy.py
	$(PROMTOOL) test rules deploy/prometheus/alerts_test.yml

.PHONY: lint-tidy
lint-tidy: build/tidy/build.ninja $(VENV)/.lint deps-lint ## clang-tidy over the sources that changed since TIDY_BASE
	cmake --build build/tidy --target $(addprefix proto/sparseagg/v1/,aggregation.grpc.pb.h tasks.grpc.pb.h) \
	  generated/service/store/records.pb.h tests/service/golden/golden.pb.h
	@printf '$(CURDIR)/%s\n' $(TIDY_SOURCES) >build/tidy/sources
	@test -z '$(TIDY_SOURCES)' || { cat build/tidy/sources; grep -rlFf build/tidy/sources --include='unity_*.cxx' build/tidy; } \
	  | sed 's/.*/&$$/' | xargs $(BIN)/run-clang-tidy.py -quiet -p build/tidy -clang-tidy-binary $(BIN)/clang-tidy \
	  $(if $(JOBS),-j $(JOBS)) -extra-arg=-Wno-deprecated-declarations 2>&1 \
	  | sed -E '/^[0-9]+ warnings? generated|clang-tidy -|^$$/d'

.PHONY: tidy
tidy: ## clang-tidy over everything, tests included
	$(MAKE) lint-tidy TIDY_BASE= TIDY_FOLDERS='host cuda service python bench tests tools'

.PHONY: proto
proto: deps-build ## write the Python files that are generated from proto/
	python/generate.sh

.PHONY: format
format: deps-lint $(VENV)/.lint ## format all C++ and Python files
	clang-format-14 -i $(CXX_FILES)
	$(BIN)/ruff check --fix --exit-zero -q $(PYTHON_DIRS)
	$(BIN)/ruff format $(PYTHON_DIRS)

.PHONY: clean
clean: ## remove build outputs, the Python environment and the demo's output
	rm -rf build $(VENV) $(PEERS_VENV) .venv-integrations out python/build python/src/sparseagg/_engine.*.so

.PHONY: help
help: ## this list
	@awk -F ':.*## ' '/^## / { printf "\n%s\n", substr($$0, 4) } \
	  /^[a-z-]+:.*## / { printf "  make %-19s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
