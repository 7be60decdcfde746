# Everything runs in .venv, which the first target that needs it makes.
PYTHON ?= python3
# 2.13.0: the release that the tests were written against. On a machine with GPUs any CUDA build from 2.6 on will do.
TORCH ?= torch==2.13.0
SEED ?= 0

BIN := .venv/bin
# One OpenMP thread a process: the tests start several, and pools that share a core spin.
TEST := OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1 $(BIN)/python -m pytest

.PHONY: install quickstart check test test-fast test-layout benchmark clean

install: .venv/installed

.venv/installed: setup.py
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=...")'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check $(TORCH)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

# A mixture-of-experts model learns to add, on two processes: runs/tiny_moe-seed$(SEED)
quickstart: install
	rm -rf runs/tiny_moe-seed$(SEED)
	$(BIN)/megatron-sspo train examples/tiny_moe.py --set seed=$(SEED) --set name=tiny_moe-seed$(SEED)

check: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright

test: install
	$(TEST)

test-fast: install
	$(TEST) -m "not slow"

# One global batch in seventy layouts: the table of docs/layouts.md
test-layout: install
	$(TEST) tests/policy/test_layouts.py

# Ratios against peers, where `pip install --no-deps liger-kernel==0.8.5 trl==1.16.0 triton` has brought them
benchmark: install
	$(BIN)/python benchmarks/log_probs.py
	$(BIN)/python benchmarks/sspo_loss.py
	$(BIN)/python benchmarks/convert.py --folder runs/benchmark_convert

clean:
	rm -rf .venv build *.egg-info runs
