"""The fields, functions and arguments that this package relies on with CUDA exist in every supported release."""

import json

import pytest
from packaging.version import Version

from megatron_sspo.policy.with_cuda.installed import OLDEST_TRANSFORMER_ENGINE
from tests.upstream.collect import FACTS, definitions
from tests.upstream.needed import ACCEPTED, NEEDED

RELEASES = json.loads(FACTS.read_text())
NAMES = [
    (package, release, path, name)
    for package, releases in RELEASES.items()
    for release in releases
    for path, names in NEEDED[package].items()
    for name in names
]


def test_the_facts_are_of_the_supported_releases():
    assert {Version(release).minor for release in RELEASES["megatron-core"]} == {16, 17, 18, 19}
    assert min(map(Version, RELEASES["transformer-engine"])) == Version(f"{OLDEST_TRANSFORMER_ENGINE}.0")


@pytest.mark.parametrize(("package", "release", "path", "name"), NAMES)
def test_a_name_exists(package, release, path, name):
    facts = RELEASES[package][release]
    assert f"{path}:{name}" in facts, "not looked up yet: run python -m tests.upstream.collect"
    found = facts[f"{path}:{name}"]
    assert found is not None, f"{package} {release} has no {name} in {path}"
    assert set(NEEDED[package][path][name]) <= set(found)


@pytest.mark.parametrize(
    ("package", "release", "path", "name"),
    [
        (package, release, path, name)
        for package, releases in RELEASES.items()
        for release in releases
        for path, names in ACCEPTED[package].items()
        for name in names
    ],
)
def test_values_are_accepted(package, release, path, name):
    found = RELEASES[package][release].get(f"{path}:{name} accepts")
    assert found is not None, "not looked up yet: run python -m tests.upstream.collect"
    assert found == list(ACCEPTED[package][path][name])


def test_definitions_of_a_source():
    source = """
try:
    from a import f, g as h
    flag = True
except ImportError:
    f = None

class C:
    x: int = 1
    KIND: Literal["j", "k"] = "k"
    def method(self, a, /, b, *, c=1, **rest):
        assert c in ("r", f"{a}s")

if flag:
    def late(): ...
"""
    found = definitions(source)
    assert {name: each.arguments for name, each in found.items()} == {
        **{name: [] for name in ("f", "h", "flag", "C", "C.x", "C.KIND", "late")},
        "C.method": ["self", "a", "b", "c"],
    }
    assert found["C.KIND"].strings() == {"j", "k"}
    assert found["C.method"].strings() == {"r", "s"}
