"""Checks of programs in the columns of published data sets, in the form of the columns `tests` and `cases`."""

from collections.abc import Mapping
from typing import Any

from megatron_sspo.files.reading import decode_json

CHECKS = ("tests", "cases")
# APPS, TACO: input_output; LiveCodeBench: *_test_cases; CodeContests: *_tests
_CASES = (
    *("cases", "input_output", "test_cases", "public_test_cases", "private_test_cases"),
    *("public_tests", "private_tests", "generated_tests"),
)


def find_checks(record: Mapping[str, Any]) -> dict[str, tuple[tuple[str, ...], Any]]:
    """Returns "tests" or "cases" -> the columns that have these checks in a form of their own, and the checks.

    The columns are MBPP's test_list with test_setup_code or test_imports, HumanEval's test with entry_point, and cases
    as two lists or a list of pairs, maybe as JSON text, in one of the columns of `_CASES`. If a part of them has
    another form, such as calls of a function or packed bytes, none are returned.
    """
    if record.get("tests") or isinstance(record.get("cases"), list):
        return {}
    if _is_texts(tests := record.get("test_list") or []):
        names = [name for name in ("test_setup_code", "test_imports") if record.get(name)]
        setup = [line for name in names for line in _as_list(record[name])]
        return {"tests": (("test_list", *names), ["\n".join([*setup, tests[0]]), *tests[1:]])}
    test, function = record.get("test"), record.get("entry_point")
    if isinstance(test, str) and isinstance(function, str) and "def check(" in test:
        return {"tests": (("test", "entry_point"), [f"{test}\ncheck({function})"])}
    names = tuple(name for name in _CASES if record.get(name))
    cases = [_read_cases(decode_json(record[name])) for name in names]
    return {"cases": (names, [case for some in cases for case in some])} if cases and all(cases) else {}


def read_checks_of(kind: str, value: Any) -> Any:
    """Returns the "tests" or "cases" of a column that a user names, which may be JSON text; nothing if it has none."""
    if kind == "cases":
        return _read_cases(decode_json(value))
    value = decode_json(value)
    return value if isinstance(value, str) or _is_texts(value) else []


def _read_cases(value: Any) -> list[dict[str, str]]:
    """Returns the cases of {"inputs": [...], "outputs": [...]} or [{"input": ..., "output": ...}], or []."""
    pairs: list[tuple[Any, Any]] = []
    if isinstance(value, Mapping) and not value.get("fn_name"):
        inputs, outputs = ([*(value.get(f"{name}s") or value.get(name) or ())] for name in ("input", "output"))
        pairs = list(zip(inputs, outputs, strict=True)) if len(inputs) == len(outputs) else []
    elif isinstance(value, list) and all(isinstance(c, Mapping) and c.get("testtype") != "functional" for c in value):
        pairs = [(c.get("input", c.get("stdin")), c.get("output", c.get("stdout"))) for c in value]
    joined = [tuple("\n".join(part) if _is_texts(part) else part for part in pair) for pair in pairs]  # lines, in APPS
    is_text = all(isinstance(part, str) for pair in joined for part in pair)
    return [{"stdin": stdin, "stdout": stdout} for stdin, stdout in joined] if is_text else []


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(text, str) for text in value)


def _as_list(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else list(value)
