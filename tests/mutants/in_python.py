import ast
import re
from collections.abc import Iterator
from itertools import accumulate

COMPARISONS = {
    ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"), ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="), ast.Is: ("is", "is not"), ast.IsNot: ("is not", "is"), ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}  # fmt: skip
ARITHMETIC = {
    ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "/"), ast.Div: ("/", "*"), ast.FloorDiv: ("//", "*"),
    ast.Pow: ("**", "*"), ast.BitOr: ("|", "&"), ast.BitAnd: ("&", "|"),
}  # fmt: skip
CALLS = {"min": "max", "max": "min", "any": "all", "all": "any", "sorted": "list"}
UNSEEN_KEYWORDS = {"strict", "frozen", "slots"}
"""They guard against mistakes that the code does not contain, so no test can fail."""


def changes(text: str) -> Iterator[tuple[str, int, int, str]]:
    """Return all changes to a module: in which function, from where to where, and to what."""
    tree = ast.parse(text)
    yield from _Finder(text).walk(tree, "", {id(node): name for name, node in functions(tree)})


def functions(tree: ast.AST, inside: str = "") -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for node in ast.iter_child_nodes(tree):
        name = inside
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{inside}.{node.name}".lstrip(".")
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield name, node
        yield from functions(node, name)


class _Finder:
    def __init__(self, text: str) -> None:
        self._text = text
        self._lines = text.splitlines(keepends=True)
        self._starts = [0, *accumulate(map(len, self._lines))]

    def walk(self, node: ast.AST, place: str, places: dict[int, str]) -> Iterator[tuple[str, int, int, str]]:
        if id(node) in places and not _is_cached(node):  # what is cached is run by the first test alone
            place = places[id(node)]
        for change in self._changes(node):
            yield place, *change
        for child in _children(node):
            yield from self.walk(child, place, places)

    def _changes(self, node: ast.AST) -> Iterator[tuple[int, int, str]]:  # noqa: C901, PLR0912 - one case for each kind
        match node:
            case ast.Compare():
                operands = [node.left, *node.comparators]
                for operator, left, right in zip(node.ops, operands, operands[1:], strict=False):
                    yield from self._between(left, right, COMPARISONS[type(operator)])
            case ast.BoolOp():
                neutral, word = ("True", "and") if isinstance(node.op, ast.And) else ("False", "or")
                for value in node.values:
                    yield (*self._span(value), neutral)
                for left, right in zip(node.values, node.values[1:], strict=False):
                    yield from self._between(left, right, (word, {"and": "or", "or": "and"}[word]))
            case ast.UnaryOp(op=ast.Not()):
                start, _ = self._span(node)
                yield start, start + len("not "), ""
            case ast.BinOp() if type(node.op) in ARITHMETIC and not _is_text(node.left) and not _is_text(node.right):
                yield from self._between(node.left, node.right, ARITHMETIC[type(node.op)])
            case ast.AugAssign() if type(node.op) in ARITHMETIC:
                old, new = ARITHMETIC[type(node.op)]
                yield from self._between(node.target, node.value, (f"{old}=", f"{new}="))
            case ast.Constant(value=bool(truth)):
                yield (*self._span(node), str(not truth))
            case ast.Constant(value=int() | float() as number):
                yield (*self._span(node), str(round(number + 1, 9)))
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                return
            case ast.If() | ast.IfExp() | ast.comprehension():
                for test in node.ifs if isinstance(node, ast.comprehension) else [node.test]:
                    if not isinstance(test, ast.BoolOp):  # whose parts are changed
                        yield from ((*self._span(test), value) for value in ("True", "False"))
            case ast.Expr(value=ast.Call()):
                yield (*self._span(node), "pass")
            case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
                yield (*self._span(node), "pass")
            case ast.Delete(targets=[ast.Name()]):
                return  # nothing reads it any more
            case ast.Raise() | ast.Break() | ast.Continue() | ast.Delete() | ast.Return(value=None):
                yield (*self._span(node), "pass")
            case ast.ExceptHandler(type=ast.Tuple(elts=kinds) as caught):
                names = [ast.unparse(kind) for kind in kinds]
                for index in range(len(names)):
                    rest = ", ".join(names[:index] + names[index + 1 :])
                    yield (*self._span(caught), f"({rest},)")
            case ast.Call(func=ast.Name(id=name) as function, keywords=[]) if name in CALLS:
                yield (*self._span(function), CALLS[name])

    def _span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._offset(node.lineno, node.col_offset), self._offset(node.end_lineno, node.end_col_offset)

    def _offset(self, line: int, column: int) -> int:
        """Return the position in the text of a place that ast gives in bytes of a line."""
        return self._starts[line - 1] + len(self._lines[line - 1].encode()[:column].decode())

    def _between(self, left: ast.expr, right: ast.expr, change: tuple[str, str]) -> Iterator[tuple[int, int, str]]:
        """Change the operator between two operands; parentheses may stand there, too."""
        old, new = change
        gap, end = self._span(left)[1], self._span(right)[0]
        match = re.compile(r"\s+".join(map(re.escape, old.split()))).search(self._text, gap, end)
        assert match, (left.lineno, old)
        yield match.start(), match.end(), new


def _children(node: ast.AST) -> Iterator[ast.AST]:
    """Return the children of *node* that may be changed: no types, no texts, no code that is not run."""
    skipped: set[int] = set()
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            skipped = {id(each) for each in (*node.decorator_list, node.returns)}
        case ast.ClassDef():
            skipped = {id(each) for each in (*node.decorator_list, *node.bases)}
        case ast.arg():
            return
        case ast.AnnAssign():
            skipped = {id(node.annotation)}
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            skipped = {id(each) for each in (node.test, *node.body)}
        case ast.JoinedStr():
            return  # before Python 3.12 ast has no places of its parts
        case ast.keyword(arg=name) if name in UNSEEN_KEYWORDS:
            return
    yield from (child for child in ast.iter_child_nodes(node) if id(child) not in skipped)


def _is_cached(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef) and any("cache" in ast.unparse(each) for each in node.decorator_list)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr | ast.List | ast.Tuple) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    )
