"""The backend `text`: a folder of the Hugging Face Hub with an ONNX model and a tokenizer is a model."""
