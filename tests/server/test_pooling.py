"""Routes of pooling models: bodies, encodings and errors as vLLM's clients expect them."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from starlette.testclient import TestClient

from jengine.assembly.build import build_engine
from jengine.assembly.progress import progress_factory
from jengine.assembly.settings.args import EngineArgs
from tests.api.test_encoders import BASE, DOCUMENTS, QUERY, SMALL, saved, words_tokenizer
from tests.api.test_pooling import unit
from tests.server.serving import UNTOLD, error_of, serving

IDS = [5, 6, 7]


def client_of(folder: Path, **settings: Any) -> Iterator[TestClient]:
    """A server of the folder's model."""
    args = EngineArgs(folder, **{**SMALL, **settings})
    with serving(build_engine(args, progress_factory(False)), served_model_name=("m",)) as client:
        yield client


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("embedder")
    saved(hf.BertModel(hf.BertConfig(**BASE)), folder)
    words_tokenizer(folder)
    prompts = {"task_instructions": {"query": "1 "}}
    yield from client_of(folder, hf_overrides={"is_matryoshka": True, **prompts})


@pytest.fixture(scope="module")
def scorer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("scorer")
    config = hf.BertConfig(**{**BASE, "initializer_range": 0.5}, id2label={0: "fits"})
    saved(hf.BertForSequenceClassification(config), folder)
    words_tokenizer(folder)
    yield from client_of(folder)


def embedding_of(client: TestClient, **body: Any) -> list[float]:
    """The embedding of the first input."""
    return client.post("/v1/embeddings", json=body).json()["data"][0]["embedding"]


def test_embeddings(embedder: TestClient) -> None:
    answer = embedder.post("/v1/embeddings", json={"input": ["1 2 3", "4"], "model": "m"}).json()
    assert answer["id"].startswith("embd-") and answer["object"] == "list"
    assert answer["model"] == "m"
    assert answer["usage"] == {
        "prompt_tokens": 8, "total_tokens": 8, "completion_tokens": 0, **UNTOLD
    }  # fmt: skip
    assert [one["index"] for one in answer["data"]] == [0, 1]
    assert {one["object"] for one in answer["data"]} == {"embedding"}
    vectors = [one["embedding"] for one in answer["data"]]
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    ids = [[1, 5, 6, 7, 2], [1, 8, 2]]  # as the tokenizer writes them
    given = embedder.post("/v1/embeddings", json={"input": ids}).json()["data"]
    np.testing.assert_allclose([one["embedding"] for one in given], vectors, atol=1e-5)


def test_encodings_of_numbers(embedder: TestClient) -> None:
    plain = np.array(embedding_of(embedder, input=IDS), np.float32)
    coded = embedding_of(embedder, input=IDS, encoding_format="base64")
    assert np.array_equal(np.frombuffer(base64.b64decode(coded), np.float32), plain)  # type: ignore[arg-type]
    half = embedding_of(
        embedder, input=IDS, encoding_format="base64", embed_dtype="float16", endianness="big"
    )
    found = np.frombuffer(base64.b64decode(half), ">f2")  # type: ignore[arg-type]
    np.testing.assert_allclose(found, plain, atol=1e-3)
    short = embedding_of(embedder, input=IDS, dimensions=8)
    np.testing.assert_allclose(short, unit(plain[:8]), atol=1e-5)
    raw = embedder.post("/v1/embeddings", json={"input": [IDS, [9]], "encoding_format": "bytes"})
    told = json.loads(raw.headers["metadata"])
    assert raw.headers["content-type"] == "application/octet-stream"
    assert [one["end"] for one in told["data"]] == [128, 256]
    assert told["usage"] == {"prompt_tokens": 4, "total_tokens": 4}
    assert np.array_equal(np.frombuffer(raw.content[:128], np.float32), plain)
    bare = embedder.post(
        "/pooling", json={"input": IDS, "encoding_format": "bytes_only", "embed_dtype": "bfloat16"}
    )
    assert len(bare.content) == 64 and "metadata" not in bare.headers


def test_cohere_embeddings(embedder: TestClient) -> None:
    types = ["float", "binary", "ubinary", "base64"]
    body = {"model": "m", "texts": ["2 3", "4"], "input_type": "query", "embedding_types": types}
    answer = embedder.post("/v2/embed", json=body).json()
    assert answer["id"].startswith("embd-") and answer["response_type"] == "embeddings_by_type"
    assert answer["texts"] == ["2 3", "4"]
    billed = {"input_tokens": 5 + 4, "image_tokens": 0}
    assert answer["meta"] == {"billed_units": billed, "api_version": {"version": "2"}}
    found = answer["embeddings"]
    assert list(found) == types
    rows = np.array([embedding_of(embedder, input=text) for text in ("1 2 3", "1 4")])
    np.testing.assert_allclose(found["float"], rows, atol=1e-5)
    packed = np.packbits(np.array(found["float"]) >= 0, axis=-1)
    assert found["ubinary"] == packed.tolist()
    assert found["binary"] == (packed.astype(int) - 128).tolist()
    decoded = [np.frombuffer(base64.b64decode(one), "<f4") for one in found["base64"]]
    np.testing.assert_array_equal(decoded, np.float32(found["float"]))


def cohere_row(client: TestClient, **body: Any) -> list[float]:
    """The embedding of the only text."""
    answer = client.post("/v2/embed", json=body).json()
    return answer["embeddings"]["float"][0]


def test_cohere_texts_are_cut_as_asked(embedder: TestClient) -> None:
    long = " ".join("12345")  # [CLS] and [SEP] are two tokens more
    first = cohere_row(embedder, texts=[long], max_tokens=4)
    np.testing.assert_allclose(first, embedding_of(embedder, input="1 2"), atol=1e-5)
    whole = embedder.post("/v2/embed", json={"texts": ["1 " * 300]}).json()
    assert whole["meta"]["billed_units"]["input_tokens"] == BASE["max_position_embeddings"]
    last = cohere_row(embedder, texts=[long], max_tokens=4, truncate="START")
    how = {"truncate_prompt_tokens": 4, "truncation_side": "left"}
    np.testing.assert_allclose(last, embedding_of(embedder, input=long, **how), atol=1e-5)
    refused = embedder.post(
        "/v2/embed", json={"texts": [long], "max_tokens": 4, "truncate": "NONE"}
    )
    assert "exceeds max_tokens=4" in error_of(refused, 400)["message"]
    short = cohere_row(embedder, texts=["1"], output_dimension=8)
    np.testing.assert_allclose(short, embedding_of(embedder, input="1", dimensions=8), atol=1e-5)


@pytest.mark.slow
def test_cohere_prompts_are_what_the_system_says(tmp_path: Path) -> None:
    torch.manual_seed(0)
    saved(hf.BertModel(hf.BertConfig(**BASE)), tmp_path)
    tokenizer = words_tokenizer(tmp_path)
    tokenizer.chat_template = (
        "{% for m in messages %}{{ '8 ' if m.role == 'system' else '9 ' }}"
        "{% for part in m.content %}{{ part.text }} {% endfor %}{% endfor %}"
    )
    tokenizer.save_pretrained(tmp_path)
    for client in client_of(tmp_path, hf_overrides={"task_instructions": {"query": "1"}}):
        told = cohere_row(client, texts=["2 3"], input_type="query")
        given = {"add_special_tokens": False}
        np.testing.assert_allclose(
            told, embedding_of(client, input="8 1 9 2 3", **given), atol=1e-5
        )
        parts = [{"type": "text", "text": "2"}, {"type": "text", "text": "3"}]
        mixed = cohere_row(client, inputs=[{"content": parts}])
        np.testing.assert_allclose(mixed, embedding_of(client, input="9 2 3", **given), atol=1e-5)
        plain = cohere_row(client, texts=["2 3"])
        np.testing.assert_allclose(plain, embedding_of(client, input="2 3"), atol=1e-5)


def test_pooling_and_scores_by_embeddings(embedder: TestClient) -> None:
    answer = embedder.post("/pooling", json={"input": IDS}).json()
    assert answer["id"].startswith("pooling-") and answer["data"][0]["object"] == "pooling"
    assert answer["data"][0]["data"] == embedding_of(embedder, input=IDS)
    scores = embedder.post("/v1/score", json={"text_1": QUERY, "text_2": DOCUMENTS}).json()
    assert scores["data"][3]["score"] == pytest.approx(1, abs=1e-5)  # the query itself
    # The query and its document once each, [CLS] and [SEP] included.
    assert scores["usage"]["prompt_tokens"] == 5 + 6 + 3 + 8 + 5


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("/v1/embeddings", {"input": []}, 400, "empty"),
        ("/v1/embeddings", {}, 400, "missing"),
        ("/v1/embeddings", {"input": [[5], "a"]}, 400, "another kind"),
        ("/v1/embeddings", {"input": [[5, "a"]]}, 400, "token ids"),
        ("/v1/embeddings", {"input": [5000]}, 400, "token ids of this model"),
        ("/v1/embeddings", {"input": [5] * 300}, 400, "context length"),
        ("/v1/embeddings", {"input": "1", "dimensions": 99}, 400, "range"),
        ("/v1/embeddings", {"input": "1", "dimensions": 0}, 400, "range"),
        ("/v1/embeddings", {"input": "1", "padding": "longest"}, 400, "max_length, do_not_pad"),
        ("/v1/embeddings", {"input": "1", "padding": "max_length"}, 501, "never padded"),
        ("/v1/embeddings", {"input": "1", "encoding_format": "hex"}, 400, "encoding_format"),
        ("/v1/embeddings", {"input": "1", "normalize": True}, 400, "use_activation"),
        ("/v1/embeddings", {"input": "1", "model": "x"}, 404, "does not exist"),
        ("/v2/embed", {}, 400, "Exactly one"),
        ("/v2/embed", {"texts": ["1"], "images": ["data:"]}, 400, "Exactly one"),
        ("/v2/embed", {"images": ["data:"]}, 400, "texts only"),
        ("/v2/embed", {"inputs": [{"content": [{"type": "image_url"}]}]}, 400, "texts only"),
        ("/v2/embed", {"inputs": [{"content": "1"}]}, 400, "list as content"),
        ("/v2/embed", {"texts": ["1"], "input_type": "x"}, 400, "Supported values: query"),
        ("/v2/embed", {"texts": ["1"], "embedding_types": ["int4"]}, 400, "embedding_types"),
        ("/v2/embed", {"texts": ["1"], "truncate": "MIDDLE"}, 400, "NONE, START, END"),
        ("/v2/embed", {"texts": ["1"], "truncate": ""}, 400, "NONE, START, END"),
        ("/v2/embed", {"texts": ["1"], "max_tokens": 0}, 400, "at least 1"),
        ("/v2/embed", {"texts": ["1"], "output_dimension": 0}, 400, "range"),
        ("/v2/embed", {"texts": ["1"] * 5000}, 400, "at most"),
        ("/pooling", {"input": "1", "task": ""}, 400, "expected one of embed"),
        ("/pooling", {"input": "1", "task": "score"}, 400, "was removed"),
        ("/pooling", {"input": "1", "task": "classify"}, 400, "--convert classify"),
        ("/classify", {"input": "1"}, 404, "--convert classify"),
        ("/rerank", {"query": "1"}, 400, "documents"),
        ("/score", {"queries": ["1", "2"], "documents": ["1", "2", "3"]}, 400, "1:N"),
        ("/v1/completions", {"prompt": "1"}, 404, "generates"),
        ("/v1/chat/completions", {"messages": []}, 404, "generates"),
    ],
)
def test_what_is_refused(
    embedder: TestClient, path: str, body: dict[str, Any], status: int, words: str
) -> None:
    assert words in error_of(embedder.post(path, json=body), status)["message"]


def test_a_refused_task_is_named(embedder: TestClient) -> None:
    refused = embedder.post("/pooling", json={"input": "1", "task": "token_embed"})
    assert error_of(refused, 400)["param"] == "task"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/embeddings", {"input": "1"}),
        ("/rerank", {"query": QUERY, "documents": DOCUMENTS}),
        ("/score", {"queries": QUERY, "documents": DOCUMENTS}),
        ("/score", {"text_1": QUERY, "text_2": DOCUMENTS}),
    ],
)
def test_invocations_pool_by_the_fields(
    embedder: TestClient, path: str, body: dict[str, Any]
) -> None:
    numbers = [embedder.post(one, json=body).json() for one in (path, "/invocations")]
    assert len({json.dumps(one.get("data") or one["results"]) for one in numbers}) == 1


def test_truncation(embedder: TestClient) -> None:
    body = {"input": [5] * 300, "truncate_prompt_tokens": 10}
    assert embedder.post("/v1/embeddings", json=body).json()["usage"]["prompt_tokens"] == 10


def test_classes(scorer: TestClient) -> None:
    invoked = scorer.post("/invocations", json={"input": ["1 2", "3"]}).json()
    assert [one["label"] for one in invoked["data"]] == ["fits", "fits"]
    answer = scorer.post("/classify", json={"input": ["1 2", "3"]}).json()
    assert answer["id"].startswith("classify-")
    first = answer["data"][0]
    assert (first["label"], first["num_classes"], first["index"]) == ("fits", 1, 0)
    assert 0 < first["probs"][0] < 1


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_a_ranking(scorer: TestClient, path: str) -> None:
    scores = scorer.post("/score", json={"queries": QUERY, "documents": DOCUMENTS}).json()
    assert scores["id"].startswith("score-")
    assert {one["object"] for one in scores["data"]} == {"score"}
    by_index = [one["score"] for one in scores["data"]]
    body = {"query": QUERY, "documents": DOCUMENTS, "top_n": 2}
    answer = scorer.post(path, json=body).json()
    best = sorted(range(4), key=lambda index: -by_index[index])[:2]
    assert [one["index"] for one in answer["results"]] == best
    assert answer["results"][0]["document"] == {"text": DOCUMENTS[best[0]], "multi_modal": None}
    assert answer["results"][0]["relevance_score"] == pytest.approx(by_index[best[0]], abs=1e-5)
    assert set(answer["usage"]) == {"prompt_tokens", "total_tokens"}
