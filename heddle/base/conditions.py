"""Conditions and expressions: what a value must be, and how figures of runs give a value.

Condition: `16`, `<= 1.3`, `above 1`, `12 to 20`, `!= fixed`, or a list of values; of a number, a size or a word.
Expression: arithmetic over figures, with a small closed set of functions, as `busbw(two) / busbw(one)`,
`max(mmr(sweep))`, `busbw(sweep, qps=16) - busbw(sweep, qps=1)`. Python's parser makes the tree, and only the nodes here
are accepted: nothing of the text is ever executed.

A figure is `NAME(RUN)`, or NAME alone where there is one run. Keywords choose: `size`, `job`, `port`, `direction`,
or a value of a setting that varies in the run, by the last word of its key.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import Final

from heddle.base.units import parse_size

Fact = str | int | float | bool
Written = Fact | list[Fact]

SIGN: Final = re.compile(r"(above|below|is)\s+(-?[0-9]*\.?[0-9]+(?:e-?[0-9]{1,2})?)")
_SIGNS: Final[Mapping[str, Callable[[float, float], bool]]] = {
    "<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt,
    "below": operator.lt, "above": operator.gt, "is": operator.eq,
}  # fmt: skip
_UPPER: Final = ("<=", "<", "below", "is")  # signs whose limit is the most
_LOWER: Final = (">=", ">", "above", "is")
_DIFFERENT: Final = "!="
_COMPARED: Final = re.compile(r"(<=|>=|<|>|(?:above|below)(?=\s))\s*(\S+)")
_RANGE: Final = re.compile(r"(\S+)\s+to\s+(\S+)")


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition on a value, as written.

    | written | holds for |
    |---|---|
    | 16, fixed, true | an equal value; for texts without regard to case |
    | "<= 1.3" | this and less; also <, >, >=; the number may be a size, as in "<= 150KB" |
    | "above 1", "below 0.3", "is 0" | as > 1, < 0.3, and an equal number |
    | "12 to 20" | values between, both limits included |
    | "!= qpn" | a different value |
    | [flow, e-ecmp] | one of these |
    """

    written: Written

    def __post_init__(self) -> None:
        """ValueError with the reason when a limit is not a number."""
        self.limits  # noqa: B018

    @classmethod
    def between(cls, low: float, high: float) -> Condition:
        """Values between two numbers, both included."""
        return cls(f"{low!r} to {high!r}")

    def holds(self, value: Fact) -> bool:
        """Whether a value meets it. A value that is not a number meets no limit."""
        if isinstance(self.written, list):
            return any(_equal(value, each) for each in self.written)
        if limits := self.limits:
            number = number_of(value)
            return number is not None and all(_SIGNS[sign](number, limit) for sign, limit in limits)
        if isinstance(self.written, str) and self.written.startswith(_DIFFERENT):
            return not _equal(value, self.written.removeprefix(_DIFFERENT).strip())
        return _equal(value, self.written)

    def text(self) -> str:
        """As a person reads it: `one of flow, e-ecmp`."""
        if isinstance(self.written, list):
            return "one of " + ", ".join(map(fact_text, self.written))
        return fact_text(self.written)

    @property
    def limits(self) -> list[tuple[str, float]]:
        """The limits that a text sets, as sign and number; none where it is compared as a whole."""
        if not isinstance(self.written, str):
            return []
        text = self.written.strip()
        if match := _COMPARED.fullmatch(text) or SIGN.fullmatch(text):
            return [(match[1], _number(match[2]))]
        if match := _RANGE.fullmatch(text):
            return [(">=", _number(match[1])), ("<=", _number(match[2]))]
        return []

    @property
    def low(self) -> float | None:
        """The least number that it allows; None without such a limit."""
        return next((limit for sign, limit in self.limits if sign in _LOWER), None)

    @property
    def high(self) -> float | None:
        """The largest one."""
        return next((limit for sign, limit in self.limits if sign in _UPPER), None)


def number_of(value: Fact) -> float | None:
    """A number or a size in bytes; None for other texts, and for true and false."""
    if isinstance(value, bool):
        return None
    if isinstance(value, float):
        return value
    try:
        number = float(value)
    except OverflowError:  # a whole number of more than 308 digits
        return None
    except ValueError:
        try:
            return float(parse_size(str(value).replace(" ", "")))
        except ValueError:
            return None
    return number if math.isfinite(number) else None


def fact_text(value: Fact) -> str:
    """`yes` and `no` for true and false; numbers with at most 6 significant digits."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _equal(value: Fact, wanted: Fact) -> bool:
    if isinstance(wanted, bool) or isinstance(value, bool):
        return fact_text(value) == fact_text(wanted) or value is wanted
    one, other = number_of(value), number_of(wanted)
    if one is not None and other is not None:
        return one == other  # AS numbers of two switches may differ by one
    return str(value).strip().lower() == str(wanted).strip().lower()


def _number(text: str) -> float:
    number = number_of(text)
    if number is None:
        raise ValueError(f"compares with {text}, which is not a number or a size")
    return number


class ExpressionError(ValueError):
    """A text that is not an expression: the reason, and after `; ` a hint."""


class UnknownValueError(Exception):
    """A value that a run does not have; the text is the reason."""


def divided(a: float, b: float) -> float:
    """a / b; UnknownValueError for b = 0."""
    if b == 0:
        raise UnknownValueError("the divisor is 0")
    return a / b


CHOICES: Final = ("size", "job", "port", "direction")
_Function = Callable[[Sequence[float]], float]
_REDUCERS: Final[Mapping[str, _Function]] = {
    "max": max,
    "min": min,
    "mean": fmean,
    "spread": lambda values: max(values) - min(values),
    "deviation": pstdev,
}
_OTHERS: Final[Mapping[str, tuple[int, _Function]]] = {  # with how many values
    "ratio": (2, lambda values: divided(*values)),
    "difference": (2, lambda values: values[0] - values[1]),
    "abs": (1, lambda values: abs(values[0])),
}
FUNCTIONS: Final = (*_REDUCERS, *_OTHERS)
_OPERATORS: Final[Mapping[type[ast.operator] | type[ast.unaryop], _Function]] = {
    ast.Add: sum,
    ast.Sub: lambda values: values[0] - values[1],
    ast.Mult: lambda values: values[0] * values[1],
    ast.Div: lambda values: divided(*values),
    ast.USub: lambda values: -values[0],
}
_HINT: Final = 'write it as busbw(two) / busbw(one), and values with other signs in quotes: busbw(two, size="64K")'
_MOST: Final = 1_000  # letters of an expression
_DEEPEST: Final = 100  # levels of it
LARGEST: Final = 1e300  # number in it, and its value: sums over repeats are finite


@dataclass(frozen=True, slots=True)
class FigureCall:
    """A figure of a run. keys: the keywords of the call, as texts."""

    figure: str
    run: str
    keys: tuple[tuple[str, str], ...] = ()


Lookup = Callable[[FigureCall, Mapping[str, str]], float]
Axes = Callable[[FigureCall], Mapping[str, Sequence[str]]]


@dataclass(frozen=True, slots=True)
class Expression:
    """A parsed expression: a number, a figure, or a function of other expressions.

    reduces: a function of one argument, which goes over all that varies in it.
    """

    node: ast.expr
    number: float = 0.0
    call: FigureCall | None = None
    of: _Function | None = None
    parts: tuple[Expression, ...] = ()
    reduces: bool = False

    @classmethod
    def parse(cls, text: str, runs: Sequence[str]) -> Expression:
        """Parse it. runs: the names of the file's runs. ExpressionError with the reason."""
        if len(text) > _MOST:
            raise ExpressionError(f"is longer than {_MOST} letters; split it into several checks")
        try:
            tree = ast.parse(text.strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise ExpressionError(f"is not an expression; {_HINT}") from None
        return _parsed(tree, runs)

    @property
    def calls(self) -> tuple[FigureCall, ...]:
        """Every figure in it, each once."""
        inner = [call for each in self.parts for call in each.calls]
        return tuple(dict.fromkeys(inner if self.call is None else [self.call]))

    def free(self, axes: Axes) -> dict[str, Sequence[str]]:
        """What varies in its figures, outside of functions of one argument, which go over all of it."""
        if self.call is not None:
            return dict(axes(self.call))
        parts = () if self.reduces else self.parts
        return {key: values for each in parts for key, values in each.free(axes).items()}

    def value(self, at: Mapping[str, str], lookup: Lookup, axes: Axes) -> float:
        """Its value at a point of the grid. axes: of a figure, what varies in its run and is not chosen by a keyword.

        UnknownValueError when a run does not have a figure, or the value is not a number.
        """
        if self.call is not None:
            found = lookup(self.call, at)
        elif self.of is None:
            found = self.number
        elif self.reduces:
            (part,) = self.parts
            found = self.of([part.value({**at, **more}, lookup, axes) for more in points(part.free(axes))])
        else:
            found = self.of([each.value(at, lookup, axes) for each in self.parts])
        if not abs(found) <= LARGEST:  # NaN, too
            raise UnknownValueError(f"{ast.unparse(self.node)[:60]} is not a number from -{LARGEST:g} to {LARGEST:g}")
        return found


def _parsed(node: ast.expr, runs: Sequence[str], depth: int = 0) -> Expression:
    if depth > _DEEPEST:
        raise ExpressionError(f"has more than {_DEEPEST} levels; split it into several checks")

    def made(of: _Function, *parts: ast.expr, reduces: bool = False) -> Expression:
        return Expression(node, of=of, parts=tuple(_parsed(each, runs, depth + 1) for each in parts), reduces=reduces)

    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            if number > LARGEST:
                raise ExpressionError(f"has a number above {LARGEST:g}; use a smaller one")
            return Expression(node, float(number))
        case ast.BinOp(op=op) if type(op) in _OPERATORS:
            return made(_OPERATORS[type(op)], node.left, node.right)
        case ast.UnaryOp(op=ast.USub()):
            return made(_OPERATORS[ast.USub], node.operand)
        case ast.Call(func=ast.Name(id=name)) if name in FUNCTIONS:
            if node.keywords or not node.args:
                raise ExpressionError(f"has {name}() without values; write {name}(busbw(run))")
            if name in _REDUCERS:
                return made(_REDUCERS[name], *node.args, reduces=len(node.args) == 1)
            count, of = _OTHERS[name]
            if len(node.args) != count:
                raise ExpressionError(f"has {name} of {len(node.args)} values; give it {('one', 'two')[count - 1]}")
            return made(of, *node.args)
        case ast.Name() | ast.Call() | ast.Attribute():
            return Expression(node, call=_figure(node, runs))
    why = f"has {ast.unparse(node)[:60]}, which an expression cannot have"
    raise ExpressionError(f"{why}; use numbers, + - * /, figures and {', '.join(FUNCTIONS)}")


def _figure(node: ast.expr, runs: Sequence[str]) -> FigureCall:
    if not isinstance(node, ast.Call):
        name = _name(node)
        if len(runs) != 1:
            raise ExpressionError(f"has {name[:60]} without a run; write {name[:60]}({runs[0]})")
        return FigureCall(name, runs[0])
    name = _name(node.func)
    keys = tuple((each.arg or "", _word(each.value)) for each in node.keywords)
    if twice := [each for each in keys if [word for word, _ in keys].count(each[0]) > 1]:
        raise ExpressionError(f"has {twice[0][0]} twice in {ast.unparse(node)[:60]}; write it once")
    if len(node.args) > 1 or (not node.args and len(runs) != 1):
        raise ExpressionError(f"has {name} of {len(node.args)} runs; write {name}({runs[0]})")
    run = _word(node.args[0]) if node.args else runs[0]
    if run not in runs:
        raise ExpressionError(f"names run {run}, which the file does not have; runs: {', '.join(runs)}")
    return FigureCall(name, run, keys)


def points(axes: Mapping[str, Sequence[str]]) -> list[dict[str, str]]:
    """Every combination of the values, the last axis fastest; one empty point without axes."""
    found: list[dict[str, str]] = [{}]
    for key, values in axes.items():
        found = [{**point, key: value} for point in found for value in values]
    return found


def _name(node: ast.expr) -> str:
    """`busbw`, or `queues.deepest`."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=part, attr=name):
            return f"{_name(part)}.{name}"
    raise ExpressionError(f"has {ast.unparse(node)[:60]}, which is not a figure; write busbw(run)")


def _word(node: ast.expr) -> str:
    """A run's name, or the value of a keyword: a name, a number, or a text in quotes."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Constant(value=str() | int() | float()):
            return str(node.value)
    hint = 'put a value with other signs into quotes: size="64K"'
    raise ExpressionError(f"has {ast.unparse(node)[:60]}, which is not a name or a value; {hint}")
