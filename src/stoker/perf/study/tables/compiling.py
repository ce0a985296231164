"""Makes the package's tables from the collected ones: ``python -m stoker.perf.study.tables.compiling FOLDER``.

Names of hardware, precisions and families become the same words for all sources; nothing is left out or averaged.
Columns that give the result away (MFU, HFU) are dropped, so that no calibration can use them by mistake.
"""

from __future__ import annotations

import csv
import gzip
import io
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from stoker.perf.communication import sweeps
from stoker.perf.study.tables import rows as throughputs
from stoker.perf.study.tables.rows import COLUMNS

_GPUS = (
    # what the publisher's words must contain -> name in the catalogue; the first match counts
    ("H100 80GB SXM5", "H100-SXM"),
    ("H100 80GB PCIe", "H100-PCIe"),
    ("A100 80GB PCIe", "A100-80GB-PCIe"),
    ("A100 40GB PCIe", "A100-40GB-PCIe"),
    ("A100 80GB SXM4", "A100-80GB-SXM"),
    ("DGX A100 (8x A100 80GB)", "A100-80GB-SXM"),
    ("A100-80GB", "A100-80GB-SXM"),
    ("DGX A100 (8x A100 40GB)", "A100-40GB-SXM"),
    ("DGX A100 40GB", "A100-40GB-SXM"),
    ("A100-40GB", "A100-40GB-SXM"),
    ("A100 (8 per node)", "A100-40GB-SXM"),
    ("DGX-2", "V100-32GB-SXM"),
    ("DGX-1 32GB", "V100-32GB-SXM"),
    ("DGX-1 (8x V100 32GB)", "V100-32GB-SXM"),
    ("DGX-1", "V100-16GB-SXM"),
    ("V100 16GB", "V100-16GB-SXM"),
    ("RTX 6000 Ada", "RTX-6000-Ada"),
    ("RTX A6000", "RTX-A6000"),
    ("Quadro RTX 8000", "RTX-8000"),
    ("RTX 4090", "RTX-4090"),
    ("RTX 3090", "RTX-3090"),
    ("A10", "A10"),
)
_BEFORE_TF32 = ("V100", "RTX-8000")
"""GPUs on which fp32 means fp32; on later ones frameworks run it on tensor cores, as TF32, by default."""
_FAMILIES = (
    ("resnext", "resnext"),
    ("resnet50", "resnet50"),
    ("ssd", "ssd"),
    ("bert", "bert"),
    ("bart", "bart"),
    ("transformerxl", "transformer-xl"),
    ("transformer-big", "transformer-big"),
    ("gnmt", "gnmt"),
    ("ncf", "ncf"),
    ("tacotron2", "tacotron2"),
    ("waveglow", "waveglow"),
    ("efficientnet", "efficientnet"),
    ("quartznet", "quartznet"),
    ("wide&deep", "wide-deep"),
    ("v-net", "vnet"),
    ("maskrcnn", "maskrcnn"),
    ("fastpitch", "fastpitch"),
    ("mpt", "mpt"),
    ("gpt l", "gpt"),
)
_HOST = re.compile(r"DGX(?:-\d| A100)")


def gpu_of(words: str) -> str:
    """The catalogue's name for what a publisher calls its hardware.

    Raises:
        ValueError: it names no known GPU.
    """
    for part, name in _GPUS:
        if part in words:
            return name
    raise ValueError(f"`hardware` names no known GPU: {words!r}")


def family_of(model: str) -> str:
    """The architecture of a model, in one word for all sources.

    Raises:
        ValueError: the model is not known here.
    """
    for part, name in _FAMILIES:
        if part in model.lower():
            return name
    raise ValueError(f"`model` belongs to no known family: {model!r}")


def precision_of(words: str, gpu: str) -> str:
    """The precision that ran, from what the publisher wrote and the GPU's generation."""
    if words in ("bf16", "amp_bf16"):
        return "bf16"
    if words in ("fp16", "mixed"):
        return "fp16"
    if words in ("fp32", "tf32"):
        return "fp32" if gpu.startswith(_BEFORE_TF32) else "tf32"
    raise ValueError(f"`precision` must be fp32, tf32, fp16, bf16 or mixed, got {words!r}")


def compile_published(rows: Iterable[dict[str, str]]) -> Iterator[tuple[object, ...]]:
    """Rows of ``published_throughput.csv`` in the package's words, in the order of :data:`COLUMNS`."""
    for row in rows:
        gpu = gpu_of(row["hardware"])
        host = _HOST.search(row["hardware"])
        yield (
            row["source_set"],
            family_of(row["model"]),
            row["model"],
            row["framework"],
            row["task"],
            gpu,
            host[0] if host else "",
            int(row["gpus"]),
            int(row["nodes"] or 0),
            float(row["batch_per_gpu"] or 0),
            int(row["grad_accum"] or 1),
            int(row["seq_len"] or 0),
            precision_of(row["precision"], gpu),
            float(row["throughput"]),
            row["unit"],
            float(row["step_time_s"] or 0),
            int(row["params"] or 0),
            row["sharding"],
            row["act_ckpt"] == "True" or row["act_ckpt"].startswith("full"),
            re.sub(r"; HFU [\d.]+%", "", row["note"]),
            row["source"],
        )


def compile_all_reduces(rows: Iterable[dict[str, str]]) -> Iterator[tuple[object, ...]]:
    """Rows of ``allreduce_intranode_busbw.csv``: seconds and bytes."""
    for row in rows:
        seconds = float(row["time_ms_out_of_place"]) / 1e3
        bandwidth = float(row["bus_bandwidth_GBps"]) * 1e9
        yield (row["gpu"], int(row["gpus"]), int(row["bytes"]), f"{seconds:.7g}", f"{bandwidth:.6g}", row["source"])


def pack(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> bytes:
    """A compressed CSV: the same bytes for the same rows."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return gzip.compress(text.getvalue().encode(), 9, mtime=0)


def compiled(folder: Path) -> dict[Path, bytes]:
    """The package's tables by their place, from the folder with the collected ones."""
    with (folder / "published_throughput.csv").open(newline="") as text:
        published = pack(COLUMNS, compile_published(csv.DictReader(text)))
    with (folder / "allreduce_intranode_busbw.csv").open(newline="") as text:
        columns = ("gpu", "gpus", "size_bytes", "seconds", "bus_bandwidth", "url")
        sweep = pack(columns, compile_all_reduces(csv.DictReader(text)))
    return {
        Path(throughputs.__file__).with_name(throughputs.FILE): published,
        Path(sweeps.__file__).with_name(sweeps.FILE): sweep,
    }


if __name__ == "__main__":
    for place, packed in compiled(Path(sys.argv[1])).items():
        place.write_bytes(packed)
