"""Images per second: every engine answers about the same pictures."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from jengine.bench import images
from jengine.bench.models import SHAPES
from jengine.bench.peers.images_peer import ImagesModel
from jengine.errors import ConfigError
from jengine.models import registry
from tests.media.tiny_vision import write_vision

SETTINGS = images.ImageSettings("m", "float32", 3, (10, 40), [5], 4, 2)


def test_the_models_config_reads_back() -> None:
    config = registry.model_config(SHAPES["qwen2-vl-70m"])
    assert registry.model_config(registry.write_config(config)) == config


def test_peers_see_the_same_pictures() -> None:
    peer = ImagesModel.__new__(ImagesModel)
    peer.settings = {"pictures": 3, "sides": (10, 40)}
    for ours, theirs in zip(images.pictures_of(3, 1, (10, 40)), peer.pictures(1), strict=True):
        assert np.array_equal(ours, theirs)


def test_unknown_peers_are_refused() -> None:
    with pytest.raises(ConfigError, match="expected transformers"):
        images.opened_peer("torchlite", SETTINGS)


@pytest.mark.slow
def test_in_turns_with_transformers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(write_vision(tmp_path, "qwen2_vl"))
    sizes = ["--pictures", "4", "--rounds", "1", "--answer", "4", "--batch", "2"]
    assert images.main([folder, "--against", "transformers", *sizes]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert set(result["images_per_second"]) == {"jengine", "transformers"}
    assert result["images"] == 4 and result["times"]["jengine"] == 1
