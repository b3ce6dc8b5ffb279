"""Expressions of checks: arithmetic over figures of runs, with a small closed set of functions.

In:  text, as `busbw(two) / busbw(one)`, `max(mmr(sweep))`, `busbw(sweep, qps=16) - busbw(sweep, qps=1)`.
Out: Expression; its value at a point of the grid. Python's parser makes the tree, and only the nodes here are accepted:
nothing of the text is ever executed.

A figure is `NAME(RUN)`, or NAME alone where the file has one run. Keywords choose: `size`, `job`, `port`, `direction`,
or a value of a setting that varies in the run, by the last word of its key.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import Final


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
_REDUCERS: Final[Mapping[str, Callable[[Sequence[float]], float]]] = {
    "max": max,
    "min": min,
    "mean": fmean,
    "spread": lambda values: max(values) - min(values),
    "deviation": pstdev,
}
_PAIRS: Final[Mapping[str, Callable[[float, float], float]]] = {
    "ratio": divided,
    "difference": lambda a, b: a - b,
}
FUNCTIONS: Final = (*_REDUCERS, *_PAIRS, "abs")
_OPERATORS: Final[Mapping[type[ast.operator], Callable[[float, float], float]]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: divided,
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

    def text(self) -> str:
        """As it is written in an expression."""
        return f"{self.figure}({', '.join([self.run, *(f'{key}={value}' for key, value in self.keys)])})"


Lookup = Callable[[FigureCall, Mapping[str, str]], float]
Axes = Callable[[FigureCall], Mapping[str, Sequence[str]]]


@dataclass(frozen=True, slots=True)
class Expression:
    """A parsed expression. calls: all figures in it."""

    text: str
    tree: ast.expr
    runs: tuple[str, ...]

    @classmethod
    def parse(cls, text: str, runs: Sequence[str]) -> Expression:
        """Parse it. runs: the names of the file's runs. ExpressionError with the reason."""
        if len(text) > _MOST:
            raise ExpressionError(f"is longer than {_MOST} letters; split it into several checks")
        try:
            tree = ast.parse(text.strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise ExpressionError(f"is not an expression; {_HINT}") from None
        found = cls(text.strip(), tree, tuple(runs))
        found._check(tree)
        return found

    @property
    def calls(self) -> tuple[FigureCall, ...]:
        """Every figure in it, each once."""
        return tuple(dict.fromkeys(self._calls(self.tree)))

    def value(self, at: Mapping[str, str], lookup: Lookup, axes: Axes) -> float:
        """Its value at a point of the grid. axes: of a figure, what varies in its run and is not chosen by a keyword.

        UnknownValueError when a run does not have a figure, or the value is not a number.
        """
        return self._value(self.tree, at, lookup, axes)

    def free(self, axes: Axes) -> dict[str, Sequence[str]]:
        """What varies in its figures, outside of functions of one argument, which go over all of it."""
        return self._free(self.tree, axes)

    def _check(self, node: ast.expr, depth: int = 0) -> None:
        if depth > _DEEPEST:
            raise ExpressionError(f"has more than {_DEEPEST} levels; split it into several checks")
        match node:
            case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
                if number > LARGEST:
                    raise ExpressionError(f"has a number above {LARGEST:g}; use a smaller one")
            case ast.BinOp(op=op) if type(op) in _OPERATORS:
                self._check(node.left, depth + 1)
                self._check(node.right, depth + 1)
            case ast.UnaryOp(op=ast.USub()):
                self._check(node.operand, depth + 1)
            case ast.Call(func=ast.Name(id=name)) if name in FUNCTIONS:
                self._check_function(name, node, depth + 1)
            case ast.Name() | ast.Call() | ast.Attribute():
                self._figure(node)
            case _:
                why = f"has {ast.unparse(node)[:60]}, which an expression cannot have"
                raise ExpressionError(f"{why}; use numbers, + - * /, figures and {', '.join(FUNCTIONS)}")

    def _check_function(self, name: str, node: ast.Call, depth: int) -> None:
        if node.keywords or not node.args:
            raise ExpressionError(f"has {name}() without values; write {name}(busbw(run))")
        if name in _PAIRS and len(node.args) != 2:
            raise ExpressionError(f"has {name} of {len(node.args)} values; give it two")
        if name == "abs" and len(node.args) != 1:
            raise ExpressionError(f"has abs of {len(node.args)} values; give it one")
        for each in node.args:
            self._check(each, depth)

    def _figure(self, node: ast.expr) -> FigureCall:
        if not isinstance(node, ast.Call):
            if len(self.runs) != 1:
                why = f"has {ast.unparse(node)[:60]} without a run"
                raise ExpressionError(f"{why}; write {ast.unparse(node)[:60]}({self.runs[0]})")
            return FigureCall(_name(node), self.runs[0])
        name = _name(node.func)
        keys = tuple((each.arg or "", _word(each.value)) for each in node.keywords)
        if len(node.args) > 1 or (not node.args and len(self.runs) != 1):
            raise ExpressionError(f"has {name} of {len(node.args)} runs; write {name}({self.runs[0]})")
        run = _word(node.args[0]) if node.args else self.runs[0]
        if run not in self.runs:
            raise ExpressionError(f"names run {run}, which the file does not have; runs: {', '.join(self.runs)}")
        return FigureCall(name, run, keys)

    def _calls(self, node: ast.expr) -> Iterator[FigureCall]:
        match node:
            case ast.BinOp():
                yield from self._calls(node.left)
                yield from self._calls(node.right)
            case ast.UnaryOp():
                yield from self._calls(node.operand)
            case ast.Call(func=ast.Name(id=name)) if name in FUNCTIONS:
                for each in node.args:
                    yield from self._calls(each)
            case ast.Name() | ast.Call() | ast.Attribute():
                yield self._figure(node)

    def _free(self, node: ast.expr, axes: Axes) -> dict[str, Sequence[str]]:
        match node:
            case _ if _reduces(node):
                parts: list[ast.expr] = []
            case ast.BinOp():
                parts = [node.left, node.right]
            case ast.UnaryOp():
                parts = [node.operand]
            case ast.Call(func=ast.Name(id=name)) if name in FUNCTIONS:
                parts = node.args
            case ast.Name() | ast.Call() | ast.Attribute():
                return dict(axes(self._figure(node)))
            case _:
                parts = []
        return {key: values for each in parts for key, values in self._free(each, axes).items()}

    def _value(self, node: ast.expr, at: Mapping[str, str], lookup: Lookup, axes: Axes) -> float:
        def of(each: ast.expr, more: Mapping[str, str] | None = None) -> float:
            return self._value(each, {**at, **(more or {})}, lookup, axes)

        match node:
            case ast.Constant(value=int() | float()):
                found = float(node.value)  # type: ignore[arg-type]
            case ast.BinOp():
                found = _OPERATORS[type(node.op)](of(node.left), of(node.right))
            case ast.UnaryOp():
                found = -of(node.operand)
            case ast.Call(func=ast.Name(id=name)) if name in _PAIRS:
                found = _PAIRS[name](*map(of, node.args))
            case ast.Call(func=ast.Name(id="abs")):
                found = abs(of(node.args[0]))
            case ast.Call(func=ast.Name(id=name)) if _reduces(node):
                found = _REDUCERS[name]([of(node.args[0], more) for more in points(self._free(node.args[0], axes))])
            case ast.Call(func=ast.Name(id=name)) if name in _REDUCERS:
                found = _REDUCERS[name]([of(each) for each in node.args])
            case _:
                found = lookup(self._figure(node), at)
        if not abs(found) <= LARGEST:  # NaN, too
            raise UnknownValueError(f"{ast.unparse(node)[:60]} is not a number from -{LARGEST:g} to {LARGEST:g}")
        return found


def points(axes: Mapping[str, Sequence[str]]) -> list[dict[str, str]]:
    """Every combination of the values, the last axis fastest; one empty point without axes."""
    found: list[dict[str, str]] = [{}]
    for key, values in axes.items():
        found = [{**point, key: value} for point in found for value in values]
    return found


def _reduces(node: ast.expr) -> bool:
    match node:
        case ast.Call(func=ast.Name(id=name), args=[_]):
            return name in _REDUCERS
    return False


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
