"""Compares an answer with the gold answer: lists, sets, points and chains of equations, by their single values."""

import re

from sspo_answers.answer import clean, split_equation, split_list
from sspo_answers.number import read_number
from sspo_answers.values import (
    HEDGES,
    LONGEST_LIST,
    RELATION,
    Formulas,
    Verdict,
    all_of,
    any_of,
    compare_values,
    is_same_or_rounded,
    letters_of,
    normalize,
    tokens_of,
)

LONGEST = 2000  # characters; a longer answer is wrong, unless it is identical to the gold answer
_LONGEST_CHAIN = 20  # sides

_NAME = re.compile(
    r"\\?(?:angle|triangle)?\s*(?:[A-Za-z]|[A-Z]{2,3}|\\[a-zA-Z]+(?:\s*\{[A-Za-z]+\})?)\s*(?:_(?:[A-Za-z0-9]|\{[^{}]*\}))?\s*(?:'*\s*\([^()]*\))?"
)
_PHRASE = re.compile(r"(?=[^A-Za-z]*(?:[A-Za-z]{1,2}[^A-Za-z]+)*[A-Za-z]{3})[A-Za-z][A-Za-z '-]*")
_BEFORE_BRACKET = re.compile(
    r"^([A-Za-z](?:_[A-Za-z0-9]|'*)?)\s*(?:=\s*(?=\\?[(\[{][^=]*$|\\begin)|(?=\([^()]*,[^()]*\)$))"
)
# The names of coordinates in the usual order: (x, y) = (1, 2), but not (y, x) = (1, 2).
_COORDINATE = r"\s*(?:[A-Za-z]|\\[a-z]+)(?:_(?:[A-Za-z0-9]|\{[^{}]*\}))?\s*"
_COORDINATES = re.compile(rf"^\((?!\s*[yz]\s*,\s*x|\s*z\s*,){_COORDINATE}(?:,{_COORDINATE})+\)\s*=\s*(?=\()")
_CHOICE = re.compile(r"\(?([A-J])\)(?!.*\b[A-J]\))")
OPPOSITES = {"yes": "no", "no": "yes", "true": "false", "false": "true"}
# Words that take a yes or no back: a "not" in its own clause or at the start of the next, or one about the answer.
_TAKEN_BACK = re.compile(
    r"^[^,;:.]*\bnot\b|[,;:.]\s*not\b|\bnot (?:the answer|sure|certain|right|true|correct)\b|\b(?:or|unless)\b",
    re.IGNORECASE,
)
_TERM = r"\(?-?\$?\.?[0-9][0-9.,]*(?:/?\s*[A-Za-z]{2,}){0,4}\)?"
_SUM_AT_END = re.compile(
    rf"(?!.*(?:{HEDGES.pattern}))[A-Za-z][A-Za-z0-9 ,.'$-]*?\s({_TERM}(?:\s*(?:[-+*/x]|\\times|\\cdot)\s*{_TERM})+)"
)
_GROUP_OF_ZEROS = re.compile(r"-?[0-9]{1,3}(?:,[0-9]{3})*,0[0-9]{2}(?:,[0-9]{3})*")
_BETWEEN = re.compile(r"(.+?)\s*(<|\\le)\s*[a-z]\s*(<|\\le)\s*(.+)")
_INTERVAL = re.compile(r"[(\[].*,.*[)\]]$")


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
    if max(len(gold), len(answer)) > LONGEST:
        return False
    gold, answer = clean(gold), clean(answer)
    if not gold or not answer:
        return False
    if normalize(gold) == normalize(answer):
        return True
    if not (_is_balanced(gold) and _is_balanced(answer)):
        return False
    return _compare_lists(gold, answer, formulas)


def try_compare(gold: str, answer: str) -> Verdict:
    """Returns the verdict of `compare`; False if it raises, because no text of a model may end a run."""
    try:
        return compare(gold, answer)
    except Exception:
        return False


def _compare_lists(gold: str, answer: str, formulas: Formulas | None) -> Verdict:
    if gold.lower() in OPPOSITES and (tokens := tokens_of(answer)):
        stated = tokens[0].lower()
        return stated == gold.lower() and OPPOSITES[stated] not in tokens and not _TAKEN_BACK.search(answer)
    if re.fullmatch(r"\(?[A-J]\)?", gold) and (choice := _CHOICE.match(answer)):
        return choice[1] == gold.strip("()")
    if _SUM_AT_END.fullmatch(split_equation(answer)[0]) and read_number(gold):
        return _compare_items(gold, answer, formulas)
    if _INTERVAL.match(gold) or _INTERVAL.match(answer):
        gold, answer = _as_interval(gold), _as_interval(answer)
    for form in (_COORDINATES, _BEFORE_BRACKET):
        names = {normalize(found.group()).rstrip("=") for text in (gold, answer) if (found := form.match(text))}
        if len(names) == 1:  # if both have names, these have to be the same
            gold, answer = form.sub("", gold), form.sub("", answer)
    assignments = _read_assignments(gold), _read_assignments(answer)
    if assignments != (None, None):
        return _compare_assignments((gold, answer), assignments, formulas)
    brackets, items = split_list(gold, thousands=True)
    other_brackets, other_items = split_list(answer, thousands=True)
    if len(items) != len(other_items):  # "100,200" is a list where the other side has two items
        if _GROUP_OF_ZEROS.fullmatch(gold):  # "1,000,000" is none
            return False
        brackets, items = split_list(gold, thousands=False)
        other_brackets, other_items = split_list(answer, thousands=False)
    if len(items) == len(other_items) == 1:
        return _compare_items(items[0], other_items[0], formulas)
    if bool(RELATION.search(gold)) != bool(RELATION.search(answer)):  # 0 < x < 1 and (0, 1)
        if len(items) == len(other_items) and _is_union(gold) and _is_union(answer):
            return _compare_sets(items, other_items, formulas)
        if not all(RELATION.search(text) or "(" in text or "[" in text for text in (gold, answer)):
            return False  # 2 < x < 7 is neither 2, 7 nor {2, 7}
        return formulas.is_same(gold, answer) if formulas else None
    if len(items) != len(other_items):
        return False
    kinds = {brackets, other_brackets}
    if len(kinds) > 1 and not ("" in kinds and kinds & {"()", "{}"}):
        return False
    if kinds <= {"", "{}"}:
        return _compare_sets(items, other_items, formulas)
    return all_of(_compare_lists(*pair, formulas) for pair in zip(items, other_items, strict=True))


def _as_interval(text: str) -> str:
    """Returns (a,b] for `a < x \\le b`, and any other text as it is."""
    match = _BETWEEN.fullmatch(text)
    if not match or RELATION.search(match[1] + match[4]):
        return text
    return f"{'(' if match[2] == '<' else '['}{match[1]},{match[4]}{')' if match[3] == '<' else ']'}"


def _is_union(text: str) -> bool:
    """Returns whether a text is a union of intervals, or of inequalities: x < 2 or x > 3."""
    if RELATION.search(text):
        return " or " in text and not re.search(r"[,;]| and ", text)
    return "\\cup" in text


def _read_assignments(text: str) -> dict[str, str] | None:
    """Returns the values of `x = 3, y = 4` by their names; None if an item has no name of its own."""
    items = split_list(text, thousands=False)[1] if "=" in text else []
    found: dict[str, str] = {}
    for item in items:
        sides = split_equation(item)
        if len(sides) != 2 or not _NAME.fullmatch(sides[0]):
            return None
        found[normalize(sides[0])] = sides[1]
    return found if len(found) == len(items) > 1 else None


def _compare_assignments(
    texts: tuple[str, str], assignments: tuple[dict[str, str] | None, dict[str, str] | None], formulas: Formulas | None
) -> Verdict:
    """Compares values that have different names; a side without names has to have the order of the alphabet."""
    if all(assignments) and set(assignments[0] or ()) != set(assignments[1] or ()):
        return False
    sides: list[list[str]] = []
    for found, text in zip(assignments, texts, strict=True):
        brackets, items = (
            ("()", [found[name] for name in sorted(found)]) if found else split_list(text, thousands=False)
        )
        if brackets not in ("", "()") or (not found and "=" in text):
            return False
        sides.append(items)
    if len(sides[0]) != len(sides[1]):
        return False
    return all_of(_compare_lists(*pair, formulas) for pair in zip(sides[0], sides[1], strict=True))


def _compare_sets(items: list[str], others: list[str], formulas: Formulas | None) -> Verdict:
    """Returns whether two lists hold the same items in any order. Equality is transitive: the first match is enough."""
    left, rest = list(others), []
    for item in items:
        if item in left:
            left.remove(item)
        else:
            rest.append(item)
    if len(rest) > LONGEST_LIST:
        return False
    is_undecided = False
    for item in rest:
        verdicts: list[Verdict] = []
        for other in left:
            verdicts.append(_compare_lists(item, other, formulas))
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
    golds, answers = split_equation(gold), split_equation(answer)
    if len(golds) == len(answers) == 1:
        return compare_values(gold, answer, formulas)
    if len(golds) == 1 and (sums := [_SUM_AT_END.fullmatch(side) for side in answers[:-1]]) and all(sums):
        answers[:-1] = [match[1].replace("x", r"\times ") for match in sums if match]  # "so he has 12 - 5 = 7 left"
    if max(len(golds), len(answers)) > _LONGEST_CHAIN or not all((*golds, *answers[1:])):
        return False
    if "\\approx" in answer and "\\approx" not in gold and not re.search("[0-9]", answer.partition("\\approx")[0]):
        return False  # ≈ without an exact value before it is a hedge
    is_named = [len(sides) > 1 and _is_name(sides[0]) for sides in (golds, answers)]
    if len(golds) > 1 and not is_named[0]:
        if letters_of(golds[-1]) or re.search("[xyz]", golds[0]) or len(golds) > 2:
            return False if len(answers) == 1 else _by_formulas(gold, answer, formulas)  # x + y = 5 is a line
        if len(answers) > 1 and not is_named[1]:
            if normalize(answers[0]) != normalize(golds[0]):
                return _by_formulas(gold, answer, formulas)
            answers = answers[1:]
        golds = golds[1:]  # m + n = 25
    elif is_named[0] and is_named[1]:
        if _in_one_spelling(golds[0]) != _in_one_spelling(answers[0]):
            return False if not letters_of(golds[-1]) else _by_formulas(gold, answer, formulas)
        golds, answers = golds[1:], answers[1:]
    elif is_named[0]:
        if len(answers) > 1 and letters_of(golds[-1]):
            return _by_formulas(gold, answer, formulas)
        golds = golds[1:]
    known = letters_of(golds[-1])
    values = [side for side in answers if side and not _is_name_of(side, known)] if len(answers) > 1 else answers
    if not values or (not known and any(len(letters_of(side)) == 1 for side in values[:-1] if len(values) > 1)):
        return False  # 2x = 10 is still to be solved
    return _compare_chain(golds, values, formulas)


def _by_formulas(gold: str, answer: str, formulas: Formulas | None) -> Verdict:
    """Compares equations, which have to have the same letters; chains of equations side by side."""
    golds, answers = split_equation(gold), split_equation(answer)
    if len(golds) != len(answers) or letters_of(gold) != letters_of(answer):
        return False
    if len(golds) > 2:
        return all_of(compare_values(*pair, formulas) for pair in zip(golds, answers, strict=True))
    return formulas.is_same(gold, answer) if formulas else None


def _compare_chain(golds: list[str], answers: list[str], formulas: Formulas | None) -> Verdict:
    """Compares chains such as `16 - 3 - 4 = 9`: each side of the answer has to be right, one of them in a final form.

    A decimal side may be the value of another side, rounded at its last digit: `2\\sqrt{3} = 3.46`.
    """
    final = [any_of(compare_values(gold, answer, formulas) for gold in golds) for answer in answers]
    if all(verdict is False for verdict in final):
        return False
    others = [
        any_of(is_same_or_rounded(gold, answer, formulas) for gold in golds)
        for answer, verdict in zip(answers, final, strict=True)
        if verdict is not True and "\\dots" not in answer
    ]
    return all_of((any_of(final), *others))


def _is_name(side: str) -> bool:
    return bool(_NAME.fullmatch(side) or _PHRASE.fullmatch(side))


def _is_name_of(side: str, known: frozenset[str]) -> bool:
    """Returns whether a side names the value: a symbol, words, or a formula of letters that the gold value lacks."""
    if re.match(r"\$?[0-9]", side) and re.search("[A-Za-z]{3}", side):
        return False  # "5 days to fly 20,000 km" is another value
    letters = letters_of(side)
    return (_is_name(side) and not letters <= known) or (len(letters - known) > 1)


def _in_one_spelling(name: str) -> str:
    """Returns a name without decoration; y for f(x), and the letters of a segment or an angle in one order."""
    name = re.sub(r"\\(?:angle|overline|triangle)|[\s{}\\]", "", name)
    if name == "f(x)":
        return "y"
    return min(name, name[::-1]) if re.fullmatch("[A-Z]{2,3}", name) else name


def _is_balanced(text: str) -> bool:
    """Returns whether every brace has its partner. Inside of a box, "5}{6" would be read as 5."""
    depth = 0
    for character in text:
        depth += (character == "{") - (character == "}")
        if depth < 0:
            return False
    return depth == 0
