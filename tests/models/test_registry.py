"""What people are told about supported models is what the registry holds."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from jengine.models import registry
from jengine.models.parameter import named_parameters
from jengine.models.reading.published import PUBLISHED
from jengine.models.supported import markdown_table
from jengine.weights.abstract import abstract_model

PAGE = Path(__file__).parents[2] / "jengine/docs/pages/models.md"
BEGIN, END = "<!-- supported models -->\n", "<!-- end of supported models -->\n"


def test_documentation_shows_the_table() -> None:
    """`python -m jengine.models.supported` prints it."""
    text = PAGE.read_text(encoding="utf-8")
    assert text.count(BEGIN) == text.count(END) == 1
    shown = text.split(BEGIN)[1].split(END)[0].strip()
    assert shown == markdown_table()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "billions"), [("gpt-oss-120b", 116.83), ("glm-4.6", 352.80)])
def test_published_shapes_have_as_many_parameters_as_the_models(name: str, billions: float) -> None:
    """Without GLM-4.6's layer that drafts tokens, 4 billion more."""
    model = abstract_model(registry.model_config(PUBLISHED[name]))
    count = sum(math.prod(one.shape) for _, one in named_parameters(model))
    assert round(count / 1e9, 2) == billions
