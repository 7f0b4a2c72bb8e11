"""Whole comparisons against a saved bundle: an engine that is right passes, one that is not does
not, and the report names where it first went wrong. Needs no torch."""

from __future__ import annotations

import io
import json
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jengine import LLM
from jengine.cli import compare as compare_command
from jengine.cli.main import main
from jengine.cli.terminal import Terminal
from jengine.errors import ConfigError
from jengine.research import torch_process
from jengine.research.compare import Options, compare_folder
from jengine.research.comparison import Comparison
from jengine.research.torch_process import lacking_here, lacking_there
from jengine.research.verdict import Band
from tests.models.tiny_models import write_tiny_native
from tests.research.bundles import NEW_TOKENS, PROMPTS, write_bundle

# One layer slides and has a rope of its own, so that one layer alone can be broken by its config.
FAMILY: dict[str, Any] = {
    "num_hidden_layers": 3,
    "layer_types": ["full_attention", "sliding_attention", "full_attention"],
    "rope_theta": 10000.0,
    "rope_local_base_freq": 10000.0,
}
BROKEN = {"rope_local_base_freq": 10100.0}


@dataclass(frozen=True)
class Pair:
    """A model and the bundle of its reference."""

    model: Path
    bundle: Path


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    folder = tmp_path_factory.mktemp("pair")
    model = write_tiny_native(folder / "model", "gemma3", **FAMILY)
    return Pair(model, write_bundle(folder / "bundle", model))


@pytest.fixture(scope="module")
def good(pair: Pair) -> Comparison:
    return compare_folder(pair.model, Options(against=pair.bundle, command="jengine compare x"))


@dataclass(frozen=True)
class Said:
    status: int
    out: str
    err: str


def command(*words: object) -> Said:
    """`jengine compare` with these words, on a real engine."""
    terminal = Terminal(io.StringIO(), io.StringIO(), io.StringIO())
    try:
        status = main(["compare", *map(str, words)], terminal=terminal)
    except SystemExit as leaving:
        status = int(str(leaving.code))
    return Said(status, terminal.stdout.getvalue(), terminal.stderr.getvalue())  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Quick:
    """A comparison by the command, without the engines that compute the same in other ways."""

    said: Said
    report: str
    found: Comparison


@pytest.fixture(scope="module")
def by_command(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Quick:
    report, found = tmp_path_factory.mktemp("report") / "report.html", []
    compare = compare_command.compare

    def kept(*given: Any) -> Comparison:
        found.append(compare(*given))
        return found[0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compare_command, "compare", kept)
        said = command(pair.model, "--against", pair.bundle, "--no-sweeps", "--report", report)
    return Quick(said, report.read_text(), found[0])


@pytest.fixture(scope="module")
def quick(by_command: Quick) -> Comparison:
    return by_command.found


# --- right and wrong ---------------------------------------------------------------------------


@pytest.mark.slow
def test_the_same_model_is_within_the_noise(good: Comparison) -> None:
    assert good.passed
    assert good.first_offender is None
    assert good.verdict.startswith("Within noise: jengine's float32 logits are ")
    names = [point.name for point in good.results.points]
    assert names[0] == "embed" and names[-2:] == ["norm", "logits"]
    assert names[1:4] == ["layers.0.attention", "layers.0.mlp", "layers.0.output"]
    assert len(names) == 3 + 3 * 3
    assert good.results.ours.kl.shape == (sum(map(len, PROMPTS)),)
    assert good.results.ours.kl.max() < 1e-9
    assert good.results.ours.agreement[1] == 1
    assert all(one.ours == one.truth for one in good.results.continuations)


@pytest.mark.slow
def test_every_way_of_computing_the_same_is_tried(good: Comparison) -> None:
    sweeps = {sweep.name: sweep for sweep in good.results.sweeps}
    assert list(sweeps) == ["batch", "chunks", "decode", "prefix hit"]
    assert good.columns("sweeps")["name"] == list(sweeps)
    positions = sum(map(len, PROMPTS))
    assert sweeps["batch"].positions == positions
    assert sweeps["chunks"].positions == len(PROMPTS[1])
    assert sweeps["decode"].positions == len(PROMPTS) * (NEW_TOKENS - 1)
    assert sweeps["prefix hit"].positions == NEW_TOKENS
    assert all(sweep.band <= Band.WITHIN_NOISE for sweep in sweeps.values())
    assert all(sweep.max_abs < 1e-4 for sweep in sweeps.values())


@pytest.mark.slow
def test_deterministic_mode_moves_no_bit(pair: Pair) -> None:
    found = compare_folder(pair.model, Options(against=pair.bundle), {"deterministic": True})
    assert found.passed, found.verdict
    assert [sweep.band for sweep in found.results.sweeps] == [Band.BIT_EQUAL] * 4


@pytest.mark.slow
def test_a_layer_with_another_rope_base_is_named(pair: Pair, tmp_path: Path) -> None:
    """One percent, in one layer; those before it are right, those behind it all suffer."""
    broken = write_tiny_native(tmp_path / "broken", "gemma3", **FAMILY | BROKEN)
    weights = "model.safetensors"
    assert (broken / weights).read_bytes() == (pair.model / weights).read_bytes()
    report, figures = tmp_path / "report.html", tmp_path / "compare.json"
    said = command(
        broken, "--against", pair.bundle, "--no-sweeps", "--layers", "0-1,norm",
        "--report", report, "--json", figures,
    )  # fmt: skip
    assert said.status == 1
    assert said.out.startswith(
        "Wrong: jengine in float32 first leaves the noise at layers.1.attent"
    )
    found = json.loads(figures.read_text())
    assert (found["band"], found["first_offender"]) == ("wrong", "layers.1.attention")
    bands = {point["name"]: point["band"] for point in found["points"]}
    layers = [f"layers.{n}.{point}" for n in (0, 1) for point in ("attention", "mlp", "output")]
    assert list(bands) == [*layers, "norm", "logits"]
    before = ["layers.0.attention", "layers.0.mlp", "layers.0.output"]
    assert all(bands[name] in ("bit-equal", "within noise") for name in before)
    assert bands["layers.1.output"] == bands["logits"] == "wrong"
    assert "layers.1.attention" in report.read_text()


@pytest.mark.slow
def test_other_weights_differ_from_the_embedding_on(pair: Pair, tmp_path: Path) -> None:
    other = write_tiny_native(tmp_path, "gemma3", seed=1, **FAMILY)
    found = compare_folder(other, Options(against=pair.bundle, sweeps=False, points=["embed"]))
    assert (found.first_offender, found.results.band) == ("embed", Band.WRONG)
    assert [point.name for point in found.results.points] == ["embed", "logits"]


@pytest.mark.slow
def test_a_cut_vocabulary(pair: Pair, tmp_path: Path) -> None:
    bundle = write_bundle(tmp_path, pair.model, keep=30)
    found = compare_folder(pair.model, Options(against=bundle, sweeps=False, points=["norm"]))
    assert found.passed
    assert found.results.ours.kl.max() < 1e-9
    assert "keeps the 30 likeliest tokens" in " ".join(found.results.notes)


@pytest.mark.slow
def test_live_parameters_and_the_engine_that_holds_them(pair: Pair, good: Comparison) -> None:
    with LLM(pair.model, skip_tokenizer_init=True, enforce_eager=True, max_model_len=64) as llm:
        before = llm.stats()
        found = llm.compare(pair.bundle, sweeps=False)
        assert llm.stats() == before
        assert llm.generate([PROMPTS[0]])[0].finished
        with pytest.raises(TypeError, match="Did you mean 'new_tokens'"):
            llm.compare(pair.bundle, new_token=3)
        with pytest.raises(ConfigError, match=r"no tap point 'layers\.9\.mlp'"):
            llm.compare(pair.bundle, points=["layers.9.mlp"])
    assert found.passed
    np.testing.assert_allclose(
        found.results.point("logits").ours.relative,
        good.results.point("logits").ours.relative,
        atol=1e-6,
    )


# --- what goes out -----------------------------------------------------------------------------


class Page(HTMLParser):
    """Counts what opens and closes, and keeps what a browser would fetch or run."""

    VOID = ("meta", "circle", "rect", "line", "polyline", "br")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.counts: dict[str, int] = {}
        self.foreign: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.counts[tag] = self.counts.get(tag, 0) + 1
        if tag not in self.VOID:
            self.open.append(tag)
        named = {name for name, _ in attrs}
        handlers = {name for name in named if name.startswith("on")}
        if tag in ("script", "link", "img", "object") or named & {"src", "href"} or handlers:
            self.foreign.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.counts[tag] = self.counts.get(tag, 0) + 1

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag


def parsed(text: str) -> Page:
    page = Page()
    page.feed(text)
    page.close()
    assert page.open == []
    return page


@pytest.mark.slow
def test_the_page_is_whole_and_fetches_nothing(good: Comparison, tmp_path: Path) -> None:
    good.save_report(tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    page = parsed(text)
    assert page.foreign == []
    assert not re.search(r"https?:|@import|url\(", text)
    tokens = sum(map(len, PROMPTS))
    assert page.counts["polyline"] == 3 * 3
    assert page.counts["rect"] >= 2 * tokens
    # Three lines through five places and twice three, and a dot for each given token.
    assert page.counts["circle"] == 3 * (6 + 3 + 3) + tokens - len(PROMPTS)
    for part in ("within noise", "jengine compare x", "prefix hit", "reference: torch"):
        assert part in text


@pytest.mark.slow
def test_a_notebook_shows_the_page(quick: Comparison) -> None:
    shown = quick._repr_html_()
    assert shown.startswith("<iframe srcdoc=")
    assert parsed(shown).counts == {"iframe": 1}
    assert repr(quick) == f"<Comparison: {quick.verdict}>"


def test_tables(quick: Comparison) -> None:
    points = quick.columns()
    assert points["name"] == [point.name for point in quick.results.points]
    assert {"band", "ratio_typical", "ours_relative", "torch_max_abs", "apart_ulps"} <= set(points)
    positions = quick.columns("positions")
    assert positions["token"] == [token for ids in PROMPTS for token in ids]
    assert quick.columns("sweeps") == {}
    assert quick.columns("continuations")["ours_from_truth"] == [None, None]
    with pytest.raises(ConfigError, match="expected one of points, positions"):
        quick.columns("layers")


def test_frames_need_pandas(quick: Comparison, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install pandas, or use columns\('sweeps'\)"):
        quick.to_frame("sweeps")


def test_json_has_no_numbers_that_json_lacks(quick: Comparison, tmp_path: Path) -> None:
    quick.save_json(tmp_path / "compare.json")
    text = (tmp_path / "compare.json").read_text()
    assert json.loads(text, parse_constant=pytest.fail)["passed"] is True


def test_files_that_cannot_be_written(quick: Comparison, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be written"):
        quick.save_json(tmp_path / "nowhere" / "compare.json")


def test_the_command_on_a_good_model(by_command: Quick) -> None:
    said = by_command.said
    assert said.status == 0
    lines = said.out.splitlines()
    assert lines[0].startswith("Within noise:")
    shown = [line.split()[0] for line in lines if line.endswith(("within noise", "bit-equal"))]
    layers = [f"layers.{n}.{point}" for n in range(3) for point in ("attention", "mlp", "output")]
    assert shown == ["embed", *layers, "norm", "logits"]
    assert "2 of 2 prompts follow the truth for 4 tokens" in said.out
    assert "jengine compare" in by_command.report


# --- bad input ---------------------------------------------------------------------------------


@pytest.fixture
def another_model(tmp_path: Path) -> Iterator[Path]:
    yield write_tiny_native(tmp_path / "another", "gemma3", num_hidden_layers=2,
                            layer_types=["full_attention", "sliding_attention"])  # fmt: skip


def test_a_bundle_of_another_model(pair: Pair, another_model: Path) -> None:
    said = command(another_model, "--against", pair.bundle)
    assert said.status == 2
    assert "of another model: its num_layers is 3, this model's is 2" in said.err


def test_a_bundle_for_another_dtype(pair: Pair) -> None:
    said = command(pair.model, "--against", pair.bundle, "--dtype", "bfloat16")
    assert said.status == 2
    assert "the bundle compares float32, and this model runs in bfloat16" in said.err


def test_a_corrupt_bundle(pair: Pair, tmp_path: Path) -> None:
    bundle = Path(shutil.copytree(pair.bundle, tmp_path / "bundle"))
    with (bundle / "tensors.safetensors").open("r+b") as stream:
        stream.truncate(5000)
    said = command(pair.model, "--against", bundle)
    assert (said.status, said.out) == (2, "")
    assert "is damaged, or of another bundle" in said.err


def test_no_bundle(pair: Pair, tmp_path: Path) -> None:
    said = command(pair.model, "--against", tmp_path)
    assert said.status == 2
    assert "is not a bundle" in said.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--layers", "7"], "no tap point 'layers.7.*'"),
        (["--layers", "layers.0.outptu"], "Did you mean 'layers.0.output'?"),
        (["--layers", "3-1"], "the range is empty"),
        (["--new-tokens", "-1"], "expected a whole number from 0"),
        (["--new-tokens", "x"], "invalid int value"),
        (["--report", "/nowhere/report.html"], "expected a file in a folder that exists"),
        (["--json", "."], "expected a file in a folder that exists"),
        (["--prompts", "x.txt"], "cannot be read"),
        (["--agianst", "x"], "Did you mean '--against'?"),
        (["--dtype", "int8"], "expected auto, float32"),
    ],
)
def test_words_that_make_no_sense(pair: Pair, words: list[str], message: str) -> None:
    said = command(pair.model, "--against", pair.bundle, *words)
    assert said.status == 2
    assert message in said.err
    assert said.out == ""


def test_prompts_beside_a_bundle(pair: Pair, tmp_path: Path) -> None:
    (tmp_path / "prompts.jsonl").write_text("[1, 2]\n")
    said = command(pair.model, "--against", pair.bundle, "--prompts", tmp_path / "prompts.jsonl")
    assert said.status == 2
    assert "prompts is for a reference that is made now" in said.err


def test_an_unknown_model(tmp_path: Path) -> None:
    said = command(tmp_path / "nothing")
    assert said.status == 2
    assert "which is not an existing folder" in said.err


def test_a_prompt_that_does_not_fit(pair: Pair, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "prompts.jsonl").write_text(json.dumps([5] * 500) + "\n")
    said = command(pair.model, "--prompts", tmp_path / "prompts.jsonl")
    assert said.status == 2
    assert "prompt 0 has 500 tokens; with the continuation at most 487 fit" in said.err


# --- another Python ----------------------------------------------------------------------------


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("echo torch transformers >&2; exit 1", "has no torch, no transformers. Give a Python"),
        ("echo sh: what is this >&2; exit 2", "is not a Python: sh: what is this"),
    ],
)
def test_pythons_without_torch(pair: Pair, tmp_path: Path, text: str, message: str) -> None:
    said = command(pair.model, "--torch-python", script(tmp_path / "python", text))
    assert said.status == 2
    assert message in said.err


def test_another_python_is_asked_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    assert lacking_there(sys.executable) == lacking_here()
    monkeypatch.setattr(torch_process, "LOOK", torch_process.LOOK.replace("torch", "torchh"))
    monkeypatch.setattr(torch_process, "NEEDED", ("torchh", "transformers", "safetensors"))
    assert lacking_there(sys.executable) == ["torchh"]


def test_a_python_that_is_not_there(pair: Pair, tmp_path: Path) -> None:
    said = command(pair.model, "--torch-python", tmp_path / "python")
    assert said.status == 2
    assert "cannot be run" in said.err


def test_a_reference_that_fails_says_why(pair: Pair, tmp_path: Path) -> None:
    text = 'case "$1" in -c) exit 0;; esac; echo RuntimeError: no room >&2; exit 1'
    python = script(tmp_path / "python", text)
    said = command(pair.model, "--torch-python", python, "--save-bundle", tmp_path / "kept")
    assert said.status == 2
    assert "torch could not make the reference (exit status 1): RuntimeError: no room" in said.err
    assert not (tmp_path / "kept").exists()
