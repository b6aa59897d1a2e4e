"""Hugging Face's own client against a task: raw bytes, then JSON with a parameter, then goals in headers."""

import sys

from huggingface_hub import InferenceClient

server, picture = sys.argv[1:]
client = InferenceClient(model=f"{server}/v1/tasks/fashion?accuracy=0.9&latency_ms=2000")
answers = client.image_classification(picture)
assert len(answers) == 5, answers
assert answers[0].score >= answers[1].score, answers
assert abs(sum(a.score for a in client.image_classification(picture, top_k=10)) - 1) < 1e-3
two = client.image_classification(picture, top_k=2)
assert [a.label for a in two] == [a.label for a in answers[:2]], (two, answers)
pinned = InferenceClient(model=f"{server}/v1/tasks/fashion", headers={"modelless-model": "cnn_m"})
assert pinned.image_classification(picture)[0].label == answers[0].label
print(answers[0].label)
