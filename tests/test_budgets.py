"""Lines of each folder, which may only fall: docs/scope.md. A budget rises in a commit that says what the lines buy."""

from tests.proof import closures, sizes

BUDGETS = {
    "(root)": 1100,
    "agent": 730,
    "arrays": 150,
    "batching": 970,
    "checkpoint": 1140,
    "cli": 880,
    "config": 1330,
    "data": 2220,
    "environment": 500,
    "evaluation": 1260,
    "files": 580,
    "integrations": 480,
    "job": 1150,
    "launch": 1060,
    "memory": 530,
    "objective": 1990,
    "plots": 1160,
    "policy": 4280,
    "preflight": 930,
    "processes": 1280,
    "project": 370,
    "rehearsal": 1820,
    "reward": 1060,
    "rollout": 7420,
    "run_folder": 620,
    "sandbox": 4480,
    "sweep": 1650,
    "trackers": 260,
    "weights": 3350,
}
LIBRARIES = {"answers": 1840, "sandbox": 1, "agents": 1, "lab": 1, "rehearsal": 1}
OTHERS = {"tests": 44840, "UserError": 647}
CLOSURES = {"loop": 22610, "plugin": 5270}
SLACK = 60  # lines by which a folder may be smaller than its budget


def check(found: dict[str, int], budgets: dict[str, int]) -> None:
    over = {name: (size, budgets.get(name, 0)) for name, size in found.items() if size > budgets.get(name, 0)}
    assert not over, f"folder: (lines, budget): {over}; take away as many lines, or say in the commit what they buy"
    under = {name: found.get(name, 0) for name, budget in budgets.items() if found.get(name, 0) < budget - SLACK}
    assert not under, f"lower these budgets to {under}: they may only fall"


def test_no_folder_grows() -> None:
    found = sizes()
    check(found["folders"], BUDGETS)
    check(found["libraries"], LIBRARIES)


def test_tests_and_errors_do_not_grow() -> None:
    found = sizes()
    assert {name: found[name] for name in OTHERS if found[name] > OTHERS[name]} == {}


def test_little_is_imported_with_the_loop_and_with_the_plugin() -> None:
    found = {name: closure["lines"] for name, closure in closures().items()}
    assert {name: lines for name, lines in found.items() if lines > CLOSURES[name]} == {}
