"""Reads a formula in LaTeX, or in plain text, as a tree of operations."""

import re
from fractions import Fraction
from typing import Any

# A number is a Fraction; an operation is a tuple of its name and its operands.
#   ("variable", name)  ("constant", "pi" | "e" | "i")  ("call", function, operand)  ("log", base, operand)
#   ("add" | "multiply" | "divide" | "power" | "binomial" | "root", left, right)  ("negate" | "factorial", operand)
Tree = Fraction | tuple[Any, ...]

_LONGEST = 400  # characters
_DEEPEST = 40  # brackets within brackets

_TOKEN = re.compile(r"\s*(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+|\\[A-Za-z]+|\\[{}|]|[A-Za-z]|[-+*/^_(){}\[\]!|])")
_LETTERS_OF_FUNCTIONS = frozenset("fghFGHEP")  # before a bracket
GREEK = frozenset(
    (
        *("alpha", "beta", "gamma", "delta", "epsilon", "varepsilon", "zeta", "eta", "theta", "vartheta", "kappa"),
        *("lambda", "mu", "nu", "xi", "rho", "sigma", "tau", "phi", "varphi", "chi", "psi", "omega", "ell"),
        *("Gamma", "Delta", "Theta", "Lambda", "Xi", "Sigma", "Phi", "Psi", "Omega"),
    )
)
FUNCTIONS = frozenset(  # without \log, whose base differs from text to text
    (
        *("sin", "cos", "tan", "cot", "sec", "csc", "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh"),
        "cis",
        *("ln", "lg", "exp"),
    )
)
_INVERSES = {"sin": "arcsin", "cos": "arccos", "tan": "arctan"}
_CLOSING = {"(": ")", "{": "}", "[": "]", "\\{": "\\}", "|": "|", "\\lfloor": "\\rfloor", "\\lceil": "\\rceil"}
_CALLS = {"|": "abs", "\\lfloor": "floor", "\\lceil": "ceil"}
_TIMES = ("*", "\\times", "\\cdot")
_OVER = ("/", "\\div")
_ENDS = ("+", "-", "*", "/", "^", "_", "!", ")", "}", "]", "\\}", "\\rfloor", "\\rceil", "\\times", "\\cdot", "\\div")


class UnreadError(ValueError):
    """The text is no formula of this grammar, or has several readings."""


def parse_formula(text: str) -> Tree:
    r"""Returns the tree of a formula of numbers, variables, operations, roots, powers and functions.

    Raises UnreadError if it has anything else, such as a relation or a matrix, or is ambiguous (`1/2x`, `\log x`).
    """
    if len(text) > _LONGEST:
        raise UnreadError(text)
    parser = _Parser(_split(text))
    tree = parser.read_sum()
    if parser.next is not None:
        raise UnreadError(text)
    return tree


def _split(text: str) -> list[str]:
    tokens: list[str] = []
    position = 0
    text = text.rstrip()
    while position < len(text):
        match = _TOKEN.match(text, position)
        if not match:
            raise UnreadError(text)
        tokens.append(match.group().strip())
        position = match.end()
    return tokens


class _Parser:
    """A recursive descent over tokens; each method reads one level of precedence."""

    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens
        self._position = 0
        self._depth = 0
        self._is_angle = False  # whether the operand of a function is being read: elsewhere, degrees are ambiguous
        self._bars = 0  # open absolute values: in one, the next bar closes it

    @property
    def next(self) -> str | None:
        return self._tokens[self._position] if self._position < len(self._tokens) else None

    def read_sum(self) -> Tree:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise UnreadError("too many brackets")
        tree = self._read_product()
        while self.next in ("+", "-"):
            sign = self._take()
            right = self._read_product()
            tree = ("add", tree, right if sign == "+" else ("negate", right))
        self._depth -= 1
        return tree

    def _read_product(self) -> Tree:
        if self.next in ("+", "-"):
            sign = self._take()
            tree = self._read_product()
            return tree if sign == "+" else ("negate", tree)
        tree = last = self._read_factor()
        slashed = False
        while self.next is not None:
            if self.next in _TIMES or self.next in _OVER:
                operation = "divide" if self.next in _OVER else "multiply"
                slashed = self._take() == "/"
                tree = (operation, tree, self._read_signed())
            elif self._begins_factor():
                if slashed:
                    raise UnreadError("1/2x is (1/2)x or 1/(2x)")
                last = self._read_factor(within_product=not self._may_be_number(last))
                tree = ("multiply", tree, last)
            else:
                break
        return tree

    def _may_be_number(self, last: Tree) -> bool:
        """Returns whether a number after the factor `last`, without a sign in between, has one reading."""
        if not isinstance(last, tuple):
            return False
        token = self._tokens[self._position - 1]
        if (last[0], token) in (("power", "}"), ("factorial", "!")):  # 2^{3}5
            return True
        return last[0] == "variable" and token.isalpha() and self._tokens[self._position + 1 :][:1] == ["^"]  # n2^{n-1}

    def _read_signed(self) -> Tree:
        if self.next in ("+", "-"):
            return self._read_signed() if self._take() == "+" else ("negate", self._read_signed())
        return self._read_factor()

    def _begins_factor(self) -> bool:
        return self.next is not None and self.next not in _ENDS and not (self.next == "|" and self._bars)

    def _read_factor(self, within_product: bool = False) -> Tree:
        """Returns a base with its factorials and power.

        `within_product` says whether a factor without a sign in between stands before this one; a number cannot follow.
        """
        token = self.next
        if token is None or (within_product and token[0] in "0123456789."):
            raise UnreadError("a factor is missing")
        base = self._read_base()
        if self.next == "!":
            self._take()
            if self.next == "!":
                raise UnreadError("double factorial")
            base = ("factorial", base)
        if self.next == "^":
            self._take()
            if self._is_angle and self._takes_degrees():
                return ("multiply", base, ("divide", ("constant", "pi"), Fraction(180)))
            base = ("power", base, self._read_exponent())
        if self.next in ("^", "_", "!"):
            raise UnreadError("a second power or an index")
        return base

    def _takes_degrees(self) -> bool:
        for sign in (["\\circ"], ["{", "\\circ", "}"]):
            if self._tokens[self._position : self._position + len(sign)] == sign:
                self._position += len(sign)
                return True
        return False

    def _read_exponent(self) -> Tree:
        token = self.next
        if token in ("{", "("):
            return self._read_group()
        if token == "-":
            self._take()
            return ("negate", self._read_exponent())
        if token is None or (token[0].isdigit() and len(token) > 1) or token in ("\\frac", "\\sqrt"):
            raise UnreadError("2^10 is 2^{10} or 2^{1}0")
        return self._read_base()

    def _read_base(self) -> Tree:
        token = self.next
        if token is None or token in _ENDS:
            raise UnreadError("a factor is missing")
        if token in _CLOSING:
            return self._read_group()
        self._take()
        if token[0] in "0123456789.":
            return self._read_number(token)
        name = token.removeprefix("\\")
        if token == "\\frac":
            return ("divide", self._read_argument(), self._read_argument())
        if token in ("\\binom", "\\dbinom", "\\tbinom"):
            return ("binomial", self._read_argument(), self._read_argument())
        if token == "\\sqrt":
            degree = self._read_group() if self.next == "[" else Fraction(2)
            return ("root", self._read_argument(), degree)
        if token == "\\log":
            return self._read_logarithm()
        if token[0] == "\\" and name in FUNCTIONS:
            return self._read_call(name)
        if token == "\\pi" or (token[0] != "\\" and name in ("e", "i")):
            return ("constant", name)
        if len(token) == 1 or name in GREEK:
            return self._read_variable(name)
        raise UnreadError(token)

    def _read_number(self, token: str) -> Tree:
        number = Fraction(token)
        if self.next == "\\frac" and number.denominator == 1:  # 2\frac{1}{3} is a mixed number
            start = self._position
            part = self._read_base()
            top, bottom = part[1:] if isinstance(part, tuple) else (part, part)
            if isinstance(top, Fraction) and isinstance(bottom, Fraction):
                if not 0 < top < bottom:
                    raise UnreadError("a product or a mixed number")
                return number + top / bottom
            self._position = start
        return number

    def _read_variable(self, name: str) -> Tree:
        if self.next == "_":
            self._take()
            if self.next == "{":
                start = self._position
                self._read_group()
                name += "_" + "".join(self._tokens[start + 1 : self._position - 1])
            else:
                name += "_" + self._take()
        if self.next in ("(", "[") and name[0] in _LETTERS_OF_FUNCTIONS:
            raise UnreadError("a function, or a factor")
        return ("variable", name)

    def _read_logarithm(self) -> Tree:
        if self.next != "_":
            raise UnreadError("the base of a logarithm is missing")
        self._take()
        base = self._read_group() if self.next == "{" else self._read_base()
        return ("log", base, self._read_operand())

    def _read_call(self, name: str) -> Tree:
        if self.next != "^":
            return ("call", name, self._read_operand())
        self._take()
        exponent = self._read_exponent()
        if exponent == ("negate", Fraction(1)):
            if name not in _INVERSES:
                raise UnreadError("a power or an inverse function")
            return ("call", _INVERSES[name], self._read_operand())
        return ("power", ("call", name, self._read_operand()), exponent)

    def _read_operand(self) -> Tree:
        """Returns the operand of a function: a group, or the factors up to the next sign or function."""
        was_angle, self._is_angle = self._is_angle, True
        tree = self._read_angle()
        self._is_angle = was_angle
        return tree

    def _read_angle(self) -> Tree:
        if self.next in ("(", "{"):
            return self._read_group()
        tree = self._read_factor()
        while (token := self.next) and (token.isalpha() or token == "\\pi" or token.removeprefix("\\") in GREEK):
            tree = ("multiply", tree, self._read_factor(within_product=True))
        if self.next in _OVER and not self._is_function(self._position + 1):
            raise UnreadError("\\sin x/2 has two readings")
        return tree

    def _is_function(self, position: int) -> bool:
        name = self._tokens[position].removeprefix("\\") if position < len(self._tokens) else ""
        return name == "log" or name in FUNCTIONS

    def _read_argument(self) -> Tree:
        """Returns the argument of a command: a group in braces, or one digit or letter."""
        if self.next == "{":
            return self._read_group()
        token = self._take()
        if token.isdigit():
            if len(token) > 1:  # \frac12
                self._position -= 1
                self._tokens[self._position] = token[1:]
            return Fraction(token[0])
        if token.isalpha() or token == "\\pi" or token.removeprefix("\\") in GREEK:
            self._position -= 1
            return self._read_base()
        raise UnreadError("a brace is missing")

    def _read_group(self) -> Tree:
        opening = self._take()
        bars, self._bars = self._bars, int(opening == "|")
        tree = self.read_sum()
        self._bars = bars
        if self._take() != _CLOSING[opening]:
            raise UnreadError("a bracket is not closed")
        return ("call", _CALLS[opening], tree) if opening in _CALLS else tree

    def _take(self) -> str:
        token = self.next
        if token is None:
            raise UnreadError("the formula ends too early")
        self._position += 1
        return token
