"""Question b: is the mechanism the lost restoring gradient? The four observations together."""

from examples.study.data import Study
from examples.study.questions import direction, ingredient, mass, step_size
from examples.study.text import Section

TITLE = "b. Is the mechanism the lost restoring gradient?"
_OBSERVATIONS = (ingredient, mass, direction, step_size)


def section(study: Study) -> Section:
    """Returns the four observations, each for or against the mechanism."""
    found = [module.observe(study) for module in _OBSERVATIONS]
    body = [part for one in found for part in (f"### {one.title}: {one.verdict}", *one.body)]
    verdict = ", ".join(f"{one.title}: {one.verdict}" for one in found)
    return Section(title=TITLE, verdict=verdict, body=body)
