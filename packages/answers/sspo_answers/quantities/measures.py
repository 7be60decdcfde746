"""Names units in one spelling, and converts them: 150 cm is 1.5 m, and 72 km/h is 20 m/s."""

import functools
from fractions import Fraction

_PREFIXES = {  # the letter and the power of ten; "micro" has no ASCII letter
    "tera": ("T", 12),
    "giga": ("G", 9),
    "mega": ("M", 6),
    "kilo": ("k", 3),
    "hecto": ("h", 2),
    "deci": ("d", -1),
    "centi": ("c", -2),
    "milli": ("m", -3),
    "micro": ("micro", -6),
    "nano": ("n", -9),
    "pico": ("p", -12),
}
# Units that take prefixes: their names, their symbols, and the letters of prefixes with which a symbol is no product of
# letters. "kT" and "pV" are.
_PREFIXED = {
    "metre": ("meter meters metre metres", "m", "kdcmn"),
    "gram": ("gram grams", "g", "km"),
    "second": ("sec secs second seconds", "s", "mnp"),
    "litre": ("liter liters litre litres", "L l", "mdck"),
    "newton": ("newton newtons", "N", "kMm"),
    "joule": ("joule joules", "J", "kMm"),
    "watt": ("watt watts", "W", "kMGm"),
    "hertz": ("hertz", "Hz", "kMGT"),
    "pascal": ("pascal pascals", "Pa", "kMGh"),
    "volt": ("volt volts", "V", "kMm"),
    "ohm": ("ohm ohms", "ohm", "kMm"),
    "ampere": ("amp amps ampere amperes", "A", "m"),
    "coulomb": ("coulomb coulombs", "C", "m"),
    "farad": ("farad farads", "F", "mnp"),
    "tesla": ("tesla teslas", "T", "m"),
    "mole": ("mole moles", "mol", "mk"),
    "electronvolt": ("electronvolt electronvolts", "eV", "kMGTm"),
    "parsec": ("parsec parsecs", "pc", "kMG"),
    "calorie": ("calorie calories", "cal", "k"),
    "year": ("year years", "yr", "kMG"),
    "erg": ("erg ergs", "erg", ""),
    "dyne": ("dyne dynes", "dyn", ""),
    "angstrom": ("angstrom angstroms", "", ""),
    "radian": ("rad radian radians", "rad", "m"),
}
_OTHERS = {
    "inch": "in inch inches",
    "foot": "ft foot feet",
    "yard": "yd yard yards",
    "mile": "mi mile miles",
    "minute": "min mins minute minutes",
    "hour": "h hr hrs hour hours",
    "day": "day days",
    "week": "wk wks week weeks",
    "month": "month months",
    "year": "yrs",
    "ton": "t ton tons tonne tonnes",
    "ounce": "oz ounce ounces",
    "gallon": "gal gallon gallons",
    "quart": "qt quart quarts",
    "pint": "pt pint pints",
    "atmosphere": "atm atmosphere atmospheres",
    "kelvin": "K kelvin kelvins",
    "newton-metre": "Nm",
    "dollar": "dollar dollars usd",
    "cent": "cent cents",
    "euro": "euro euros eur",
    "pound": "pound pounds lb lbs",
    "yen": "yen jpy",
    "yuan": "yuan",
    "jiao": "jiao",
    "fen": "fen",
    "rupee": "rupee rupees rs inr",
    "am": "am",
    "pm": "pm",
    "degree": "degree degrees deg",
    "astronomical-unit": "AU au",
    # Lower case, where no other unit has these letters.
    "kilonewton": "kn",
    "kilojoule": "kj",
    "kilowatt": "kw",
    "hertz": "hz",
    "kilohertz": "khz",
    "megahertz": "mhz",
    "pascal": "pa",
    "kilopascal": "kpa",
    "kilovolt": "kv",
    "kiloohm": "kohm",
    "millilitre": "ml",
}

# Units in units of their own kind. A unit that is missing here is the measure of itself.
_SIZES: dict[str, tuple[Fraction, str]] = {
    "inch": (Fraction(254, 10**4), "metre"),
    "foot": (Fraction(3048, 10**4), "metre"),
    "yard": (Fraction(9144, 10**4), "metre"),
    "mile": (Fraction(1609344, 1000), "metre"),
    "angstrom": (Fraction(1, 10**10), "metre"),
    "minute": (Fraction(60), "second"),
    "hour": (Fraction(3600), "second"),
    "day": (Fraction(86400), "second"),
    "week": (Fraction(604800), "second"),
    "year": (Fraction(12), "month"),
    "litre": (Fraction(1, 1000), "metre^3"),
    "newton": (Fraction(1000), "gram metre second^-2"),
    "newton-metre": (Fraction(1000), "gram metre^2 second^-2"),
    "dyne": (Fraction(1, 100), "gram metre second^-2"),
    "joule": (Fraction(1000), "gram metre^2 second^-2"),
    "erg": (Fraction(1, 10**4), "gram metre^2 second^-2"),
    "watt": (Fraction(1000), "gram metre^2 second^-3"),
    "pascal": (Fraction(1000), "gram metre^-1 second^-2"),
    "hertz": (Fraction(1), "second^-1"),
    "coulomb": (Fraction(1), "ampere second"),
    "pound": (Fraction(16), "ounce"),
    "gallon": (Fraction(8), "pint"),
    "quart": (Fraction(2), "pint"),
    "dollar": (Fraction(100), "cent"),
    "yuan": (Fraction(100), "fen"),
    "jiao": (Fraction(10), "fen"),
}


def _read_table() -> dict[str, str]:
    found: dict[str, str] = {}
    for unit, (names, symbols, letters) in _PREFIXED.items():
        found |= dict.fromkeys((*names.split(), *symbols.split()), unit)
        for prefix, (letter, _) in _PREFIXES.items():
            spellings = [prefix + name for name in names.split() if len(name) > 3]
            if letter == "micro" or letter in letters:
                spellings += [letter + symbol for symbol in symbols.split()]
            found |= dict.fromkeys(spellings, prefix + unit)
    return found | {name: unit for unit, names in _OTHERS.items() for name in names.split()}


_UNITS = _read_table()


def unit_of(word: str) -> str:
    """Returns the one name of a unit, such as "kilometre" for "km"; empty if the word is none that this table has.

    Numbers with two different units of the table are different answers. Other words are not compared as units.
    """
    return _UNITS.get(word) or (_UNITS.get(word.lower(), "") if len(word) > 1 else "")


def ratio(unit: str, other: str) -> Fraction | None:
    """Returns how many of another unit one unit is, 1000 for "kilometre" and "metre"; None if they differ in kind.

    Args:
        unit: names of units with their powers, such as "kilometre hour^-1".
        other: the same of another unit.
    """
    size, kind = _measure(unit)
    other_size, other_kind = _measure(other)
    return size / other_size if kind == other_kind else None


@functools.lru_cache(maxsize=1024)
def _measure(units: str) -> tuple[Fraction, frozenset[tuple[str, int]]]:
    """Returns the size of units in units of their kind, and that kind: the powers of the units that are left."""
    size, kind = Fraction(1), dict[str, int]()
    for part in units.split():
        name, _, power = part.partition("^")
        factor, bases = _size_of(name)
        size *= factor ** int(power or 1)
        for base in bases.split():
            unit, _, own_power = base.partition("^")
            kind[unit] = kind.get(unit, 0) + int(own_power or 1) * int(power or 1)
    return size, frozenset((unit, power) for unit, power in kind.items() if power)


def _size_of(name: str) -> tuple[Fraction, str]:
    for prefix, (_, power) in _PREFIXES.items():
        if name.startswith(prefix) and name.removeprefix(prefix) in _PREFIXED:
            size, base = _size_of(name.removeprefix(prefix))
            return size * Fraction(10) ** power, base
    return _SIZES.get(name, (Fraction(1), name))
