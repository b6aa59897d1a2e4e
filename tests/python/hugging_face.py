"""Hugging Face's own clients, sync and async, for every kind of task: raw bytes, JSON with parameters, goals in URL and headers.

    python hugging_face.py URL PICTURE VECTORS CLASSES

VECTORS and CLASSES are tasks of that server: of feature-extraction, and of text-classification with the labels `praise` and `blame`.
"""

import asyncio
import sys

import numpy as np
from calls import Calls, same
from huggingface_hub import AsyncInferenceClient, InferenceClient

URL, PICTURE, VECTORS, CLASSES = sys.argv[1:]
PRAISE, BLAME = "a wonderful film, warm and funny", "an awful film, dull and a waste of time"
GOALS = "accuracy=0.9&latency_ms=4000"


def is_a_boot(answers, count=5):
    same((answers[0].label, len(answers)), ("Ankle boot", count))
    assert answers[0].score >= answers[-1].score, answers


def is_praise(answers):
    same(sorted(answer.label for answer in answers), ["blame", "praise"])
    same(answers[0].label, "praise")
    assert answers[0].score > 0.5 > answers[1].score, answers


def pictures(calls):
    call = lambda name, what: calls.call("huggingface_hub InferenceClient", name, what)
    client = InferenceClient(model=f"{URL}/v1/tasks/fashion?{GOALS}")
    pinned = InferenceClient(model=f"{URL}/v1/tasks/fashion", headers={"modelless-model": "cnn_m"})
    call("image_classification, a file", lambda: is_a_boot(client.image_classification(PICTURE)))
    call("image_classification, top_k", lambda: is_a_boot(client.image_classification(PICTURE, top_k=2), 2))
    call("image_classification, goals in headers", lambda: is_a_boot(pinned.image_classification(PICTURE)))


def texts(calls):
    call = lambda name, what: calls.call("huggingface_hub InferenceClient", name, what)
    classifier = InferenceClient(model=f"{URL}/v1/tasks/{CLASSES}?latency_ms=8000")
    vectors = InferenceClient(model=f"{URL}/v1/tasks/{VECTORS}?latency_ms=8000")

    refused = InferenceClient(model=f"{URL}/v1/tasks/{CLASSES}?accuracy=0.999")
    call("text_classification", lambda: is_praise(classifier.text_classification(PRAISE)))
    call("text_classification, the other label", lambda: same(classifier.text_classification(BLAME)[0].label, "blame"))
    call("text_classification, top_k", lambda: same(len(classifier.text_classification(PRAISE, top_k=1)), 1))
    calls.refuses("huggingface_hub InferenceClient", "text_classification, a floor out of reach",
        lambda: refused.text_classification(PRAISE), "no variant reaches this accuracy")

    def one():
        vector = np.asarray(vectors.feature_extraction("a ship"))
        assert vector.ndim == 1 and np.isfinite(vector).all(), vector.shape

    def several():
        all_of_them = np.asarray(vectors.feature_extraction(["a ship", "a boat", "tax law"]))
        assert all_of_them.ndim == 2 and len(all_of_them) == 3, all_of_them.shape

    call("feature_extraction", one)
    call("feature_extraction, a list", several)
    long = lambda **more: float(np.linalg.norm(np.asarray(vectors.feature_extraction("a ship", **more))))
    call("feature_extraction, normalize", lambda: same(round(long(normalize=True, truncate=True), 4), 1.0))
    calls.refuses("huggingface_hub InferenceClient", "feature_extraction, prompt_name, which is refused",
        lambda: vectors.feature_extraction("a ship", prompt_name="query"), "put the prompt before the text")


async def asynchronous(calls):
    call = lambda name, what: calls.wait("huggingface_hub AsyncInferenceClient", name, what)

    async def pictures():
        is_a_boot(await AsyncInferenceClient(model=f"{URL}/v1/tasks/fashion?{GOALS}").image_classification(PICTURE))

    async def classes():
        client = AsyncInferenceClient(model=f"{URL}/v1/tasks/{CLASSES}?latency_ms=8000")
        is_praise(await client.text_classification(PRAISE))

    async def vectors():
        client = AsyncInferenceClient(model=f"{URL}/v1/tasks/{VECTORS}?latency_ms=8000")
        assert np.asarray(await client.feature_extraction("a ship")).ndim == 1

    await call("image_classification", pictures())
    await call("text_classification", classes())
    await call("feature_extraction", vectors())


calls = Calls()
pictures(calls)
texts(calls)
asyncio.run(asynchronous(calls))
calls.end()
