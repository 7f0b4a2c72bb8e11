"""Adapters of the decoder beside images: as the merged model answers."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from jengine import LoRARequest, SamplingParams
from jengine.errors import CheckpointError
from jengine.lora.peft_files import read_adapter
from jengine.weights.folder import read_model_config
from jengine.weights.safetensors_file import read_header
from tests.api.engines import answers, tiny_engine
from tests.lora.adapters import ATTENTION, MLP, PREFIX, write_adapter, write_merged
from tests.media.tiny_vision import BEGIN, END, IMAGE, picture, prompt_of, write_vision
from tests.weights.quantized_models import write_tensors

# How transformers calls the decoder and its head while a model is trained.
TRAINED = {
    "language_model.model.": "model.language_model.",
    "language_model.lm_head": "lm_head",
    "model.layers.": "model.language_model.layers.",
}
GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)


def renamed(folder: Path) -> None:
    """Give an adapter's tensors the names that it has when PEFT trains it."""
    file = folder / "adapter_model.safetensors"
    tensors = {}
    for name, tensor in read_header(file).items():
        module = name.removeprefix(PREFIX)
        for own, trained in TRAINED.items():
            if module.startswith(own):
                module = trained + module.removeprefix(own)
                break
        tensors[PREFIX + module] = tensor.read().copy()
    assert any("model.language_model.layers" in name for name in tensors)
    write_tensors(file, tensors)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["qwen2_vl", "llava"])
def test_adapters_and_images_in_one_batch(family: str, tmp_path: Path) -> None:
    base = write_vision(tmp_path / "base", family)
    decoder = tuple(f"self_attn.{name}" for name in ATTENTION) if family == "qwen2_vl" else ()
    added = write_adapter(tmp_path / "adapter", base, (*decoder, *MLP, "lm_head"))
    merged = write_merged(
        tmp_path / "merged", base, {name: 2.0 * part for name, part in added.items()}
    )
    for file in base.iterdir():
        if not (merged / file.name).exists():
            shutil.copy(file, merged)
    seen = [
        {"prompt_token_ids": prompt_of(family, ids), "multi_modal_data": {"image": [image]}}
        for ids, image in (
            ([5, BEGIN, IMAGE, END, 7], picture(30, 50)),
            ([BEGIN, IMAGE, END, 9, 10], picture(64, 41)),
        )
    ]
    prompts = [*seen, [3, 4, 5, 6], seen[0]]
    both = []
    for folder in (base, merged):
        with tiny_engine(folder) as llm:
            both.append(answers(llm.generate(prompts, GREEDY)))
    plain, adapted = both
    assert all(one != other for one, other in zip(plain, adapted, strict=True))
    renamed(tmp_path / "adapter")
    request = LoRARequest("own", 1, str(tmp_path / "adapter"))
    with tiny_engine(base, enable_lora=True, max_lora_rank=4) as llm:
        found = answers(llm.generate(prompts, GREEDY, lora_request=[request, None, request, None]))
    assert found == [adapted[0], plain[1], adapted[2], plain[3]]


@pytest.mark.slow
def test_the_tower_has_no_adapters(tmp_path: Path) -> None:
    base = write_vision(tmp_path / "base", "qwen2_vl")
    write_adapter(tmp_path / "adapter", base, ("attn.qkv",))
    with pytest.raises(CheckpointError, match=r"cannot change here: visual\.blocks\.0\.attn\.qkv"):
        read_adapter(tmp_path / "adapter", read_model_config(base), max_rank=4)
