"""An output in a notebook: text whose tokens are coloured by how unlikely they were.

In: an output. Out: HTML that needs no script, style sheet or network. Must not know where the
output came from.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

# A colour laid over the page's own, so that it can be read on light and on dark pages.
COLOUR = "214, 69, 65"
DEEPEST = 0.75
# The ends of the scale are written out, so that it can be read without a pointer.
SCALE = "inline-block; width: 9em; height: 0.9em; vertical-align: middle; margin: 0 0.4em"
LEGEND = (
    "probability of the token: 100 %"
    f"<i style='display: {SCALE}; background: linear-gradient(to right, "
    f"rgba({COLOUR}, 0), rgba({COLOUR}, {DEEPEST}))'></i>0 % "
    "&middot; the redder, the less likely; hover for what else the model considered"
)
BOX = "white-space: pre-wrap; overflow-wrap: anywhere; line-height: 1.6"
MUTED = "opacity: 0.65"

# The outputs and log-probability tables of jengine.outputs, whose shape is all this file relies on.
Output = Any
Table = Mapping[int, Any]


def request_html(output: Output) -> str:
    """A prompt and its answers; coloured where log-probabilities were asked for."""
    parts = [_prompt(output)]
    parts += [f"<div style='margin: 0.4em 0 0 1em'>{_answer(one)}</div>" for one in output.outputs]
    scored = [output.prompt_logprobs, *(answer.logprobs for answer in output.outputs)]
    if any(map(_has_tables, scored)):
        parts.append(f"<small style='{MUTED}'>{LEGEND}</small>")
    return f"<div style='{BOX}'>{''.join(parts)}</div>"


def _has_tables(logprobs: Any) -> bool:
    """Whether these are tables, one a token; flat log-probabilities are a named tuple of arrays."""
    return isinstance(logprobs, Sequence) and not isinstance(logprobs, tuple)


def _prompt(output: Output) -> str:
    plain = output.prompt if output.prompt is not None else str(output.prompt_token_ids)
    tables = output.prompt_logprobs
    if not _has_tables(tables):
        return html.escape(plain)
    # The first token follows nothing, so it has no table: its text is what the others leave over.
    pairs = list(zip(output.prompt_token_ids, tables, strict=True))
    scored = [(token, table) for token, table in pairs if table is not None]
    rest = "".join(_text(token, table) for token, table in scored)
    first = plain[: -len(rest)] if rest and plain.endswith(rest) else f"[{pairs[0][0]}]"
    return html.escape(first) + "".join(_span(token, table) for token, table in scored)


def _answer(answer: Output) -> str:
    tables = answer.logprobs
    if _has_tables(tables):
        pairs = zip(answer.token_ids, tables, strict=True)
        text = "".join(_span(token, table) for token, table in pairs)
    else:
        text = html.escape(answer.text)
    count = len(answer.token_ids)
    facts = [f"{count} token{'s' * (count != 1)}", str(answer.finish_reason or "so far")]
    return f"{text} <small style='{MUTED}'>({html.escape(', '.join(facts))})</small>"


def _span(token: int, table: Table) -> str:
    depth = DEEPEST * (1.0 - math.exp(min(table[token].logprob, 0.0)))
    title = html.escape("\n".join(_hints(token, table)), quote=True)
    return (
        f'<span style="background: rgba({COLOUR}, {depth:.2f})" title="{title}">'
        f"{html.escape(_text(token, table))}</span>"
    )


def _text(token: int, table: Table) -> str:
    """A token's text; its number where there is no tokenizer."""
    text = table[token].decoded_token
    return f"{token} " if text is None else text


def _hints(token: int, table: Table) -> Iterator[str]:
    """The tooltip: the token's probability and rank, and the likeliest others."""
    entry = table[token]
    rank = "" if entry.rank is None else f", rank {entry.rank}"
    yield f"token {token}: {math.exp(entry.logprob):.1%}{rank}"
    for other, found in sorted(table.items(), key=lambda pair: -pair[1].logprob):
        if other != token:
            name = other if found.decoded_token is None else repr(found.decoded_token)
            yield f"{name} {math.exp(found.logprob):.1%}"
