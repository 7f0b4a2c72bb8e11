"""Configurations compared with each other: sizes, distances and the page that shows them."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from jengine.cli.main import main
from jengine.cli.terminal import Terminal
from tests.models.tiny_models import write_tiny_native


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sizes = {"hidden_size": 64, "intermediate_size": 64}
    return write_tiny_native(tmp_path_factory.mktemp("configurations") / "model", "llama", **sizes)


def run(words: list[str]) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    status = main(words, terminal=Terminal(io.StringIO(), out, err))
    return status, out.getvalue(), err.getvalue()


@pytest.mark.slow
def test_schemes_are_measured_against_the_first(model: Path, tmp_path: Path) -> None:
    files = {"--json": tmp_path / "schemes.json", "--report": tmp_path / "schemes.html"}
    status, out, err = run([
        "compare", str(model), "--against", "jengine --dtype float32",
        "--each", "--quantization int4 --dtype float32", "--each", "--kv-cache-dtype int8",
        *(word for pair in files.items() for word in map(str, pair)),
    ])  # fmt: skip
    assert status == 0, err
    found = json.loads(files["--json"].read_text())
    assert found["bench"] == "schemes" and found["hardware"]["devices"] == ["cpu"]
    truth, int4, cache = found["schemes"]
    assert truth["kl"]["max"] == 0.0 and truth["agreement"]["top_1"] == 1.0
    assert 0 < int4["kl"]["mean"] < 3 and int4["weight_bytes"] < truth["weight_bytes"]
    assert cache["cache_bytes_per_token"] < 0.4 * truth["cache_bytes_per_token"]
    assert 0 < cache["kl"]["mean"] < int4["kl"]["mean"]
    assert "--quantization int4" in out and "the truth is '--dtype float32'" in out
    assert files["--report"].read_text().count("<svg") == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--each", "--dtype float32"], "--each is for --against 'jengine ...'"),
        (["--against", "jengine"], "both configurations are the same"),
        (
            ["--against", "jengine --dtype float32", "--save-bundle", "x"],
            "--save-bundle is for a comparison with torch",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(words: list[str], message: str, model: Path) -> None:
    status, _, err = run(["compare", str(model), *words])
    assert status == 2 and message in err
