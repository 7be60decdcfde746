"""Rules for imports between folders, checked in the sources."""

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

import pytest

import megatron_sspo

PACKAGE = Path(megatron_sspo.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
ROOT = PACKAGE.name
LIBRARIES = PACKAGE.parent / "packages"


@cache
def imports(path: Path) -> list[str]:
    """Returns every dotted name that a file imports, also inside functions; `from a import b` is a.b."""
    found: list[str] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import hides where it goes"
            found += (f"{node.module}.{alias.name}" for alias in node.names)
    return found


def within(name: str, module: str) -> bool:
    return name == module or name.startswith(module + ".")


def module_name(path: Path) -> str:
    return ".".join((ROOT, *path.relative_to(PACKAGE).with_suffix("").parts))


def place(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def offenders(module: str, files: list[Path]) -> list[str]:
    return [f"{place(path)}: {name}" for path in files for name in imports(path) if within(name, module)]


def under(*places: str) -> list[Path]:
    found = [path for path in FILES if any(place(path) == p or place(path).startswith(f"{p}/") for p in places)]
    assert found, places
    return found


def outside(*places: str) -> list[Path]:
    inside = set(under(*places))
    return [path for path in FILES if path not in inside]


@pytest.mark.parametrize(
    ("module", "places"),
    [
        ("megatron", ("policy", "checkpoint", "lora")),
        ("nemo_run", ("launch",)),
        ("aiohttp", ("rollout/servers/client.py", "reward/service.py")),
        ("trl", ("integrations/trl.py",)),
        ("verl", ("integrations/verl.py",)),
    ],
)
def test_a_library_is_imported_in_its_own_places_only(module: str, places: tuple[str, ...]) -> None:
    assert offenders(module, outside(*places)) == []
    assert offenders(module, under(*places)), "the rule would hold for an empty folder too"


def test_the_integrations_need_no_trainer_of_ours() -> None:
    ours = {name.split(".")[1] for path in under("integrations") for name in imports(path) if within(name, ROOT)}
    assert ours == {"config", "errors", "integrations", "objective"}


def folder_graph(modules: Mapping[str, Iterable[str]]) -> dict[str, set[str]]:
    """Returns the imports between folders and modules of the root; `modules` maps each module to what it imports."""
    packages = {module.rpartition(".")[0] for module in modules}

    def node(module: str) -> str:
        parent = module.rpartition(".")[0]
        return module if parent == ROOT or module in packages else parent

    graph: dict[str, set[str]] = {node(module): set() for module in modules}
    for module, names in modules.items():
        for name in names:
            target = name if name in modules or name in packages else name.rpartition(".")[0]
            if target in modules or target in packages:
                graph[node(module)] |= {node(target)} - {node(module), ROOT}
    return graph


def circles(graph: Mapping[str, set[str]]) -> list[set[str]]:
    """Returns the sets of nodes that import one another, directly or by way of others."""

    def reachable(start: str) -> set[str]:
        found, waiting = set(), [start]
        while waiting:
            for target in graph.get(waiting.pop(), set()) - found:
                found.add(target)
                waiting.append(target)
        return found

    reached = {name: reachable(name) for name in graph}
    groups = {frozenset(other for other in reached[name] if name in reached[other]) for name in graph}
    return [set(group) for group in groups if len(group) > 1]


def imports_of_modules() -> dict[str, list[str]]:
    return {module_name(path): [*imports(path)] for path in FILES if path.name != "__init__.py"}


def test_no_circle_between_folders() -> None:
    assert circles(folder_graph(imports_of_modules())) == []


def test_folders_are_small() -> None:
    sizes = Counter(path.parent for path in FILES)
    assert sizes[PACKAGE] <= 8
    assert {place(folder): size for folder, size in sizes.items() if size > 17} == {}  # __init__.py and 16 more


@pytest.mark.parametrize("module", ["megatron", "torch.distributed", "torch.multiprocessing"])
def test_the_maths_of_losses_and_weights_knows_no_processes(module: str) -> None:
    pure = under(
        "objective",
        "weights/sharding.py",
        "weights/table.py",
        "weights/families",
        "weights/family.py",
        "weights/decoder.py",
    )
    assert offenders(module, pure) == []


@pytest.mark.parametrize("library", sorted({path.name for path in LIBRARIES.iterdir()} - {"rehearsal"}))
def test_a_library_needs_no_trainer(library: str) -> None:
    files = sorted(LIBRARIES.glob(f"{library}/sspo_{library}/**/*.py"))
    assert files
    strays = [
        f"{path}: {name}"
        for path in files
        for name in imports(path)
        if name.split(".")[0] in (ROOT, "torch", "megatron", "transformers")
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
