"""The built-in page, in a real browser where this machine has one."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request

from jengine.server.app import ENDPOINTS, make_app
from jengine.server.routes.page import FOLDER, page
from jengine.server.settings import ServerSettings
from tests.client.scripted_server import ScriptedServer, answer, serving
from tests.server.browser import Page, browser, chromium
from tests.server.serving import NAME, letters_engine

needs_browser = pytest.mark.skipif(chromium() is None, reason="there is no Chromium here")
METRICS = """\
# HELP jengine:num_requests_running requests
jengine:num_requests_running{engine="0",model_name="scripted"} 3.0
jengine:num_requests_waiting{engine="0",model_name="scripted"} 2.0
jengine:kv_cache_usage_perc{engine="0",model_name="scripted"} 0.25
"""


class WithPage(ScriptedServer):
    """The scripted server, with the page in front of it."""

    has_metrics = True

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        path = scope.get("path")
        if path == "/":
            response = await page(None, Request(scope))  # type: ignore[arg-type]
            await response(scope, receive, send)
        elif path == "/metrics" and self.has_metrics:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": METRICS.encode()})
        elif path == "/health":
            await answer(send, {"status": "serving", "running": 5, "waiting": 4})
        else:
            await super().__call__(scope, receive, send)


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser(tmp_path_factory.mktemp("profile")) as found:
        yield found


@contextmanager
def opened(view: Page, **settings: Any) -> Iterator[WithPage]:
    """The page of a scripted server; nothing may go wrong on it but what the test causes."""
    scene = WithPage(**settings)
    with serving(scene) as scene.url:
        view.problems.clear()
        view.open(scene.url)
        view.until("document.activeElement !== document.body")  # autofocus comes with a frame
        yield scene
        view.open("about:blank#left")


def said(view: Page, number: int = 1) -> str:
    """The text of the last answer, once there are so many and it has ended."""
    view.until(f"document.querySelectorAll('article.assistant .note').length >= {number}")
    return str(view.value("[...document.querySelectorAll('.text')].at(-1).textContent"))


@pytest.mark.parametrize("name", ["page.html", "docs.html"])
def test_the_pages_load_nothing_from_elsewhere(name: str) -> None:
    text = (FOLDER / name).read_text(encoding="utf-8")
    assert not re.findall(
        r"""(?:src|href)\s*=\s*["'](?!data:|docs")|https?://|@import|url\(""", text
    )
    assert "innerHTML" not in text, "text of a model must not become elements"


@needs_browser
def test_the_api_is_shown_with_every_route(shown: Page) -> None:
    with serving(make_app(letters_engine(), ServerSettings())) as url:
        shown.problems.clear()
        shown.open(f"{url}/docs")
        shown.until("document.querySelectorAll('details').length")
        text = str(shown.value("document.getElementById('routes').textContent"))
        assert not shown.problems
    for endpoint in ENDPOINTS:
        assert endpoint.path.replace(":path}", "}") in text, endpoint.path
    assert f"curl {url}/v1/chat/completions" in text and "list of object" in text


@needs_browser
def test_a_request_is_sent_from_the_api_page(shown: Page) -> None:
    app = make_app(letters_engine(), ServerSettings(api_key=("secret",)))
    with serving(app) as url:
        shown.open(f"{url}/docs")
        shown.until("document.querySelectorAll('details').length")
        shown.value("document.getElementById('key').value = 'secret'")
        answers = {path: sent(shown, path) for path in ("/health", "/v1/completions", "/tokenize")}
        shown.value("document.getElementById('key').value = ''")
        refused = sent(shown, "/v1/completions")
    assert answers["/health"].startswith("200 OK\n")
    assert '"completion_tokens": 8' in answers["/v1/completions"]
    assert '"count"' in answers["/tokenize"]
    assert refused.startswith("401 ")


def sent(view: Page, path: str) -> str:
    """The answer that is shown once a route's example was sent."""
    form = (
        "[...document.querySelectorAll('details')].find((one) => "
        f"one.querySelector('code').textContent === {json.dumps(path)}).querySelector('form')"
    )
    view.value(f"{form}.querySelector('button').click()")
    view.until(f"/^[0-9].*\\n./.test({form}.querySelector('pre').textContent)")
    return str(view.value(f"{form}.querySelector('pre').textContent"))


@needs_browser
def test_the_first_view_has_prompts_to_try(shown: Page) -> None:
    with opened(shown) as scene:
        shown.until("document.getElementById('name').textContent === 'scripted'")
        assert "100 tokens together" in shown.text()
        assert shown.value("document.querySelectorAll('#prompts button').length") == 3
        shown.value("document.querySelector('#prompts button').click()")
        assert said(shown) == " one two three"
        assert shown.value("document.getElementById('welcome').hidden")
        shown.value("document.getElementById('reset').click()")
        assert not shown.value("document.getElementById('welcome').hidden")
    assert scene.asked[0]["messages"][0]["content"] == "Tell me a story about a dragon."


@needs_browser
def test_a_conversation(shown: Page) -> None:
    with opened(shown) as scene:
        shown.until("document.getElementById('model').value === 'scripted'")
        shown.value("document.getElementById('system').value = 'Be brief.'")
        shown.value("document.querySelector('[name=temperature]').value = '0'")
        shown.value("document.querySelector('[name=max_tokens]').value = '2'")
        shown.type("hello")
        assert said(shown) == " one two"
        shown.type("bye")
        assert said(shown, 2) == " one two"
        assert "2 tokens, first after" in shown.text()
        shown.value("document.getElementById('again').click()")
        shown.until("running === null && turns.length === 4")
        assert shown.problems == []
    first, second, third = scene.asked
    assert first["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hello"},
    ]
    assert (first["temperature"], first["max_tokens"], first["model"]) == (0, 2, "scripted")
    assert "top_p" not in first and "logprobs" not in first
    roles = [message["role"] for message in second["messages"]]
    assert roles == ["system", "user", "assistant", "user"]
    assert third == second


@needs_browser
def test_stop_ends_the_request_and_keeps_what_was_said(shown: Page) -> None:
    with opened(shown, seconds_per_token=0.02, words=[" word"] * 1000) as scene:
        shown.type("hello")
        shown.until("document.body.innerText.includes('word word')")
        shown.value("document.getElementById('stop').click()")
        assert said(shown).startswith(" word word")
        assert ", stopped" in shown.text()
        shown.until("document.getElementById('stop').hidden")
        assert shown.value("turns.length") == 2
        assert shown.problems == []
        for _ in range(500):
            if scene.disconnects:
                break
            shown.value("new Promise((done) => setTimeout(done, 10))")
    assert scene.disconnects == 1


@needs_browser
def test_tokens_are_coloured_and_show_alternatives(shown: Page) -> None:
    euro = "€".encode()
    entries = [
        {"token": " sure", "logprob": 0.0, "bytes": None, "top_logprobs": []},
        {"token": "\ufffd", "logprob": -0.1, "bytes": list(euro[:1]), "top_logprobs": []},
        {"token": "\ufffd", "logprob": -0.1, "bytes": list(euro[1:]), "top_logprobs": []},
        {"token": " not", "logprob": -2.302585, "bytes": None, "top_logprobs": [
            {"token": " <b>", "logprob": -0.105, "bytes": None},
            {"token": " not", "logprob": -2.302585, "bytes": None},
        ]},
    ]  # fmt: skip
    words = [" sure", "", "€", " not"]
    with opened(shown, words=words, logprobs=entries) as scene:
        shown.value("document.getElementById('colours').click()")
        shown.type("hello")
        assert said(shown) == " sure€ not"
        tokens = "[...document.querySelectorAll('.token')]"
        assert shown.value(f"{tokens}.map((one) => one.textContent)") == [" sure", "€", " not"]
        colours = shown.value(f"{tokens}.map((one) => one.style.backgroundColor)")
        assert len(set(colours)) == 3
        shown.move_to(".token:last-child")
        tip = shown.until("!document.getElementById('tip').hidden && document.getElementById('tip')"
                          ".textContent")  # fmt: skip
        assert tip == ' 10.00 %  " not"\n 90.03 %  " <b>"'
        assert shown.problems == []
    assert (scene.asked[0]["logprobs"], scene.asked[0]["top_logprobs"]) == (True, 5)


@needs_browser
def test_the_queue_and_the_cache_are_shown(shown: Page) -> None:
    with opened(shown) as scene:
        shown.until("document.getElementById('kv-text').textContent === '25.0 %'")
        assert shown.value("document.getElementById('running').textContent") == "3"
        assert shown.value("document.getElementById('waiting').textContent") == "2"
        scene.has_metrics = False
        shown.until("document.getElementById('running').textContent === '5'")
        assert shown.value("document.getElementById('kv-part').hidden")


@needs_browser
def test_a_server_with_a_key(shown: Page) -> None:
    with opened(shown, key="secret"):
        shown.until("document.getElementById('status').textContent.includes('wants an API key')")
        shown.value(
            "(k => { k.value = 'secret'; k.dispatchEvent(new Event('change')); })"
            "(document.getElementById('key'))"
        )
        shown.until("document.getElementById('model').value === 'scripted'")
        shown.value("document.getElementById('message').focus()")
        shown.type("hello")
        assert said(shown) == " one two three"
        shown.value("sessionStorage.clear()")


@needs_browser
def test_errors_are_shown_and_text_stays_text(shown: Page) -> None:
    attack = "<img src=x onerror='document.title = 1'><script>document.title = 2</script>"
    with opened(shown, words=[attack]) as scene:
        shown.type("a!refused")
        shown.until("!!document.querySelector('article .error')")
        assert "this prompt is refused" in shown.text()
        shown.type(attack)
        assert said(shown) == attack
        assert shown.value("document.querySelectorAll('#log img, #log script').length") == 0
        assert "scripted" in shown.value("document.title")
    assert [message["content"] for message in scene.asked[1]["messages"]] == [attack]


@needs_browser
def test_reasoning_has_its_own_place(shown: Page) -> None:
    with opened(shown, thoughts=["let me", " see"]):
        shown.type("hello")
        assert said(shown) == " one two three"
        assert shown.value("document.querySelector('details .text').textContent") == "let me see"
        assert shown.value("turns[1].content") == " one two three"


@needs_browser
def test_it_is_readable_by_day_and_by_night(shown: Page, tmp_path: Path) -> None:
    with opened(shown):
        shown.type("hello")
        said(shown)
        for dark in (False, True):
            (tmp_path / f"{dark}.png").write_bytes(shown.picture(dark=dark))
            contrast = shown.value(CONTRAST)
            assert all(ratio >= 4.5 for ratio in contrast.values()), json.dumps(contrast)


# The contrast ratio of text and what is behind it, as WCAG defines it, for each part.
CONTRAST = """
(() => {
  const channels = (colour) => colour.match(/[\\d.]+/g).slice(0, 3).map((one) => {
    const share = one / 255;
    return share <= 0.03928 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  const light = (colour) => channels(colour).reduce((sum, one, i) =>
    sum + one * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (element) => {
    for (; element; element = element.parentElement) {
      const colour = getComputedStyle(element).backgroundColor;
      if (!/, 0\\)$|transparent/.test(colour)) return colour;
    }
  };
  const ratio = (element) => {
    const [a, b] = [getComputedStyle(element).color, behind(element)].map(light);
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  };
  return Object.fromEntries(["article.user", "article.assistant", ".note", "header span",
    "#send", "aside label"].map((name) => [name, ratio(document.querySelector(name))]));
})()
"""


@needs_browser
@pytest.mark.parametrize("hidden", ["true", "false"])
def test_the_input_has_a_row_of_its_own(shown: Page, hidden: str) -> None:
    """Also where the settings are hidden, or float, as on a phone."""
    with opened(shown):
        shown.value(f"document.getElementById('panel').hidden = {hidden}")
        width = shown.value("document.querySelector('form').getBoundingClientRect().width")
        assert width == shown.value("innerWidth")


@needs_browser
def test_it_works_with_our_own_server(shown: Page) -> None:
    settings = ServerSettings(served_model_name=(NAME,), api_key=("secret",))
    app = make_app(letters_engine(), settings)
    with serving(app) as url:
        shown.problems.clear()
        shown.open(url)
        shown.until("document.getElementById('status').textContent.includes('wants an API key')")
        shown.value(
            "(k => { k.value = 'secret'; k.dispatchEvent(new Event('change')); })"
            "(document.getElementById('key'))"
        )
        shown.until(f"document.getElementById('model').value === '{NAME}'")
        shown.until("document.getElementById('kv-text').textContent === '0.0 %'")
        shown.value("document.querySelector('[name=max_tokens]').value = '8'")
        shown.value("document.getElementById('colours').click()")
        shown.value("document.getElementById('message').focus()")
        shown.type("hello")
        text = said(shown)
        assert text and shown.value("turns.at(-1).content") == text
        spans = "[...document.querySelectorAll('.token')]"
        assert shown.value(f"{spans}.map((one) => one.textContent).join('')") == text
        assert shown.value(f"{spans}.every((one) => one.entry.top_logprobs.length === 5)")
        assert "8 tokens, first after" in shown.text()
        shown.value("sessionStorage.clear()")
        shown.open("about:blank#left")
    app.state.service.shutdown()
