"""Outputs in a notebook: every token once, its colour by its probability, nothing unescaped."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

import pytest

import jengine
from jengine.logprobs import Logprob
from jengine.outputs import CompletionOutput, RequestOutput
from jengine.pictures.request_html import DEEPEST
from tests.api.engines import SMALL_DEMO


class Spans(HTMLParser):
    """The tokens of a page: (text, depth of colour, what the mouse shows)."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.spans: list[tuple[str, float, str]] = []
        self.text = ""
        self.feed(page)
        self.close()
        assert self.open == [], "every tag is closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        given = dict(attrs)
        if tag == "span":
            found = re.search(r"rgba\(.*, ([\d.]+)\)", given["style"] or "")
            assert found is not None
            self.spans.append(("", float(found[1]), given["title"] or ""))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data
        if self.open and self.open[-1] == "span":
            text, *rest = self.spans[-1]
            self.spans[-1] = (text + data, *rest)  # type: ignore[assignment]


def table(token: int, text: str | None, probability: float, **others: float) -> Any:
    chosen = {token: Logprob(math.log(probability), 1 + len(others), text)}
    rest = {
        1000 + number: Logprob(math.log(value), number + 1, name)
        for number, (name, value) in enumerate(others.items())
    }
    return {**chosen, **rest}


def output(**settings: Any) -> RequestOutput:
    answer = CompletionOutput(
        index=0,
        text="<b> & c",
        token_ids=[7, 8],
        logprobs=settings.pop("logprobs", None),
        finish_reason="stop",
    )
    given = {"prompt": "1 < 2", "prompt_token_ids": [4, 5, 6], "prompt_logprobs": None}
    return RequestOutput(request_id="r", outputs=[answer], finished=True, **{**given, **settings})


def test_without_logprobs_it_is_plain_and_escaped() -> None:
    page = output()._repr_html_()
    assert "1 &lt; 2" in page and "&lt;b&gt; &amp; c" in page and "redder" not in page
    assert Spans(page).spans == []
    assert "2 tokens, stop" in Spans(page).text
    assert "[4, 5, 6]" in output(prompt=None)._repr_html_()


def test_the_colours_have_a_scale_with_both_ends() -> None:
    page = output(logprobs=[table(7, "<b>", 0.999), table(8, "c", 0.1)])._repr_html_()
    colour = r"rgba\(\d+, \d+, \d+, ([\d.]+)\)"
    [(low, high)] = re.findall(rf"linear-gradient\(to right, {colour}, {colour}\)", page)
    legend = Spans(page).text.split("token: ")[1]
    assert legend.startswith("100 %0 %") and (float(low), float(high)) == (0.0, DEEPEST)
    # As deep as a token that was certain, and as one that was impossible.
    certain, impossible = Spans(
        output(logprobs=[table(7, "a", 1.0), table(8, "b", 1e-30)])._repr_html_()
    ).spans
    assert (certain[1], impossible[1]) == (float(low), float(high))
    assert "linear-gradient" not in output()._repr_html_()


def test_a_token_is_the_redder_the_less_likely_it_was() -> None:
    tables = [table(7, "<b>", 0.999), table(8, ' & "c', 0.1, the=0.6, a=0.3)]
    found = Spans(output(logprobs=tables)._repr_html_())
    (sure, light, _), (unsure, dark, hint) = found.spans
    assert (sure, unsure) == ("<b>", ' & "c')
    assert light < 0.05 < 0.5 < dark < 1
    assert hint.splitlines() == ["token 8: 10.0%, rank 3", "'the' 60.0%", "'a' 30.0%"]
    assert "hover" in found.text


def test_the_prompt_is_coloured_too_and_its_first_token_is_found() -> None:
    tables = [None, table(5, " <", 0.5), table(6, " 2", 0.25)]
    found = Spans(output(prompt_logprobs=tables)._repr_html_())
    assert [text for text, _, _ in found.spans] == [" <", " 2"]
    assert found.text.startswith("1 < 2")
    other = Spans(output(prompt="another text", prompt_logprobs=tables)._repr_html_())
    assert other.text.startswith("[4] < 2")


def test_without_a_tokenizer_the_numbers_are_shown() -> None:
    first = {**table(7, None, 0.8), 9: Logprob(math.log(0.1), 2)}
    found = Spans(output(logprobs=[first, table(8, None, 0.5)])._repr_html_()).spans
    assert [text for text, _, _ in found] == ["7 ", "8 "]
    assert found[0][2].splitlines()[1] == "9 10.0%"


@pytest.fixture(scope="module")
def llm() -> Iterator[jengine.LLM]:
    with jengine.LLM("demo", **SMALL_DEMO) as engine:
        yield engine


def test_a_real_output_shows_its_text_token_by_token(llm: jengine.LLM) -> None:
    params = jengine.SamplingParams(temperature=0, max_tokens=12, logprobs=3, prompt_logprobs=1)
    made = llm.generate("Once upon a time", params)[0]
    found = Spans(made._repr_html_())
    texts = [text for text, _, _ in found.spans]
    assert len(texts) == len(made.prompt_token_ids) - 1 + 12
    assert made.outputs[0].text in found.text
    assert found.text.startswith("Once upon a time")
    hints = [len(hint.splitlines()) for _, _, hint in found.spans[-12:]]
    assert set(hints) <= {3, 4}, "the token and the three likeliest, of which it may be one"
    plain = jengine.SamplingParams(temperature=0, max_tokens=4, logprobs=2, flat_logprobs=True)
    assert Spans(llm.generate("Once", plain)[0]._repr_html_()).spans == []
