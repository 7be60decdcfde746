"""Rules for imports between folders, checked in the sources."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import megatron_sspo

PACKAGE = Path(megatron_sspo.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))


def imports(path: Path) -> Iterator[str]:
    """Yields every dotted name that a file imports, also inside functions; `from a import b` is a.b."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import hides where it goes"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def within(name: str, module: str) -> bool:
    return name == module or name.startswith(module + ".")


def place(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def offenders(module: str, files: list[Path]) -> list[str]:
    return [f"{place(path)}: {name}" for path in files for name in imports(path) if within(name, module)]


def under(*places: str) -> list[Path]:
    found = [path for path in FILES if any(place(path) == p or place(path).startswith(f"{p}/") for p in places)]
    assert found, places
    return found


def outside(place: str) -> list[Path]:
    return [path for path in FILES if path not in under(place)]


def test_megatron_is_the_policys_affair() -> None:
    assert offenders("megatron", outside("policy")) == []
    assert offenders("megatron", under("policy")), "the rule would hold for an empty folder too"


def test_nemo_run_is_the_launchers_affair() -> None:
    assert offenders("nemo_run", outside("launch")) == []


def test_http_is_the_clients_affair() -> None:
    assert offenders("aiohttp", outside("rollout/sglang_client.py")) == []


@pytest.mark.parametrize("module", ["megatron", "torch.distributed", "torch.multiprocessing"])
def test_the_maths_of_losses_and_weights_knows_no_processes(module: str) -> None:
    pure = under("objective", "weights/table.py", "weights/families", "weights/family.py", "weights/decoder.py")
    assert offenders(module, pure) == []


def test_an_objective_needs_torch_and_nothing_else() -> None:
    allowed = {"torch", *sys.stdlib_module_names}
    strays = [
        f"{place(path)}: {name}"
        for path in under("objective")
        for name in imports(path)
        if name.split(".")[0] not in allowed and not within(name, "megatron_sspo.objective")
    ]
    assert strays == []


def test_a_recipe_loads_without_the_heavy_neighbours() -> None:
    """`megatron_sspo.run` and the objectives load when megatron and transformers cannot be imported."""
    program = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("megatron", "transformers", "nemo_run", "sglang", "matplotlib", "datasets"):
            raise ImportError(name + " is blocked")

sys.meta_path.insert(0, Blocked())
try:
    import megatron.core
except ImportError:
    pass
else:
    raise SystemExit("the block does not work")
import torch
import megatron_sspo.objective as objective
import megatron_sspo.run
log_probs = torch.tensor([-1.0, -2.0], requires_grad=True)
segments = objective.Segments.from_lengths([2])
sums = objective.sspo()(log_probs, torch.tensor([-1.0, -2.0]), torch.tensor([2.0]), segments)
sums.loss.backward()
assert log_probs.grad.tolist() == [-1.0, -1.0], log_probs.grad
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
