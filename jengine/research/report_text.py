"""The greedy continuations of a comparison's report, as coloured text.

In: Results. Out: HTML. Must not measure.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Sequence

from jengine.pictures.chart_parts import Markup, number
from jengine.pictures.page import Part
from jengine.research.results import (
    ContinuationResult,
    Divergence,
    Results,
)

# Prompt tokens shown before a continuation.
CONTEXT = 24


def continuations(results: Results) -> Part:
    """Each prompt with the three continuations."""
    if not any(one.truth for one in results.continuations):
        return "No tokens were generated."
    return Markup("".join(continuation(results, one) for one in results.continuations))


def continuation(results: Results, one: ContinuationResult) -> str:
    """One prompt with the three continuations."""
    ids = results.inputs.prompts[one.prompt]
    before = "".join(readable(results, token) for token in ids[-CONTEXT:])
    rows = [
        (results.inputs.truth_dtype + " truth", one.truth, None),
        (f"torch {results.inputs.dtype}", one.peer, one.peer_from_truth),
        (f"jengine {results.inputs.dtype}", one.ours, one.ours_from_truth),
    ]
    drawn = "".join(
        f'<div class="path"><b>{html.escape(name)}</b><code>'
        f"{''.join(path(results, tokens, one.margins, found))}</code></div>"
        for name, tokens, found in rows
    )
    leaves = leaving(one.ours_from_truth)
    ellipsis = "… " if len(ids) > CONTEXT else ""
    return (
        f'<div class="prompt"><p><b>Prompt {one.prompt}</b> '
        f"<code>{ellipsis}{html.escape(before)}</code></p>{drawn}<p>{html.escape(leaves)}</p></div>"
    )


def path(
    results: Results,
    tokens: Sequence[int],
    margins: Sequence[float],
    found: Divergence | None,
) -> Iterator[str]:
    """The tokens of one continuation; behind the first that differs, margins mean nothing."""
    for step, token in enumerate(tokens):
        word = html.escape(readable(results, token))
        if found is not None and step > found.step:
            yield f'<span class="beyond">{word}</span>'
            continue
        look = ' class="left"' if found is not None and step == found.step else ""
        share = 55 * math.exp(-margins[step])
        yield (
            f'<span{look} style="background:color-mix(in srgb,var(--tie) {share:.0f}%,transparent)"'
            f' title="step {step}, margin {number(margins[step])}">{word}</span>'
        )


def leaving(found: Divergence | None) -> str:
    """Sentence about the step at which jengine diverges from the truth, if any."""
    if found is None:
        return "jengine follows the truth to the end."
    why = "a tie within the noise" if found.tie else "no tie"
    return f"jengine leaves the truth at step {found.step}: margin {number(found.margin)}, {why}."


def readable(results: Results, token: int) -> str:
    """A token on the page: its text, or its number with a space."""
    vocabulary = results.inputs.vocabulary
    return vocabulary[token].replace("\n", "⏎\n") if vocabulary else f"{token} "


def token_text(results: Results, token: int) -> str:
    """A token in a sentence."""
    return repr(results.inputs.vocabulary[token]) if results.inputs.vocabulary else str(token)
