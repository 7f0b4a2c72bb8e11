"""Mixture-of-experts models send every token to the experts that transformers sends it to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

torch = pytest.importorskip("torch")
import transformers  # noqa: E402

from jengine.models import mlp  # noqa: E402
from jengine.weights.safetensors_io import load_model  # noqa: E402
from tests.models.tiny_models import write_tiny  # noqa: E402

LENGTH = 200
# Two experts whose chances are this close may change places.
TIE = 1e-5


@pytest.mark.slow
@pytest.mark.parametrize(("family", "count"), [("mixtral", 2), ("qwen3_moe", 3)])
def test_experts_are_those_of_transformers(
    family: str, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_tiny(tmp_path, family)
    tokens = np.random.default_rng(1).integers(0, 97, (1, LENGTH))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        found = theirs(torch.tensor(tokens), output_router_logits=True).router_logits
    chosen: list[tuple[np.ndarray, np.ndarray]] = []
    route = mlp.route

    def recorded(*arguments: Any, **options: Any) -> Any:
        picked = route(*arguments, **options)
        chosen.append((np.asarray(picked.weights), np.asarray(picked.experts)))
        return picked

    monkeypatch.setattr(mlp, "route", recorded)
    load_model(folder).score(jnp.asarray(tokens))  # not compiled, so that it can be watched

    assert len(chosen) == len(found) == 2, "one a layer"
    for (weights, experts), logits in zip(chosen, found, strict=True):
        # transformers gives logits of the router, or what softmax makes of them: one order.
        chances = torch.softmax(logits.float(), -1) if logits.min() < 0 else logits
        best, order = torch.topk(chances, count + 1, dim=-1)
        clear = (best[:, :-1] - best[:, 1:]).min(-1).values.numpy() > TIE
        assert clear.mean() > 0.99
        assert np.array_equal(experts[clear], order[:, :count].numpy()[clear])
        expected = best[:, :count] / best[:, :count].sum(-1, keepdim=True)
        np.testing.assert_allclose(weights[clear], expected.numpy()[clear], atol=1e-5)
        assert len(np.unique(experts)) > count, "the router does not always choose the same"
