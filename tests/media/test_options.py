"""`mm_processor_kwargs`: each family knows its own names, and refuses those of others."""

from __future__ import annotations

from typing import Any

import pytest

from jengine.engine.limits import Limits
from jengine.engine.prompt_renderer import PromptRenderer
from jengine.errors import RequestError
from jengine.media.families import RULES
from jengine.media.options import OPTIONS_OF, checked_options
from tests.media.test_videos import vision_of


def test_every_family_knows_its_options() -> None:
    assert OPTIONS_OF.keys() == RULES.keys()
    for family, own in OPTIONS_OF.items():
        for name in own:
            assert checked_options({name: 1}, family) == {name: 1}
        for other in set(OPTIONS_OF) - {family}:
            with pytest.raises(RequestError, match=f"no key .* for .* {family!r}"):
                checked_options(dict.fromkeys(OPTIONS_OF[other]), family)


def test_names_without_an_image_are_checked() -> None:
    text = PromptRenderer(Limits(10, 90, 5, ()), None)
    asked: dict[str, Any] = {"prompt_token_ids": [3], "mm_processor_kwargs": {"max_pixels": 9}}
    with pytest.raises(RequestError, match="mm_processor_kwargs: this model takes no images"):
        text.render(asked)
    assert text.render({**asked, "mm_processor_kwargs": {}}) == {"prompt_token_ids": [3]}


def test_tiles_are_always_resized() -> None:
    with pytest.raises(RequestError, match="do_resize=False: this model takes tiles of 16"):
        RULES["internvl"](
            16, 16, vision_of("internvl"),
            {"do_resize": False, "size": {"height": 16, "width": 16}},
        )  # fmt: skip
