"""Published rows about images and volumes."""

from __future__ import annotations

from typing import Any

from stoker.perf.study.tables.rows import Published
from stoker.perf.study.workloads.workload import EXAMPLES, LAMBDA, Excluded, Input, Optimizer, Rule, Workload

_CONVNETS = f"{EXAMPLES} PyTorch/Classification/ConvNets"
_SYNTHETIC = (
    "SGD with momentum, 224x224, no smoothing, channels first, synthetic images: logs of "
    f"{LAMBDA} pytorch/results/*_v1/PyTorch_resnet50_*"
)
_IMAGE_SIZE = f"224x224: {_CONVNETS}/image_classification/models/resnet.py:420, default_image_size"


def _classifier(row: Published, options: dict[str, Any], batch: int, *sources: str) -> Workload:
    return _workload(row, "convolutional:ResNet", options, 224, batch, "sgd-momentum", *sources)


def _workload(
    row: Published, model: str, options: dict[str, Any], size: int, batch: int, optimizer: Optimizer, *sources: str
) -> Workload:
    return Workload(
        name=row.model,
        model=model,
        options=options,
        inputs=(Input("images", (batch, 3, size, size)), Input("labels", (batch,), 1000)),
        optimizer=optimizer,
        precision=row.precision,
        batch=batch,
        counted=batch,
        unit="images",
        sources=sources,
    )


def _resnet50(row: Published) -> Workload:
    smoothing = 0.0 if row.source == "lambda-v1" else 0.1
    if row.source == "lambda-v1":
        source = _SYNTHETIC
    elif row.framework == "PyTorch":
        source = _IMAGE_SIZE
    else:
        source = f"224x224: {EXAMPLES} TensorFlow/Classification/ConvNets/main.py:67"
    return _classifier(row, {"smoothing": smoothing}, int(row.batch_per_gpu), source)


_MXNET = {  # (GPU, precision) -> images of a GPU: the commands next to each table
    ("A100-80GB-SXM", "fp16"): 512,
    ("A100-80GB-SXM", "tf32"): 512,
    ("V100-16GB-SXM", "fp16"): 192,
    ("V100-16GB-SXM", "fp32"): 96,
    ("V100-32GB-SXM", "fp16"): 256,
    ("V100-32GB-SXM", "fp32"): 128,
}


def _resnet50_mxnet(row: Published) -> Workload:
    where = f"{EXAMPLES} MxNet/Classification/RN50v1.5"
    batch = _MXNET[row.gpu, row.precision]
    return _classifier(row, {}, batch, f"batch: {where}/README.md:644-676", f"224x224: {where}/data.py:61")


def _resnet50_paddle(row: Published) -> Workload:
    where = f"{EXAMPLES} PaddlePaddle/Classification/RN50v1.5/README.md"
    return _classifier(row, {}, 256, f"batch: {where}:78 and :478, the default", f"224x224: {where}:487")


def _resnext(row: Published) -> Workload:
    options = {"depth": 101, "groups": 32, "squeeze": row.model.startswith("SE")}
    return _classifier(row, options, int(row.batch_per_gpu), _IMAGE_SIZE, f"batch: {_CONVNETS}/configs.yml")


def _ssd(row: Published) -> Workload:
    batch = int(row.batch_per_gpu)
    return Workload(
        name=row.model,
        model="convolutional:SSD300",
        inputs=(
            Input("images", (batch, 3, 300, 300)),
            Input("boxes", (batch, 4, 8732)),
            Input("labels", (batch, 8732), 81),
        ),
        optimizer="sgd-momentum",
        precision=row.precision,
        batch=batch,
        counted=batch,
        unit="images",
        sources=(
            f"300x300: {EXAMPLES} PyTorch/Detection/SSD/README.md:53",
            f"8,732 boxes, 81 classes, layers: {EXAMPLES} PyTorch/Detection/SSD/ssd/model.py",
        ),
    )


_EFFICIENT = {  # (B0?, GPU, precision) -> images of a GPU: scripts/{B0,B4}/training/*/train_benchmark_8x*.sh
    (True, "A100-80GB-SXM", "fp16"): 1024,
    (True, "A100-80GB-SXM", "tf32"): 512,
    (True, "V100-32GB-SXM", "fp16"): 512,
    (True, "V100-32GB-SXM", "fp32"): 256,
    (False, "A100-80GB-SXM", "fp16"): 160,
    (False, "A100-80GB-SXM", "tf32"): 80,
    (False, "V100-32GB-SXM", "fp16"): 64,
    (False, "V100-32GB-SXM", "fp32"): 32,
}
_B0_FROM = 475
"""Images a second of a GPU. The rows lost the heading of their table; in the two tables all of B0 is above this, all of
B4 below."""


def _efficientnet(row: Published) -> Workload:
    where = f"{EXAMPLES} TensorFlow2/Classification/ConvNets"
    small = row.throughput / row.gpus > _B0_FROM
    options = {} if small else {"width": 1.4, "depth": 1.8}
    batch = _EFFICIENT[small, row.gpu, row.precision]
    variant, size = ("B0", 224) if small else ("B4", 380)
    return _workload(
        row, "convolutional:EfficientNet", options, size, batch, "rmsprop",
        f"{variant}, told by its throughput: {where}/efficientnet_v1/README.md:433-475",
        f"batch and size: {where}/efficientnet_v1/{variant}/training/*/train_benchmark_8x*.sh; per GPU: README.md:264",
        f"layers: {where}/config/efficientnet_v1/{variant.lower()}_cfg.py",
    )  # fmt: skip


def _vnet(row: Published) -> Workload:
    where = f"{EXAMPLES} TensorFlow/Segmentation/VNet"
    volume = (int(row.batch_per_gpu), 1, 32, 32, 32)
    return Workload(
        name=row.model,
        model="convolutional:VNet",
        inputs=(Input("volumes", volume), Input("labels", (volume[0], 32, 32, 32), 3)),
        optimizer="rmsprop",
        precision=row.precision,
        batch=volume[0],
        counted=volume[0],
        unit="images",
        sources=(
            f"32x32x32, blocks of 3, RMSprop, dice: {where}/utils/cmd_util.py:41-90",
            f"layers: {where}/model/vnet.py, layers.py",
            f"3 classes (two parts of the hippocampus and the rest): {where}/README.md:466",
        ),
    )


def _maskrcnn(_: Published) -> Excluded:
    return Excluded("Mask R-CNN: image sizes and regions differ from step to step, and are not published")


RULES: dict[str, Rule] = {
    "resnet50": _resnet50,
    "ResNet50v1.5": _resnet50,
    "ResNet50v1.5 (TF)": _resnet50,
    "ResNet50v1.5 (MXNet)": _resnet50_mxnet,
    "ResNet50v1.5 (Paddle)": _resnet50_paddle,
    "ResNeXt101-32x4d": _resnext,
    "SE-ResNeXt101-32x4d": _resnext,
    "ssd": _ssd,
    "SSD300": _ssd,
    "EfficientNet-v1 (TF2)": _efficientnet,
    "V-Net": _vnet,
    "MaskRCNN": _maskrcnn,
}
