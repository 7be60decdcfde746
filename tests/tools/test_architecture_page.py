"""The table of floors in docs/architecture.md is the order of the folders."""

import re
from pathlib import Path

from tests.test_import_boundaries import ROOT, folder_graph, imports_of_modules

PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"


def test_a_folder_imports_from_lower_floors_only() -> None:
    rows = re.findall(r"^\| (\d+) \| (`.*) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    floors = {name: int(floor) for floor, text in rows for name in re.findall(r"(?:^|; )`(\w+)`:", text)}
    graph: dict[str, set[str]] = {}
    for name, targets in folder_graph(imports_of_modules()).items():
        folder = name.split(".")[1]
        graph.setdefault(folder, set()).update({target.split(".")[1] for target in targets} - {folder})
    del graph["__main__"]
    assert set(graph) == set(floors)
    wrong = [f"{name} imports {t}" for name, targets in graph.items() for t in targets if floors[t] >= floors[name]]
    assert wrong == []
    assert ROOT == "megatron_sspo"
