"""Published rows about text: BERT, BART, translation, Transformer-XL."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from stoker.perf.study.tables.rows import Published
from stoker.perf.study.workloads.workload import EXAMPLES, LAMBDA, Input, Optimizer, Rule, Workload

_BERT = f"{EXAMPLES} PyTorch/LanguageModeling/BERT"
_BERT_TF = f"{EXAMPLES} TensorFlow/LanguageModeling/BERT"
_LARGE = {"layers": 24, "width": 1024, "heads": 16}
_BASE = {"layers": 12, "width": 768, "heads": 12}
_MASKED = {128: 20, 512: 80}
_BINNED = 288
"""Average length of sequences of up to 512 tokens, padded in bins of 64: 256 tokens and half a bin."""


def _answers(row: Published, options: dict[str, Any], batch: int, *sources: str) -> Workload:
    length = 384
    return Workload(
        name=f"{row.model}, SQuAD",
        model="transformers:BertForAnswers",
        options=options,
        inputs=(
            Input("tokens", (batch, length), 30_522),
            Input("segments", (batch, length), 2),
            Input("mask", (batch, length), 2),
            Input("start", (batch,), length),
            Input("end", (batch,), length),
        ),
        optimizer="adam",
        precision=row.precision,
        batch=batch,
        counted=batch,
        unit="sequences",
        sources=sources,
    )


def _pretraining(row: Published, batch: int, accumulation: int, length: int, *sources: str) -> Workload:
    masked = _MASKED.get(length, round(0.15 * length))
    return Workload(
        name=f"{row.model}, pretraining at {row.seq_len}",
        model="transformers:BertForPretraining",
        options=_LARGE,
        inputs=(
            Input("tokens", (batch, length), 30_522),
            Input("segments", (batch, length), 2),
            Input("mask", (batch, length), 2),
            Input("places", (batch, masked), length),
            Input("masked", (batch, masked), 30_522),
            Input("following", (batch,), 2),
        ),
        optimizer="lamb",
        precision=row.precision,
        batch=batch,
        accumulation=accumulation,
        counted=batch,
        unit="sequences",
        sources=(*sources, f"20 and 80 words masked (15 %): {_BERT}/README.md:192-195"),
    )


def _bert_lambda(row: Published) -> Workload:
    options = _BASE if row.model.startswith("bert_base") else _LARGE
    log = f"384 tokens, batch of a GPU, no accumulation: logs of {LAMBDA} pytorch/results/*_v1/PyTorch_bert_*"
    return _answers(row, options, int(row.batch_per_gpu), log, f"Adam: {_BERT}/run_squad.py:969-986")


def _bert(row: Published) -> Workload:
    batch = int(row.batch_per_gpu)
    if row.task == "SQuAD fine-tune":
        source = f"384 tokens: {_BERT}/scripts/run_squad.sh:87"
        return _answers(row, _LARGE, batch, source, f"Adam: {_BERT}/run_squad.py:969-986")
    sources = [f"LAMB, batches: {_BERT}/README.md, tables of pretraining"]
    if row.seq_len == 512:
        sources.append(f"not padded to 512, but in bins of 64: {_BERT}/README.md:895 and scripts/run_pretraining.sh:54")
        sources.append("288 tokens on average: 256 and half a bin; arXiv 2107.02027: half of the 512 is padding")
    return _pretraining(row, batch, row.accumulation, _BINNED if row.seq_len == 512 else row.seq_len, *sources)


def _bert_tf(row: Published) -> Workload:
    large = f"BERT-large and, for SQuAD, 384 tokens: {_BERT_TF}/README.md:712"
    if not row.seq_len:
        batch = int(row.batch_per_gpu)
        if batch == 42:  # "4,2": of mixed precision and of fp32
            batch = 4 if row.precision == "fp16" else 2
        return _answers(row, _LARGE, batch, large, f"batches: {_BERT_TF}/README.md:811-946")
    batch = int(row.batch_per_gpu)
    together = {128: 65_536, 512: 32_768}[row.seq_len]
    source = f"global batches of 65,536 and 32,768: {_BERT_TF}/README.md:795-936"
    return _pretraining(row, batch, together // (batch * row.gpus), row.seq_len, large, source)


def _pairs(
    row: Published, options: dict[str, Any], batch: int, lengths: tuple[int, int], optimizer: Optimizer,
    counted: float, unit: str, *sources: str,
) -> Workload:  # fmt: skip
    source, target = lengths
    vocabulary = options["vocabulary"]
    return Workload(
        name=row.model,
        model="transformers:EncoderDecoder",
        options=options,
        inputs=(
            Input("source", (batch, source), vocabulary),
            Input("before", (batch, target), vocabulary),
            Input("target", (batch, target), vocabulary),
        ),
        optimizer=optimizer,
        precision=row.precision,
        batch=batch,
        counted=counted,
        unit=unit,
        sources=sources,
    )


def _bart(row: Published) -> Workload:
    where = f"{EXAMPLES} PyTorch/LanguageModeling/BART"
    options = {"layers": 12, "vocabulary": 50_265, "learned": True}
    source, target = (row.seq_len, row.seq_len) if row.seq_len else (1024, 60)
    said = f"XSum at 1024 and 60 tokens, in items: {where}/README.md:605-616"
    said = f"both sides at the table's sequence length: {where}/README.md:587" if row.seq_len else said
    optimizer = "lamb" if row.seq_len else "adam"
    batch = int(row.batch_per_gpu)
    row = replace(row, precision="bf16") if "BF16" in row.note else row
    layers = f"layers: {where}/configs/config.json"
    return _pairs(row, options, batch, (source, target), optimizer, batch, "sequences", said, layers)


_FAIRSEQ = "facebookresearch/fairseq issue 70: at 4,000 tokens WMT'14 en-de has 3,514 target tokens in 124 sentences"
_PAIR_TOKENS, _PAIR_LONGER = 3514 / 124, 4000 / 124


def _transformer_big(row: Published) -> Workload:
    where = f"{EXAMPLES} PyTorch/Translation/Transformer"
    batch = round(row.batch_per_gpu / _PAIR_LONGER)
    length = round(_PAIR_TOKENS)
    options = {"layers": 6, "vocabulary": 33_712, "learned": False}
    return _pairs(
        row, options, batch, (length, length), "adam", batch * _PAIR_TOKENS, "target tokens",
        f"{_FAIRSEQ}; the same text and batching, by the longer side",
        f"hardly padded, sorted by both lengths: {where}/fairseq/data/language_pair_dataset.py:93-101",
        f"target tokens are counted: {where}/fairseq/ddp_trainer.py:172 and fairseq/data/data_utils.py:178",
        f"33,708 words and 4 signs: {where}/README.md:79; layers: fairseq/models/transformer.py:590",
    )  # fmt: skip


_LENGTH, _COUNTED = 30, 47.6
"""Padded tokens of each side and counted ones of a pair. Time x rate of the logs' steps gives 47.6 tokens a pair.
Sentences are batched with those of their bucket, ten lengths wide, and padded to its longest: weighted by the buckets
that the logs show, 30 tokens."""


def _gnmt(row: Published) -> Workload:
    batch = int(row.batch_per_gpu)
    words = 31_800 if row.precision == "fp16" else 31_794
    side = (_LENGTH, batch)
    return Workload(
        name=row.model,
        model="recurrent:GNMT",
        options={"vocabulary": words},
        inputs=(Input("source", side, words), Input("before", side, words), Input("target", side, words)),
        optimizer="adam",
        precision=row.precision,
        batch=batch,
        counted=_COUNTED * batch,
        unit="source and target tokens",
        sources=(
            f"at most 50 tokens, five buckets, Adam, 159.6 M weights, and 47.6 tokens a pair (time x rate of 39 logs: "
            f"45.4 to 55.1): {LAMBDA} pytorch/results/*_v1/PyTorch_gnmt_FP*",
            f"buckets: {EXAMPLES} PyTorch/Translation/GNMT/seq2seq/data/sampler.py:198-203",
            f"both sides are counted: {EXAMPLES} PyTorch/Translation/GNMT/seq2seq/train/trainer.py:171-173",
        ),
    )


_XL: dict[str, tuple[int, Optimizer, dict[str, Any]]] = {
    "transformerxlbase": (192, "lamb", {"layers": 16, "width": 512, "heads": 8, "inner": 2048, "dropout": 0.1}),
    "transformerxllarge": (256, "adam", {"layers": 18, "width": 1024, "heads": 16, "inner": 4096, "dropout": 0.2}),
}


def _transformer_xl(row: Published) -> Workload:
    length, optimizer, options = _XL[row.model]
    batch = int(row.batch_per_gpu)
    return Workload(
        name=row.model,
        model="transformers:TransformerXL",
        options=options,
        inputs=(
            Input("tokens", (length, batch), 267_735),
            Input("target", (length, batch), 267_735),
            Input("memory", (options["layers"], length, batch, options["width"])),
        ),
        optimizer=optimizer,
        precision=row.precision,
        batch=batch,
        counted=length * batch,
        unit="tokens",
        sources=(
            f"lengths of segment and memory, one softmax over all words, optimizer, weights: logs of {LAMBDA} "
            "pytorch/results/*_v1/PyTorch_transformerxl*",
            f"layers: {EXAMPLES} PyTorch/LanguageModeling/Transformer-XL/README.md:138-155",
        ),
    )


RULES: dict[str, Rule] = {
    "bert_base_squad": _bert_lambda,
    "bert_large_squad": _bert_lambda,
    "BERT-large": _bert,
    "BERT (TF1)": _bert_tf,
    "BART": _bart,
    "Transformer-big": _transformer_big,
    "gnmt": _gnmt,
    "transformerxlbase": _transformer_xl,
    "transformerxllarge": _transformer_xl,
}
