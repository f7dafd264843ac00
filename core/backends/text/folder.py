"""The folder of a text model: what its files and the parameters of its configuration say, and its tokenizer.

What transformers and sentence-transformers read in a folder is read here, and what cannot be honoured is an error of
the load. Nothing in the folder is executed: its code (`auto_map` in `config.json`), which transformers runs with
`trust_remote_code`, is ignored, and nothing is fetched.
Source: the files that transformers and sentence-transformers write (`save_pretrained`), and how they read them;
docs/text-models.md.
"""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import Unigram

from trident.core.backends.model_files import at_least_one, boolean, content_hint, field_of, parameters_of
from trident.core.config.problem import is_plain, read_file
from trident.core.config.schema import ModelConfig
from trident.core.errors import ConfigInvalid, ModelLoadFailed

_log = logging.getLogger("trident.backends")

CONFIG, TOKENIZER = "config.json", "tokenizer.json"
# Bytes. The largest known tokenizer.json has 35 MB.
_LARGEST_JSON = 256 << 20
# What transformers writes for "no limit" is about 1e30.
_NO_LIMIT = 1 << 24


class TaskName(Enum):
    """The tasks, by the names that the Hub has for them."""

    FEATURE_EXTRACTION = "feature-extraction"
    TEXT_CLASSIFICATION = "text-classification"
    TOKEN_CLASSIFICATION = "token-classification"
    TEXT_RANKING = "text-ranking"
    FILL_MASK = "fill-mask"
    ZERO_SHOT_CLASSIFICATION = "zero-shot-classification"
    QUESTION_ANSWERING = "question-answering"


class Pooling(Enum):
    """How the vectors of a text's tokens become one."""

    MEAN = "mean"
    CLS = "cls"
    LAST_TOKEN = "last-token"
    MAX = "max"
    MEAN_SQRT_LENGTH = "mean-sqrt-len"
    WEIGHTED_MEAN = "weighted-mean"


class Similarity(Enum):
    """How alike two vectors are, by the names of sentence-transformers."""

    COSINE = "cosine"
    DOT = "dot"
    EUCLIDEAN = "euclidean"
    MANHATTAN = "manhattan"


class Activation(Enum):
    """The function that makes scores of logits."""

    SOFTMAX = "softmax"
    SIGMOID = "sigmoid"
    NONE = "none"


# The ends of the names of architectures, in `config.json`.
_ARCHITECTURES = {
    "ForSequenceClassification": TaskName.TEXT_CLASSIFICATION,
    "ForTokenClassification": TaskName.TOKEN_CLASSIFICATION,
    "ForQuestionAnswering": TaskName.QUESTION_ANSWERING,
    "ForMaskedLM": TaskName.FILL_MASK,
}
# sentence-transformers joins several vectors in this order. The first name is that of a flag, which it wrote before it
# wrote `pooling_mode`, the second its value there.
_POOLING = {
    ("pooling_mode_cls_token", "cls"): Pooling.CLS,
    ("pooling_mode_max_tokens", "max"): Pooling.MAX,
    ("pooling_mode_mean_tokens", "mean"): Pooling.MEAN,
    ("pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_len_tokens"): Pooling.MEAN_SQRT_LENGTH,
    ("pooling_mode_weightedmean_tokens", "weightedmean"): Pooling.WEIGHTED_MEAN,
    ("pooling_mode_lasttoken", "lasttoken"): Pooling.LAST_TOKEN,
}
# The settings of sentence-transformers' first module are in one of these.
_TRANSFORMER_FILES = (
    "sentence_bert_config.json",
    "sentence_roberta_config.json",
    "sentence_distilbert_config.json",
    "sentence_camembert_config.json",
    "sentence_albert_config.json",
    "sentence_xlm-roberta_config.json",
    "sentence_xlnet_config.json",
)
# What they have without effect on vectors of texts, or in agreement with what is done here.
_PLAIN_SETTINGS = {
    "max_seq_length",
    "do_lower_case",
    "transformer_task",
    "modality_config",
    "module_output_name",
    "processing_kwargs",
    "processor_kwargs",
    "tokenizer_args",
    "unpad_inputs",
}
# What a call of the tokenizer may be told in agreement with what is done here.
_PLAIN_CALLS: Mapping[str, tuple[Any, ...]] = {
    "add_special_tokens": (True,),
    "padding": (True, "longest", "max_length"),
    "return_tensors": ("pt",),
    "truncation": (True, "longest_first"),
}
# Tokenizers that transformers builds anew from these settings of tokenizer_config.json, whatever tokenizer.json says.
_BERT_TOKENIZERS = {
    *("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer", "MobileBertTokenizer", "SqueezeBertTokenizer"),
    *("LayoutLMTokenizer", "LxmertTokenizer", "DPRQuestionEncoderTokenizer", "DPRContextEncoderTokenizer"),
}
_LOWERING_TOKENIZERS = {*_BERT_TOKENIZERS, "MPNetTokenizer", "FunnelTokenizer", "SplinterTokenizer"}
# Tokenizers that put a space before a text as `add_prefix_space` says, whatever tokenizer.json says.
_ROBERTA_TOKENIZERS = {
    *("RobertaTokenizer", "BartTokenizer", "LongformerTokenizer", "LEDTokenizer", "MvpTokenizer", "LukeTokenizer"),
}
_BYTE_TOKENIZERS = {*_ROBERTA_TOKENIZERS, "CodeGenTokenizer", "DebertaTokenizer", "GPT2Tokenizer", "GPTNeoXTokenizer"}
# Tokenizers of pieces whose spaces, accents and case are as the settings say, whatever tokenizer.json says.
_PIECE_TOKENIZERS = {"AlbertTokenizer", "RemBertTokenizer", "XLNetTokenizer"}
# Tokenizers of pieces that split a text at spaces first, whatever tokenizer.json says.
_SPLITTING_TOKENIZERS = {
    *(
        "AlbertTokenizer",
        "CamembertTokenizer",
        "MBartTokenizer",
        "T5Tokenizer",
        "XLMRobertaTokenizer",
        "XLNetTokenizer",
    ),
}
# Tokenizers of pieces that may leave out the space before a text.
_SPACING_TOKENIZERS = {"AlbertTokenizer", "CamembertTokenizer", "RemBertTokenizer", "XLMRobertaTokenizer"}
# The tokenizers of models whose files name none.
_MODEL_TOKENIZERS: Mapping[str, str] = {
    **dict.fromkeys(
        (
            *("bert", "distilbert", "electra", "convbert", "nomic_bert", "megatron-bert", "ernie", "mobilebert"),
            *("squeezebert", "layoutlm", "lxmert", "visual_bert"),
        ),
        "BertTokenizer",
    ),
    **dict.fromkeys(
        (
            *("roberta", "bart", "longformer", "led", "mvp", "ibert", "data2vec-text", "roberta-prelayernorm", "mra"),
            "lilt",
        ),
        "RobertaTokenizer",
    ),
    **dict.fromkeys(("xlm-roberta", "gte", "jina_embeddings_v3", "xmod"), "XLMRobertaTokenizer"),
    **dict.fromkeys(("t5", "mt5", "switch_transformers"), "T5Tokenizer"),
    **dict.fromkeys(("albert", "yoso"), "AlbertTokenizer"),
    "big_bird": "BigBirdTokenizer",
    "camembert": "CamembertTokenizer",
    "deberta": "DebertaTokenizer",
    "deberta-v2": "DebertaV2Tokenizer",
    "dpr": "DPRQuestionEncoderTokenizer",
    "funnel": "FunnelTokenizer",
    "gpt2": "GPT2Tokenizer",
    "gpt_neox": "GPTNeoXTokenizer",
    "luke": "LukeTokenizer",
    "mbart": "MBartTokenizer",
    "mpnet": "MPNetTokenizer",
    "rembert": "RemBertTokenizer",
    "roformer": "RoFormerTokenizer",
    "splinter": "SplinterTokenizer",
    "xlnet": "XLNetTokenizer",
}
# Models whose tokenizer is that of tokenizer.json, whatever class their files name.
_PLAIN_MODELS = {"modernbert", "nystromformer", "umt5", "xlm-roberta-xl"}
_NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
# Special tokens that a tokenizer has by its class, as `_NAMED` orders them; none where it has no such token.
_BERT_NAMES = ("", "", "[UNK]", "[SEP]", "[PAD]", "[CLS]", "[MASK]")
_DEBERTA_NAMES = ("[CLS]", "[SEP]", *_BERT_NAMES[2:])
_ALBERT_NAMES = ("[CLS]", "[SEP]", "<unk>", "[SEP]", "<pad>", "[CLS]", "[MASK]")
_ROBERTA_NAMES = ("<s>", "</s>", "<unk>", "</s>", "<pad>", "<s>", "<mask>")
_FUNNEL_NAMES = ("<s>", "</s>", "<unk>", "<sep>", "<pad>", "<cls>", "<mask>")
# Of these classes the names, and what goes around one text and around two, by name and with the type.
_BERT_ENDS = ("cls $A sep", "cls $A sep $B:1 sep:1")
_ROBERTA_ENDS = ("cls $A sep", "cls $A sep sep $B sep")
_BOS_ENDS = ("bos $A eos", "bos $A eos eos $B eos")
_CLASSES: Mapping[str, tuple[Sequence[str], tuple[str, str]]] = {
    **dict.fromkeys((*_BERT_TOKENIZERS, "ConvBertTokenizer"), (_BERT_NAMES, _BERT_ENDS)),
    **dict.fromkeys(_ROBERTA_TOKENIZERS, (_ROBERTA_NAMES, _ROBERTA_ENDS)),
    **dict.fromkeys(("AlbertTokenizer", "RemBertTokenizer"), (_ALBERT_NAMES, _BERT_ENDS)),
    "BigBirdTokenizer": (("<s>", "</s>", *_ALBERT_NAMES[2:]), _BERT_ENDS),
    "CamembertTokenizer": (_ROBERTA_NAMES, _BOS_ENDS),
    "DebertaTokenizer": (_DEBERTA_NAMES, _ROBERTA_ENDS),
    "DebertaV2Tokenizer": (_DEBERTA_NAMES, _BERT_ENDS),
    "FunnelTokenizer": (_FUNNEL_NAMES, ("cls:2 $A sep", "cls:2 $A sep $B:1 sep:1")),
    "GPTNeoXTokenizer": ((), ("$A", "$A $B:1")),
    "MBartTokenizer": (_ROBERTA_NAMES, ("$A eos lang", "$A $B eos lang")),
    "MPNetTokenizer": (("<s>", "</s>", "[UNK]", *_ROBERTA_NAMES[3:]), _ROBERTA_ENDS),
    "SplinterTokenizer": (_BERT_NAMES, ("cls $A sep", "cls $A question . sep $B:1 sep:1")),
    "T5Tokenizer": (("", "</s>", "<unk>", "", "<pad>", "", ""), ("$A eos", "$A eos $B eos")),
    "XLMRobertaTokenizer": (_ROBERTA_NAMES, _BOS_ENDS),
    "XLNetTokenizer": (_FUNNEL_NAMES, ("$A sep cls:2", "$A sep $B:1 sep:1 cls:2")),
}
# Special tokens of a class that have no name.
_UNNAMED: Mapping[str, Sequence[str]] = {
    "CamembertTokenizer": ("<s>NOTUSED", "</s>NOTUSED", "<unk>NOTUSED"),
    "XLNetTokenizer": ("<eop>", "<eod>"),
}
# Tokenizers whose mask takes the space before it.
_MASK_TAKES_SPACE = {"BigBirdTokenizer", "CamembertTokenizer", "MBartTokenizer", "MPNetTokenizer", "XLNetTokenizer"}
_Choice = TypeVar("_Choice", bound=Enum)


@dataclass(frozen=True, slots=True, kw_only=True)
class TextModel:
    """The settings in a folder and in the parameters of its configuration.

    `file` is the ONNX file below the folder, `inner` the folder in it with the tokenizer. `max_tokens` is the length in
    tokens of the longest text, with special tokens. `labels` are the classes by index, `label_ids` the indices by
    class. `modules` are those of sentence-transformers behind its first, class and path. `vectors_from` is the output
    of the author's model that sentence-transformers takes, if it is named. `include_prompt`: the tokens of a prompt are
    pooled, too. `dimensions` cuts vectors; 0 leaves them. `similarity` is for the route that compares texts. `prompt`
    goes before each text, unless the request names one of `prompts`. `lowercase`: texts are lowered before the
    tokenizer. `max_batch_tokens` limits one execution of the graph, padding counted; 0 leaves it to the device. With
    `truncate` longer texts are cut, otherwise refused. `top_k` is how many words fill a mask. `adds_space`: the
    tokenizer puts a space before a text. `joins_punctuation`: of text made of tokens, the spaces before punctuation are
    left out. `hypothesis` is the sentence about a candidate label, in which `{}` is the label. `has_types`: the graph
    is told the tokens of a pair's second text.
    """

    name: str
    folder: Path
    inner: str
    file: str
    task: TaskName
    max_tokens: int
    max_batch_tokens: int
    truncate: bool
    truncation_side: str
    lowercase: bool
    labels: tuple[str, ...]
    label_ids: Mapping[str, int]
    hidden_size: int
    modules: tuple[tuple[str, str], ...]
    pooling: tuple[Pooling, ...]
    include_prompt: bool
    vectors_from: str
    normalize: bool | None
    dimensions: int
    similarity: Similarity
    activation: Activation
    pad_token: str
    mask_token: str
    cls_token: str
    adds_space: bool
    joins_punctuation: bool
    unknown_token: str
    prompt: str
    prompts: Mapping[str, str]
    top_k: int
    hypothesis: str
    has_types: bool


def read_text_model(folder: Path, config: ModelConfig) -> TextModel:
    """Read the version directory `folder` and the `parameters` of `config`.

    Raises ModelLoadFailed for a folder that lacks something or has something that cannot be honoured, ConfigInvalid for
    a wrong parameter.
    """
    name = config.name
    read = partial(_read_json, folder, name)
    parameters = _Parameters(parameters_of(config), name)
    modules = _modules(read("modules.json", required=False), name)
    # The first module of sentence-transformers may have a folder of its own.
    inner = f"{modules[0][1]}/" if modules and modules[0][0] == "Transformer" and modules[0][1] else ""
    settings = read(inner + CONFIG)
    if not (folder / inner / TOKENIZER).is_file():
        raise ModelLoadFailed(
            f"failed to load text model '{name}': {TOKENIZER} is missing in {folder / inner}",
            hint=f"write one with transformers: AutoTokenizer.from_pretrained(…).save_pretrained({str(folder)!r})"
            + ("; vocab.txt alone is not read" if (folder / inner / "vocab.txt").is_file() else "")
            + "; tokenizers that are Python code are not executed",
            model=name,
        )
    if "auto_map" in settings:
        _log.info("model '%s': the Python code that comes with it (auto_map) is not executed", name)
    sentence, tokenizer = _settings_of(partial(_read_json, folder / inner, name))
    written = read(inner + TOKENIZER)
    for side, section in (("truncation_side", "truncation"), ("padding_side", "padding")):
        tokenizer.setdefault(side, str((written.get(section) or {}).get("direction", "right")).lower())
    tokenizer = _with_pad_token(tokenizer, written.get("padding"))
    tokens = _named_tokens(tokenizer, partial(_read_json, folder / inner, name))
    kind = _tokenizer_kind(tokenizer)
    if unused := sorted(key for key in sentence.keys() - _PLAIN_SETTINGS if sentence[key]):
        _log.warning("model '%s': these settings of sentence-transformers have no effect: %s", name, ", ".join(unused))
    pooling_path = next((path for kind, path in modules if kind == "Pooling"), None)
    pooling = {} if pooling_path is None else read(f"{pooling_path}/{CONFIG}", required=False)
    whole = read("config_sentence_transformers.json", required=False)
    prompts = {str(key): str(text or "") for key, text in (whole.get("prompts") or {}).items()}
    cross_encoder = settings.get("sentence_transformers")
    named = settings.get("id2label")
    by_index = {int(index): str(label) for index, label in named.items()} if isinstance(named, dict) else {}
    # transformers leaves both out if there are two labels with these names.
    count = _positive(settings.get("num_labels"))
    if count and count != len(by_index):
        by_index = {}
    count = max(by_index) + 1 if by_index else count or 2
    labels = tuple(by_index.get(index, f"LABEL_{index}") for index in range(count))
    ids = settings.get("label2id") if by_index else None
    label_ids = {str(label): at for label, at in ids.items() if isinstance(at, int)} if isinstance(ids, dict) else None
    task = parameters.choice("task", TaskName) or _task_of(settings, bool(modules), len(labels), name)
    found_activation = _activation_of(
        settings, (cross_encoder if isinstance(cross_encoder, dict) else {}) | whole, task, len(labels), name
    )
    if task is TaskName.QUESTION_ANSWERING and tokenizer.get("padding_side") == "left":
        raise ModelLoadFailed(
            f"text model '{name}' has padding_side left, with which transformers puts the context before the question",
            hint="that order is not supported: set padding_side to right if the model was trained so",
            model=name,
        )
    normalize = parameters.flag("normalize", None)
    similarity = whole.get("similarity_fn_name")
    if similarity not in (None, *(each.value for each in Similarity)):
        raise ModelLoadFailed(
            f"text model '{name}' has the similarity_fn_name '{similarity}', which is not known",
            hint=f"one of: {', '.join(each.value for each in Similarity)}",
            model=name,
        )
    chosen_pooling = parameters.choice("pooling", Pooling)
    longest = (
        _longest_of_calls(sentence, name)
        or _positive(sentence.get("max_seq_length"))
        or _positive(tokenizer.get("model_max_length"))
    )
    default_prompt = whole.get("default_prompt_name")
    if default_prompt is not None and default_prompt not in (*prompts, "query", "document"):
        raise ModelLoadFailed(
            f"text model '{name}' has the default_prompt_name '{default_prompt}', which is not one of its prompts",
            hint=f"its prompts are: {', '.join(prompts) or 'none'} (config_sentence_transformers.json)",
            model=name,
        )
    dimensions = whole.get("truncate_dim")
    if dimensions is not None and not _positive(dimensions):
        raise ModelLoadFailed(
            f"text model '{name}' has the truncate_dim {dimensions!r}, which must be a whole number of at least 1",
            model=name,
        )
    return TextModel(
        name=name,
        folder=folder,
        inner=inner,
        file=_graph_file(folder, config),
        task=task,
        max_tokens=parameters.number("max_tokens", min(filter(None, [longest, _positions(settings)]), default=512)),
        max_batch_tokens=parameters.number("max_batch_tokens", 0),
        truncate=bool(parameters.flag("truncate", True)),
        truncation_side="left" if tokenizer.get("truncation_side") == "left" else "right",
        lowercase=sentence.get("do_lower_case") is True,
        labels=labels,
        label_ids={label: at for at, label in enumerate(labels)} if label_ids is None else label_ids,
        hidden_size=_positive(settings.get("hidden_size") or settings.get("dim")) or -1,
        modules=tuple(each for each in modules if each[0] != "Transformer"),
        pooling=(chosen_pooling,) if chosen_pooling else _pooling_of(pooling, name),
        include_prompt=pooling.get("include_prompt") is not False,
        vectors_from=str(((sentence.get("modality_config") or {}).get("text") or {}).get("method_output_name") or ""),
        normalize=normalize,
        dimensions=parameters.number("truncate_dim", _positive(dimensions)),
        similarity=parameters.choice("similarity_fn_name", Similarity) or Similarity(similarity or "cosine"),
        activation=parameters.choice("activation", Activation) or found_activation,
        pad_token=_token(tokens.get("pad_token")),
        mask_token=_token(tokens.get("mask_token")),
        cls_token=_token(tokens.get("cls_token")),
        adds_space=kind in _ROBERTA_TOKENIZERS
        and tokenizer.get("add_prefix_space") is True
        and tokenizer.get("trim_offsets", True) is True,
        joins_punctuation=tokenizer.get("clean_up_tokenization_spaces") is True,
        unknown_token=_token(tokens.get("unk_token")),
        prompt=parameters.text("prompt", prompts.get(str(default_prompt), "")),
        prompts=prompts,
        top_k=parameters.number("top_k", 5),
        hypothesis=parameters.text("hypothesis_template", "This example is {}."),
        has_types="token_type_ids" in (tokenizer.get("model_input_names") or ("token_type_ids",)),
    )


def read_tokenizer(model: TextModel) -> Any:
    """The Hub's tokenizer as transformers would set it up, without truncation and padding. Raises ModelLoadFailed."""
    path = model.folder / model.inner / TOKENIZER
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        message = f"failed to read {path} of text model '{model.name}': {error}"
        raise ModelLoadFailed(message, hint=content_hint(path), model=model.name) from error
    read = partial(_read_json, model.folder / model.inner, model.name)
    _, settings = _settings_of(read)
    settings = _with_pad_token(settings, tokenizer.padding)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    tokenizer.encode_special_tokens = settings.get("split_special_tokens") is True
    _add_tokens(tokenizer, settings, read)
    has_processor = tokenizer.post_processor is not None
    if not has_processor:  # without one the fast encoding has no types for the second text of a pair
        tokenizer.post_processor = processors.TemplateProcessing(single="$A", pair="$A $B:1", special_tokens=[])
    kind = _tokenizer_kind(settings)
    if kind == "RoFormerTokenizer":
        raise ModelLoadFailed(
            f"text model '{model.name}' has a RoFormerTokenizer, which finds Chinese words with Python code",
            hint="that is not executed: use another model, or a Python model with transformers",
            model=model.name,
        )
    if kind in _LOWERING_TOKENIZERS and isinstance(tokenizer.normalizer, normalizers.BertNormalizer):
        tokenizer.normalizer = normalizers.BertNormalizer(
            clean_text=kind != "FunnelTokenizer" or settings.get("clean_text", True),
            handle_chinese_chars=settings.get("tokenize_chinese_chars", True),
            strip_accents=settings.get("strip_accents"),
            lowercase=settings.get("do_lower_case", True),
        )
        tokenizer.decoder = decoders.WordPiece()
    # An Albert's is made before that of the file is read.
    if kind in _CLASSES and not (kind == "AlbertTokenizer" and has_processor):
        tokenizer.post_processor = _processor_of(kind, tokenizer, _named_tokens(settings, read), settings)
    if kind in _PIECE_TOKENIZERS:
        tokenizer.normalizer = _normalizer_of_pieces(tokenizer, settings, kind)
    omits_space = settings.get("add_prefix_space", True) is False
    if kind in _PIECE_TOKENIZERS | _SPLITTING_TOKENIZERS and isinstance(tokenizer.model, Unigram):
        scheme = "never" if omits_space and kind in _SPACING_TOKENIZERS else "always"
        splits = [pre_tokenizers.WhitespaceSplit()] if kind in _SPLITTING_TOKENIZERS else []
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, pre_tokenizers.Metaspace(prepend_scheme=scheme)])
    if kind == "DebertaV2Tokenizer" and (omits_space or settings.get("split_by_punct")):
        marks = [pre_tokenizers.Punctuation("isolated")] if settings.get("split_by_punct") else []
        pieces = pre_tokenizers.Metaspace(prepend_scheme="first" if omits_space else "always")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*marks, pieces])
    if kind == "Qwen2Tokenizer" and settings.get("add_prefix_space"):
        raise ModelLoadFailed(
            f"text model '{model.name}' has a Qwen2Tokenizer with add_prefix_space, which is not supported",
            hint="transformers 4 ignores it, and transformers 5 does not: leave it out of tokenizer_config.json",
            model=model.name,
        )
    if kind in _BYTE_TOKENIZERS and isinstance(tokenizer.pre_tokenizer, pre_tokenizers.ByteLevel):
        adds = bool(settings.get("add_prefix_space"))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(adds, use_regex=tokenizer.pre_tokenizer.use_regex)
    if model.lowercase or (kind == "DebertaV2Tokenizer" and settings.get("do_lower_case")):
        normalizer = tokenizer.normalizer
        others = [normalizer] if normalizer is not None else []
        tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), *others])
    return tokenizer


def _processor_of(kind: str, tokenizer: Any, tokens: Mapping[str, Any], settings: Mapping[str, Any]) -> Any:
    """Put special tokens around a text as the class `kind` of transformers does, whatever tokenizer.json says."""
    names = {name.removesuffix("_token"): _token(value) for name, value in tokens.items()}
    names["lang"] = str(settings.get("src_lang") or "en_XX")
    ends = _CLASSES[kind][1]
    written = {each.partition(":")[0] for each in " ".join(ends).split() if not each.startswith("$")}
    found = {names.get(name, name) for name in written}
    ids = {text: tokenizer.token_to_id(text) for text in found}
    if None in ids.values():  # the folder says that there is none
        return tokenizer.post_processor
    if kind in _ROBERTA_TOKENIZERS:
        first, last = names["cls"], names["sep"]
        trims, adds = bool(settings.get("trim_offsets", True)), bool(settings.get("add_prefix_space"))
        return processors.RobertaProcessing((last, ids[last]), (first, ids[first]), trims, adds)
    single, pair = (
        [":".join([names.get(name, name), *kinds]) for name, *kinds in (each.split(":") for each in end.split())]
        for end in ends
    )
    return processors.TemplateProcessing(single=single, pair=pair, special_tokens=[*ids.items()])


def _named_tokens(settings: Mapping[str, Any], read: Callable[..., Any]) -> dict[str, Any]:
    """The special tokens that have names, by the class and the files of the folder."""
    kind = _tokenizer_kind(settings)
    by_class = _CLASSES[kind][0] if kind in _CLASSES else ()
    found: dict[str, Any] = {**dict.fromkeys(_NAMED), **dict(zip(_NAMED, by_class, strict=False))}
    if kind == "SplinterTokenizer":
        found["question_token"] = "[QUESTION]"
    found |= {name: value for name, value in settings.items() if name.endswith("_token") and _token(value)}
    found |= {name: None for name in _NAMED if name in settings and settings[name] is None}
    if "added_tokens_decoder" not in settings:  # which is newer than the map
        for name, value in read("special_tokens_map.json", required=False).items():
            if name.endswith("_token"):
                found[name] = {**value, "special": True} if isinstance(value, dict) else value
    mask = found["mask_token"]
    if kind in _MASK_TAKES_SPACE and isinstance(mask, str):
        found["mask_token"] = {"content": mask, "lstrip": True}
    return {name: value for name, value in found.items() if isinstance(value, str | dict) and _token(value)}


def _add_tokens(tokenizer: Any, settings: Mapping[str, Any], read: Callable[..., Any]) -> None:
    """Add the tokens that the folder names beside those of tokenizer.json, as transformers does."""
    extra = _extra_tokens(settings) or [*_UNNAMED.get(_tokenizer_kind(settings), ())]
    written = settings.get("added_tokens_decoder")
    if isinstance(written, dict):
        made = [_added(each) for _, each in sorted(written.items(), key=lambda row: int(row[0]))]
    else:
        others = read("added_tokens.json", required=False)
        made = [AddedToken(each, normalized=True) for each in sorted(others, key=others.__getitem__)]
        older = read("special_tokens_map.json", required=False)
        if not extra or "extra_special_tokens" in older:
            extra += _extra_tokens(older)
    known = [*tokenizer.get_added_tokens_decoder().values()]
    made = [each for each in made if each not in known]
    contents = {each.content for each in (*known, *made)}
    named = [_added(each) for each in _named_tokens(settings, read).values()]
    for each in named:
        each.special = True
    made += [each for each in (*named, *map(_added, extra)) if each.content not in contents]
    for each in made:
        (tokenizer.add_special_tokens if each.special else tokenizer.add_tokens)([each])


def _extra_tokens(settings: Mapping[str, Any]) -> list[Any]:
    """The special tokens that have no name. The older of the two members counts where the newer one is missing."""
    extra = settings.get("extra_special_tokens") or settings.get("additional_special_tokens") or []
    return [*(extra.values() if isinstance(extra, dict) else extra)]


def _added(written: Any) -> Any:
    """The token that a file describes: by its text, which makes it a special one, or by its properties."""
    if not isinstance(written, dict):
        return AddedToken(str(written), normalized=False, special=True)
    flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
    return AddedToken(str(written["content"]), **{name: written[name] for name in flags if name in written})


def _normalizer_of_pieces(tokenizer: Any, settings: Mapping[str, Any], kind: str) -> Any:
    """The normalizer that transformers 5 makes of the settings, with the table of characters of tokenizer.json."""
    is_rembert = kind == "RemBertTokenizer"
    made: list[Any] = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    if is_rembert:
        made.append(normalizers.Replace(Regex(" {2,}"), " "))
    if kind == "XLNetTokenizer" or not settings.get("keep_accents", is_rembert):
        made += [normalizers.NFKD(), normalizers.StripAccents()]
    if settings.get("do_lower_case", kind == "AlbertTokenizer"):
        made.append(normalizers.Lowercase())
    found = json.loads(tokenizer.normalizer.__getstate__()) if tokenizer.normalizer else {}
    tables = [each for each in found.get("normalizers", [found]) if each.get("type") == "Precompiled"]
    made += [normalizers.Precompiled(base64.b64decode(each["precompiled_charsmap"])) for each in tables[:1]]
    return normalizers.Sequence(made)


def _settings_of(read: Callable[..., Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings of sentence-transformers' first module, and those of the tokenizer, which the former may change."""
    found = [read(each, required=False) for each in _TRANSFORMER_FILES]
    sentence: dict[str, Any] = next(filter(None, found), {})
    tokenizer = read("tokenizer_config.json", required=False)
    config = read(CONFIG, required=False)
    kind = str(config.get("model_type"))
    if kind in _PLAIN_MODELS:
        tokenizer = {**tokenizer, "tokenizer_class": None}
    elif not tokenizer.get("tokenizer_class"):
        tokenizer = {**tokenizer, "tokenizer_class": config.get("tokenizer_class") or _MODEL_TOKENIZERS.get(kind)}
    return sentence, {**tokenizer, **(sentence.get("processor_kwargs") or sentence.get("tokenizer_args") or {})}


def _with_pad_token(settings: dict[str, Any], padding: Mapping[str, Any] | None) -> dict[str, Any]:
    """`settings` with the token that the section `padding` of tokenizer.json names, where nothing else names one."""
    if not padding or "pad_token" in settings or _tokenizer_kind(settings) in _CLASSES:
        return settings
    return {**settings, "pad_token": padding.get("pad_token")}


def _longest_of_calls(sentence: Mapping[str, Any], model: str) -> int:
    """The `max_length` in `processing_kwargs`, 0 if there is none. Raises ModelLoadFailed for what is not honoured."""
    calls = sentence.get("processing_kwargs") or {}
    told = {**(calls.get("common") or {}), **(calls.get("text") or {})}
    for name, value in told.items():
        if name != "max_length" and value not in _PLAIN_CALLS.get(name, ()):
            raise ModelLoadFailed(
                f"text model '{model}' has processing_kwargs with {name} {value!r}, which is not supported",
                hint="leave it out of sentence_bert_config.json if the model was trained so",
                model=model,
            )
    return _positive(told.get("max_length"))


def _tokenizer_kind(settings: Mapping[str, Any]) -> str:
    return str(settings.get("tokenizer_class") or "").removesuffix("Fast")


def _read_json(folder: Path, model: str, file: str, *, required: bool = True) -> Any:
    path = folder / file
    if not is_plain(file):
        raise ModelLoadFailed(f"text model '{model}' names the file '{file}', which is outside of it", model=model)
    try:
        return json.loads(read_file(path, _LARGEST_JSON))
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, FileNotFoundError | NotADirectoryError):
            if not required:
                return {}
            message, hint = f"failed to load text model '{model}': {path} is missing", "copy the whole folder"
            raise ModelLoadFailed(message, hint=f"{hint} of the model from the Hub", model=model) from None
        message = f"failed to read {path} of text model '{model}': {error}"
        raise ModelLoadFailed(message, hint=content_hint(path), model=model) from error


class _Parameters:
    """The parameters of a configuration. Each method raises ConfigInvalid for a value that cannot be."""

    def __init__(self, values: Mapping[str, str], model: str) -> None:
        self._values = values
        self._model = model

    def choice(self, name: str, kind: type[_Choice]) -> _Choice | None:
        value = self._values.get(name)
        if value is None:
            return None
        try:
            return kind(value)
        except ValueError:
            known = ", ".join(str(each.value) for each in kind)
            raise ConfigInvalid(
                f"parameter '{name}' of model '{self._model}' is '{value}'",
                hint=f"one of: {known}",
                model=self._model,
                field=field_of(name),
            ) from None

    def flag(self, name: str, default: bool | None) -> bool | None:
        value = self._values.get(name)
        return default if value is None else boolean(value, field_of(name))

    def number(self, name: str, default: int) -> int:
        if name not in self._values:
            return default
        return at_least_one(self._values[name], name, self._model)

    def text(self, name: str, default: str) -> str:
        return self._values.get(name, default)


def _graph_file(folder: Path, config: ModelConfig) -> str:
    """The ONNX file: the configured one, else `model.onnx` or `onnx/model.onnx`, else the only one."""
    wanted = config.default_model_filename
    if wanted and wanted != "model.onnx":
        return str(wanted)
    for name in ("model.onnx", "onnx/model.onnx"):
        if (folder / name).is_file():
            if hint := content_hint(folder / name):
                raise ModelLoadFailed(f"failed to load text model '{config.name}'", hint=hint, model=config.name)
            return name
    found = sorted(
        path.relative_to(folder).as_posix() for path in [*folder.glob("*.onnx"), *folder.glob("onnx/*.onnx")]
    )
    if len(found) == 1:
        return found[0]
    if found:
        hint = f'name one of them: default_model_filename: "{found[0]}" (there are {", ".join(found)})'
    else:
        hint = f"export it: optimum-cli export onnx --model {folder.name} FOLDER, or copy the folder onnx from the Hub"
    weights = next(filter(None, (each.name for each in sorted(folder.glob("*.safetensors")))), None)
    raise ModelLoadFailed(
        f"failed to load text model '{config.name}': model.onnx or onnx/model.onnx is missing in {folder}"
        + (f", only {weights}, which PyTorch runs" if weights and not found else ""),
        hint=hint,
        model=config.name,
    )


def _modules(found: Any, model: str) -> list[tuple[str, str]]:
    """The modules of sentence-transformers in their order, class and path; [] if the folder has none."""
    if not isinstance(found, list):
        return []
    modules = []
    for each in found:
        package, _, kind = str(each.get("type", "")).rpartition(".")
        # The code of a class that the folder brings is not executed; it counts as a module that is not known.
        is_known = package.partition(".")[0] == "sentence_transformers"
        modules.append((kind if is_known else f"{package}.{kind}", str(each.get("path", ""))))
    return modules


def _task_of(settings: Mapping[str, Any], has_modules: bool, labels: int, model: str) -> TaskName:
    architecture = str((settings.get("architectures") or [""])[0])
    is_cross_encoder = architecture.endswith("ForSequenceClassification")
    if has_modules and not is_cross_encoder:
        return TaskName.FEATURE_EXTRACTION
    for end, task in _ARCHITECTURES.items():
        if architecture.endswith(end):
            return TaskName.TEXT_RANKING if task is TaskName.TEXT_CLASSIFICATION and labels == 1 else task
    if architecture.endswith(("ForCausalLM", "ForConditionalGeneration")):
        raise ModelLoadFailed(
            f"text model '{model}' is a {architecture}, which generates text",
            hint="if it is used for embeddings, set the parameter task to feature-extraction",
            model=model,
        )
    return TaskName.FEATURE_EXTRACTION


def _positions(settings: Mapping[str, Any]) -> int:
    """How many tokens the position embeddings have; 0 if the configuration does not say it.

    RoBERTa and its kin count positions from the padding's index on.
    """
    positions = _positive(settings.get("max_position_embeddings") or settings.get("n_positions"))
    offset = settings.get("pad_token_id")
    is_offset = settings.get("model_type") in ("roberta", "xlm-roberta", "camembert", "mpnet", "longformer")
    return max(1, positions - int(offset or 0) - 1) if positions and is_offset else positions


def _pooling_of(found: Mapping[str, Any], model: str) -> tuple[Pooling, ...]:
    known = {name: pooling for names, pooling in _POOLING.items() for name in names}
    named = found.get("pooling_mode")
    if named is None:
        modes = [flag for flag, is_on in found.items() if is_on is True and flag.startswith("pooling_mode")]
        modes.sort(key=lambda flag: list(known).index(flag) if flag in known else -1)
    else:
        modes = [str(each) for each in named] if isinstance(named, list) else [str(named)]
    if unknown := [mode for mode in modes if mode not in known]:
        raise ModelLoadFailed(
            f"text model '{model}' pools with '{unknown[0]}'",
            hint=f"set the parameter pooling to one of {', '.join(each.value for each in Pooling)}",
            model=model,
        )
    return tuple(known[mode] for mode in modes) or (Pooling.MEAN,)


def _activation_of(
    settings: Mapping[str, Any], cross_encoder: Mapping[str, Any], task: TaskName, labels: int, model: str
) -> Activation:
    """Rankers have that of a CrossEncoder, all others that of transformers' pipeline.

    Raises ModelLoadFailed for a ranker's that is not known; of those that are code the default is taken, as there.
    """
    if task is TaskName.TEXT_RANKING:
        named = str(cross_encoder.get("activation_fn") or settings.get("sbert_ce_default_activation_function") or "")
        function = named.rpartition(".")[2]
        if named.startswith("torch.") and function not in ("Identity", "Sigmoid"):
            raise ModelLoadFailed(
                f"ranker '{model}' has the activation {named}, which is not known",
                hint="set the parameter activation to sigmoid or none",
                model=model,
            )
        return Activation.NONE if named.startswith("torch.") and function == "Identity" else Activation.SIGMOID
    kind = settings.get("problem_type")
    if task is TaskName.ZERO_SHOT_CLASSIFICATION:
        return Activation.SOFTMAX
    if kind == "regression":
        return Activation.NONE
    return Activation.SIGMOID if labels == 1 or kind == "multi_label_classification" else Activation.SOFTMAX


def _positive(value: Any) -> int:
    """A limit; 0 if it is none."""
    is_limit = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < _NO_LIMIT
    return int(value) if is_limit else 0


def _token(value: Any) -> str:
    """A special token, which is text or an object with it."""
    return str(value.get("content", "")) if isinstance(value, dict) else str(value or "")


def labels_for(labels: Sequence[str], width: int) -> tuple[str, ...]:
    """A label for each of `width` outputs, as transformers names those without one."""
    return tuple(labels[at] if at < len(labels) else f"LABEL_{at}" for at in range(width))
