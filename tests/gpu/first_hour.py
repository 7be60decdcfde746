"""Measures what several ranks do on this machine's GPUs, in order of value, and goes on where an earlier call ended.

    python -m tests.gpu.first_hour --json first_hour.json
    python -m tests.gpu.first_hour --json dry.json --device cpu          # the same parts by gloo, without a GPU

On one GPU all ranks share it (NCCL_MULTI_RANK_GPU_ENABLE=1, and before NCCL 2.30 an NCCL_HOSTID for each rank); where
there are as many GPUs as --ranks, each has its own. The machine needs torch for CUDA and may reach no index: packages
that are missing are installed from --wheels. One whose name begins with transformer_engine is not for the part float32.

| part | minutes, at most | what |
|---|---|---|
| float32 | 3 | the law of layouts without Transformer Engine, to 1e-5 of one process |
| sync | 1 | weights from two senders to two servers by NCCL, one of them killed; by ipc |
| bfloat16 | 3 | the law of layouts, with Transformer Engine if it is there |
| runs | 3 | a run of examples/tiny_moe.py: killed, resumed, resumed in another layout; a rank killed at three places |
| updates | 1 | benchmarks/on_gpu.py: an update, its memory and its kernels, dense and with experts |
| offload | 1.5 | benchmarks/on_gpu.py: memory and a step, with the optimizer on the GPU and on the host |
| loss | 0.5 | benchmarks/on_gpu.py: log-probs by this package, Megatron and log_softmax |
| trl | 2 | benchmarks/against_trl.py: an update, log π_old and memory beside TRL |
| one rank | 2 | the other tests of tests/gpu |

A call ends by itself after --minutes, and a part that does not fit any more is not begun. The JSON has the environment,
each part's seconds and how it ended, and each test's outcome, seconds and distances, written as they come. What has
passed is not run again; --only names the parts to run.
"""

import argparse
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RANKS = "tests/gpu/ranks"
NEEDED = (
    *("numpy", "transformers", "tokenizers", "safetensors", "pydantic", "rich", "aiohttp", "psutil", "isal"),
    *("megatron.core", "filelock", "pytest", "pytest_timeout", "hypothesis"),
)
PACKAGES = ("torch", "megatron-core", "transformer-engine", "transformers", "trl")
FEWEST_SECONDS = 20.0  # that are worth beginning a part


@dataclass(frozen=True)
class Part:
    """A part: seconds that it may take, and the arguments of pytest or of Python, on a GPU and in a dry run."""

    seconds: float
    tests: tuple[str, ...] = ()
    program: tuple[str, ...] = ()
    dry: tuple[str, ...] = ()  # more arguments, on a CPU

    def command(self, name: str, options: argparse.Namespace) -> list[str]:
        """Returns the command line of this part."""
        if self.tests:
            this = ["tests.gpu.first_hour", "--json", str(options.json), "--device", options.device]
            return [sys.executable, "-m", *this, "--inside", name]
        trl = ("--trl", options.trl) if name == "trl" else ()
        return [sys.executable, *self.program, *trl, *(self.dry if options.device == "cpu" else ())]


ON_GPU, AGAINST_TRL = "benchmarks/on_gpu.py", "benchmarks/against_trl.py"
PARTS = {
    "float32": Part(180, tests=(f"{RANKS}/test_law.py", "-k", "test_float32")),
    "sync": Part(60, tests=(f"{RANKS}/test_sync.py",)),
    "bfloat16": Part(180, tests=(f"{RANKS}/test_law.py", "-k", "test_bfloat16")),
    "runs": Part(180, tests=(f"{RANKS}/test_runs.py",)),
    "updates": Part(60, program=(ON_GPU, "--only", "updates", "--pairs", "3"), dry=("--kind", "tiny")),
    "offload": Part(
        90, program=(ON_GPU, "--only", "offload", "--pairs", "3", "--kind", "experts"), dry=("--kind", "tiny")
    ),
    "loss": Part(30, program=(ON_GPU, "--only", "head", "--pairs", "3"), dry=("--rows", "64")),
    "trl": Part(
        120,
        program=(AGAINST_TRL, "--device", "cuda", "--rounds", "1", "--microbatch", "4"),
        dry=("--device", "cpu", "--models", "50 M Qwen3-MoE"),
    ),
    "one rank": Part(120, tests=("tests/gpu", "--ignore", RANKS), dry=("-k", "not there_is_a_gpu")),
}


class Recorder:
    """A plugin of pytest that leaves out what has passed, and writes each test's outcome into the JSON."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def pytest_collection_modifyitems(self, config: Any, items: list[Any]) -> None:
        done = {name for name, test in read(self._path)["tests"].items() if test["outcome"] != "failed"}
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid in done])
        items[:] = [item for item in items if item.nodeid not in done]

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when != "call" and report.outcome == "passed":
            return
        found = read(self._path)
        test = {"outcome": report.outcome, "seconds": round(report.duration, 2)}
        worst: dict[str, float] = {}
        for name, value in report.user_properties:
            worst[name] = max(value, worst.get(name, 0.0))
        if not report.passed:  # the last lines have the error
            test["why"] = str(report.longrepr[2] if report.skipped else report.longrepr)[-1500:]
        found["tests"][report.nodeid] = test | {"distances": worst}
        write(self._path, found)


def read(path: Path) -> dict[str, Any]:
    if path.exists():
        return json.loads(path.read_text(encoding="utf-8"))
    return {"environment": {}, "parts": {}, "tests": {}}


def write(path: Path, found: dict[str, Any]) -> None:
    new = path.with_name(f".{path.name}")
    new.write_text(json.dumps(found, indent=1, ensure_ascii=False), encoding="utf-8")
    new.replace(path)


def wrong(device: str) -> str:
    """Returns a sentence that says why this environment cannot run the parts; "" if it can."""
    if importlib.util.find_spec("torch") is None:
        return f"{sys.executable} has no torch: start this with an interpreter that has torch for CUDA"
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        return f"torch {torch.__version__} sees no GPU (nvidia-smi says whether there is one): --device cpu needs none"
    missing = [name for name in NEEDED if importlib.util.find_spec(name.partition(".")[0]) is None]
    if missing:
        return f"packages are missing: {', '.join(missing)}; put their wheels into a folder and name it by --wheels"
    if device == "cuda" and "NCCL_HOSTID" in os.environ and torch.cuda.nccl.version() < (2, 30):
        return (
            f"NCCL {'.'.join(map(str, torch.cuda.nccl.version()))} takes several ranks on one GPU only with an "
            f"NCCL_HOSTID for each, and it is {os.environ['NCCL_HOSTID']} for all: unset it"
        )
    return ""


def environment(device: str) -> dict[str, Any]:
    """Returns what the measurements depend on."""
    import torch

    found: dict[str, Any] = {"device": device, "Python": sys.version.split()[0], "cores": os.cpu_count()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "none"
    if device == "cuda":
        found |= {"GPU": torch.cuda.get_device_name(), "GPUs": torch.cuda.device_count()}
        found |= {"CUDA": torch.version.cuda, "NCCL": ".".join(map(str, torch.cuda.nccl.version()))}
    return found


def install(wheels: Path, target: Path) -> list[str]:
    """Installs the wheels, Transformer Engine's apart, and returns the folders in which they are."""
    folders = []
    for name, is_wanted in (("packages", False), ("transformer_engine", True)):
        chosen = [str(path) for path in wheels.glob("*.whl") if path.name.startswith("transformer_engine") == is_wanted]
        if chosen:
            command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-compile"]
            subprocess.run([*command, "--target", str(target / name), *chosen], check=True)
            folders.append(str(target / name))
    return folders


def run(command: list[str], variables: dict[str, str], seconds: float, log: Path) -> str:
    """Runs a part within its time, and returns how it ended. The processes that it started end with it."""
    with log.open("w", encoding="utf-8") as output:
        process = subprocess.Popen(
            command, cwd=ROOT, env=variables, stdout=output, stderr=output, start_new_session=True
        )
        try:
            code = process.wait(seconds)
            return "passed" if code == 0 else f"failed with exit code {code}"
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)  # pytest then ends its processes
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
            return f"not done in {seconds:.0f} s"
        finally:
            process.kill()


def measure(options: argparse.Namespace, folders: list[str]) -> None:
    """Runs the parts that have not passed, each within its time."""
    deadline = time.monotonic() + 60 * options.minutes
    variables = {**os.environ, "RANKS": str(options.ranks), "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    variables |= {"OMP_NUM_THREADS": "1", "NVIDIA_TF32_OVERRIDE": "0"}
    if options.device == "cpu":
        variables["CUDA_VISIBLE_DEVICES"] = ""
    for name in options.only or PARTS:
        part = PARTS[name]
        if read(options.json)["parts"].get(name, {}).get("ended") == "passed":
            continue
        seconds = min(part.seconds if options.device == "cuda" else 10 * part.seconds, deadline - time.monotonic())
        if seconds < FEWEST_SECONDS:
            print(f"{name}: not begun, because {options.minutes:g} minutes are over")
            continue
        without = [folder for folder in folders if name == "float32" and folder.endswith("transformer_engine")]
        paths = [str(ROOT), *(folder for folder in folders if folder not in without), os.environ.get("PYTHONPATH", "")]
        own = variables | {"PYTHONPATH": os.pathsep.join(paths)}
        if name != "float32":
            del own["NVIDIA_TF32_OVERRIDE"]
        log, begun = options.json.with_name(f"{name.replace(' ', '_')}.log"), time.monotonic()
        ended = run(part.command(name, options), own, seconds, log)
        output = log.read_text(encoding="utf-8", errors="replace")
        row = {"seconds": round(time.monotonic() - begun, 1), "ended": ended, "output": output[-6000:]}
        found = read(options.json)
        write(options.json, found | {"parts": found["parts"] | {name: row}})
        print(f"{name}: {ended}, {row['seconds']} s", flush=True)


def report(found: dict[str, Any]) -> int:
    """Prints a table of the parts and what has failed, and returns the exit code."""
    print("\n| part | seconds | ended |\n|---|---|---|")
    for name in PARTS:
        row = found["parts"].get(name, {"seconds": "", "ended": "not begun"})
        print(f"| {name} | {row['seconds']} | {row['ended']} |")
    counts = [test["outcome"] for test in found["tests"].values()]
    print("\n" + ", ".join(f"{counts.count(kind)} tests {kind}" for kind in ("passed", "failed", "skipped")))
    for name, test in found["tests"].items():
        if "why" in test:
            print(f"{test['outcome']}: {name}: {test['why'].strip().splitlines()[-1]}")
    return 0 if all(found["parts"].get(name, {}).get("ended") == "passed" for name in PARTS) else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True, help="what is measured; logs of the parts lie beside it")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--ranks", type=int, choices=(2, 4), default=4)
    parser.add_argument("--minutes", type=float, help="after which no part is begun (12; with --device cpu 120)")
    parser.add_argument("--wheels", type=Path, help="a folder with wheels of packages that are missing")
    parser.add_argument("--trl", default=sys.executable, help="an interpreter that has TRL, if this one has not")
    parser.add_argument("--only", nargs="+", choices=PARTS)
    parser.add_argument("--inside", choices=PARTS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.json = options.json.absolute()
    options.minutes = options.minutes or (12 if options.device == "cuda" else 120)
    if options.inside:
        import pytest

        part = PARTS[options.inside]
        arguments = [*part.tests, *(part.dry if options.device == "cpu" else ()), "-p", "no:cacheprovider"]
        code = pytest.main(arguments, plugins=[Recorder(options.json)])
        return 0 if code == pytest.ExitCode.NO_TESTS_COLLECTED else code  # all have passed in earlier calls
    with tempfile.TemporaryDirectory() as target:
        folders = install(options.wheels, Path(target)) if options.wheels else []
        sys.path[1:1] = folders
        if message := wrong(options.device):
            print(f"first_hour: {message}", file=sys.stderr)
            return 2
        write(options.json, read(options.json) | {"environment": environment(options.device)})
        measure(options, folders)
    return report(read(options.json))


if __name__ == "__main__":
    sys.exit(main())
