"""Compares an answer with the gold answer: lists, sets, points and chains of equations, by their single values."""

import itertools
import re
from fractions import Fraction

from sspo_answers.answer import clean, split_equation, split_list
from sspo_answers.choices import compare_choices, compare_opposites, contradicts
from sspo_answers.congruences import is_same_congruence
from sspo_answers.families import is_family, is_same_family
from sspo_answers.intervals import drop_reals, is_task, join_orders, read_inequality, read_order
from sspo_answers.lists import are_contrary, are_roots, is_choice, is_union, read_counts
from sspo_answers.names import (
    letters_of,
    may_be_same,
    read_names,
    strip_name,
    variables_of,
    without_parameters,
)
from sspo_answers.notations.chemistry import is_same_substance
from sspo_answers.notations.groups import is_same_group
from sspo_answers.notations.permutations import is_same_permutation
from sspo_answers.quantities.number import read_number
from sspo_answers.quantities.units import read_sum, total_of
from sspo_answers.rows import (
    as_list,
    as_point,
    as_points,
    is_other_case,
    multiply_point,
    read_cases,
    read_components,
    read_coordinates,
    read_matrix,
    spread_chains,
    with_named_point,
)
from sspo_answers.spelling import respell_choose, with_constants_exchanged
from sspo_answers.unions import EXCEPTION, REALS, as_union, join_intervals, join_sets
from sspo_answers.unsolved import drop_equations
from sspo_answers.values import (
    RELATION,
    Formulas,
    Verdict,
    all_of,
    any_of,
    compare_values,
    is_same_or_rounded,
    normalize,
)
from sspo_answers.words.remarks import (
    drop_domain,
    drop_multiplicity,
    drop_remark,
    drop_steps,
    drop_whole,
)
from sspo_answers.words.restated import split_restatement
from sspo_answers.words.spelled import is_same_ordinal
from sspo_answers.words.times import is_same_time, read_date

LONGEST = 2000  # characters; a longer answer is wrong, unless it is identical to the gold answer
_LONGEST_CHAIN = 20  # sides
_LONGEST_CASES = 4  # all their orders are tried
_LONGEST_LIST = 30  # items of a set that are written in another way, since each may have to be compared with each

_LARGE_INTEGER = re.compile("-?[0-9]{6,}")
_INDIAN_GROUPS = re.compile(r"(?<![0-9,.])[0-9]{1,2}(?:,[0-9]{2})+,[0-9]{3}(?![0-9,])")  # 1,00,000
_GROUP_OF_ZEROS = re.compile(r"^-?[0-9]{1,3}(?:,[0-9]{3})*,0[0-9]{2}(?:,[0-9]{3})*$")
_MARK_AT_END = re.compile(r"[0-9]['\"]+$")  # of feet, minutes of arc, a derivative
_LENGTH = re.compile(r"['\"]|\b(?:ft|feet|foot|in|inch(?:es)?)\b")
_UNIT_AT_END = re.compile(r"(?<=[0-9])[A-Za-z]{1,3}$")
_INTERVAL = re.compile(r"[(\[].*[)\]]$")
_NAMED = re.compile(r"[A-Za-z](?:_[A-Za-z0-9]|_\{[^{}]*\})?\s*=")
_OTHER_THAN = re.compile(r"\\(?:ne|not)(?![A-Za-z])|!=")
_CUT_OFF = re.compile(r"(?<=\S)\s+(?:or|and|but)$")  # "5 or"
# "answer + 1 = 42" and "the square of the answer is 42" do not state the answer.
_OF_ANSWER = re.compile(
    r"\banswer\s*(?:(?:[-+*/^]|\\times|\\cdot|mod)\s*\{?[0-9]+\}?\s*=|plus|minus|times|divided|squared|cubed|doubled|halved)|"
    r"(?:[0-9)]\s*[-+*/^]|^-)\s*answer\s*=|(?<!value )\bof (?:the|my|our) answer\b",
    re.IGNORECASE,
)
_NAME_OF_EXCEPTION = re.compile(r"([A-Za-z])\s*\\ne(?![A-Za-z])")
_ELLIPSIS = re.compile(r"\\[cl]?dots|\.\.\.|…")
_WORD_OF_CONDITION = re.compile(r"\s+(?:for|when|if|where|with)\s+(?=\S{1,20}\s*(?:[<>]|\\[lg]e(?![a-z])))")
_INTEGERS_BEFORE = re.compile(r"^(?:all\s+)?(?:positive\s+)?integers\s+(?=[i-np]\s*(?:>|\\ge(?![a-z])))")
_RANGE = re.compile(r"[0-9]+\s*-\s*[0-9]+")


def compare(gold: str, answer: str, formulas: Formulas | None = None) -> Verdict:
    """Returns whether `answer` means the same as `gold`.

    Args:
        gold: the gold answer.
        answer: the text between `<answer>` and `</answer>`.
        formulas: compares formulas; if it is None, so is the result for an answer that needs such a comparison.

    An answer that hedges is wrong: if the gold answer is one thing, a list of several is wrong even if it contains it.
    An answer that is still a task is wrong: an arithmetic expression if the gold answer is a number, or a sum, product,
    integral or limit if the gold answer has none.
    """
    if not gold.strip() or not answer.strip():
        return False
    if gold == answer:
        return True
    if max(len(gold), len(answer)) > LONGEST or (_OF_ANSWER.search(answer) and not _OF_ANSWER.search(gold)):
        return False
    gold, answer = clean(gold), clean(answer)
    if not gold or not answer or ("?" in answer and "?" not in gold) or _CUT_OFF.search(answer):
        return False
    if normalize(gold) == normalize(answer):
        return True
    if contradicts(gold, answer):
        return False
    gold = drop_whole(answer, drop_multiplicity(gold))
    if drop_equations(gold) == gold:
        answer = drop_equations(answer)
    answer = drop_whole(gold, drop_domain(gold, drop_remark(gold, drop_steps(gold, answer))))
    if "\\ne" in gold and "\\ne" not in answer:
        gold = drop_domain(answer, gold)
    if (is_same := is_same_ordinal(gold, answer)) is not None:
        return is_same
    if (parts := split_restatement(answer)) and not split_restatement(gold):
        verdict = _compare_restated(gold, *parts, formulas)
        if verdict is not False:
            return verdict
    if _RANGE.fullmatch(gold) and not _RANGE.fullmatch(answer):
        return False  # 10-12 is no difference
    answer = _in_spelling_of(gold, answer)
    for is_same_notation in (is_same_congruence, is_same_group, is_same_permutation, is_same_substance):
        if (is_same := is_same_notation(gold, answer)) is not None:
            return is_same
    if is_family(gold, answer) and (formulas is None or is_same_family(gold, answer, formulas.value_of)):
        return True if formulas else None
    gold, answer = without_parameters(gold, answer)
    if _MARK_AT_END.search(answer) and not _LENGTH.search(gold):
        return False
    gold_number, number = read_number(gold), read_number(answer)
    if gold_number and gold_number.unit and not number:
        number = read_number(_UNIT_AT_END.sub(r" \g<0>", answer))  # 25N is no product beside 25 N
    if gold_number and number:
        return gold_number.equals(number)
    dates = read_date(gold), read_date(answer)
    if dates[0] and (dates[1] or "-" in gold):
        return dates[0] == dates[1]
    if (is_same := is_same_time(gold, answer)) is not None:
        return is_same
    if {gold, answer} in ({REALS, "R"}, {r"\infty", "infinitely many"}) or (
        len(answer) == 1 and gold == rf"\mathbb{{{answer}}}"
    ):
        return True
    sums = read_sum(gold), read_sum(answer)
    if sums[0] or sums[1]:
        is_same = _compare_sums(*sums, gold, answer)
        if is_same is not None:
            return is_same
    gold, answer = _as_unions(join_orders(drop_reals(gold)), join_orders(drop_reals(answer)))
    if not (_is_balanced(gold) and _is_balanced(answer)):
        return False
    verdict = _compare_lists(gold, answer, formulas)
    if verdict is False and (exchanged := with_constants_exchanged(gold, answer)):
        return _compare_lists(gold, exchanged, formulas)
    return verdict


def try_compare(gold: str, answer: str) -> Verdict:
    """Returns the verdict of `compare`; False if it raises, because no text of a model may end a run."""
    try:
        return compare(gold, answer)
    except Exception:
        return False


def _in_spelling_of(gold: str, answer: str) -> str:
    """Returns the answer with a condition after a comma, binomials and groups of digits as the gold answer has them."""
    if "," in gold and RELATION.search(gold) and not _WORD_OF_CONDITION.search(gold):
        answer = _WORD_OF_CONDITION.sub(", ", answer)  # 1/(1-x) for |x| < 1
    if "C" in answer and "C" not in gold and "," not in gold:
        answer = respell_choose(answer)
    if _INTEGERS_BEFORE.match(answer) and gold[:1] == _INTEGERS_BEFORE.sub("", answer)[:1]:
        answer = _INTEGERS_BEFORE.sub("", answer)
    if _LARGE_INTEGER.fullmatch(gold):
        answer = _INDIAN_GROUPS.sub(lambda m: m.group().replace(",", ""), answer)
    return answer


def _as_unions(gold: str, answer: str) -> tuple[str, str]:
    """Returns both sets as unions of intervals, if only one of them is written so or either has exceptions."""
    names = [set(_NAME_OF_EXCEPTION.findall(text)) for text in (gold, answer)]
    are_other_names = names[0] and names[1] and names[0] != names[1]  # x \ne 3 is not y \ne 3
    has_exceptions = EXCEPTION.search(gold) or EXCEPTION.search(answer)
    if (has_exceptions and not are_other_names) or any((mark in gold) != (mark in answer) for mark in (r"\cup", "|")):
        gold, answer = as_union(gold), as_union(answer)
    gold, answer = join_intervals(gold), join_intervals(answer)
    if "\\cup" in gold:  # otherwise the union is a task
        gold, answer = join_sets(gold), join_sets(answer)
    if REALS in (gold, answer):
        gold, answer = (REALS if text == r"\mathbb{R}" else text for text in (gold, answer))
    return gold, answer


def _compare_restated(gold: str, value: str, other: str, formulas: Formulas | None) -> Verdict:
    """Compares an answer that states a value and, in another notation, the same value: `1/4 or 25%`."""
    if "\\approx" in other:
        return "\\approx" not in value and compare(gold, f"{value} {other}", formulas)
    number, same = read_number(value), read_number(other)
    if number and same and number.percent != same.percent and number.as_share().value != same.as_share().value:
        return False  # beside each other, 5% and 5 are two values
    return all_of((compare(gold, value, formulas), compare(value, other, formulas)))


def _compare_sums(
    golds: dict[str, Fraction] | None, answers: dict[str, Fraction] | None, gold: str, answer: str
) -> Verdict:
    """Compares `2 hours 30 minutes` with its like, and with 150 minutes; None if one of the two is anything else."""
    if golds and answers:
        unit = next(iter(golds))
        return golds == answers or ((total := total_of(golds, unit)) is not None and total == total_of(answers, unit))
    found, number = (golds or answers or {}), read_number(answer if golds else gold)
    if number is None or number.percent or (golds and not number.unit):
        return None
    return total_of(found, number.unit or next(iter(found))) == number.value


def _compare_lists(gold: str, answer: str, formulas: Formulas | None) -> Verdict:
    choice = compare_opposites(gold, answer)
    if choice is None:
        choice = compare_choices(gold, answer)
    if isinstance(choice, bool):
        return choice
    if choice is not None:
        return _compare_lists(*choice, formulas)
    cases = read_cases(gold), read_cases(answer)
    if cases[0] and cases[1]:
        return _compare_cases(cases[0], cases[1], formulas)
    if (cases[0] or cases[1]) and not ("cases" in gold and "cases" in answer):
        return False
    gold, answer = with_named_point(gold, answer), with_named_point(answer, gold)
    (name, gold), (other_name, answer) = strip_name(gold), strip_name(answer)
    if name and other_name and name != other_name:
        return False
    gold, answer = as_point(gold, answer), as_point(answer, gold)
    inequalities = read_inequality(gold, answer), read_inequality(answer, gold)
    if not inequalities[1] and is_task(gold, answer):
        return False
    if inequalities[0] and inequalities[1] and inequalities[0][0] != inequalities[1][0]:
        return False
    if (inequalities[0] or _INTERVAL.match(gold)) and (inequalities[1] or _INTERVAL.match(answer)):
        gold, answer = (found[1] if found else text for found, text in zip(inequalities, (gold, answer), strict=True))
    gold, answer = (multiply_point(as_points(text)) for text in (gold, answer))
    gold, answer = spread_chains(gold, answer)
    assignments = read_coordinates(gold), read_coordinates(answer)
    if assignments != (None, None):
        return _compare_assignments(gold, answer, assignments, formulas)
    components = read_components(gold), read_components(answer)
    if any(text.startswith(("(", "[", "\\begin")) for text in (gold, answer)):  # 2i - j + 3k and (2,-1,3)
        gold, answer = components[0] or gold, components[1] or answer
    matrices = read_matrix(gold), read_matrix(answer)
    if matrices != (None, None):
        return _compare_matrices(gold, answer, matrices, formulas)
    brackets, items = _split_list_or_set(gold, thousands=True)
    other_brackets, other_items = _split_list_or_set(answer, thousands=True)
    if len(items) != len(other_items):  # "100,200" is a list where the other side has two items
        if _GROUP_OF_ZEROS.search(gold):  # "1,000,000" is none
            return False
        brackets, items = _split_list_or_set(gold, thousands=False)
        other_brackets, other_items = _split_list_or_set(answer, thousands=False)
    if len(items) == len(other_items) == 1:
        return _compare_items(items[0], other_items[0], formulas)
    if bool(RELATION.search(gold)) != bool(RELATION.search(answer)):  # 0 < x < 1 and (0, 1)
        if len(items) == len(other_items) and is_union(gold) and is_union(answer):
            return _compare_sets(items, other_items, formulas)
        bare = answer if RELATION.search(gold) else gold
        if not any(mark in bare for mark in "([") or split_list(bare, thousands=False)[0] == "{}":
            return False  # 2 < x < 7 is neither 2, 7 nor {2, 7}
        return formulas.is_same(gold, answer) if formulas else None
    if len(items) != len(other_items):
        return False
    if brackets != other_brackets and is_choice(gold if not brackets else answer):
        brackets, other_brackets = brackets or "{}", other_brackets or "{}"  # x = 1 or x = 2 is not the point (1, 2)
    kinds = {brackets, other_brackets}
    if len(kinds) > 1 and not ("" in kinds and kinds & {"()", "{}"}):
        return False
    if are_contrary(gold, answer, items):
        return False
    if kinds <= {"", "{}"}:
        counted = read_counts(items), read_counts(other_items)
        if counted[0].keys() & counted[1].keys():  # 3 apples and 4 oranges
            return counted[0] == counted[1]
        return _compare_sets(items, other_items, formulas)
    return all_of(_compare_lists(*pair, formulas) for pair in zip(items, other_items, strict=True))


def _split_list_or_set(text: str, *, thousands: bool) -> tuple[str, list[str]]:
    """Returns the result of `split_list`; members that a set in braces repeats are left out, unless one is left."""
    brackets, items = split_list(text, thousands=thousands)
    members = list(dict.fromkeys(items))
    return brackets, members if brackets == "{}" and len(members) > 1 else items


def _compare_cases(
    gold: tuple[str, list[tuple[str, str]]], answer: tuple[str, list[tuple[str, str]]], formulas: Formulas | None
) -> Verdict:
    """Compares functions of several cases, which may be in any order."""
    if gold[0] and answer[0] and gold[0] != answer[0]:
        return False
    if len(gold[1]) != len(answer[1]) or len(gold[1]) > _LONGEST_CASES:
        return False
    if any(sum(is_other_case(condition) for _, condition in side[1]) > 1 for side in (gold, answer)):
        return False
    return any_of(
        all_of(
            _compare_lists(part, other, formulas)
            for pair, others in zip(gold[1], order, strict=True)
            for part, other in zip(reversed(pair), reversed(others), strict=True)
            if not is_other_case(part) and not is_other_case(other)
        )
        for order in itertools.permutations(answer[1])
    )


def _compare_assignments(
    gold: str, answer: str, assignments: tuple[dict[str, str] | None, dict[str, str] | None], formulas: Formulas | None
) -> Verdict:
    """Compares values that have different names, such as `x = 1, y = 2` or `(x, y) = (1, 2)`.

    A side without names has to have the order of the names.
    """
    golds, answers = assignments
    if (golds is None or answers is None) and are_roots(golds or answers or {}):
        values = [
            list(found.values()) if found is not None else split_list(text, thousands=False)[1]
            for found, text in ((golds, gold), (answers, answer))
        ]
        if len(values[0]) == len(values[1]) and not _INTERVAL.match(gold if golds is None else answer):
            return _compare_sets(values[0], values[1], formulas)
    if golds is not None and answers is not None and golds.keys() != answers.keys():
        return False
    sides: list[list[str]] = []
    for found, text in ((golds, gold), (answers, answer)):
        matrix = None if found is not None else read_matrix(text)
        if matrix is not None:
            brackets, items = "()", as_list(matrix)
        else:
            brackets, items = ("()", list(found.values())) if found is not None else split_list(text, thousands=False)
        if brackets not in ("", "()") or (found is None and any(map(_NAMED.match, items))):
            return False
        sides.append(items)
    if len(sides[0]) != len(sides[1]):
        return False
    return all_of(_compare_lists(*pair, formulas) for pair in zip(sides[0], sides[1], strict=True))


def _compare_matrices(
    gold: str, answer: str, matrices: tuple[list[list[str]] | None, list[list[str]] | None], formulas: Formulas | None
) -> Verdict:
    """Compares matrices cell by cell, and a vector with a point; products and sums of matrices by `formulas`."""
    golds, answers = matrices
    if golds is not None and answers is not None:
        if len(golds) != len(answers) or len(golds[0]) != len(answers[0]):
            return False
        pairs = [pair for rows in zip(golds, answers, strict=True) for pair in zip(*rows, strict=True)]
        return all_of(_compare_items(*pair, formulas) for pair in pairs)
    sides = [
        ("()", as_list(matrix)) if matrix is not None else split_list(text, thousands=False)
        for matrix, text in zip(matrices, (gold, answer), strict=True)
    ]
    (brackets, items), (other_brackets, others) = sides
    if len(items) == len(others) > 1 and {brackets, other_brackets} <= {"()", "[]"}:
        return all_of(_compare_items(*pair, formulas) for pair in zip(items, others, strict=True))
    if any(found is None and "\\begin" not in text for found, text in zip(matrices, (gold, answer), strict=True)):
        return False
    if golds is None:
        return formulas.is_same(gold, answer) if formulas else None
    values = [side for side in split_equation(answer) if "\\begin" in side]
    if all(value.count("\\begin") > 1 for value in values):
        return False  # a sum or a product is still to be computed
    if values == [answer]:
        return formulas.is_same(gold, answer) if formulas else None
    return all_of(
        (formulas.is_same(gold, value) if formulas else None)
        if value.count("\\begin") > 1
        else _compare_matrices(gold, value, (golds, read_matrix(value)), formulas)
        for value in values
    )


def _compare_sets(items: list[str], others: list[str], formulas: Formulas | None) -> Verdict:
    """Returns whether two lists hold the same items in any order. Equality is transitive: the first match is enough."""
    left, rest = list(others), []
    for item in items:
        if item in left:
            left.remove(item)
        else:
            rest.append(item)
    if len(rest) > _LONGEST_LIST:
        return False
    is_undecided = False
    for item in rest:
        verdicts: list[Verdict] = []
        for other in left:
            is_set = item.startswith("\\{"), other.startswith("\\{")  # {1, {2}} is not {1, 2}
            verdicts.append(is_set[0] == is_set[1] and _compare_lists(item, other, formulas))
            if verdicts[-1]:
                break
        if verdicts[-1]:
            del left[len(verdicts) - 1]
        elif None in verdicts:
            is_undecided = True
        else:
            return False
    return None if is_undecided else True


def _compare_items(gold: str, answer: str, formulas: Formulas | None) -> Verdict:
    """Compares single values, equations, and chains of equations."""
    if _OTHER_THAN.search(answer) and not _OTHER_THAN.search(gold):
        return False
    if any(len(split_equation(text)) > _LONGEST_CHAIN for text in (gold, answer)):
        return False
    order, other_order = read_order(gold), read_order(answer)
    if order and other_order:
        pairs = zip(order[0], other_order[0], strict=False)
        is_same = order[1] == other_order[1] and all_of(compare_values(*pair, formulas) for pair in pairs)
        if is_same is not False or len(order[0]) > 2:
            return is_same
    named_gold = read_names(gold)
    known = frozenset[str]().union(*map(variables_of, named_gold.values))
    named = read_names(answer, known)
    is_equation = named_gold.is_chain and bool(known)
    if is_equation and len(split_equation(answer)) == 1:
        return False
    if is_equation or (known and named_gold.names and named.names and not named.is_symbolic):
        if letters_of(gold) != letters_of(answer):
            return False
        return formulas.is_same(gold, answer) if formulas else None
    if not may_be_same(named_gold, named):  # y = 2x + 1 and x = (y - 1)/2 are one line
        if not known or letters_of(gold) != letters_of(answer) or "(" in "".join(named.names):
            return False
        return formulas.is_same(gold, answer) if formulas else None
    if _is_only_approximate(gold, answer):
        return False
    if named_gold.is_chain or named.is_chain:
        return _compare_chain(named_gold.values, named.values, formulas)
    return compare_values(named_gold.value, named.value, formulas)


def _is_only_approximate(gold: str, answer: str) -> bool:
    """Returns whether an answer says "≈" of all that it states, while the gold answer is exact."""
    before, sign, _ = answer.partition("\\approx")
    if not sign or "\\approx" in gold:
        return False
    number = read_number(split_equation(gold)[-1])
    is_rounded = number is not None and number.places > 0
    return not is_rounded and not any(character.isdigit() for character in before)


def _compare_chain(golds: tuple[str, ...], answers: tuple[str, ...], formulas: Formulas | None) -> Verdict:
    """Compares chains such as `16 - 3 - 4 = 9`: each side of the answer has to be right, one of them in a final form.

    A decimal side may be the value of another side, rounded at its last digit: `2\\sqrt{3} = 3.46`.
    """
    final = [any_of(compare_values(gold, answer, formulas) for gold in golds) for answer in answers]
    if all(verdict is False for verdict in final):
        return False
    others = [
        any_of(is_same_or_rounded(gold, answer, formulas) for gold in golds)
        for answer, verdict in zip(answers, final, strict=True)
        if verdict is not True and not _ELLIPSIS.search(answer)
    ]
    return all_of((any_of(final), *others))


def _is_balanced(text: str) -> bool:
    """Returns whether every brace has its partner. Inside of a box, "5}{6" would be read as 5."""
    depth = 0
    for character in text:
        depth += (character == "{") - (character == "}")
        if depth < 0:
            return False
    return depth == 0
