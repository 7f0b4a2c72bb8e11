"""The page of comparisons that went badly, or that have little to show. No engine runs."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from jengine.pictures import charts
from jengine.pictures.chart_parts import Axis
from jengine.pictures.charts import Row, Series
from jengine.research.bundle import read_bundle
from jengine.research.comparison import Comparison
from jengine.research.measure import (
    continuation_results,
    divergence,
    given_logprobs,
    logit_result,
    point_results,
)
from jengine.research.metrics import VectorErrors
from jengine.research.report import page
from jengine.research.results import Inputs, Results
from jengine.research.runs import Continuation, Reference, Run
from jengine.research.verdict import Band
from tests.models.tiny_models import write_tiny_native
from tests.research.bundles import write_bundle
from tests.research.test_compare import parsed

HOSTILE = '<script>alert("x")</script>'
POINTS = ["embed", "layers.0.output", "layers.1.output", "norm"]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    folder = tmp_path_factory.mktemp("report")
    model = write_tiny_native(folder / "model", "llama")
    prompts = [[5, 6, 7, 8, 9, 10], [11]]
    return read_bundle(write_bundle(folder / "bundle", model, prompts=prompts))


def results(reference: Reference, ours: Run, **changes: object) -> Results:
    """What a comparison would find if the engine had given `ours`."""
    columns = reference.columns
    inputs = Inputs(
        model=HOSTILE,
        architecture="LlamaForCausalLM",
        dtype="float32",
        truth_dtype="float64",
        prompts=reference.prompts,
        vocabulary={token: f"{HOSTILE}{token}\n" for token in range(97)},
        command=f"jengine compare '{HOSTILE}'",
    )
    found = Results(
        inputs=inputs,
        points=point_results(reference, ours, POINTS, outliers_count=True),
        ours=logit_result(ours, reference.truth, columns),
        peer=logit_result(reference.working, reference.truth, columns),
        apart=logit_result(ours, reference.working, columns),
        given={name: given_logprobs(ours) for name in ("truth", "torch", "ours")},
        continuations=continuation_results(reference, ours),
        sweeps=[],
        environment={HOSTILE: HOSTILE},
        notes=[HOSTILE],
    )
    return replace(found, **changes)  # type: ignore[arg-type]


def other_path(run: Run, step: int, token: int) -> Run:
    """The run with another token in its first continuation."""
    path = run[0].continuation
    tokens = [*path.tokens[:step], token, *path.tokens[step + 1 :]]
    return [replace(run[0], continuation=replace(path, tokens=tokens)), *run[1:]]


def test_text_of_others_is_shown_as_text(reference: Reference) -> None:
    found = parsed(page(results(reference, reference.working)))
    assert found.foreign == []
    assert "script" not in found.counts


def test_the_charts_of_layers_share_one_scale(reference: Reference) -> None:
    found = results(reference, reference.working)
    point, *rest = found.points
    tiny = replace(point, name="layers.0.attention", peer=scaled(point.peer, 1e-3))
    large = replace(point, name="layers.0.mlp", peer=scaled(point.peer, 1e3))
    drawn = page(replace(found, points=[point, *rest, tiny, large]))
    charts_of_layers = re.findall(r"<svg.*?</svg>", drawn)[:3]
    ticks = [re.findall(r'text-anchor="end">([^<]+)<', chart) for chart in charts_of_layers]
    assert ticks[0] == ticks[1] == ticks[2] and len(ticks[0]) > 2


def scaled(errors: VectorErrors, factor: float) -> VectorErrors:
    return errors._replace(relative=errors.relative * factor)


def test_the_peer_itself_is_bit_equal(reference: Reference) -> None:
    found = results(reference, reference.working)
    assert found.band is Band.BIT_EQUAL
    assert found.verdict.startswith("Bit-equal: jengine's float32 logits are 1.00 times as far")


def test_numbers_that_are_not_finite_are_wrong_and_shown(
    reference: Reference, tmp_path: Path
) -> None:
    broken = []
    for prompt in reference.working:
        points = {**prompt.points, "layers.1.output": prompt.points["layers.1.output"] * np.nan}
        broken.append(replace(prompt, points=points))
    found = results(reference, broken)
    assert (found.first_offender, found.band) == ("layers.1.output", Band.WRONG)
    assert "infinitely many times as far" in found.verdict
    parsed(page(found))
    Comparison(found).save_json(tmp_path / "compare.json")
    assert "NaN" not in (tmp_path / "compare.json").read_text()


def test_leaving_the_path_at_a_tie_is_noise_and_elsewhere_is_not(reference: Reference) -> None:
    path = reference.truth[0].continuation
    second = int(path.ids[2, 1])
    found = results(reference, other_path(reference.working, 2, second))
    assert found.first_offender is None
    assert found.band is Band.SUSPICIOUS
    assert found.verdict.endswith("leaves the greedy path of prompt 0 where there is no tie.")
    text = page(found)
    assert "leaves the truth at step 2" in text and 'class="left"' in text

    near = Continuation(path.tokens, path.ids, path.logits.copy())
    near.logits[2, 1] = near.logits[2, 0] - 1e-9
    tied = divergence(near, found.continuations[0].ours, 1e-6)
    assert tied is not None and tied.tie and tied.step == 2


def test_a_token_that_is_not_even_near(reference: Reference) -> None:
    path = reference.truth[0].continuation
    unlikely = next(token for token in range(97) if token not in path.ids[1])
    found = divergence(path, [path.tokens[0], unlikely, *path.tokens[2:]], 1e-6)
    assert found is not None and found.margin == float("inf") and not found.tie


def test_nothing_but_single_tokens_and_no_continuation(reference: Reference) -> None:
    """No token is given after another, so there is no perplexity and no calibration."""
    run = [
        replace(
            prompt,
            continuation=Continuation([], np.zeros((0, 0), np.int32), np.zeros((0, 0), np.float32)),
        )
        for prompt in reference.truth[1:]
    ]
    small = replace(
        reference, prompts=reference.prompts[1:], columns=[None], truth=run, working=run
    )
    found = results(small, run, points=point_results(small, run, ["norm"], outliers_count=True))
    text = page(found)
    parsed(text)
    assert "No tokens were generated." in text
    assert found.band is Band.BIT_EQUAL
    Comparison(found).to_json()


def test_axes_write_round_numbers_within_their_ends() -> None:
    assert Axis(0.0, 1.0, 0, 100).ticks() == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1.0])
    assert Axis(-23.0, 1.0, 0, 100).ticks() == [-20, -15, -10, -5, 0]
    assert Axis(1e-8, 1e-2, 0, 100, log=True).ticks() == pytest.approx(
        [1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2]
    )
    log = Axis(1e-4, 1.0, 10, 50, log=True)
    assert [log.place(value) for value in (0, 1e-9, 1e-4, 1e-2, 1, 9)] == [10, 10, 10, 30, 50, 50]


def test_charts_of_hundreds_of_layers_label_some(reference: Reference) -> None:
    labels = [str(layer) for layer in range(200)]
    chart = charts.line_chart([Series("x", "ours", [0.1] * 200)], labels, title="many")
    shown = [label for label in labels if f">{label}</text>" in chart]
    assert 5 < len(shown) < 20
    assert shown[0] == "0" and shown[-1] == "199"


def test_charts_of_zeros_and_of_nothing() -> None:
    zeros = charts.line_chart([Series("x", "ours", [0.0, 0.0])], ["a", "b"], title="zeros")
    empty = charts.scatter([], "x", "y", title="empty")
    strip = charts.strip([Row("r", "ours", [0.0], ["tip"])], title="strip", unit="nats")
    for chart in (zeros, empty, strip, charts.bars([], [], title="none")):
        assert "nan" not in chart.lower()
        parsed(chart)
