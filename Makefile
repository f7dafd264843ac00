# Everything a person or the CI does with this tree. `make` alone serves the models that ship with it.
# On a fresh Debian or Ubuntu: apt install python3-venv.

PYTHON ?= python3
SERVE_ARGS ?= --model-repository=deploy/models --model-control-mode=explicit '--load-model=*' --http-port=8000 --metrics-port=8002
TEST_ARGS ?=
# Processes that run the tests, a file at a time. On two cores two of them take half the time of one.
TEST_WORKERS ?= 2
BENCH_ARGS ?=
# What the compiled build has to pass as well: the tests of the modules that it compiles.
COMPILED_TESTS ?= $(addprefix tests/unit/,test_compiled.py \
  $(addprefix adapters/,sagemaker/test_invocations.py sagemaker/test_multi_model.py vertex/test_predictions.py vertex/test_vertex_routes.py) \
  $(addprefix app/worker/,http1 http2 test_connection.py test_web_socket.py)) $(addprefix tests/unit/core/, \
  $(addprefix backends/,test_in_process.py test_tensors.py python/test_batches.py python/test_process.py) \
  config/test_request_validator.py engine \
  $(addprefix frontend/test_,bridge.py gevent_bridge.py request.py response_stream.py) \
  grpc \
  $(addprefix http/test_,application.py inference_routes.py v2_requests.py v2_responses.py v2_json.py v2_routes.py) \
  inference interprocess/test_frames.py interprocess/test_shared_memory.py \
  observability/test_statistics.py \
  $(addprefix remote/test_,engine_client.py engine_server.py wire.py) \
  test_buffers.py test_fresh_answers.py test_memo.py waiting) \
  $(wildcard tests/unit/core/scheduling/test_*.py) \
  tests/contract/http/test_golden.py tests/contract/grpc/test_golden.py
GUARD_ARGS ?=

SHELL := /bin/bash
VENV := .venv
BIN := $(VENV)/bin
# Only wheels, so that no dependency needs a compiler. Of pip's output the lines that show what it is doing.
INSTALL = echo "Installing .[$(EXTRAS)] into $(VENV)"; set -o pipefail; \
  $(BIN)/python -m pip install --only-binary :all: --constraint requirements.lock --editable '.[$(EXTRAS)]' | \
  sed -unE -e '/\.metadata/d' -e 's/^Installing collected packages.*/Installing these packages/p' \
    -e 's/^ *(Downloading|Using cached|Processing) ([^ ]*\/)?([^ ]+\.whl)( \([^)]*B\))?.*/\1 \3\4/p'
COMPILED := $(abspath build/compiled)
# Files start in the order of the collection: the contract tests, which take longest, come first.
PYTEST := $(BIN)/python -m pytest -n $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder

# Images set it to save space. The tests start hundreds of servers, each of which would compile every module again.
unexport PYTHONDONTWRITEBYTECODE

.DELETE_ON_ERROR:
.PHONY: serve test lint check quick-tests bench bench-guard format protos bare-check image-check wheel test-compiled gpu-wheels \
  test-gpu-options docs release clean

serve: $(VENV)/.installed-cpu
	$(BIN)/trident serve --error-hints=text --console=true $(SERVE_ARGS)

test: $(VENV)/.installed-test
	$(PYTEST) $(TEST_ARGS)

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Lint and tests at once: mypy uses one core only.
check: $(VENV)/.installed-test
	$(MAKE) --no-print-directory -j2 --output-sync=target lint quick-tests

quick-tests: $(VENV)/.installed-test
	$(PYTEST) -q tests/unit -m 'not slow'

bench: $(VENV)/.installed-test
	$(BIN)/python -m bench $(BENCH_ARGS)

# Fails if this checkout is slower than the last release at one of its entry points; takes two minutes.
bench-guard: $(VENV)/.installed-test
	$(BIN)/python -m bench guard $(GUARD_ARGS)

# `make serve` on a Debian that has only git, make and python3-venv; as root, with debootstrap from apt.
bare-check:
	docker/bare_machine.sh

# Builds the image without Docker and runs it in its three roles; as root, with buildah and debootstrap from apt.
image-check: $(VENV)/.installed-test
	docker/check.sh

format: $(VENV)/.installed-test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# What describes the messages of protobuf, after a change of a .proto file: pip install grpcio-tools.
PROTOC := ../../$(BIN)/python -m grpc_tools.protoc -I.
protos:
	cd core/protos && $(PROTOC) --pyi_out=. model_config.proto grpc_service.proto && \
	  $(PROTOC) --descriptor_set_out=messages.binpb model_config.proto grpc_service.proto grpc/health/v1/health.proto

# A wheel with the hot path compiled, in dist/; needs a C compiler and Python's headers.
wheel: | $(BIN)/pip
	rm -rf build/lib* build/bdist* dist
	TRIDENT_COMPILE=1 $(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .

# The chosen tests, from this checkout, on the code of the wheel; so are the programs that they start, in any folder.
test-compiled: $(VENV)/.installed-test wheel
	rm -rf $(COMPILED)
	$(BIN)/python -m zipfile -e dist/*.whl $(COMPILED)
	PYTHONSAFEPATH=1 PYTHONPATH=$(COMPILED):$(CURDIR) $(PYTEST) -o pythonpath="$(COMPILED) . trident/core/backends/python/stub" $(COMPILED_TESTS) \
	  --deselect='tests/unit/core/engine/test_node_models.py::test_engine_answers_like_onnx_runtime[all]' $(TEST_ARGS)

# ONNX Runtime for GPUs in the versions that the images install, without CUDA: for tests of what it parses.
gpu-wheels: | $(BIN)/pip
	@for lock in docker/requirements-gpu*.lock; do \
	  pin=$$(grep -o '^onnxruntime-gpu==[^ ]*' $$lock); \
	  [ -d build/gpu-wheels/$$pin ] || { echo "Installing $$pin into build/gpu-wheels" && \
	    $(BIN)/python -m pip install --quiet --no-deps --no-compile --target build/gpu-wheels/$$pin $$pin; } || exit 1; \
	done

# Needs no GPU, but a C compiler.
test-gpu-options: $(VENV)/.installed-test gpu-wheels
	$(BIN)/python -m pytest tests/gpu_options $(TEST_ARGS)

# The pages as a site, into the folder `site`: python -m http.server --directory site
docs: $(VENV)/.installed-docs
	npm install --silent --prefix build/mermaid mermaid || echo 'Without npm the diagrams are shown as text'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

# Wheels, source, list of components, provenance, checksums, signed: all of a release but the upload. KEY=private.pem
release: $(VENV)/.installed-test
	.ci/release

clean:
	rm -rf build dist site *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +

# The stamps are newer than what they were made from, so a second run installs nothing.
$(VENV)/.installed-cpu: EXTRAS := cpu
$(VENV)/.installed-test: EXTRAS := cpu,trees,openvino,test
$(VENV)/.installed-docs: EXTRAS := cpu,text,docs

$(VENV)/.installed-cpu $(VENV)/.installed-docs: pyproject.toml requirements.lock | $(BIN)/pip
	@$(INSTALL)
	touch $@

$(VENV)/.installed-test: pyproject.toml requirements.lock | $(BIN)/pip
	@$(INSTALL)
	touch $@ $(VENV)/.installed-cpu

$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed; name one with: make PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || \
	  { rm -rf $(VENV); echo "On Debian and Ubuntu the module is a package of its own: apt install python3-venv"; exit 1; }
