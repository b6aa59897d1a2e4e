"""Makes variants of one ONNX model: the same task, other trade-offs.

Started by `modelless variant generate` in a process that can read its job and write one folder, and nothing else. It needs
onnx, onnxruntime and numpy; nothing of it is needed to serve.
"""

# Part of the address of everything that is made: raise it with whatever changes an artefact.
VERSION = 3
