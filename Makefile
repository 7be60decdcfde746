# Everything runs in .venv, which the first target that needs it makes.
PYTHON ?= python3
# 2.13.0: the release that the tests were written against. On a machine with GPUs any CUDA build from 2.6 on will do.
TORCH ?= torch==2.13.0
SEED ?= 0
# For how long `make torture` makes faults.
SECONDS ?= 600
# Who generates the quickstart's responses: embedded (Transformers, in process) or sglang (after make install-sglang).
ENGINE ?= embedded

BIN := .venv/bin
SUDO := $(if $(filter 0,$(shell id -u)),,sudo)
# One OpenMP thread a process: the tests start several, and pools that share a core spin.
TEST := OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1 $(BIN)/python -m pytest

.PHONY: install install-sglang install-nemo-run install-sandbox sandbox-there quickstart check test test-fast test-layout test-sglang test-nemo-run test-cluster test-long torture benchmark benchmark-sandbox clean

install: .venv/installed

.venv/installed: setup.py
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=...")'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check $(TORCH)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

# SGLang's server on a CPU, in an environment of its own: its pins are not the trainer's. On a machine with GPUs take
# SGLang as its makers install it, and name its interpreter: rollouts.options.python.
install-sglang: .venv-sglang/installed

.venv-sglang/installed: sglang_cpu/requirements.txt
	$(PYTHON) -m venv .venv-sglang
	.venv-sglang/bin/pip install --quiet --disable-pip-version-check $(TORCH)
	.venv-sglang/bin/pip install --quiet --disable-pip-version-check --no-deps \
		sglang==0.5.23 sglang-router==0.3.2 torchvision==0.15.2
	echo $(TORCH) > .venv-sglang/constraints.txt
	.venv-sglang/bin/pip install --quiet --disable-pip-version-check \
		-c .venv-sglang/constraints.txt -r sglang_cpu/requirements.txt
	.venv-sglang/bin/pip install --quiet --disable-pip-version-check --no-deps ./sglang_cpu
	touch $@

# NeMo-Run, in an environment of its own: it pins an old httpx. The trainer's packages are not needed there, nor NeMo-Run
# on the nodes. docs/launch.md
install-nemo-run: .venv-nemo-run/installed

.venv-nemo-run/installed: setup.py
	$(PYTHON) -m venv .venv-nemo-run
	.venv-nemo-run/bin/pip install --quiet --disable-pip-version-check --no-deps --editable .
	.venv-nemo-run/bin/pip install --quiet --disable-pip-version-check nemo-run==0.11.1 'leptonai<0.28'
	touch $@

# What programs that a model wrote are executed in: docs/sandbox.md
install-sandbox:
	command -v bwrap >/dev/null || { $(SUDO) apt-get update -qq && $(SUDO) apt-get install -y -qq bubblewrap; }

sandbox-there:
	@command -v bwrap >/dev/null || { echo "bubblewrap is missing, and the sandbox's tests need it: make install-sandbox" >&2; exit 1; }

# A mixture-of-experts model learns to add, on two processes: runs/tiny_moe-seed$(SEED)
quickstart: install
	rm -rf runs/tiny_moe-seed$(SEED)
	$(BIN)/megatron-sspo train examples/tiny_moe.py --set seed=$(SEED) --set name=tiny_moe-seed$(SEED) \
		--set rollouts.engine=$(ENGINE)

check: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/python -m tools.docstrings
	$(BIN)/pyright

test: install sandbox-there
	$(TEST) -m "not sglang and not cluster and not nemo_run and not long"

test-fast: install sandbox-there
	$(TEST) -m "not slow and not sglang and not cluster and not nemo_run and not long"

# With real SGLang servers on this machine's CPU
test-sglang: install install-sglang
	$(TEST) tests/sglang

# Experiments on this machine, by NeMo-Run itself
test-nemo-run: install install-nemo-run
	$(TEST) tests/launch -m "nemo_run and not long"

# With a real Slurm of four nodes on this machine, as root: it is installed, brought up, and taken down again
test-cluster: install install-sglang install-nemo-run
	command -v shellcheck >/dev/null || { apt-get update -qq && apt-get install -y -qq shellcheck; }
	tests/cluster/up.sh
	$(TEST) tests/cluster -m "not long"; code=$$?; tests/cluster/down.sh; exit $$code

# Sweeps that are killed and gone on with: here, on the cluster as an array, and by NeMo-Run
test-long: install install-sglang install-nemo-run
	tests/cluster/up.sh
	$(TEST) tests/e2e tests/launch tests/cluster -m long; code=$$?; tests/cluster/down.sh; exit $$code

# The real loop, hit by faults and resumed again and again: the table of docs/reliability.md
torture: install install-sglang sandbox-there
	$(BIN)/python -m tools.torture --seconds $(SECONDS) --seed $(SEED)

# One global batch in 74 layouts: the table of docs/layouts.md
test-layout: install
	$(TEST) tests/policy/test_layouts.py

# Ratios against peers, where `pip install --no-deps liger-kernel==0.8.5 trl==1.16.0 triton` has brought them
benchmark: install
	$(BIN)/python benchmarks/log_probs.py
	$(BIN)/python benchmarks/sspo_loss.py
	$(BIN)/python benchmarks/convert.py --folder runs/benchmark_convert

# Latency and throughput of the sandbox: the table of docs/sandbox.md
benchmark-sandbox: install sandbox-there
	$(BIN)/python benchmarks/sandbox.py

clean:
	rm -rf .venv .venv-sglang .venv-nemo-run build *.egg-info runs
