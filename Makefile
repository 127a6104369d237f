# Every target calls what it needs: nothing has to be typed before it.

SHELL := /bin/bash
.SHELLFLAGS := -eo pipefail -c

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# One build for `make run`, the tests and the benchmarks, so that nothing is compiled twice.
SERVER := build/dev/service/sparseagg-server
VERSION := $(shell sed -n 's/^project.sparseagg VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
WHEEL := build/wheel/sparseagg-$(VERSION)-py3-none-any.whl
# Tests of Python run on half as many processes again as there are cores, since they wait for servers and browsers;
# `PYTEST_ARGS='-n 0 -s'` shows what they print.
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
run: build/dev/.with-python ## install what is missing, build, and run a federated job on real text (DEMO_ARGS="--servers 4": a cluster)
	cmake --build --preset dev --target sparseagg-server sparseagg_python
	$(BIN)/sparseagg demo --server $(SERVER) --out out/demo $(DEMO_ARGS)

PARTS ?= cpp python

# What comes from the network, from Debian's or Python's archive, is there before the minutes of compiling: prerequisites
# are made from left to right. Then both halves run, whatever the first one finds.
.PHONY: test test-cpp test-python test-crash test-matrix
test: $(VENV)/.test deps-browser build ## all tests; PARTS=cpp or python runs half of them, PARTS='crash matrix' what takes an hour
	@status=0; for part in $(PARTS); do $(MAKE) --no-print-directory test-$$part || status=1; done; exit $$status

test-cpp: build
	ctest --preset dev

# The second call skips, by name, the libraries that are not here.
test-python: $(VENV)/.test deps-browser build
	status=0; \
	  SPARSEAGG_SERVER=$(CURDIR)/$(SERVER) $(PYTEST) tests/system tests/python $(PYTEST_ARGS) || status=1; \
	  $(PYTEST) -q -r s tests/integrations/tensors || status=1; \
	  exit $$status

# A server is killed and started again CYCLES times; checks that nothing is lost.
CYCLES ?= 200

test-crash: $(VENV)/.test build
	$(BIN)/python tests/system/crash_cycles.py --cycles $(CYCLES) --server $(SERVER)
	$(BIN)/python tests/system/cluster_crash_cycles.py --cycles $$(($(CYCLES) / 2)) --server $(SERVER)

# The wheel under each Python and protobuf, into docs/compatibility-table.json (5 minutes).
test-matrix: $(VENV)/.wheels $(WHEEL) server
	$(BIN)/python scripts/test_matrix.py $(WHEEL) $(CURDIR)/$(SERVER)

# OFF: without the C++ tests of the service, where `make asan` runs them, too.
SERVICE_TESTS ?= ON

INTEGRATIONS ?= $(patsubst tests/integrations/%/requirements.txt,%,$(wildcard tests/integrations/*/requirements.txt))

.PHONY: test-integrations
test-integrations: build ## the adapters inside the real frameworks from PyPI (INTEGRATIONS=flower; 10 minutes and more)
	$(MAKE) --no-print-directory -k $(INTEGRATIONS:%=test-integration-%)

# Status 5 of pytest: every module was skipped.
test-integration-%: .venv-integrations/%/.done
	SPARSEAGG_SERVER=$(CURDIR)/$(SERVER) LD_LIBRARY_PATH=$(CURDIR)/$(<D)/torch-stand-ins$${LD_LIBRARY_PATH:+:$$LD_LIBRARY_PATH} \
	  $(<D)/bin/python -m pytest tests/integrations/$* $(PYTEST_ARGS) || test $$? = 5

.PRECIOUS: .venv-integrations/%/.done
# An environment for each, since frameworks ask for different versions of what they share.
.venv-integrations/%/.done: tests/integrations/%/requirements.txt python/pyproject.toml | deps-python
	test -d $(@D) || $(PYTHON) -m venv $(@D)
	$(@D)/bin/python bench/peers/install.py $<
	SPARSEAGG_EXTENSION=off $(@D)/bin/pip install -q -e ./python
	@touch $@

# Workers of Ray have niceness 15 by default, and hardly run where something is built meanwhile.
.PHONY: test-ray
test-ray: build ## rounds over several servers with Ray from PyPI, in an environment of its own (some minutes)
	test -d build/ray-venv || $(PYTHON) -m venv build/ray-venv
	SPARSEAGG_EXTENSION=off build/ray-venv/bin/pip install -q -e './python[ray,test]' 'ray[data,default]'
	RAY_worker_niceness=0 SPARSEAGG_SERVER=$(CURDIR)/$(SERVER) build/ray-venv/bin/python -m pytest \
	  -p no:cacheprovider -k 'ray or parquet or parts' \
	  tests/python/cluster tests/system/test_cluster_crash_cycles.py

.PHONY: test-languages
test-languages: $(VENV)/.test deps-languages build ## a first round in seven languages, by Debian's compilers (some minutes)
	SPARSEAGG_TEST_LANGUAGES=1 SPARSEAGG_SERVER=$(CURDIR)/$(SERVER) $(PYTEST) -r s tests/python/gateway/test_languages.py \
	  $(PYTEST_ARGS)

.PHONY: test-tutorials
test-tutorials: build ## the tutorials of Flower and NVFlare, with these from PyPI in an environment of its own (some minutes)
	test -d build/tutorials-venv || $(PYTHON) -m venv build/tutorials-venv
	SPARSEAGG_EXTENSION=off build/tutorials-venv/bin/pip install -q -e ./python 'flwr[simulation]>=1.41' 'nvflare>=2.9,<2.10'
	for page in flower nvflare; do RAY_worker_niceness=0 SPARSEAGG_SERVER=$(CURDIR)/$(SERVER) \
	  build/tutorials-venv/bin/python scripts/run_page.py docs/tutorials/$$page.md; done

# Without TESTS it does nothing where there is no nvcc.
.PHONY: cuda-engine
cuda-engine: $(VENV)/.cuda | deps-build deps-test ## compiles the CUDA engine for one architecture and checks the size of its kernels; TESTS=1: also builds and runs the engines' tests
	cmake --preset cuda -DSPARSEAGG_CUDA=$(if $(TESTS),ON,AUTO)
	! grep -q '^SPARSEAGG_NVCC:FILEPATH=/' build/cuda/CMakeCache.txt || { \
	  cmake --build --preset cuda $(if $(TESTS),,--target sparseagg_cuda) && \
	  $(BIN)/python scripts/sass_table.py build/cuda/cuda/libsparseagg_cuda.a; }
	$(if $(TESTS),ctest --preset cuda)

SANITIZER ?= asan-ubsan

.PHONY: asan asan-build
asan: asan-build ## the C++ tests under the address and undefined-behaviour sanitizers; SANITIZER=tsan: the thread sanitizer
	ctest --preset $(SANITIZER)

asan-build: build/$(SANITIZER)/build.ninja
	cmake --build --preset $(SANITIZER)

SECONDS ?= 30

.PHONY: fuzz
fuzz: build/asan-ubsan/build.ninja ## fuzz targets under the sanitizers, SECONDS=30 each, two at a time
	cmake --build --preset asan-ubsan --target fuzz-targets
	scripts/fuzz.sh build/asan-ubsan $(SECONDS)

## Package

# ARCH=aarch64: wheels and bundle for such a machine, made on this one.
ARCH ?= $(shell uname -m)
CROSS := $(filter-out $(shell uname -m),$(ARCH))
# The preset of the bundle without CUDA and of the wheels. check-bundle has less to compile, and nothing to give away.
BUNDLE ?= $(or $(CROSS),cpu)-bundle
BUNDLE_NAME := sparseagg-$(VERSION)-linux-$(ARCH)
WHEELS := build/wheels$(CROSS:%=-%)

# The programs and the engine are those of the bundle without CUDA: they need no library but libc's.
.PHONY: wheels
wheels: $(VENV)/.wheels build/$(BUNDLE)/build.ninja $(WHEEL) ## the client alone in one file, and with engine and programs for each Python that is here
	$(BIN)/python scripts/wheels.py --client $(WHEEL) --build build/$(BUNDLE) --arch $(ARCH) --out $(WHEELS) $(WHEELS_ARGS)
	@echo $(WHEEL)

.PHONY: wheel-check
wheel-check: ## install such a wheel where there is no network, compiler or root, and merge a round
	$(MAKE) wheels WHEELS_ARGS='--python $(CURDIR)/$(BIN)/python'
	$(BIN)/python scripts/check_wheel.py $(WHEELS) $(patsubst %,--cuda %,$(wildcard build/cuda-wheels/*.whl))

.PHONY: wheel-check-emulated
wheel-check-emulated: build/dev/.with-python $(VENV)/.test | deps-emulate ## the wheel for aarch64 by qemu: the golden cases, and 200 random ones with this machine's bits
	cmake --build --preset dev --target sparseagg-server sparseagg_python
	$(MAKE) wheels ARCH=aarch64
	$(BIN)/python tests/system/emulated.py build/wheels-aarch64

.PHONY: cuda-wheel
cuda-wheel: $(VENV)/.wheels build/static-libs/.done-4 ## the CUDA engine in one file, for sparseagg[cuda13]; needs nvcc
	cmake --preset cuda-wheel -DSPARSEAGG_CUDA_ARCHITECTURES='$(or $(ARCHITECTURES),$(WHEEL_ARCHITECTURES))'
	cmake --build --preset cuda-wheel
	$(BIN)/python scripts/wheels.py --cuda build/cuda-wheel/cuda/plugin/libsparseagg_cuda.so --out build/cuda-wheels

.PHONY: gpu-bundle
gpu-bundle: $(VENV)/.wheels build/gpu-bundle/build.ninja $(WHEEL) ## server, checks and benchmarks in one folder for GPU nodes; needs nvcc
	cmake --preset gpu-bundle -DSPARSEAGG_CUDA_ARCHITECTURES='$(ARCHITECTURES)'
	cmake --build --preset gpu-bundle --target bundle
	$(BIN)/python scripts/wheels.py --build build/gpu-bundle --out build/gpu-bundle/engines
	scripts/bundle.sh build/gpu-bundle $(BUNDLE_NAME) $(WHEEL) $(if $(ARCHITECTURES),40)

.PHONY: bundle
bundle: build/$(BUNDLE)/build.ninja $(WHEEL) ## the same without the CUDA engine
	cmake --build --preset $(BUNDLE) --target bundle
	scripts/bundle.sh build/$(BUNDLE) $(BUNDLE_NAME)-cpu $(WHEEL)

# The quick parts of its check.sh, which may leave eight files. The tests in it are those of `make test`, and a client of
# Python calls the same server in `make wheel-check`.
.PHONY: bundle-check
bundle-check: bundle ## unpack that bundle elsewhere and use it, as on a machine that has nothing
	rm -rf build/bundle-check && mkdir build/bundle-check
	tar -C build/bundle-check --strip-components=1 -xf build/$(BUNDLE)/$(BUNDLE_NAME)-cpu.tar.xz
	cd build/bundle-check && env -i ./check.sh --quick --half both --within 500 --only device,bench,serve,peers,sanitizer --out out
	cd build/bundle-check/out && test "$$(grep -cE '^(device|bench|serve|peers) +cpu .* ok ' check.txt)" = 4 -a "$$(ls | wc -l)" -le 8

ARCHES ?= x86_64 aarch64

.PHONY: release release-of
release: $(VENV)/.wheels ## wheels and bundles of ARCHES="x86_64 aarch64", a bill of materials and SHA256SUMS, in build/release
	rm -rf build/release && mkdir -p build/release
	for arch in $(ARCHES); do $(MAKE) release-of ARCH=$$arch || exit 1; done
	$(BIN)/python scripts/sbom.py build/release/sparseagg.cdx.json
	cd build/release && sha256sum -- * >SHA256SUMS

release-of: wheels bundle
	cp $(WHEEL) $(WHEELS)/*.whl build/$(BUNDLE)/$(BUNDLE_NAME)-cpu.tar.xz build/release

$(foreach bundle,gpu cpu check,build/$(bundle)-bundle/build.ninja): build/%/build.ninja: \
  CMakePresets.json build/static-libs/.done-4 | deps-build deps-test
	cmake --preset $*

# For aarch64: libraries below build/aarch64, and below its usr/local those of which Debian has no archives.
build/aarch64-bundle/build.ninja: CMakePresets.json cmake/aarch64.cmake build/aarch64/usr/local/.done-4
	cmake --preset aarch64-bundle

build/aarch64/.done: | deps-build deps-extension deps-cross
	scripts/deps.sh --sysroot $(CURDIR)/$(@D) build test
	@touch $@

build/aarch64/usr/local/.done-4: scripts/static_libs.sh | build/aarch64/.done deps-bundle
	CMAKE_TOOLCHAIN_FILE=$(CURDIR)/cmake/aarch64.cmake scripts/static_libs.sh $(@D)

# Of the GPU bundle and the CUDA wheel: 90-real for an H100 or H200 alone. Empty: all that the toolkit knows, and
# WHEEL_ARCHITECTURES.
WHEEL_ARCHITECTURES := 80-real;90-real;100-real;120-real;120-virtual

build/static-libs/.done-4: scripts/static_libs.sh | deps-build deps-bundle
	scripts/static_libs.sh build/static-libs

# With their folders, which are younger than the wheel when a file has gone.
PACKAGE_FILES = $(wildcard $(shell git ls-files python proto js))

# The client alone, for any Python. Its name has the version that CMake knows, and Python's may be another by mistake.
$(WHEEL): $(PACKAGE_FILES) $(sort $(dir $(PACKAGE_FILES))) | $(VENV)/bin/python
	@rm -f $@
	SPARSEAGG_EXTENSION=off $(BIN)/pip wheel -q --no-deps -w build/wheel ./python
	@test -s $@ || { echo '$@ was not made: is its version that of python/pyproject.toml?' >&2; exit 1; }

## Documentation

build/docs-venv/.done: scripts/requirements-docs.txt | deps-python
	test -d $(@D) || $(PYTHON) -m venv $(@D)
	$(@D)/bin/pip install -q -r $<
	@touch $@

.PHONY: docs
docs: build/docs-venv/.done deps-build ## the site, into build/site; a dead link or a page without a place in it fails (DOCS=serve: in a browser)
	NO_MKDOCS_2_WARNING=1 build/docs-venv/bin/mkdocs $(or $(DOCS),build)

## Measure

# MODE is merge (updates in memory, beside other libraries; 20 minutes), round (whole rounds, beside Flower and NVFlare)
# or service (the server under load, beside bare gRPC). QUICK=1 measures little of it, into out/bench.
MODE ?= merge
BENCH_OUT := $(if $(QUICK),out/bench,bench/results)
PEERS_VENV := .venv-peers
PEERS_PYTHON := $(PEERS_VENV)/bin/python
BENCH_NEEDS_merge = $(PEERS_VENV)/.engine
BENCH_NEEDS_round = $(if $(QUICK),,.venv-integrations/flower/.done .venv-integrations/nvflare/.done)
# What the engine inside the comparison's environment is built from.
ENGINE_FILES = $(wildcard $(shell git ls-files CMakeLists.txt cmake host cuda service python))

BENCH_FILE = $(BENCH_OUT)/$(MODE:merge=comparison)
BENCH_PYTHON = $(if $(filter merge,$(MODE)),$(PEERS_PYTHON),$(BIN)/python)
BENCH_round = --python flwr=.venv-integrations/flower/bin/python --python nvflare=.venv-integrations/nvflare/bin/python

.PHONY: bench
bench: build/dev/.with-python $(BENCH_NEEDS_$(MODE)) ## measures MODE=merge, round or service, into bench/results (QUICK=1: a little, into out/bench)
	@mkdir -p $(BENCH_OUT)
	cmake --build --preset dev --target sparseagg-server sparseagg-loadgen sparseagg_python
	$(BENCH_PYTHON) bench/run.py $(MODE) --out $(BENCH_FILE).json $(if $(QUICK),--quick) $(BENCH_$(MODE)) $(BENCH_ARGS)
	$(if $(filter service,$(MODE)),,$(BENCH_PYTHON) bench/show.py $(BENCH_FILE).json --summary --png $(BENCH_FILE).png)

## Build

DEPS := $(addprefix deps-,build python extension test browser languages sanitize bundle lint deploy cross emulate)

.PHONY: deps $(DEPS)
deps: deps-build deps-test deps-extension $(VENV)/.demo $(VENV)/.test ## Debian packages and the Python environment, where missing

.PHONY: build
build: build/dev/.with-tests ## everything, with tests, in build/dev
	cmake build/dev -DSPARSEAGG_SERVICE_TESTS=$(SERVICE_TESTS) >/dev/null
	cmake --build --preset dev

server: build/dev/build.ninja
	cmake --build --preset dev --target sparseagg-server

# For this machine alone: for the GPUs that it has, or without CUDA, since kernels for all of them take an hour of two
# cores. What goes to other machines is a bundle.
CUDA_HERE = $(shell nvidia-smi -L >/dev/null 2>&1 && echo -DSPARSEAGG_CUDA=AUTO -DSPARSEAGG_CUDA_ARCHITECTURES=native \
  || echo -DSPARSEAGG_CUDA=OFF)

build/dev/build.ninja: CMakePresets.json | deps-build
	cmake --preset dev $(CUDA_HERE) -DSPARSEAGG_TESTS=OFF

# The Python extension, for the environment's Python; it goes where that environment's package is.
PYTHON_EXTENSION = -DSPARSEAGG_PYTHON=ON -DPython_EXECUTABLE='$(CURDIR)/$(BIN)/python'

# So that the environment of `make run` has client, engine and server. Beyond what the server's build has anyway, the
# engine takes two more files, 25 s of one core, and the packages python3-dev and nanobind; and, once, a protobuf that can
# be linked into it, two minutes of one core.
build/dev/.with-python: build/dev/build.ninja python/engine/CMakeLists.txt | deps-extension $(VENV)/.demo
	cmake --preset dev $(CUDA_HERE) $(PYTHON_EXTENSION)
	@touch $@

build/dev/.with-tests: build/dev/build.ninja python/engine/CMakeLists.txt | deps-test deps-extension $(VENV)/.test
	cmake --preset dev $(CUDA_HERE) -DSPARSEAGG_TESTS=ON $(PYTHON_EXTENSION)
	@touch $@

build/asan-ubsan/build.ninja: | deps-sanitize
build/asan-ubsan/build.ninja build/tsan/build.ninja: build/%/build.ninja: CMakePresets.json \
  | deps-build deps-test
	cmake --preset $*

build/tidy/build.ninja: CMakePresets.json python/engine/CMakeLists.txt | deps-build deps-test deps-extension $(VENV)/.test
	cmake --preset tidy $(PYTHON_EXTENSION)

# Packages by group, so that running needs no test or lint tools. Phony, and order-only where files depend on them: a
# look that finds nothing missing takes a tenth of a second and makes nothing out of date.
$(DEPS): deps-%:
	@PYTHON='$(PYTHON)' scripts/deps.sh $*

# The Python environment, likewise by group. The package is installed in place, so that only its requirements matter;
# its extension is built with the rest of build/dev.
$(VENV)/bin/python: | deps-python
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: python/pyproject.toml python/setup.py | $(VENV)/bin/python
	SPARSEAGG_EXTENSION=off $(BIN)/pip install -q -e './python[plot,engine]'
	@touch $@

$(VENV)/.test: $(VENV)/.demo
	SPARSEAGG_EXTENSION=off $(BIN)/pip install -q -e './python[plot,engine,test]'
	@touch $@

$(VENV)/.deploy: $(VENV)/.lint
$(addprefix $(VENV)/.,wheels lint deploy cuda): $(VENV)/.%: scripts/requirements-%.txt $(VENV)/.test
	$(BIN)/pip install -q -r $<
	@touch $@

# The comparison's environment: other libraries, and the package as anybody would install it.
$(PEERS_VENV)/.peers: bench/peers/requirements.txt bench/peers/install.py | deps-python
	test -d $(@D) || $(PYTHON) -m venv $(@D)
	$(PEERS_PYTHON) bench/peers/install.py $< || test -s $(PEERS_VENV)/absent.json  # a peer may be absent
	@touch $@

$(PEERS_VENV)/.engine: $(ENGINE_FILES) $(PEERS_VENV)/.peers | deps-build deps-extension
	SPARSEAGG_EXTENSION=on $(PEERS_PYTHON) -m pip install -q ./python
	@touch $@

## Maintenance

CXX_FILES = $(shell git ls-files '*.h' '*.cc' '*.cu' '*.cuh')
PYTHON_DIRS := python tests scripts bench examples cmake
# clang-tidy reads the sources that changed since TIDY_BASE, the sources named after a changed header, and what CMake
# compiles together with them. The default base is the newest commit six hours older than HEAD; without one it reads all.
TIDY_BASE ?= $(shell git rev-list -1 --before="$$(($$(git log -1 --format=%ct) - 6 * 3600))" HEAD)
print-tidy-base:
	@echo '$(TIDY_BASE)'
TIDY_FOLDERS ?= host service python
TIDY_SOURCES = $(filter $(TIDY_FOLDERS:%=%/%.cc),$(if $(TIDY_BASE),$(wildcard $(sort $(patsubst %.h,%.cc, \
  $(shell git diff --name-only $(TIDY_BASE))))),$(CXX_FILES)))

.PHONY: check
check: lint-format lint-modules lint-python build/dev/.with-python ## what to run before a commit (3 minutes): form, the build, and a client's tests
	cmake --build --preset dev --target sparseagg-server sparseagg_python
	SPARSEAGG_SERVER=$(CURDIR)/$(SERVER) $(PYTEST) -q tests/python/every_address tests/python/local/test_engine.py $(PYTEST_ARGS)

.PHONY: lint lint-format lint-modules lint-python lint-deploy lint-tidy
lint: lint-format lint-modules lint-python lint-deploy lint-tidy ## every check of form, and clang-tidy

lint-format: deps-lint
	@echo 'clang-format-14 --dry-run -Werror, $(words $(CXX_FILES)) files'
	@printf '%s\n' $(CXX_FILES) | xargs -n 40 -P $$(nproc) clang-format-14 --dry-run -Werror

lint-modules: deps-lint deps-build $(VENV)/.lint
	shellcheck .ci/run $(shell git ls-files '*.sh')
	$(PYTHON) scripts/check_modules.py
	python/generate.sh --check
	$(BIN)/buf lint
	$(BIN)/buf breaking --against proto/released.binpb

lint-python: $(VENV)/.lint
	$(BIN)/ruff check $(PYTHON_DIRS)
	$(BIN)/ruff format --check $(PYTHON_DIRS)
	protoc --proto_path=proto --pyi_out=python/src proto/sparseagg/v1/*.proto  # types of the messages, for mypy alone
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache --no-logo python/pyproject.toml

# Unpacked, not installed: installing the package starts a Prometheus. tests/system/test_dashboard.py runs the one beside it.
PROMTOOL = $(or $(shell command -v promtool),build/lint/prometheus/usr/bin/promtool)

build/lint/prometheus/usr/bin/promtool: | deps-lint
	@mkdir -p build/lint/prometheus
	cd build/lint/prometheus && apt-get -q download prometheus && dpkg -x prometheus_*.deb . && rm prometheus_*.deb

# systemd-analyze wants the program to be there, and calls what it does not know a warning.
lint-deploy: deps-lint $(VENV)/.lint $(PROMTOOL)
	yamllint -s -c deploy/.yamllint deploy
	$(BIN)/hadolint --ignore DL3008 deploy/container/Containerfile
	@mkdir -p build/lint
	sed 's,^ExecStart=[^ ]*,ExecStart=/bin/true,' deploy/systemd/sparseagg.service >build/lint/sparseagg.service
	systemd-analyze verify build/lint/sparseagg.service 2>&1 | tee build/lint/sparseagg.log
	! grep -F sparseagg.service build/lint/sparseagg.log
	$(BIN)/python scripts/check_deploy.py
	$(PROMTOOL) test rules deploy/prometheus/alerts_test.yml

# The tests' own network namespace has the fixed ports of the how-tos free; what needs a network is done before.
.PHONY: test-deploy
test-deploy: deps-deploy $(VENV)/.deploy $(PROMTOOL) server ## deploys as an operator does, in containers of Podman; as root (10 minutes)
	$(BIN)/python tests/deploy/machine.py $(CURDIR)/$(SERVER)
	SPARSEAGG_SERVER=$(CURDIR)/$(SERVER) SPARSEAGG_DEPLOY=alone \
	  unshare --net $(BIN)/python -m pytest tests/deploy $(PYTEST_ARGS)

lint-tidy: build/tidy/build.ninja $(VENV)/.lint deps-lint
	cmake --build build/tidy --target $(patsubst proto/%.proto,proto/%.grpc.pb.h,$(wildcard proto/sparseagg/v1/*.proto)) \
	  generated/service/store/records.pb.h
	@printf '$(CURDIR)/%s\n' $(TIDY_SOURCES) >build/tidy/sources
	@test -z '$(TIDY_SOURCES)' || { cat build/tidy/sources; grep -rlFf build/tidy/sources --include='unity_*.cxx' build/tidy; } \
	  | sed 's/.*/&$$/' | xargs $(BIN)/run-clang-tidy.py -quiet -p build/tidy -clang-tidy-binary $(BIN)/clang-tidy \
	  $(if $(JOBS),-j $(JOBS)) -extra-arg=-Wno-deprecated-declarations 2>&1 \
	  | sed -E '/^[0-9]+ warnings? generated|clang-tidy -|^$$/d'

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
