# Everything runs in VENV, which the first target that needs it creates.
VENV ?= .venv
PYTHON ?= python3
# The interpreter of `make test-newest`.
NEWEST ?= python3.12
# 2.13.0: the release that the tests were written against. On a machine with GPUs, use any CUDA build from 2.6 on.
TORCH ?= torch==2.13.0
SEED ?= 0
# The seconds in which `make torture` makes faults.
SECONDS ?= 600
# The engine of the quickstart: embedded (Transformers, in process) or sglang (after make install-sglang).
ENGINE ?= embedded
# The commit that the runs of the study were made from, for its report.
COMMIT ?=

BIN := $(VENV)/bin
# --no-compile: most modules that pip installs are never imported, and Python compiles those that are. Packages that sandboxes
# share (numpy, sympy) are compiled, because a sandbox cannot write their bytecode.
PIP := pip install --quiet --no-compile --disable-pip-version-check
# The folders of packages/ that the trainer imports.
LIBRARIES := answers sandbox agents lab rehearsal
SUDO := $(if $(filter 0,$(shell id -u)),,sudo)
# One OpenMP thread a process: the tests start several, and pools that share a core spin.
TEST := OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1 $(BIN)/python -m pytest
# The processes that tests start import the package from bytecode, which the first of them writes.
unexport PYTHONDONTWRITEBYTECODE
# Workers with whole files: three on two cores, because many tests wait; two where each has servers.
WORKERS := --numprocesses 3 --dist loadfile --no-loadscope-reorder
# The tests that need no servers, no cluster, no GPU and no other environment.
ANYWHERE := not sglang and not cluster and not nemo_run and not browser and not gpu and not triton and not long
OF_RELEASE := tests/policy --ignore=tests/policy/test_lora_layouts.py tests/checkpoint tests/weights/test_families.py tests/weights/test_other_writers.py
SERVER_WORKERS := --numprocesses 2 --dist loadfile --no-loadscope-reorder

# $(call apt,TEST,PACKAGES): installs packages of Debian or Ubuntu, unless a command says that they are there.
apt = { $(1); } >/dev/null 2>&1 || { which $(SUDO) apt-get && echo "apt-get install $(2)" >&2 && flock --close Makefile $(SUDO) sh -c \
	'apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(2)'; } >/dev/null \
	|| { echo "Packages of the system are missing; run as root: apt-get install $(2)" >&2; false; }

# Of the packages of Python, pip compiles one: pycosat, which reasoning-gym needs.
CAN_COMPILE := command -v gcc && $(PYTHON) -c 'import ensurepip, sysconfig; open(sysconfig.get_path("include") + "/Python.h")'

# $(call venv,FOLDER): makes an environment.
define venv
@$(call apt,$(CAN_COMPILE),gcc $(notdir $(PYTHON))-venv $(notdir $(PYTHON))-dev)
@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=...")'
$(PYTHON) -m venv $(1)
endef

.PHONY: install install-sglang install-nemo-run install-docs install-sandbox try-sandbox install-browser install-cluster install-integrations quickstart docs check test test-fast test-newest test-library test-layout test-sglang test-kernels test-gpu test-nemo-run test-integrations test-bridge test-wheel test-browser test-cluster test-long torture benchmark benchmark-sandbox study-report clean

install: $(VENV)/installed

$(VENV)/installed: setup.py $(LIBRARIES:%=packages/%/pyproject.toml)
	$(call venv,$(VENV))
	$(BIN)/$(PIP) $(TORCH)
	$(BIN)/$(PIP) --compile --editable '.[dev]'
	$(BIN)/$(PIP) --compile --no-deps $(LIBRARIES:%=--editable packages/%)
	touch $@

# Installs SGLang for a CPU in its own environment, because its pins differ from the trainer's. On a machine with GPUs, install
# SGLang as its documentation says, and set rollouts.options.python to its interpreter.
install-sglang: .venv-sglang/installed

.venv-sglang/installed: sglang_cpu/requirements.txt $(wildcard sglang_cpu/sglang_cpu_platform/*.py)
	$(call venv,.venv-sglang)
	.venv-sglang/bin/$(PIP) $(TORCH)
	.venv-sglang/bin/$(PIP) --no-deps sglang==0.5.23 sglang-router==0.3.2 torchvision==0.15.2
	echo $(TORCH) > .venv-sglang/constraints.txt
	.venv-sglang/bin/$(PIP) -c .venv-sglang/constraints.txt -r sglang_cpu/requirements.txt
	.venv-sglang/bin/$(PIP) --no-deps ./sglang_cpu
	touch $@

# Installs NeMo-Run in its own environment, because it pins an old httpx. The trainer's packages are not needed there, nor NeMo-Run
# on the nodes. docs/nemo_run.md
install-nemo-run: .venv-nemo-run/installed

.venv-nemo-run/installed: setup.py
	$(call venv,.venv-nemo-run)
	.venv-nemo-run/bin/$(PIP) --no-deps --editable .
	.venv-nemo-run/bin/$(PIP) nemo-run==0.11.1 'leptonai<0.28'
	touch $@

# Installs MkDocs in its own environment. The versions are those of the extra `docs` in setup.py: a strict build depends on them.
# The package itself is not installed there, because the pages are made from its sources alone.
install-docs: .venv-docs/installed

.venv-docs/installed: setup.py
	$(call venv,.venv-docs)
	.venv-docs/bin/$(PIP) mkdocs==1.6.1 mkdocs-material==9.8.1 mkdocstrings==1.0.8 mkdocstrings-python==2.0.11 ruff==0.17.6
	touch $@

# Installs TRL, verl and verifiers, each in its own environment, because their pins differ. None has Megatron or the trainer's
# packages: an objective needs torch alone, and an environment no trainer. Of verl's requirements, these are the ones that its
# actor's loss and engine import.
install-integrations: .venv-trl/installed .venv-verl/installed .venv-verifiers/installed

.venv-trl/installed:
	$(call venv,.venv-trl)
	.venv-trl/bin/$(PIP) $(TORCH)
	.venv-trl/bin/$(PIP) trl==1.16.0 transformers==5.23.0 pytest pytest-timeout hypothesis
	touch $@

.venv-verl/installed:
	$(call venv,.venv-verl)
	.venv-verl/bin/$(PIP) $(TORCH)
	.venv-verl/bin/$(PIP) --no-deps verl==0.9.1
	.venv-verl/bin/$(PIP) transformers==5.9.0 tensordict==0.10.0 \
		accelerate peft hydra-core==1.3.2 'ray>=2.41' pandas codetiming dill cachetools torchdata datasets pillow pydantic \
		pytest pytest-timeout hypothesis
	touch $@

.venv-verifiers/installed:
	$(call venv,.venv-verifiers)
	.venv-verifiers/bin/$(PIP) verifiers==0.4.0
	touch $@

# Builds the documentation site into build/site. A dead link is an error (with --quiet, warnings would not be counted).
docs: install-docs
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/python -m mkdocs build --strict
	@echo "build/site/index.html"

# Installs bubblewrap, the sandbox that runs programs written by a model: docs/sandbox.md
install-sandbox:
	@$(call apt,command -v bwrap,bubblewrap)

# Where that cannot be, the tests that need it are named at the end, and not run.
try-sandbox:
	@$(call apt,command -v bwrap,bubblewrap) || true

# Installs Chromium, in which the live page is tested.
install-browser:
	@$(call apt,command -v chromium,chromium)

# Installs Slurm for tests/cluster/up.sh (written for Slurm 22.05, Debian 12), and what checks the scripts.
install-cluster:
	@$(call apt,which slurmctld slurmd sbatch slurmdbd munged mariadbd ip gcc shellcheck && test -e /usr/include/slurm/spank.h,slurmctld \
		slurmd slurm-client slurmdbd munge mariadb-server iproute2 gcc libslurm-dev shellcheck)

# Trains a mixture-of-experts model to add, on two processes: runs/tiny_moe-seed$(SEED)
# make quickstart SET="num_updates=20 optimizer.lr=2e-4" changes settings of the recipe.
quickstart: install
	rm -rf runs/tiny_moe-seed$(SEED)
	$(BIN)/megatron-sspo train examples/tiny_moe.py --set seed=$(SEED) --set name=tiny_moe-seed$(SEED) \
		--set rollouts.engine=$(ENGINE) $(addprefix --set ,$(SET))

# PLW1514: text is UTF-8 in every locale. The judge runs in the sandbox, which has one.
check: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/ruff check --preview --select PLW1514 --exclude judge.py megatron_sspo tools benchmarks packages/*/sspo_*
	$(BIN)/python -m tools.docstrings
	$(BIN)/pyright

# TESTS=tests leaves out those of the libraries in packages/.
test: install try-sandbox
	$(TEST) $(WORKERS) $(TESTS) -m "$(ANYWHERE)"

test-fast: install try-sandbox
	$(TEST) $(WORKERS) $(TESTS) -m "not slow and $(ANYWHERE)"

# Runs the tests that depend on the release of megatron-core with the newest one, which needs Python 3.12.
test-newest:
	$(MAKE) VENV=.venv-newest PYTHON=$(NEWEST) TESTS="$(OF_RELEASE)" test

# make test-library NAME=answers
test-library: install try-sandbox
	$(TEST) $(WORKERS) packages/$(NAME)/tests -m "$(ANYWHERE)"

# Runs real SGLang servers on this machine's CPU.
test-sglang: install try-sandbox install-sglang .venv-verifiers/installed
	$(TEST) $(SERVER_WORKERS) tests/sglang -m "not long"

# Runs the GPU's kernels on this machine's CPU, by Triton's interpreter. Triton comes with torch for CUDA; here it has a folder
# of its own, because libraries that find it would use it. The interpreter of older ones does not fit numpy 2.4.
test-kernels: install $(VENV)/triton/installed
	PYTHONPATH=$(VENV)/triton TRITON_INTERPRET=1 $(BIN)/python -m pytest tests/policy/test_head_kernels.py -m triton

$(VENV)/triton/installed: $(VENV)/installed
	$(BIN)/$(PIP) --no-deps --target $(VENV)/triton triton==3.9.0
	touch $@

# Compares a trainer process on this machine's GPU with Transformers on its CPU, in an environment with CUDA:
# make test-gpu PYTHON=...
# and with RANKS=4 also up to four ranks by NCCL, on GPUs of their own or on the same one.
test-gpu:
	$(PYTHON) -m pytest tests/gpu

# Runs experiments on this machine with NeMo-Run.
test-nemo-run: install install-nemo-run
	$(TEST) tests/launch -m "nemo_run and not long"

# Builds the sdist and the wheel, and uses the wheel in an empty folder, without the checkout.
test-wheel: install
	$(TEST) tests/package

# Compares the gradients of objectives inside TRL and verl with the formulas, trains with TRL, and runs an environment of
# verifiers and the clients of OpenAI and Anthropic. The files have other names than test_*.py, because `make test` has
# none of these packages.
test-integrations: install install-integrations
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 .venv-trl/bin/python -m pytest tests/integrations/trl_trainer.py
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 .venv-verl/bin/python -m pytest tests/integrations/verl_loss.py \
		tests/integrations/verl_engine.py
	$(TEST) tests/integrations/verifiers_agent.py tests/integrations/real_clients.py

# Compares conversion with Megatron-Bridge's. It needs Python 3.12 and an older Transformers, which have an environment of their own;
# the rest is that of `make test-newest`.
test-bridge: .venv-bridge/installed
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 .venv-bridge/bin/python -m pytest tests/integrations/bridge_conversion.py

.venv-bridge/installed:
	$(MAKE) VENV=.venv-newest PYTHON=$(NEWEST) install
	$(NEWEST) -m venv .venv-bridge
	realpath .venv-newest/lib/python*/site-packages > $$(echo .venv-bridge/lib/python*/site-packages)/newest.pth
	.venv-bridge/bin/$(PIP) --no-deps megatron-bridge==0.6.2 transformers==5.12.1 tokenizers==0.22.2 huggingface-hub==1.33.0 \
		httpx==0.28.1 httpcore==1.0.9 omegaconf==2.4.0 einops==0.8.2
	touch $@

# Looks at the live page in a real browser.
test-browser: install install-browser
	$(TEST) packages/lab -m browser

# Installs and starts a real Slurm of four nodes on this machine, as root, and stops it afterwards.
test-cluster: install install-sglang install-nemo-run install-cluster
	tests/cluster/up.sh
	$(TEST) tests/cluster -m "not long"; code=$$?; tests/cluster/down.sh; exit $$code

# What takes minutes and repeats with more cases what `make test` shows: more layouts, all recipes of the paper, and sweeps that
# are killed and continued, on this machine, on the cluster as an array, and with NeMo-Run.
test-long: install install-sglang install-nemo-run install-cluster try-sandbox
	tests/cluster/up.sh
	$(TEST) tests -m long; code=$$?; tests/cluster/down.sh; exit $$code

# Runs the real loop under faults and resumes it after each: the table of docs/torture.md
torture: install install-sglang install-sandbox
	$(BIN)/python -m tools.torture --seconds $(SECONDS) --seed $(SEED)

# Computes one global batch in 110 layouts: the table of docs/layouts.md
test-layout: install
	$(TEST) tests/policy/test_layouts.py

# Measures everything on docs/benchmarks.md, beside TRL, verl and slime, and writes the page.
benchmark: install install-integrations build/peers/verl
	$(BIN)/python benchmarks/page.py

# verl's plans of microbatches. slime is in no package index: put its sources into build/peers/slime, or its plans are left out.
build/peers/verl: .venv-verl/installed
	mkdir -p $@
	ln -sfn $(CURDIR)/.venv-verl/lib/python*/site-packages/verl $@/verl

# Measures the latency and throughput of the sandbox: the table of docs/sandbox.md
benchmark-sandbox: install install-sandbox
	$(BIN)/python benchmarks/sandbox.py

# Writes the verdicts and figures of docs/study.md from its collected runs, into docs/study
study-report: install
	$(BIN)/python -m examples.study.report --commit "$(COMMIT)"

clean:
	rm -rf .venv .venv-newest .venv-sglang .venv-nemo-run .venv-docs .venv-trl .venv-verl .venv-verifiers .venv-bridge build *.egg-info
