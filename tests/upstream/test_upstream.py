"""The fields, functions and arguments that this package relies on with CUDA exist in every supported release."""

import json

import pytest
from packaging.version import Version

from megatron_sspo.policy.with_cuda.installed import OLDEST_TRANSFORMER_ENGINE
from tests.upstream.collect import FACTS
from tests.upstream.needed import NEEDED

RELEASES = json.loads(FACTS.read_text())


def test_the_facts_are_of_the_supported_releases():
    assert {Version(release).minor for release in RELEASES["megatron-core"]} == {16, 17, 18, 19}
    assert min(map(Version, RELEASES["transformer-engine"])) == Version(f"{OLDEST_TRANSFORMER_ENGINE}.0")


@pytest.mark.parametrize(
    ("package", "release"), [(package, release) for package, releases in RELEASES.items() for release in releases]
)
def test_a_release_has_what_is_needed(package, release):
    """A name that is not in the facts has not been looked up yet: run python -m tests.upstream.collect."""
    facts = RELEASES[package][release]
    for path, names in NEEDED[package].items():
        for name, arguments in names.items():
            found = facts[f"{path}:{name}"]
            assert found is not None, f"{package} {release} has no {name} in {path}"
            assert set(arguments) <= set(found), name
