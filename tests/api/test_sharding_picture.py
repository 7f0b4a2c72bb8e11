"""The picture of shardings: layers that lie alike are one line, and each device has its part."""

from __future__ import annotations

import re

from jengine.api.sharding_picture import in_words
from tests.api.engines import tiny_engine


def test_one_device_holds_everything(full_folder: object) -> None:
    with tiny_engine(full_folder) as llm:
        shardings = llm.param_shardings
        count = len(llm.engine.model.layers)
    lines = str(shardings).splitlines()
    assert lines[0].startswith("embed.weight ") and lines[0].endswith("1 part on 1 device")
    qkv = [line for line in lines if "attention.qkv" in line]
    assert len(qkv) == 1
    assert qkv[0].startswith(f"layers.0-{count - 1}.attention.qkv")
    page = shardings._repr_html_()
    assert page.count("<tr>") == len(lines)
    assert len(re.findall("title=.device 0: part 0.", page)) == len(lines)


def test_layers_in_words() -> None:
    assert in_words([0, 1, 2, 5, 7, 8]) == "0-2,5,7-8"
    assert in_words([]) == ""
