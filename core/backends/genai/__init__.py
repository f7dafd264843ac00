"""The backend `genai`: a folder with `genai_config.json`, as ONNX Runtime GenAI's model builder writes it, is a model.

The library holds the interpreter's lock while it computes, so each instance has a process of its own.
"""

EXTRA = "genai"
