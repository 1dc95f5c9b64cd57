import re
from collections.abc import Iterator
from dataclasses import dataclass

MARK = re.compile(r"^-- (?:name|fragment): (\w+)\n", re.MULTILINE)
TOKEN = re.compile(r"--[^\n]*|'(?:[^']|'')*'|::?\w+|\w+(?:\.\w+)*|<=|>=|<>|->>?|\|\||\{\w+\}|[^\s\w]")
LOCK = re.compile(r"(?<=\s)FOR (?:NO KEY )?(?:UPDATE|SHARE)(?: OF \w+)?( SKIP LOCKED)?")
SWAPS = {
    "+": "-", "-": "+", "AND": "OR", "OR": "AND", "true": "false",
    "false": "true", "greatest": "least", "least": "greatest", "min": "max", "max": "min", "DESC": "ASC",
}  # fmt: skip
COMPARISONS = {"<": ("<=", ">"), "<=": ("<", ">="), ">": (">=", "<"), ">=": (">", "<=")}
"""With and without equality; and the opposite, since two moments are never equal."""
CLOCKS = {"clock_timestamp", "statement_timestamp"}
WRITES = {"INSERT", "UPDATE", "DELETE", "SHARE"}
"""Words of statements that may wait for a lock; in others both clocks are equal."""
DROPPED = {"DISTINCT", "LEFT", "NOT"}
CONDITIONS = {"WHERE", "HAVING", "ON", "WHEN", "AND", "OR"}
"""Words before a condition."""
BOUNDARIES = CONDITIONS | {
    "SELECT", "FROM", "THEN", "ELSE", "GROUP", "ORDER", "LIMIT", "FOR", "RETURNING", "UNION", "LEFT", "JOIN", "CROSS",
    "AS", "DO", "SET", "VALUES", "UPDATE", "DELETE", "INSERT", ",", ";",
}  # fmt: skip


@dataclass(frozen=True)
class _Token:
    text: str
    start: int
    end: int
    depth: int
    """Of parentheses and CASEs around it."""


def changes(text: str) -> Iterator[tuple[str, int, int, str]]:
    """Return all changes to a file of statements: in which of them, from where to where, and to what."""
    marks = list(MARK.finditer(text))
    ends = [mark.start() for mark in marks[1:]] + [len(text)]
    for mark, end in zip(marks, ends, strict=True):
        found = {*_changes(_tokens(text, mark.end(), end)), *_locks(text, mark.end(), end)}
        for start, stop, new in sorted(found):
            if text[start:stop] != new:
                yield mark[1], start, stop, new


def _tokens(text: str, start: int, end: int) -> list[_Token]:
    found, depth = [], 0
    for match in TOKEN.finditer(text, start, end):
        word = match[0]
        if word.startswith("--"):
            continue
        depth -= word in {")", "END"}
        found.append(_Token(word, match.start(), match.end(), depth))
        depth += word in {"(", "CASE"}
    return found


def _changes(tokens: list[_Token]) -> Iterator[tuple[int, int, str]]:
    waits = not WRITES.isdisjoint(token.text for token in tokens)
    for index, token in enumerate(tokens):
        if token.text in CLOCKS and waits:
            yield token.start, token.end, min(CLOCKS - {token.text})
        yield from _word(token, tokens[index - 1].text if index else "", tokens[index + 1 :])
        if token.text in CONDITIONS and not _is_between(tokens, index):
            yield from _conditions(tokens, index)
        if token.text in COMPARISONS:
            end = _until(tokens, index, BOUNDARIES)
            near = {each.text for each in tokens[max(0, index - 3) :] if each.end <= end}
            yield token.start, token.end, COMPARISONS[token.text][bool(near & CLOCKS)]
        if token.text == "SET":
            yield from _assignments(tokens, index)
        if token.text == "ORDER":
            yield token.start, _until(tokens, index, {"LIMIT", "FOR", ";"}), ""
        if token.text == "coalesce":
            yield from _coalesced(tokens, index)


def _word(token: _Token, before: str, after: list[_Token]) -> Iterator[tuple[int, int, str]]:
    """Change one word, by itself or by the one before it."""
    word = token.text
    if word in SWAPS and before != "AS":
        yield token.start, token.end, SWAPS[word]
    elif word in DROPPED and before != "IS":
        yield token.start, token.end, ""
    elif word == "IS" and after[0].text in {"NULL", "NOT"}:
        yield (token.end, token.end, " NOT") if after[0].text == "NULL" else (after[0].start, after[0].end, "")
    elif before == "LIMIT":
        yield token.end, token.end, " + 1"
    elif word.isdecimal() and before != "SELECT":
        yield token.start, token.end, str(int(word) + 1)
    elif before == "interval" and (count := re.match(r"'(\d+) ", word)):
        yield token.start + 1, token.start + count.end() - 1, str(int(count[1]) + 1)


def _locks(text: str, start: int, end: int) -> Iterator[tuple[int, int, str]]:
    """Remove a lock, or its SKIP LOCKED."""
    for match in LOCK.finditer(text, start, end):
        if "--" in text[text.rfind("\n", 0, match.start()) + 1 : match.start()]:
            continue  # a comment about a lock
        yield match.start(), match.end(), ""
        if match[1]:
            yield match.start(1), match.end(1), ""


def _is_between(tokens: list[_Token], index: int) -> bool:
    """Return whether this AND belongs to a BETWEEN, or this ON to a conflict."""
    around = [each.text for each in tokens[max(0, index - 3) : index + 2]]
    return "BETWEEN" in around or around[-1] == "CONFLICT"


def _conditions(tokens: list[_Token], index: int) -> Iterator[tuple[int, int, str]]:
    """Drop the condition that begins after this token, and for an OR or AND the one that ends before it."""
    word = tokens[index].text
    neutral = "false" if word in {"OR", "WHEN"} else "true"
    yield tokens[index + 1].start, _until(tokens, index, BOUNDARIES), neutral
    if word in {"AND", "OR"}:
        depth, first = tokens[index].depth, index
        while tokens[first - 1].depth >= depth and not (
            tokens[first - 1].depth == depth and tokens[first - 1].text in BOUNDARIES
        ):
            first -= 1
        yield tokens[first].start, tokens[index - 1].end, neutral
    if word == "WHERE":  # nothing is read or changed
        yield tokens[index].end, tokens[index].end, " false AND"


def _assignments(tokens: list[_Token], index: int) -> Iterator[tuple[int, int, str]]:
    end = _until(tokens, index, BOUNDARIES - {"SET", ","})
    depth = tokens[index].depth
    inside = [each for each in tokens[index + 1 :] if each.end <= end]
    commas = [each for each in inside if each.text == "," and each.depth == depth]
    starts = [inside[0].start] + [comma.start for comma in commas]
    if commas:
        yield inside[0].start, commas[0].end, ""
        yield from zip(starts[1:], [*starts[2:], end], [""] * len(commas), strict=True)


def _coalesced(tokens: list[_Token], index: int) -> Iterator[tuple[int, int, str]]:
    """Replace a call of two arguments by one of them."""
    inner = tokens[index + 1].depth + 1
    close = next(at for at in range(index + 2, len(tokens)) if tokens[at].depth < inner)
    comma = next((at for at in range(index, close) if tokens[at].text == "," and tokens[at].depth == inner), None)
    if comma is not None:
        yield tokens[comma].start, tokens[close - 1].end, ""
        yield tokens[index + 2].start, tokens[comma].end, ""


def _until(tokens: list[_Token], index: int, boundaries: set[str]) -> int:
    """Return the end of the expression after a token: a boundary at its depth, or a parenthesis."""
    depth, last = tokens[index].depth, index
    for at in range(index + 1, len(tokens)):
        if tokens[at].depth < depth or (tokens[at].depth == depth and tokens[at].text in boundaries):
            break
        last = at
    return tokens[last].end
