import contextlib
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for modules that are shared with the scripts of other processes

import layouts
import tiny_policy
from launcher import launch

from megatron_sspo.run import Parallel
from tests.selection import selected


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    """Kind -> the Hugging Face folder of that tiny model. Tests must not write into it."""
    root = tmp_path_factory.mktemp("models")
    found = {kind: tiny_policy.save(kind, root / kind) for kind in tiny_policy.KINDS}
    for kind, folder in found.items():
        if kind not in layouts.NO_ADAPTERS:
            tiny_policy.save_adapter(kind, folder)
    return found


@pytest.fixture(scope="session")
def batches(folders, tmp_path_factory):
    """Kind -> a file of rollouts whose old log-probs are Transformers' with noise."""
    root = tmp_path_factory.mktemp("batches")
    wanted = [(kind, "ragged") for kind in tiny_policy.KINDS] + [("moe", name) for name in tiny_policy.BATCHES]
    wanted += [(kind, "routed") for kind in tiny_policy.ROUTERS]
    for kind, name in dict.fromkeys(wanted):
        tiny_policy.save_batch(kind, name, folders[kind], root / f"{kind} {name}.npz")
    return {kind: root / f"{kind} ragged.npz" for kind in tiny_policy.KINDS}


@pytest.fixture(scope="module")
def device():
    """The device of this process, which is a job of one process."""
    from megatron_sspo.policy.distributed import initialize, shutdown

    yield initialize(Parallel(), seed=0)
    shutdown()


@pytest.fixture(scope="session")
def at_once():
    """The number of layouts that a group of processes measures, one after the other."""
    return 10


@pytest.fixture(scope="session")
def measured(request, folders, batches, tmp_path_factory, at_once):
    """Name of a layout -> its measurements. One group runs all layouts of its size that a test asks for."""
    results = tmp_path_factory.mktemp("layouts")
    launched = set()
    wanted = selected(request.session, "name")

    def run(size, names):
        if (size, *names) not in launched:
            launched.add((size, *names))
            models, prompts = folders["moe"].parent, batches["moe"].parent
            launch(Path(layouts.__file__), size, models, prompts, results, *names, seconds=100 + 30 * len(names))

    def of(name):
        for each in (layouts.MEASURED[name].reference, name):
            size, path = layouts.MEASURED[each].parallel.num_processes, results / f"{each}.pt"
            portion = next(names for names in layouts.portions(size, wanted, at_once) if each in names)
            if portion != [each]:
                with contextlib.suppress(pytest.fail.Exception):
                    run(size, portion)
            if not path.exists():  # one before it may have failed
                run(size, [each])
            assert path.exists(), f"{each}: could not be measured"
        return layouts.read(path)

    return of


_ROWS = pytest.StashKey[dict]()


@pytest.fixture(scope="session")
def note(pytestconfig):
    """note(layout, quantity, number): adds a number to the table that is printed at the end of the session."""
    rows = pytestconfig.stash.setdefault(_ROWS, {})
    return lambda layout, quantity, number: _keep_largest(rows.setdefault(layout, {}), quantity, number)


def _keep_largest(row, quantity, number):
    row[quantity] = max(number, row.get(quantity, 0.0))


def pytest_terminal_summary(terminalreporter, config):
    rows = config.stash.get(_ROWS, {})
    if not rows:
        return
    quantities = list(dict.fromkeys(quantity for row in rows.values() for quantity in row))
    terminalreporter.section("largest differences from one process")
    terminalreporter.write_line(f"{'':30}" + "".join(f"{quantity:>16}" for quantity in quantities))
    for layout, row in rows.items():
        cells = "".join(f"{row[q]:>16.1e}" if q in row else f"{'':>16}" for q in quantities)
        terminalreporter.write_line(f"{layout:30}{cells}")
