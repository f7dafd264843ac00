"""Record what transformers and sentence-transformers answer: `python -m tests.text_answers.record [KIND…]`, by hand.

It needs torch, onnx, transformers and sentence-transformers. Rows that the installed versions cannot answer keep what
was recorded: transformers 5 has no pipeline for questions, so the kind `reader` is recorded with transformers 4.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
import transformers

from tests.text_answers import HERE, KINDS, LONGEST, RECORDED, ROWS, Row, write_folder


def model_of(kind: str, config: Any) -> Any:
    """The model of `kind`, with the same weights every time."""
    torch.manual_seed(sorted(KINDS).index(kind))
    model = getattr(transformers, KINDS[kind][0])(config).eval()
    with torch.no_grad():
        # Weights as they are made give all texts nearly the same scores. Norms and biases stay as they are made.
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.copy_(torch.randn(parameter.shape))
    return model


def export(kind: str, folder: Path) -> None:
    config = transformers.AutoConfig.from_pretrained(folder, attn_implementation="eager")
    model = model_of(kind, config)
    ids = torch.ones((2, 5), dtype=torch.int64)
    names = ["start_logits", "end_logits"] if kind == "reader" else ["logits"] if kind != "encoder" else []
    outputs = names or ["last_hidden_state"]
    axes = {name: {0: "batch", 1: "sequence"} for name in ("input_ids", "attention_mask", "token_type_ids")}
    axes |= {
        name: {0: "batch"} if kind in ("classifier", "ranker") else {0: "batch", 1: "sequence"} for name in outputs
    }

    class Outputs(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Any, attention_mask: Any, token_type_ids: Any) -> Any:
            found = self.model(input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids)
            return tuple(found[name] for name in outputs)

    torch.onnx.export(
        Outputs(),
        (ids, ids, ids * 0),
        str(HERE / f"{kind}.onnx"),
        input_names=list(axes)[:3],
        output_names=outputs,
        dynamic_axes=axes,
        opset_version=17,
        dynamo=False,
    )


def check(kind: str, folder: Path) -> None:
    """Exit unless the graph in this folder still is what this version of transformers makes."""
    model = model_of(kind, transformers.AutoConfig.from_pretrained(folder, attn_implementation="eager"))
    ids = np.arange(1, 11).reshape(2, 5)
    feed = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
    graph = onnxruntime.InferenceSession(str(HERE / f"{kind}.onnx")).run(None, feed)[0]
    with torch.no_grad():
        if not np.allclose(model(**{name: torch.tensor(value) for name, value in feed.items()})[0], graph, atol=1e-4):
            raise SystemExit(f"{kind}.onnx has other weights: remove it, and record all rows again")


def ask(row: Row, folder: Path) -> Any:
    """The answer of the authors' library; None if the installed one has no such call."""
    config = transformers.AutoConfig.from_pretrained(folder, attn_implementation="eager")
    model_of(row.kind, config).save_pretrained(folder)
    if row.by == "sentence-transformers":
        if "sentence_transformers" not in sys.modules:
            try:
                import sentence_transformers  # noqa: F401
            except ImportError:
                return None
        library = sys.modules["sentence_transformers"]
        if row.is_embedder:
            encoder = library.SentenceTransformer(str(folder), device="cpu")
            return encoder.encode(list(row.inputs["text"]), **row.options).tolist()
        pairs = list(zip(row.inputs["query"], row.inputs["text"], strict=True))
        return library.CrossEncoder(str(folder), device="cpu").predict(pairs, **row.options).tolist()
    try:
        run = transformers.pipeline(row.task, model=str(folder), tokenizer=str(folder), device="cpu")
    except KeyError:
        return None
    inputs = {name: list(values) for name, values in row.inputs.items()}
    options = dict(row.options)
    if row.task == "zero-shot-classification":
        options["candidate_labels"] = inputs.pop("candidate_labels")
    if row.task == "question-answering":
        return [run(question=q, context=c, **options) for q, c in zip(*inputs.values(), strict=True)]
    texts = inputs.pop("text")
    if "text_pair" in inputs:
        texts = [{"text": a, "text_pair": b} for a, b in zip(texts, inputs["text_pair"], strict=True)]
    return [run(text, **options) for text in texts]


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value.item() if hasattr(value, "item") else value


def main(kinds: Sequence[str]) -> None:
    found = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    with tempfile.TemporaryDirectory() as temporary:
        for kind in kinds or KINDS:
            if not (HERE / f"{kind}.onnx").exists():
                folder = Path(temporary, kind)
                folder.mkdir()
                export(kind, write_folder(folder, next(row for row in (*ROWS, RANK) if row.kind == kind)))
            check(kind, write_folder(Path(temporary, f"{kind} again"), Row(name="", kind=kind, inputs={})))
        for at, row in enumerate(row for row in ROWS if row.kind in (kinds or KINDS)):
            folder = Path(temporary, str(at))
            folder.mkdir()
            answer = ask(row, write_folder(folder, row))
            if answer is not None:
                found[row.name] = {"by": f"{row.by} {version(row.by)}", "answer": plain(answer)}
    known = {row.name for row in ROWS}
    RECORDED.write_text(json.dumps({name: found[name] for name in sorted(found) if name in known}, indent=0) + "\n")
    print(f"{len(found)} of {len(ROWS)} rows recorded; not longer than {LONGEST} tokens")


RANK = Row(name="", kind="ranker", inputs={})

if __name__ == "__main__":
    main(sys.argv[1:])
