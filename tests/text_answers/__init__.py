"""Recorded answers of the authors' libraries for tiny text models: the rows, the folders, the recordings.

`python -m tests.text_answers.record` makes the models and asks the libraries; `tests/unit/core/backends/text` asks
Trident. A row is a kind of model, the files of its folder that differ from the plain ones, and a call.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

import trident  # noqa: F401  # before the libraries that would tell their makers of their use

HERE = Path(__file__).parent
RECORDED = HERE / "recorded.json"
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
WORDS = (
    *SPECIAL, "ask", "this", ":", "a", "cat", "sat", "on", "the", "mat", "un", "##happy", "who", "blue", "pages", "has",
    "book", "anna", "lives", "in", "paris", "and", "berlin", "example", "is", ".", "##s", "?", "é", "e", "about", "A",
    "Cat", "good", "bad", "##ly",
)  # fmt: skip
SIZE, LONGEST = 8, 64
# Of each kind of model: its class in transformers, and its labels.
KINDS: Mapping[str, tuple[str, Sequence[str]]] = {
    "encoder": ("BertModel", ()),
    "classifier": ("BertForSequenceClassification", ("contradiction", "neutral", "entailment")),
    "ranker": ("BertForSequenceClassification", ("LABEL_0",)),
    "tagger": ("BertForTokenClassification", ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")),
    "reader": ("BertForQuestionAnswering", ()),
    "filler": ("BertForMaskedLM", ()),
}
MEAN = {"word_embedding_dimension": SIZE, "pooling_mode_mean_tokens": True}


@dataclass(frozen=True, kw_only=True)
class Row:
    """A call: `inputs` of the task by name, `options` as the library's keyword arguments.

    `files` are JSON files of the folder, merged into the plain ones. `modules` are those of sentence-transformers
    behind the first. `tokenizer` is one of TOKENIZERS.
    """

    name: str
    kind: str
    inputs: Mapping[str, Any]
    options: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, Any] = field(default_factory=dict)
    modules: Sequence[str] = ()
    task: str = ""
    lowercase: bool = True
    tokenizer: str = "words"

    @property
    def is_embedder(self) -> bool:
        return bool(self.modules)

    @property
    def by(self) -> str:
        """The library that is asked."""
        return "sentence-transformers" if self.is_embedder or self.kind == "ranker" else "transformers"


def embedder(name: str, *texts: str, modules: Sequence[str] = ("Pooling",), **more: Any) -> Row:
    files = {"1_Pooling/config.json": MEAN, **more.pop("files", {})}
    options = more.pop("options", {})
    return Row(name=name, kind="encoder", inputs={"text": texts}, modules=modules, files=files, options=options, **more)


def pipeline(name: str, kind: str, task: str, inputs: Mapping[str, Any], **options: Any) -> Row:
    files, made = options.pop("files", {}), options.pop("tokenizer", "words")
    return Row(name=name, kind=kind, task=task, inputs=inputs, options=options, files=files, tokenizer=made)


def pooling(**flags: Any) -> dict[str, Any]:
    plain = {"word_embedding_dimension": SIZE, "pooling_mode_mean_tokens": False}
    return {"1_Pooling/config.json": {**plain, **flags}}


def sentence(**settings: Any) -> dict[str, Any]:
    return {"sentence_bert_config.json": settings}


def cross_encoder(**settings: Any) -> dict[str, Any]:
    transformer = {
        "idx": 0,
        "name": "0",
        "path": "",
        "type": "sentence_transformers.base.modules.transformer.Transformer",
    }
    forward = {"method": "forward", "method_output_name": "logits"}
    return {
        "modules.json": {"": [transformer]},
        "config_sentence_transformers.json": {"model_type": "CrossEncoder", **settings},
        "sentence_bert_config.json": {
            "transformer_task": "sequence-classification",
            "modality_config": {"text": forward},
            "module_output_name": "scores",
        },
    }


def tokens(**settings: Any) -> dict[str, Any]:
    return {"tokenizer_config.json": settings}


def byte_level(**settings: Any) -> dict[str, Any]:
    named = {"bos_token": "[CLS]", "eos_token": "[SEP]", "tokenizer_class": "RobertaTokenizer"}
    return tokens(**{**named, **settings})


ENDS = {
    "bos_token": "[CLS]",
    "eos_token": "[SEP]",
    "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
}
BYTES = "anna is in paris and a cat sat on the sofa . who has been there ?"
PROMPTS = {"prompts": {"query": "ask this: ", "document": ""}, "default_prompt_name": "query"}
CAT, LONG, MANY = "a cat sat", "the cat sat on the mat . who has a blue book ?", "a cat sat on the mat"
STORY = "anna lives in paris and who sat on the mat is in berlin . the unhappy cats lives in paris ."
TAG, CLASSIFY, FILL = "token-classification", "text-classification", "fill-mask"
NLI, ASK = "zero-shot-classification", "question-answering"
IDENTITY = "torch.nn.modules.linear.Identity"
STORY_ASKED = {"question": ["who lives in paris ?"], "context": [STORY]}

ROWS: tuple[Row, ...] = (
    # --- sentence-transformers: pooling
    embedder("mean", CAT, LONG, ""),
    embedder("cls", CAT, LONG, files=pooling(pooling_mode_cls_token=True)),
    embedder("max", CAT, LONG, files=pooling(pooling_mode_max_tokens=True)),
    embedder("last token", CAT, LONG, files=pooling(pooling_mode_lasttoken=True)),
    embedder("mean by root of length", CAT, LONG, files=pooling(pooling_mode_mean_sqrt_len_tokens=True)),
    embedder("weighted mean", CAT, LONG, files=pooling(pooling_mode_weightedmean_tokens=True)),
    embedder(
        "three joined",
        *(CAT, LONG),
        files=pooling(pooling_mode_max_tokens=True, pooling_mode_cls_token=True, pooling_mode_lasttoken=True),
    ),
    embedder("newer name", CAT, files={"1_Pooling/config.json": {"embedding_dimension": SIZE, "pooling_mode": "cls"}}),
    embedder(
        "newer names joined",
        CAT,
        files={"1_Pooling/config.json": {"embedding_dimension": SIZE, "pooling_mode": ["max", "mean"]}},
    ),
    # --- sentence-transformers: other modules
    embedder("normalize", CAT, LONG, modules=("Pooling", "Normalize")),
    embedder("dense", CAT, LONG, modules=("Pooling", "Dense")),
    embedder(
        "dense without activation",
        CAT,
        modules=("Pooling", "Dense", "Normalize"),
        files={"2_Dense/config.json": {"activation_function": "torch.nn.modules.linear.Identity"}},
    ),
    embedder(
        "dense gelu",
        CAT,
        modules=("Pooling", "Dense"),
        files={"2_Dense/config.json": {"activation_function": "torch.nn.modules.activation.GELU"}},
    ),
    embedder("layer norm", CAT, LONG, modules=("Pooling", "LayerNorm")),
    embedder("dropout", CAT, modules=("Pooling", "Dropout")),
    # --- sentence-transformers: settings
    embedder("default prompt", CAT, files={"config_sentence_transformers.json": PROMPTS}),
    embedder(
        "prompt by name", CAT, files={"config_sentence_transformers.json": PROMPTS}, options={"prompt_name": "document"}
    ),
    embedder(
        "prompt that every model has",
        CAT,
        files={"config_sentence_transformers.json": {"prompts": {"a": "ask this: "}, "default_prompt_name": "a"}},
        options={"prompt_name": "query"},
    ),
    *(
        embedder(
            f"prompt not pooled, {name}",
            *(CAT, "a", ""),
            files={**pooling(**{flag: True}, include_prompt=False), "config_sentence_transformers.json": PROMPTS},
        )
        for name, flag in (
            ("mean", "pooling_mode_mean_tokens"),
            ("cls", "pooling_mode_cls_token"),
            ("weighted", "pooling_mode_weightedmean_tokens"),
            ("last", "pooling_mode_lasttoken"),
        )
    ),
    embedder("do_lower_case of the module", "A CAT", files=sentence(do_lower_case=True), lowercase=False),
    embedder("do_lower_case of the tokenizer", "A CAT", files=tokens(do_lower_case=True), lowercase=False),
    embedder("do_lower_case false", "A Cat", files=tokens(do_lower_case=False)),
    *(
        embedder(
            f"pieces, {name}",
            *("A Cat sat", "é e\u0301 É ``a''", "SAD  cAr"),
            tokenizer="pieces",
            files=tokens(tokenizer_class="AlbertTokenizer", **settings),
        )
        for name, settings in (
            ("as they are", {}),
            ("upper case", {"do_lower_case": False}),
            ("accents", {"keep_accents": True, "do_lower_case": False}),
            ("without a space before", {"add_prefix_space": False}),
        )
    ),
    *(
        embedder(
            f"pieces of RemBert, {name}",
            *("A Cat sat", "é e\u0301", "  SAD   cAr "),
            tokenizer="pieces",
            lowercase=False,
            files=tokens(tokenizer_class="RemBertTokenizer", **settings),
        )
        for name, settings in (
            ("as they are", {}),
            ("lower case", {"do_lower_case": True}),
            ("without accents", {"keep_accents": False}),
            ("without a space before", {"add_prefix_space": False}),
        )
    ),
    *(
        embedder(
            f"case and accents of {kind}", "A Cat é e\u0301",
            files=tokens(tokenizer_class=f"{kind}Tokenizer", do_lower_case=False, strip_accents=True),
        )
        for kind in ("SqueezeBert", "MobileBert", "LayoutLM", "Lxmert", "ConvBert")
    ),
    *(
        embedder(
            f"pieces of {kind}, {name}", "A SAD  cAr ", tokenizer=made,
            lowercase=False, files=tokens(tokenizer_class=f"{kind}Tokenizer", **{**ENDS, **settings}),
        )
        for kind, made, name, settings in (
            ("XLMRoberta", "pieces", "without a space before", {"add_prefix_space": False}),
            ("Camembert", "pieces", "without a space before", {"add_prefix_space": False}),
            ("DebertaV2", "pieces", "lower case", {"do_lower_case": True}),
            ("XLNet", "pieces", "as they are", {"model_input_names": ["input_ids", "attention_mask"]}),
            (
                "XLNet", "pieces", "lower case",
                {"model_input_names": ["input_ids", "attention_mask"], "do_lower_case": True, "keep_accents": True},
            ),
        )
    ),
    *(
        embedder(
            f"spaces of {kind}", "  a  cat sat [MASK] a  ", tokenizer="unsplit pieces",
            files=tokens(tokenizer_class=f"{kind}Tokenizer", src_lang="[MASK]", **ENDS),
        )
        for kind in ("XLMRoberta", "Camembert", "T5", "MBart")
    ),
    *(
        embedder(
            f"begin and end, {name}", "a cat sat", tokenizer="bytes",
            files=byte_level(**{"add_bos_token": True, "add_eos_token": False, "tokenizer_class": kind}),
        )
        for name, kind in (
            ("of tokenizer.json", "PreTrainedTokenizerFast"),
            ("of Llama", "LlamaTokenizer"),
            ("of GPTNeoX", "GPTNeoXTokenizer"),
        )
    ),
    embedder("other tokens around a text", CAT, files=tokens(cls_token="[MASK]", sep_token="cat")),
    embedder("tokenizer_args", "A Cat sat", files=sentence(tokenizer_args={"do_lower_case": False})),
    embedder("processing_kwargs", MANY, files=sentence(processing_kwargs={"text": {"max_length": 4}})),
    embedder("strip_accents", "é e", files=tokens(strip_accents=False)),
    embedder("strip_accents by default", "é e"),
    embedder("truncation_side", MANY, files={**tokens(truncation_side="left"), **sentence(max_seq_length=4)}),
    embedder("truncation_side of tokenizer.json", MANY, tokenizer="cut", files=sentence(max_seq_length=4)),
    embedder(
        "tokens of other files", "unhappy books",
        files=tokens(
            tokenizer_class="PreTrainedTokenizerFast", additional_special_tokens=["book"],
            added_tokens_decoder={str(WORDS.index("un")): {"content": "un", "special": False}},
        ),
    ),
    embedder(
        "tokens by the newer name", "unhappy books cats",
        files=tokens(
            tokenizer_class="PreTrainedTokenizerFast", additional_special_tokens=["book"], extra_special_tokens=["cat"],
        ),
    ),
    embedder(
        "tokens of the settings before those of the map", "unhappy books cats",
        files={
            **tokens(tokenizer_class="PreTrainedTokenizerFast", additional_special_tokens=["book"]),
            "special_tokens_map.json": {"additional_special_tokens": ["cat"]},
        },
    ),
    embedder(
        "tokenizer_class of config.json", "a cat sat", tokenizer="bytes",
        files={
            **tokens(tokenizer_class=None, add_prefix_space=True, bos_token="[CLS]", eos_token="[SEP]"),
            "config.json": {"tokenizer_class": "RobertaTokenizer"},
        },
    ),
    *(
        embedder(
            f"named tokens, {name}", *("a [MASK] cat", "a  cats book", "(cat)s unhappy"), tokenizer="without added",
            files=files,
        )
        for name, files in (
            ("by the class", {"tokenizer_config.json": {"": {"tokenizer_class": "BertTokenizer"}}}),
            ("by the model", {"tokenizer_config.json": {"": {}}}),
            ("by the settings", tokens(tokenizer_class="PreTrainedTokenizerFast", sep_token="cat", eos_token="book")),
            (
                "with properties",
                tokens(tokenizer_class="PreTrainedTokenizerFast", sep_token={
                    "__type": "AddedToken", "content": "cat", "lstrip": True, "rstrip": True, "single_word": True,
                    "normalized": False,
                }),
            ),
            ("by names of its own", tokens(tokenizer_class="PreTrainedTokenizerFast", image_token="cat")),
            (
                "of the map",
                {
                    **tokens(tokenizer_class="PreTrainedTokenizerFast", sep_token="un"),
                    "special_tokens_map.json": {"sep_token": {"content": "cat", "single_word": True}},
                },
            ),
            (
                "of a map that is too old",
                {
                    **tokens(tokenizer_class="PreTrainedTokenizerFast", added_tokens_decoder={}),
                    "special_tokens_map.json": {"sep_token": "cat"},
                },
            ),
        )
    ),
    embedder("max_seq_length", MANY, files={**tokens(model_max_length=4), **sentence(max_seq_length=64)}),
    embedder("model_max_length", MANY, files=tokens(model_max_length=4)),
    embedder("truncate_dim", CAT, files={"config_sentence_transformers.json": {"truncate_dim": 3}}),
    embedder(
        "truncate_dim after normalize",
        CAT,
        modules=("Pooling", "Normalize"),
        files={"config_sentence_transformers.json": {"truncate_dim": 3}},
    ),
    embedder("normalize when asked", CAT, LONG, options={"normalize_embeddings": True}),
    # --- pipelines: classification
    pipeline("labels", "classifier", CLASSIFY, {"text": [CAT, LONG]}, top_k=None),
    pipeline("each label", "classifier", CLASSIFY, {"text": [CAT]}, top_k=None, function_to_apply="sigmoid"),
    pipeline("logits", "classifier", CLASSIFY, {"text": [CAT]}, top_k=None, function_to_apply="none"),
    pipeline("pairs", "classifier", CLASSIFY, {"text": [CAT, MANY], "text_pair": [LONG, CAT]}, top_k=None),
    pipeline(
        "pairs without types", "classifier", CLASSIFY, {"text": [CAT], "text_pair": [LONG]}, top_k=None,
        files=tokens(model_input_names=["input_ids", "attention_mask"]),
    ),
    pipeline(
        "pairs without special tokens", "classifier", CLASSIFY, {"text": [CAT], "text_pair": [LONG]}, top_k=None,
        tokenizer="bare", files=tokens(
            tokenizer_class="PreTrainedTokenizerFast",
            model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        ),
    ),
    pipeline(
        "pairs of Albert", "classifier", CLASSIFY, {"text": [CAT], "text_pair": [LONG]}, top_k=None,
        tokenizer="untyped pieces", files=tokens(
            tokenizer_class="AlbertTokenizer", model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        ),
    ),
    *(
        pipeline(
            f"pairs of {kind}{name}", "classifier", CLASSIFY, {"text": [CAT], "text_pair": ["a sat"]}, top_k=None,
            tokenizer=made, files=tokens(tokenizer_class=f"{kind}Tokenizer", **{**ENDS, **settings}),
        )
        for kind, made, name, settings in (
            ("MPNet", "words", "", {}),
            ("MPNet", "bare", " without a processor", {}),
            ("MPNet", "words", " with other tokens", {"cls_token": "cat", "sep_token": "[MASK]"}),
            ("Roberta", "bytes", " with other tokens", {"cls_token": "[MASK]", "sep_token": "[PAD]"}),
            ("XLMRoberta", "pieces", "", {}),
            ("XLMRoberta", "pieces", " with other tokens", {"bos_token": "[MASK]", "eos_token": "[PAD]"}),
            ("Camembert", "pieces", "", {}),
            ("DebertaV2", "untyped pieces", "", {}),
            ("Deberta", "bytes", " with a space", {"add_prefix_space": True}),
            ("Mvp", "bytes", " with a space", {"add_prefix_space": True}),
            ("Luke", "bytes", " with other tokens", {"cls_token": "[MASK]", "sep_token": "[PAD]"}),
            ("Funnel", "words", "", {"model_input_names": ["input_ids", "attention_mask"]}),
            ("XLNet", "pieces", "", {"model_input_names": ["input_ids", "attention_mask"]}),
            ("MBart", "pieces", "", {"src_lang": "[MASK]"}),
            ("T5", "pieces", "", {}),
        )
    ),
    pipeline(
        "second text that is empty", "classifier", CLASSIFY, {"text": [CAT, CAT], "text_pair": ["", "a"]}, top_k=None,
    ),
    pipeline(
        "special tokens as text", "classifier", CLASSIFY, {"text": ["a [MASK] [SEP] [PAD]"]}, top_k=None,
        files=tokens(split_special_tokens=True),
    ),
    pipeline(
        "CrossEncoder's activation of three labels", "classifier", CLASSIFY, {"text": [CAT]}, top_k=None,
        files={"config.json": {"sentence_transformers": {"activation_fn": IDENTITY}}},
    ),
    *(
        pipeline(f"problem_type {kind}", "classifier", CLASSIFY, {"text": [CAT]}, top_k=None, files={"config.json": {
            "problem_type": kind}})
        for kind in ("regression", "multi_label_classification", "single_label_classification")
    ),
    pipeline(
        "labels by num_labels", "classifier", CLASSIFY, {"text": [CAT]}, top_k=None,
        files={"config.json": {"num_labels": 3, "id2label": {"0": "good", "1": "bad"}}},
    ),
    # --- pipelines: zero shot
    *(
        pipeline(
            f"entailment by label2id, {name}", "classifier", NLI, {"text": [CAT], "candidate_labels": labels},
            files={"config.json": {"label2id": {"no": 0, "Entails": 1, "yes": 2}}},
        )
        for name, labels in (("one label", ["cat"]), ("two labels", ["cat", "who has a blue book ?"]))
    ),
    pipeline("several labels", "classifier", NLI, {"text": [CAT, LONG], "candidate_labels": ["cat", "blue book", "a"]}),
    pipeline("one label", "classifier", NLI, {"text": [CAT, LONG], "candidate_labels": ["cat"]}),
    pipeline(
        "problem_type of zero shot", "classifier", NLI, {"text": [CAT], "candidate_labels": ["cat", "mat"]},
        files={"config.json": {"problem_type": "multi_label_classification"}},
    ),
    pipeline("any label", "classifier", NLI, {"text": [CAT], "candidate_labels": ["cat", "mat"]}, multi_label=True),
    pipeline(
        "hypothesis", "classifier", NLI, {"text": [CAT], "candidate_labels": ["cat", "mat"]},
        hypothesis_template="is this about {} ?",
    ),
    pipeline(
        "hypothesis with braces", "classifier", NLI, {"text": [CAT], "candidate_labels": ["cat", "mat"]},
        hypothesis_template="{0} is {{a}} {0} ?", multi_label=True,
    ),
    # --- CrossEncoder
    *(
        pipeline(name, "ranker", "text-ranking", {"query": ["a cat", ""], "text": [LONG, CAT]}, files=files)
        for name, files in (
            ("rank", {}),
            ("rank without activation", cross_encoder(activation_fn=IDENTITY)),
            ("rank by older name", {"config.json": {"sbert_ce_default_activation_function": IDENTITY}}),
            ("rank with code as activation", cross_encoder(activation_fn="own.Identity")),
            ("rank with prompt", cross_encoder(**PROMPTS)),
        )
    ),
    pipeline(
        "rank with prompt by name", "ranker", "text-ranking", {"query": ["a cat"], "text": [LONG]},
        files=cross_encoder(prompts={"a": "ask this: "}), prompt_name="a",
    ),
    # --- pipelines: entities
    *(
        pipeline(f"entities, {strategy}", "tagger", TAG, {"text": [STORY, "anna"]}, aggregation_strategy=strategy)
        for strategy in ("none", "simple", "first", "average", "max")
    ),
    pipeline("entities by default", "tagger", TAG, {"text": [STORY]}),
    pipeline("all tokens", "tagger", TAG, {"text": [STORY]}, ignore_labels=[], aggregation_strategy="none"),
    pipeline("other labels", "tagger", TAG, {"text": [STORY]}, ignore_labels=["PER"], aggregation_strategy="simple"),
    pipeline(
        "entities in parts", "tagger", TAG, {"text": [STORY]}, aggregation_strategy="simple", stride=3,
        files=tokens(model_max_length=12),
    ),
    pipeline(
        "entities in parts from the end", "tagger", TAG, {"text": [STORY]}, aggregation_strategy="simple", stride=3,
        files=tokens(model_max_length=12, truncation_side="left"),
    ),
    pipeline(
        "entities of the end", "tagger", TAG, {"text": [STORY]},
        files=tokens(model_max_length=12, truncation_side="left"),
    ),
    *(
        pipeline(
            f"entities of bytes, {name}", "tagger", TAG, {"text": [BYTES, " is a cat"]}, tokenizer="bytes",
            files=byte_level(**settings), **options,
        )
        for name, settings, options in (
            ("each", {}, {}),
            ("words", {}, {"aggregation_strategy": "first"}),
            ("with a space", {"add_prefix_space": True}, {"aggregation_strategy": "simple"}),
            ("in parts", {"model_max_length": 14}, {"aggregation_strategy": "simple", "stride": 3}),
            (
                "in parts with a space", {"model_max_length": 14, "add_prefix_space": True},
                {"aggregation_strategy": "max", "stride": 3, "ignore_labels": []},
            ),
            (
                "in parts from the end with a space",
                {"model_max_length": 14, "add_prefix_space": True, "truncation_side": "left"},
                {"aggregation_strategy": "simple", "stride": 2, "ignore_labels": []},
            ),
        )
    ),
    # --- pipelines: masks
    pipeline("mask", "filler", FILL, {"text": ["the [MASK] sat on the mat"]}),
    pipeline(
        "mask of the map", "filler", FILL, {"text": ["the cat sat on the mat"]},
        files={"special_tokens_map.json": {"mask_token": "cat"}},
    ),
    pipeline("decoder of the class", "filler", FILL, {"text": ["the [MASK] , sat . a"]}, tokenizer="cut"),
    pipeline(
        "targets of several tokens, cut on the left", "filler", FILL, {"text": ["the [MASK] sat"]},
        targets=["blue book"], tokenizer="cut",
    ),
    pipeline(
        "pad token of tokenizer.json", "filler", FILL, {"text": ["the cat [MASK] sat"]}, tokenizer="padded",
        files={"tokenizer_config.json": {"": {"tokenizer_class": "PreTrainedTokenizerFast", "mask_token": "[MASK]"}}},
    ),
    pipeline("two masks", "filler", FILL, {"text": ["the [MASK] sat on [MASK]"]}, top_k=2),
    pipeline("targets", "filler", FILL, {"text": ["the [MASK] sat"]}, targets=["cat", "mat", "book"]),
    pipeline(
        "spaces before punctuation", "filler", FILL, {"text": ["the [MASK] , sat . a cat ' s mat ? ' m"]},
        files=tokens(clean_up_tokenization_spaces=True),
    ),
    # --- pipelines: questions
    pipeline("answer", "reader", ASK, STORY_ASKED),
    pipeline("three answers", "reader", ASK, STORY_ASKED, top_k=3),
    pipeline("short answers", "reader", ASK, STORY_ASKED, top_k=3, max_answer_len=2),
    pipeline("no answer", "reader", ASK, STORY_ASKED, top_k=4, handle_impossible_answer=True),
    pipeline("parts of words", "reader", ASK, STORY_ASKED, top_k=3, align_to_words=False),
    pipeline("in parts", "reader", ASK, STORY_ASKED, top_k=2, max_seq_len=20, doc_stride=4),
    *(
        pipeline(f"in parts of {most}", "reader", ASK, STORY_ASKED, top_k=3, max_seq_len=most, doc_stride=2)
        for most in (12, 13, 14)
    ),
    pipeline(
        "in parts from the end", "reader", ASK, STORY_ASKED, top_k=2, max_seq_len=20, doc_stride=4,
        files=tokens(truncation_side="left"),
    ),
    *(
        pipeline(
            f"answers in bytes{name}", "reader", ASK, {"question": ["who is in paris ?"], "context": [BYTES * 2]},
            tokenizer="bytes", files=byte_level(**settings), top_k=3, max_seq_len=34, doc_stride=5, **options,
        )
        for name, settings, options in (
            ("", {}, {}),
            (" with a space", {"add_prefix_space": True}, {}),
            (" with a space, parts of words", {"add_prefix_space": True}, {"align_to_words": False}),
        )
    ),
    pipeline(
        "answers that are only space", "reader", ASK,
        {"question": ["at bad . cat"], "context": ["blue   un  on blue e a in this  a "]},
        tokenizer="bytes", files=byte_level(add_prefix_space=True), max_answer_len=2, max_seq_len=20, doc_stride=4,
    ),
    pipeline(
        "answers without types", "reader", ASK, STORY_ASKED, top_k=2,
        files=tokens(model_input_names=["input_ids", "attention_mask"]),
    ),
    pipeline("long context", "reader", ASK, {**STORY_ASKED, "context": [STORY * 4]}, top_k=2),
)  # fmt: skip


def write_folder(folder: Path, row: Row) -> Path:
    """Write the folder of `row`, with the graph that was made with the recording."""
    architecture, labels = KINDS[row.kind]
    plain: dict[str, dict[str, Any]] = {
        "config.json": {
            "architectures": [architecture],
            "model_type": "bert",
            "vocab_size": len(WORDS),
            "hidden_size": SIZE,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "intermediate_size": SIZE,
            "max_position_embeddings": LONGEST,
            **(
                {"id2label": dict(enumerate(labels)), "label2id": {n: i for i, n in enumerate(labels)}}
                if labels
                else {}
            ),
        },
        "tokenizer_config.json": {
            "tokenizer_class": "BertTokenizer",
            "model_max_length": LONGEST,
            "do_lower_case": row.lowercase,
            **{f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")},
        },
    }
    if row.modules:
        names = ("Transformer", *row.modules)
        paths = [f"{at}_{name}" if at else "" for at, name in enumerate(names)]
        rows = zip(names, paths, strict=True)
        plain["modules.json"] = {"": [
            {"idx": at, "name": str(at), "path": path, "type": f"sentence_transformers.models.{name}"}
            for at, (name, path) in enumerate(rows)
        ]}  # fmt: skip
        for name, path in zip(names, paths, strict=True):
            if name == "Dense":
                plain[f"{path}/config.json"] = {
                    "in_features": SIZE,
                    "out_features": SIZE - 2,
                    "bias": True,
                    "activation_function": "torch.nn.modules.activation.Tanh",
                }
                _weights(folder / path, {"linear.weight": (SIZE - 2, SIZE), "linear.bias": (SIZE - 2,)})
            elif name == "LayerNorm":
                plain[f"{path}/config.json"] = {"dimension": SIZE}
                _weights(folder / path, {"norm.weight": (SIZE,), "norm.bias": (SIZE,)})
            elif name == "Dropout":
                plain[f"{path}/config.json"] = {"dropout": 0.1}
    for name, settings in row.files.items():
        plain[name] = settings if "" in settings else {**plain.get(name, {}), **settings}
    for name, content in plain.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(json.dumps(content.get("", content)))
    TOKENIZERS[row.tokenizer](row.lowercase).save(str(folder / "tokenizer.json"))
    graph = HERE / f"{row.kind}.onnx"
    if graph.is_file():
        shutil.copy(graph, folder / "model.onnx")
    return folder


def tokenizer(lowercase: bool) -> Any:
    made = Tokenizer(models.WordPiece({word: at for at, word in enumerate(WORDS)}, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece(prefix="##")
    made.add_special_tokens(list(SPECIAL))
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return made


def cut_tokenizer(lowercase: bool) -> Any:
    """The same with settings of its own."""
    made = tokenizer(lowercase)
    made.enable_truncation(LONGEST, direction="left")
    made.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    return made


def padded_tokenizer(lowercase: bool) -> Any:
    """The same with a token for padding that no other file names."""
    made = tokenizer(lowercase)
    made.enable_padding(pad_id=WORDS.index("cat"), pad_token="cat")
    return made


def bare_tokenizer(lowercase: bool) -> Any:
    """The same without special tokens around a text."""
    made = tokenizer(lowercase)
    made.post_processor = None
    return made


def plain_tokenizer(lowercase: bool) -> Any:
    """The same without added tokens: the special ones are words."""
    written = json.loads(tokenizer(lowercase).to_str())
    return Tokenizer.from_str(json.dumps({**written, "added_tokens": []}))


def byte_tokenizer(lowercase: bool) -> Any:
    """Pairs of bytes for words of few letters, as RoBERTa has it; the vocabulary is no larger than WORDS."""
    merges = [("\u0120", "a"), ("a", "t"), ("\u0120", "s"), ("\u0120s", "at"), ("n", "n")]
    letters = [*SPECIAL, "\u0120", *"abcdefhilnoprstuvw.?", *("".join(pair) for pair in merges)]
    made = Tokenizer(models.BPE({piece: at for at, piece in enumerate(letters)}, merges, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(list(SPECIAL))
    made.post_processor = processors.RobertaProcessing(("[SEP]", 3), ("[CLS]", 2), add_prefix_space=False)
    return made


def piece_tokenizer(lowercase: bool) -> Any:
    """Pieces of words, as Albert has it."""
    pieces = [*SPECIAL, "\u2581", "\u2581a", "\u2581c", "at", "\u2581s", "\u0301", *"abcdefhinorstACDSÉé"]
    made = Tokenizer(models.Unigram([(piece, -float(at) / 9) for at, piece in enumerate(pieces)], 1, False))
    accents = [normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase()]
    made.normalizer = normalizers.Sequence(accents if lowercase else [])
    made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    made.decoder = decoders.Metaspace()
    made.add_special_tokens(list(SPECIAL))
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return made


def unsplit_piece_tokenizer(lowercase: bool) -> Any:
    """The same without a split at spaces, as newer files have it."""
    made = piece_tokenizer(lowercase)
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    return made


def untyped_piece_tokenizer(lowercase: bool) -> Any:
    """The same with one type for both texts of a pair."""
    made = piece_tokenizer(lowercase)
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return made


TOKENIZERS = {
    "words": tokenizer,
    "cut": cut_tokenizer,
    "bare": bare_tokenizer,
    "padded": padded_tokenizer,
    "without added": plain_tokenizer,
    "bytes": byte_tokenizer,
    "pieces": piece_tokenizer,
    "unsplit pieces": unsplit_piece_tokenizer,
    "untyped pieces": untyped_piece_tokenizer,
}


def _weights(folder: Path, shapes: Mapping[str, tuple[int, ...]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    numbers = np.random.default_rng(len(shapes))
    made = {name: numbers.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    save_file(made, str(folder / "model.safetensors"))
