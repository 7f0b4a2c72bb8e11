"""What people are told about supported models is what the registry holds."""

from __future__ import annotations

import math

import pytest

from jengine.models import registry
from jengine.models.architectures import FAMILIES
from jengine.models.parameter import named_parameters
from jengine.models.reading.published import PUBLISHED
from jengine.models.supported import markdown_table
from jengine.weights.abstract import abstract_model


def test_the_table_has_a_row_for_every_architecture() -> None:
    rows = markdown_table().splitlines()[2:]
    assert [row.split("`")[1] for row in rows] == list(FAMILIES)
    assert "| DeepSeek-V2, V2-Lite | `DeepseekV2ForCausalLM` | latent attention, experts |" in rows


@pytest.mark.slow
@pytest.mark.parametrize(("name", "billions"), [("gpt-oss-120b", 116.83), ("glm-4.6", 352.80)])
def test_published_shapes_have_as_many_parameters_as_the_models(name: str, billions: float) -> None:
    """Without GLM-4.6's layer that drafts tokens, 4 billion more."""
    model = abstract_model(registry.model_config(PUBLISHED[name]))
    count = sum(math.prod(one.shape) for _, one in named_parameters(model))
    assert round(count / 1e9, 2) == billions
