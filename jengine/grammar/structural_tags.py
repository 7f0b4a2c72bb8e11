"""Converts structural tags to Lark grammars.

In: `structural_tag` in vLLM's older form (structures and triggers) or its newer one (a nested
`format`). Out: llguidance's grammar, or a RequestError that names the part. Must not know
tokenizers: tags are written as text, even where the model has tokens for them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from llguidance.gbnf_to_lark import gbnf_to_lark

from jengine.errors import RequestError
from jengine.structured_outputs import NAME, without_any_names

TOP = f"{NAME}.structural_tag"
TEXT = "TEXT"
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_ASCII = {"d": "[0-9]", "w": "[0-9A-Za-z_]", "s": "[\\t-\\r ]",
          "D": "[^0-9]", "W": "[^0-9A-Za-z_]", "S": "[^\\t-\\r ]"}  # fmt: skip
# As llguidance finds Lark, and with marks before `start`. Its own search reads from each blank line
# on to the last, hours for a megabyte, while no other thread runs.
_LARK = re.compile(r"^[^\S\n]*(%llguidance\b|start\s*:|[?!]+start\s*:(?!:))", re.MULTILINE)
_SLASH = re.compile(r"(\\.)|/", re.DOTALL)  # an unescaped slash would end Lark's regex
HEAD = f"%llguidance {{}}\n{TEXT}: /(.|\\n)*/\n"


def grammar_of_tags(given: Any, *, whitespace: bool) -> str:
    """The grammar. `whitespace`: JSON may contain whitespace between tokens."""
    if not isinstance(given, Mapping):
        raise RequestError(f"{TOP}: expected an object with structures and triggers, or a format.")
    form = given.get("format") if "format" in given else _older(given)
    writer = Writer(whitespace)
    start = writer.part(form, f"{TOP}.format" if "format" in given else TOP)
    lark = HEAD + "\n".join([f"start: {start}", *writer.rules]) + "\n"
    return json.dumps({"grammars": [{"name": "tags", "lark_grammar": lark}, *writer.grammars]})


def ascii_classes(pattern: str) -> str:
    r"""A regex with ASCII \d, \w and \s, as in JSON schema patterns; llguidance's are Unicode."""
    return _ESCAPED.sub(lambda found: _ASCII.get(found[1], found[0]), pattern)


def lark_of(text: str) -> str:
    """Lark of a grammar in Lark or GBNF."""
    return text if _LARK.search(text) else gbnf_to_lark(text)


def _older(given: Mapping[str, Any]) -> dict[str, Any]:
    """Convert structures and triggers to the newer form."""
    structures, triggers = given.get("structures"), given.get("triggers")
    if not isinstance(structures, list) or not structures or not triggers:
        raise RequestError(
            f"{TOP}: expected an object with the lists structures (each with begin, schema and "
            "end) and triggers, or with a format."
        )
    tags = []
    for index, one in enumerate(structures):
        where = f"{TOP}.structures[{index}]"
        if not isinstance(one, Mapping) or not isinstance(one.get("schema"), Mapping):
            raise RequestError(f"{where}: expected begin and end as text, and a JSON schema.")
        content = {"type": "json_schema", "json_schema": one["schema"]}
        tags.append({"begin": one.get("begin"), "content": content, "end": one.get("end")})
    return {"type": "triggered_tags", "triggers": triggers, "tags": tags}


class Writer:
    """Converts parts to Lark expressions, and collects their rules."""

    def __init__(self, whitespace: bool) -> None:
        self.rules: list[str] = []
        self.grammars: list[dict[str, str]] = []
        self._whitespace = whitespace

    def part(self, given: Any, where: str) -> str:
        kind = given.get("type") if isinstance(given, Mapping) else None
        write = PARTS.get(kind) if isinstance(kind, str) else None
        if write is None:
            raise RequestError(f"{where}.type is {kind!r:.80}; expected one of {', '.join(PARTS)}.")
        for name in ("excludes", "any_order", "max_whitespace_cnt", "max_tokens", "max_chars"):
            if given.get(name):
                raise RequestError(f"{where}.{name} is not built yet. Leave it out.")
        return write(self, given, where)

    def rule(self, expression: str, attributes: str = "") -> str:
        """Add a rule for an expression; returns its name."""
        name = f"part_{len(self.rules)}"
        self.rules.append(f"{name}{attributes}: {expression}")
        return name

    def text_up_to(self, ends: Sequence[str]) -> str:
        """Any text up to the first occurrence of one of `ends`."""
        return self.rule(f"{TEXT} ({' | '.join(map(literal, ends))})", "[lazy]")

    def schema(self, given: Mapping[str, Any], where: str) -> str:
        """JSON matching a schema."""
        schema = given.get("json_schema")
        if given.get("style", "json") != "json":
            raise RequestError(f"{where}.style={given['style']!r:.80}: only json is built.")
        if schema is True:
            schema = {}
        if not isinstance(schema, Mapping):
            raise RequestError(f"{where}.json_schema={schema!r:.80}: expected a JSON schema.")
        options = {"whitespace_flexible": self._whitespace, "coerce_one_of": True}
        own = schema.get("x-guidance")
        options |= own if isinstance(own, Mapping) else {}
        return f"%json {json.dumps({**without_any_names(schema), 'x-guidance': options})}"

    def regex(self, given: Mapping[str, Any], where: str) -> str:
        """Text matching a regular expression."""
        given_pattern = ascii_classes(text_of(given, "pattern", where))
        pattern = _SLASH.sub(lambda found: found[1] or "\\/", given_pattern)
        return self.rule(f"/{pattern}/")

    def grammar(self, given: Mapping[str, Any], where: str) -> str:
        """Text matching an embedded grammar."""
        name = f"grammar_{len(self.grammars)}"
        lark = lark_of(text_of(given, "grammar", where))
        self.grammars.append({"name": name, "lark_grammar": lark})
        return f"@{name}"

    def sequence(self, given: Mapping[str, Any], where: str) -> str:
        """Parts in sequence; free text ends where the following text or tag begins."""
        elements, made = list_of(given, "elements", where), []
        position = 0
        while position < len(elements):
            one, here = elements[position], f"{where}.elements[{position}]"
            following = elements[position + 1] if position + 1 < len(elements) else None
            position += 1
            if not is_free(one) or following is None:
                made.append(self.part(one, here))
                continue
            start = beginning(following, f"{where}.elements[{position}]")
            made.append(self.text_up_to([start]))
            rest = without_beginning(following, start)
            made.append(self.part(rest, f"{where}.elements[{position}]"))
            position += 1
        return self.rule(" ".join(made) or '""')

    def either(self, given: Mapping[str, Any], where: str) -> str:
        """One of several parts."""
        elements = list_of(given, "elements", where)
        return self.rule(
            " | ".join(self.part(one, f"{where}.elements[{i}]") for i, one in enumerate(elements))
        )

    def tag(self, given: Mapping[str, Any], where: str) -> str:
        """A part between begin and end tags."""
        return self.rule(f"{literal(text_of(given, 'begin', where))} {self.tag_rest(given, where)}")

    def tag_rest(self, given: Mapping[str, Any], where: str) -> str:
        """Content and end of a tag."""
        end, content = given.get("end"), given.get("content")
        ends = [end] if isinstance(end, str) else end
        if not isinstance(ends, list) or not all(isinstance(one, str) for one in ends) or not ends:
            raise RequestError(f"{where}.end={end!r:.80}: expected text, or a list of texts.")
        if is_free(content) and all(ends):
            return self.text_up_to(ends)
        closing = f"({' | '.join(map(literal, ends))})"
        return f"{self.part(content, f'{where}.content')} {closing}"

    def triggered(self, given: Mapping[str, Any], where: str) -> str:
        """Free text in which a trigger must continue to one of the tags that start with it."""
        triggers, tags = list_of(given, "triggers", where), list_of(given, "tags", where)
        bodies: dict[str, list[str]] = {}
        for index, one in enumerate(tags):
            here = f"{where}.tags[{index}]"
            begin = text_of(one, "begin", here)
            found = next(
                (t for t in triggers if isinstance(t, str) and t and begin.startswith(t)), None
            )
            if found is None:
                raise RequestError(f"{here}.begin={begin!r:.80} starts with none of the triggers.")
            rest = f"{literal(begin[len(found) :])} {self.tag_rest(one, here)}"
            bodies.setdefault(found, []).append(self.rule(rest))
        choices = " | ".join(
            self.rule(f"{self.text_up_to([trigger])} ({' | '.join(rules)})")
            for trigger, rules in bodies.items()
        )
        if given.get("stop_after_first"):
            return self.rule(choices if given.get("at_least_one") else f"{choices} | {TEXT}")
        return self.rule(f"({choices}){'+' if given.get('at_least_one') else '*'} {TEXT}")

    def separated(self, given: Mapping[str, Any], where: str) -> str:
        """Tags joined by a separator."""
        tags = list_of(given, "tags", where)
        choices = self.rule(
            " | ".join(self.tag(one, f"{where}.tags[{i}]") for i, one in enumerate(tags))
        )
        made = choices
        if not given.get("stop_after_first"):
            made = f"{choices} ({literal(given.get('separator') or '')} {choices})*"
        return self.rule(made if given.get("at_least_one") else f"({made})?")

    def repeated(self, given: Mapping[str, Any], where: str) -> str:
        """A repeated part."""
        content = self.part(given.get("content"), f"{where}.content")
        if given["type"] != "repeat":
            return self.rule(f"({content}){SUFFIXES[given['type']]}")
        least, most = given.get("min"), given.get("max")
        if type(least) is not int or type(most) is not int or least < 0 or -1 != most < least:
            raise RequestError(f"{where}: expected min and max as integers; max -1: no limit.")
        return self.rule(f"({content}){{{least},{'' if most == -1 else most}}}")


SUFFIXES = {"optional": "?", "plus": "+", "star": "*"}
PARTS: dict[str, Callable[[Writer, Mapping[str, Any], str], str]] = {
    "const_string": lambda writer, given, where: literal(text_of(given, "value", where)),
    "json_schema": Writer.schema,
    "any_text": lambda writer, given, where: TEXT,
    "regex": Writer.regex,
    "grammar": Writer.grammar,
    "sequence": Writer.sequence,
    "or": Writer.either,
    "tag": Writer.tag,
    "triggered_tags": Writer.triggered,
    "tags_with_separator": Writer.separated,
    "optional": Writer.repeated,
    "plus": Writer.repeated,
    "star": Writer.repeated,
    "repeat": Writer.repeated,
}


def literal(text: str) -> str:
    """A Lark string literal."""
    return json.dumps(text)


def text_of(given: Any, name: str, where: str) -> str:
    """A required text field. Raises RequestError."""
    value = given.get(name) if isinstance(given, Mapping) else None
    if not isinstance(value, str) or (not value and name != "value"):
        raise RequestError(f"{where}.{name}={value!r:.80}: expected text.")
    return value


def list_of(given: Mapping[str, Any], name: str, where: str) -> list[Any]:
    """A required nonempty list field. Raises RequestError."""
    value = given.get(name)
    if not isinstance(value, list) or not value:
        raise RequestError(f"{where}.{name}={value!r:.80}: expected a list, not an empty one.")
    return value


def is_free(part: Any) -> bool:
    """Whether a part is free text."""
    return isinstance(part, Mapping) and part.get("type") == "any_text"


def beginning(part: Any, where: str) -> str:
    """Literal start of a part, up to which preceding free text extends. Raises RequestError if it
    has none."""
    names = {"const_string": "value", "tag": "begin"}
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind not in names:
        raise RequestError(
            f"{where} follows any_text, so it must be a tag or a const_string; it is {kind!r:.80}."
        )
    return text_of(part, names[kind], where)


def without_beginning(part: Mapping[str, Any], start: str) -> dict[str, Any]:
    """A part without its start, which was consumed by free text."""
    if part["type"] == "const_string":
        return {"type": "const_string", "value": ""}
    return {**part, "type": "tag_rest"}


PARTS["tag_rest"] = Writer.tag_rest
