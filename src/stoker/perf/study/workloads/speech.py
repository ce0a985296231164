"""Published rows about speech."""

from __future__ import annotations

from stoker.perf.study.tables.rows import Published
from stoker.perf.study.workloads.workload import EXAMPLES, LAMBDA, Excluded, Input, Rule, Workload

_LOGS = f"logs of {LAMBDA} pytorch/results/*_v1"
_TEXT, _FRAMES, _COUNTED = 167, 861, 565
"""Letters and frames that a batch is padded to, and mean frames of a clip."""
_SEGMENT = 8000


def _precision(row: Published) -> str:
    """Neither program knew the switch for mixed precision: all its logs say ``amp : False``, and rates agree."""
    before_tf32 = row.gpu.startswith(("V100", "RTX-8000"))
    return row.precision if row.precision != "fp16" else "fp32" if before_tf32 else "tf32"


def _tacotron2(row: Published) -> Workload:
    batch = int(row.batch_per_gpu)
    return Workload(
        name=row.model,
        model="recurrent:Tacotron2",
        inputs=(
            Input("text", (batch, _TEXT), 148),
            Input("mels", (batch, _FRAMES, 80)),
            Input("stops", (batch, _FRAMES)),
        ),
        optimizer="adam",
        precision=_precision(row),
        batch=batch,
        loop=_FRAMES,
        counted=_COUNTED * batch,
        unit="mel frames",
        sources=(
            f"565 frames a clip: time x rate of 134 {_LOGS}/PyTorch_tacotron2_FP* (559 to 572)",
            f"no mixed precision in rows that are called fp16: the same {_LOGS}",
            "861 frames: 10 s at 22,050 / 256 a second; LJ Speech has clips of 1 to 10 s, a batch 48 or more",
            f"167 letters, the longest of 80 (159 of 32, 175 of 256): {EXAMPLES} "
            "PyTorch/SpeechSynthesis/Tacotron2/filelists/ljs_audio_text_train_filelist.txt",
            f"layers: {EXAMPLES} PyTorch/SpeechSynthesis/Tacotron2/tacotron2/arg_parser.py",
        ),
    )


def _waveglow(row: Published) -> Workload:
    batch = int(row.batch_per_gpu)
    return Workload(
        name=row.model,
        model="flows:WaveGlow",
        inputs=(Input("mels", (batch, 80, _SEGMENT // 256 + 1)), Input("audio", (batch, _SEGMENT))),
        optimizer="adam",
        precision=_precision(row),
        batch=batch,
        counted=_SEGMENT * batch,
        unit="audio samples",
        sources=(
            f"8,000 samples a clip: time x rate of 128 {_LOGS}/PyTorch_waveglow_FP*",
            f"no mixed precision in rows that are called fp16: the same {_LOGS}",
            f"layers: {EXAMPLES} PyTorch/SpeechSynthesis/Tacotron2/waveglow/arg_parser.py",
        ),
    )


def _quartznet(_: Published) -> Excluded:
    return Excluded("QuartzNet: its benchmark pads to a MAX_DURATION that is not published, with a missing config")


def _fastpitch(_: Published) -> Excluded:
    return Excluded("FastPitch: the mel frames of a step are not published")


RULES: dict[str, Rule] = {
    "tacotron2": _tacotron2,
    "waveglow": _waveglow,
    "QuartzNet": _quartznet,
    "FastPitch": _fastpitch,
}
