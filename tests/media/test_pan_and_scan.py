"""Pan and scan of Gemma 3: crops, texts and tokens, equal to those of transformers' processor."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend

from jengine import SamplingParams
from jengine.assembly.front_side import joined
from jengine.errors import RequestError
from jengine.media.families import square
from jengine.media.pan_and_scan import AFTER_WHOLE, BEFORE, BETWEEN_CROPS, crops_of
from jengine.media.processor import MediaProcessor
from jengine.media.scaling import patches_of
from jengine.text.tokenizer import Tokenizer
from tests.api.engines import tiny_engine
from tests.media.test_videos import vision_of
from tests.media.tiny_vision import (
    BEGIN,
    END,
    IMAGE,
    greedy,
    model_of,
    picture,
    processor_of,
    write_vision,
)

transformers = pytest.importorskip("transformers")
SPECIAL = ["<bos>", "<start_of_image>", "<end_of_image>", "<image_soft_token>"]
ASKED = {
    "do_pan_and_scan": True, "pan_and_scan_min_crop_size": 10, "pan_and_scan_max_num_crops": 3,
}  # fmt: skip
OFF = {"do_pan_and_scan": False}
GREEDY = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True)
SCALED = {"size": {"height": 16, "width": 16}, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}


@cache
def tokenizer() -> Tokenizer:
    """One whose spaces and line breaks are tokens as Gemma's are."""
    made = Backend(models.BPE())
    made.normalizer = normalizers.Replace(" ", "▁")
    made.pre_tokenizer = pre_tokenizers.Split(Regex("\n+"), "isolated")
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse()])
    texts = [
        BEFORE,
        AFTER_WHOLE,
        BETWEEN_CROPS,
        "What is in Here? See",
        "\n",
        "\n\n\n",
        "\n" * 4,
    ] * 3
    trainer = trainers.BpeTrainer(vocab_size=120, special_tokens=SPECIAL, show_progress=False)
    made.train_from_iterator(texts, trainer)
    names = zip(("boi_token", "eoi_token", "image_token"), SPECIAL[1:], strict=True)
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token="<bos>", extra_special_tokens=dict(names)
    )
    return Tokenizer(fast)


def words() -> Any:
    """A tokenizer of words whose ids are those of a tiny Gemma 3."""
    texts = [BEFORE, AFTER_WHOLE, BETWEEN_CROPS, "What is in"]
    plain = [*dict.fromkeys(" ".join(texts).split()), "\n", "\n\n", "\n\n\n", "<unk>"]
    ids = {word: 3 + number for number, word in enumerate(plain)}
    marks = dict(zip(SPECIAL[1:], (BEGIN, END, IMAGE), strict=True))
    made = Backend(models.WordLevel(ids | marks, "<unk>"))
    split = pre_tokenizers.Split(Regex("\n+"), "isolated")
    spaces = pre_tokenizers.Split(" ", "removed")
    made.pre_tokenizer = pre_tokenizers.Sequence([split, spaces])
    made.add_special_tokens(list(marks))
    names = dict(zip(("boi_token", "eoi_token", "image_token"), marks, strict=True))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, extra_special_tokens=names)


def processor() -> MediaProcessor:
    own = tokenizer()
    known = own.hf.get_vocab()
    begin, end, image = (known[name] for name in SPECIAL[1:])
    vision = replace(
        vision_of("gemma3"),
        start_token=begin, placeholder_token=begin, end_token=end, image_token=image,
        line_breaks=tuple(known["\n" * count] for count in range(1, 5)),
        crop_texts=tuple(tuple(own.encode(text, False)) for text in (AFTER_WHOLE, BETWEEN_CROPS)),
    )  # fmt: skip
    return MediaProcessor(vision, SCALED, join=partial(joined, own))


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        "<bos>What is in <start_of_image>? See<start_of_image>",
        "<bos>What\n<start_of_image>Here",
        "<start_of_image><start_of_image>",
        "<bos>What i<start_of_image>s in<start_of_image> See",
    ],
)
@pytest.mark.parametrize("sizes", [((30, 50), (64, 41)), ((12, 80), (20, 20)), ((90, 11), (9, 90))])
def test_prompts_and_pixels_are_those_of_transformers(
    text: str, sizes: tuple[tuple[int, int], ...]
) -> None:
    pictures = [picture(*size) for size in sizes][: text.count("<start")]
    theirs = transformers.Gemma3Processor(processor_of("gemma3"), tokenizer().hf, None, 16)
    wanted = theirs(images=[pictures], text=[text], add_special_tokens=False, **ASKED)
    ours = processor()
    ids, spans = ours.expanded(tokenizer().encode(text, False), {"image": pictures}, ASKED)
    assert ids == list(wanted["input_ids"][0])
    assert len(spans) == len(wanted["pixel_values"])
    for span, pixels in zip(spans, wanted["pixel_values"], strict=True):
        values = patches_of(np.moveaxis(np.asarray(pixels), 0, -1), 2, ours.vision.merger.side)
        found = np.frombuffer(span.values, np.float32)
        np.testing.assert_allclose(found, values.reshape(-1), atol=1e-6)
        assert set(ids[span.offset : span.end]) == {ours.vision.image_token}


@pytest.mark.slow
def test_engines_answer_as_transformers_does(tmp_path: Path) -> None:
    folder = write_vision(tmp_path, "gemma3")
    own, wide = words(), picture(20, 70)
    llm = tiny_engine(folder, tokenizer=own, mm_processor_kwargs=ASKED)
    prompt = {"prompt": "is\n<start_of_image> in", "multi_modal_data": {"image": wide}}
    (found,) = llm.generate([prompt], GREEDY)
    (other,) = llm.generate([{**prompt, "mm_processor_kwargs": OFF}], GREEDY)
    llm.shutdown()
    theirs = transformers.Gemma3Processor(processor_of("gemma3"), own, None, 16)
    for answer, how in ((found, ASKED), (other, OFF)):
        given = theirs(images=[[wide]], text=[prompt["prompt"]], return_tensors="pt", **how)
        del given["attention_mask"]
        assert answer.prompt_token_ids == given["input_ids"][0].tolist()
        assert answer.outputs[0].token_ids == greedy(model_of(folder, "gemma3"), given, 10)
    assert len(found.prompt_token_ids) > 3 * len(other.prompt_token_ids)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"pan_and_scan_min_crop_size": 0}, "pan_and_scan_min_crop_size=0"),
        ({"pan_and_scan_max_num_crops": 99}, "max_num_crops=99: expected 1 to 64"),
        ({"pan_and_scan_min_ratio_to_activate": "2"}, "min_ratio_to_activate='2'"),
        ({"pan_and_scan_min_crop_size": 1, "pan_and_scan_max_num_crops": 4}, "too few for 4 crops"),
    ],
)
def test_bad_settings(settings: dict[str, Any], complaint: str) -> None:
    with pytest.raises(RequestError, match=complaint):
        crops_of(1, 5, settings)


def test_texts_need_a_tokenizer() -> None:
    with pytest.raises(RequestError, match="expected an engine with a tokenizer"):
        square(20, 90, vision_of("gemma3"), {**SCALED, **ASKED})
    with pytest.raises(RequestError, match="do_pan_and_scan='yes'"):
        square(9, 9, vision_of("gemma3"), {"do_pan_and_scan": "yes"})
