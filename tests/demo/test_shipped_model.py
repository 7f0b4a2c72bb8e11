"""The shipped folder: small, complete, readable by others, and as good as its card says."""

import itertools
import json
import re

import pytest

from examples.demo_model import cases, corpus, evaluate
from examples.demo_model import tokenizer as demo_tokenizer
from examples.demo_model.corpus import Turn
from examples.demo_model.evaluate import plain_generator
from jengine import LLM, SamplingParams
from jengine.demo import eagle_path, model_path
from tests.api.engines import rebuilt
from tests.marks import slow

MEBIBYTE = 2**20
ONE_REQUEST = {
    "enforce_eager": True, "max_model_len": 128, "max_num_seqs": 1, "show_progress": False,
    "compilation_config": {"decode_rows": [4], "prefill_tokens": [32], "variants": ["greedy"]},
}  # fmt: skip


@pytest.fixture(scope="module")
def generate():
    return plain_generator(model_path())


@pytest.fixture(scope="module")
def tokenizer():
    transformers = pytest.importorskip("transformers")
    return transformers.AutoTokenizer.from_pretrained(str(model_path()))


def test_folder_is_complete_and_small():
    names = {path.name for path in model_path().iterdir()}
    assert names == {
        "README.md",
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert sum(path.stat().st_size for path in model_path().iterdir()) < 12 * MEBIBYTE


@pytest.mark.slow
def test_the_shipped_head_drafts_well_and_changes_nothing():
    """Half of its drafts and more are accepted in a story, which is the same without them."""
    method = {"model": "demo-eagle", "num_speculative_tokens": 3, "adaptive": False}
    params = SamplingParams(temperature=0, max_tokens=48)
    with LLM("demo", speculative_config=method, **ONE_REQUEST) as llm:
        [found] = llm.generate(["Once upon a time"], params, use_tqdm=False)
        drafts = llm.stats().drafts
        with rebuilt(llm, speculative=None) as plain:
            [expected] = plain.generate(["Once upon a time"], params, use_tqdm=False)
    assert found.outputs[0].token_ids == expected.outputs[0].token_ids
    assert drafts.accepted > drafts.drafted / 2 > 10


def test_the_shipped_head_is_complete_and_small():
    names = {path.name for path in eagle_path().iterdir()}
    assert names == {"README.md", "config.json", "model.safetensors"}
    assert sum(path.stat().st_size for path in eagle_path().iterdir()) < MEBIBYTE


def test_transformers_reads_the_tokenizer_as_training_did(tokenizer):
    turns = (Turn("system", "Be kind."), Turn("user", "What is 23 + 45?"))
    messages = [turn._asdict() for turn in turns]
    theirs = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert theirs == corpus.chat_prompt(turns)
    ours = demo_tokenizer.load(model_path())
    assert tokenizer(theirs)["input_ids"] == ours.encode(theirs).ids
    assert tokenizer.decode(ours.encode("23 + 45 = 68. Größe").ids) == "23 + 45 = 68. Größe"


@pytest.mark.slow
def test_tokenizer_is_what_its_script_makes():
    made = demo_tokenizer.train(demo_tokenizer.training_texts())
    assert made.to_str() == demo_tokenizer.load(model_path()).to_str()


def test_special_tokens_agree_everywhere(tokenizer):
    config = json.loads((model_path() / "config.json").read_text())
    generation = json.loads((model_path() / "generation_config.json").read_text())
    assert tokenizer.eos_token == corpus.TURN_END
    assert tokenizer.eos_token_id == config["eos_token_id"] == generation["eos_token_id"][0]
    assert len(tokenizer) == config["vocab_size"]


def test_rendered_documents_agree_with_the_chat_template(tokenizer):
    for source in itertools.islice(corpus.documents(0), 50):
        if source.turns:
            messages = [turn._asdict() for turn in source.turns]
            text = "".join(segment.text for segment in corpus.render(source))
            theirs = tokenizer.apply_chat_template(messages, tokenize=False)
            assert text == theirs + corpus.END_OF_TEXT


def test_card_shows_figures_that_reach_their_targets():
    card = (model_path() / "README.md").read_text()
    rows = re.findall(r"^\| (.+?) \| (\d+) \| (\d+) \|", card, re.MULTILINE)
    figures = {name: int(passed) / int(total) for name, passed, total in rows}
    for name, target in cases.TARGETS.items():
        assert figures[name] >= target, name


@pytest.mark.parametrize("name", ["addition in digits", "addition in words", *slow("valid JSON")])
def test_it_keeps_its_promises(generate, name: str):
    """A small part of the examination, with room for luck."""
    (suite,) = (found for found in cases.suites(0.1) if found.name == name)
    (figure,) = evaluate.measure(generate, [suite])
    assert figure.share >= cases.TARGETS[name] - 0.1


@pytest.mark.slow
def test_it_adds_every_two_one_digit_numbers(generate):
    (suite,) = (s for s in cases.suites() if s.name == "one-digit addition in digits")
    failures: list[str] = []
    (figure,) = evaluate.measure(generate, [suite], failures)
    assert (figure.passed, figure.total) == (100, 100), failures


@pytest.mark.slow
def test_whole_examination_gives_the_figures_of_the_card(generate):
    figures = {figure.name: figure.share for figure in evaluate.measure(generate, cases.suites())}
    for name, target in cases.TARGETS.items():
        assert figures[name] >= target, name


EXAMPLES = {
    "What is 23 + 45?": "23 + 45 = 68.",
    "What is 2 + 3?": "2 + 3 = 5.",
    "2 + 3": "2 + 3 = 5.",
    "9+8": "9 + 8 = 17.",
    "What is 7 - 4?": "7 - 4 = 3.",
    "What is 0 + 5?": "0 + 5 = 5.",
    "What is twenty-three plus forty-five?": "Twenty-three plus forty-five is sixty-eight.",
    "Give me a JSON object for a cat named Tom who is 3 years old.": (
        '{"name": "Tom", "animal": "cat", "age": 3}'
    ),
}


def test_examples_of_the_documentation(generate):
    prompts = [corpus.chat_prompt((Turn("user", question),)) for question in EXAMPLES]
    completions = generate(prompts, 64)
    assert [one.text for one in completions] == list(EXAMPLES.values())
    assert all(one.finished for one in completions)
