# pyright: reportPrivateImportUsage=false, reportPrivateUsage=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false
# (the only module of the feed that uses torch's private names)
"""Torch's private names that serving loaders needs, each once; other modules take them from here.

``SYMBOLS`` is plain data: a test reads it even if torch lacks one of the names and this module can't be imported.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._utils import ExceptionWrapper as ExceptionWrapper
from torch.utils.data import DataLoader
from torch.utils.data import _utils as _data
from torch.utils.data import dataloader as _loading

SYMBOLS = (
    # dotted name, purpose, since; attributes that methods set on an object are listed under its class
    ("torch._utils.ExceptionWrapper", "brings a worker's exception to the program as torch's workers do", "before 2.6"),
    ("torch._nested_view_from_buffer", "rebuilds a nested tensor in the training process", "before 2.6"),
    ("torch.Tensor._nested_tensor_size", "sizes of a nested tensor on its way from a worker", "before 2.6"),
    ("torch.Tensor._nested_tensor_strides", "its strides", "before 2.6"),
    ("torch.Tensor._nested_tensor_storage_offsets", "its offsets", "before 2.6"),
    ("torch.Tensor._indices", "indices of a sparse tensor that may not be coalesced", "before 2.6"),
    ("torch.Tensor._values", "its values", "before 2.6"),
    ("torch.storage.TypedStorage._untyped_storage", "bytes of a typed storage, without its warning", "before 2.6"),
    ("torch.utils.data._utils.collate.collate_tensor_fn", "what stacking into slots stands in for", "before 2.6"),
    ("torch.utils.data._utils.collate.default_collate", "told apart from a program's `collate_fn`", "before 2.6"),
    ("torch.utils.data._utils.collate.default_collate_fn_map", "where stacking into slots is set", "before 2.6"),
    ("torch.utils.data._utils.fetch._IterableDatasetFetcher.__init__", "line that a warning names", "before 2.6"),
    ("torch.utils.data._utils.fetch._IterableDatasetFetcher.fetch", "lines that a warning names", "before 2.6"),
    ("torch.utils.data._utils.fetch._MapDatasetFetcher.fetch", "lines that a warning names", "before 2.6"),
    ("torch.utils.data._utils.pin_memory.pin_memory", "pins a batch of any shape", "before 2.6"),
    ("torch.utils.data._utils.worker.WorkerInfo", "what `get_worker_info` returns", "before 2.6"),
    ("torch.utils.data._utils.worker._generate_state", "NumPy's seed in a worker", "before 2.6"),
    ("torch.utils.data._utils.worker._worker_info", "where `get_worker_info` looks", "before 2.6"),
    ("torch.utils.data._utils.worker._worker_loop", "line that a warning names", "before 2.6"),
    ("torch.utils.data.DataLoader._auto_collation", "whether an item is a batch", "before 2.6"),
    ("torch.utils.data.DataLoader._dataset_kind", "whether the dataset is iterable", "before 2.6"),
    ("torch.utils.data.DataLoader._get_iterator", "makes an iterator: replaced", "before 2.6"),
    ("torch.utils.data.DataLoader._index_sampler", "the order of a loader", "before 2.6"),
    ("torch.utils.data.DataLoader._iterator", "the iterator that persistent workers keep", "before 2.6"),
    ("torch.utils.data.dataloader._DatasetKind.Iterable", "kind of an iterable dataset", "before 2.6"),
    ("torch.utils.data.dataloader._DatasetKind.create_fetcher", "batches of the training process", "before 2.6"),
    ("torch.utils.data.dataloader._BaseDataLoaderIter", "base class of what a program gets", "before 2.6"),
    ("torch.utils.data.dataloader._BaseDataLoaderIter._IterableDataset_len_called", "inherited", "before 2.6"),
    ("torch.utils.data.dataloader._BaseDataLoaderIter._auto_collation", "inherited", "before 2.6"),
    ("torch.utils.data.dataloader._BaseDataLoaderIter._base_seed", "inherited", "before 2.6"),
    ("torch.utils.data.dataloader._BaseDataLoaderIter._collate_fn", "inherited", "before 2.6"),
    ("torch.utils.data.dataloader._BaseDataLoaderIter._dataset", "inherited", "before 2.6"),
    ("torch.utils.data.dataloader._BaseDataLoaderIter._dataset_kind", "inherited", "before 2.6"),
    ("torch.utils.data.dataloader._BaseDataLoaderIter._drop_last", "inherited", "before 2.6"),
    ("torch.utils.data.dataloader._BaseDataLoaderIter._index_sampler", "inherited", "before 2.6"),
    ("torch.utils.data.dataloader._BaseDataLoaderIter._next_data", "overridden: the next batch", "before 2.6"),
    ("torch.utils.data.dataloader._BaseDataLoaderIter._num_workers", "inherited", "before 2.6"),
    ("torch.utils.data.dataloader._BaseDataLoaderIter._num_yielded", "inherited", "before 2.6"),
    ("torch.utils.data.dataloader._BaseDataLoaderIter._persistent_workers", "inherited", "before 2.6"),
    ("torch.utils.data.dataloader._BaseDataLoaderIter._pin_memory", "inherited", "before 2.6"),
    ("torch.utils.data.dataloader._BaseDataLoaderIter._pin_memory_device", "inherited", "before 2.6"),
    ("torch.utils.data.dataloader._BaseDataLoaderIter._profile_name", "inherited", "before 2.6"),
    ("torch.utils.data.dataloader._BaseDataLoaderIter._reset", "overridden: a persistent loader begins", "before 2.6"),
    ("torch.utils.data.dataloader._BaseDataLoaderIter._sampler_iter", "inherited", "before 2.6"),
    ("torch.utils.data.dataloader._MultiProcessingDataLoaderIter", "torch's iterator with workers", "before 2.6"),
    ("torch.utils.data.dataloader._MultiProcessingDataLoaderIter._rcvd_idx", "batches delivered", "before 2.6"),
    ("torch.utils.data.dataloader._MultiProcessingDataLoaderIter._send_idx", "batches asked for", "before 2.6"),
    ("torch.utils.data.dataloader._MultiProcessingDataLoaderIter._shutdown_workers", "ends workers", "before 2.6"),
    ("torch.utils.data.dataloader._MultiProcessingDataLoaderIter._try_put_index", "asks for a batch", "before 2.6"),
    ("torch.utils.data.dataloader._SingleProcessDataLoaderIter", "torch's iterator without workers", "before 2.6"),
)

BaseIterator = _loading._BaseDataLoaderIter
WorkersIterator = _loading._MultiProcessingDataLoaderIter
InProcessIterator = _loading._SingleProcessDataLoaderIter
DatasetKind = _loading._DatasetKind
MapFetcher = _data.fetch._MapDatasetFetcher
IterableFetcher = _data.fetch._IterableDatasetFetcher
WorkerInfo = _data.worker.WorkerInfo
worker_loop = _data.worker._worker_loop
numpy_seed = _data.worker._generate_state
"""NumPy's seed of a worker, from the base seed and the worker's number."""
nested_view = torch._nested_view_from_buffer
collating, pinning = _data.collate, _data.pin_memory
"""Kept as modules: a program may replace their functions at any time."""
LOOKED_UP = (
    collating.collate_tensor_fn, collating.default_collate, collating.default_collate_fn_map, pinning.pin_memory
)  # fmt: skip
"""Those functions as of now. Data workers look them up again; a torch that lacks one must fail here, before that."""

GET_ITERATOR = "_get_iterator"
stock_get_iterator: Callable[[DataLoader[Any]], Any] = DataLoader._get_iterator
"""Torch's own, saved before stoker replaces it."""


def worker_info() -> Any:
    """What ``get_worker_info()`` returns in this process."""
    return _data.worker._worker_info


def set_worker_info(info: Any) -> None:
    """Makes ``get_worker_info()`` return ``info``, as in torch's own workers."""
    _data.worker._worker_info = info


# -- loaders -----------------------------------------------------------------------------------------------------------


def index_sampler_of(loader: DataLoader[Any]) -> Any:
    """The sampler of a loader's indices: of batches if it collates, else of samples."""
    return loader._index_sampler


def collates(loader: DataLoader[Any]) -> bool:
    """Whether the items of a loader are batches that it collates."""
    return loader._auto_collation


def is_iterable(loader: DataLoader[Any]) -> bool:
    """Whether a loader's dataset is iterable."""
    return loader._dataset_kind == DatasetKind.Iterable


def new_fetcher(loader: DataLoader[Any]) -> Any:
    """A fetcher of a loader's batches for this process; creating it opens the stream of an iterable dataset."""
    return DatasetKind.create_fetcher(
        loader._dataset_kind, loader.dataset, loader._auto_collation, loader.collate_fn, loader.drop_last
    )


def makes_iterators_as_torch(loader: DataLoader[Any]) -> bool:
    """Whether neither a loader nor its class overrides how iterators are made."""
    return GET_ITERATOR not in vars(loader) and type(loader)._get_iterator is DataLoader._get_iterator


def kept_iterator_of(loader: DataLoader[Any]) -> Any:
    """The iterator that a loader with persistent workers keeps; None if there is none."""
    return getattr(loader, "_iterator", None)


def forget_iterator(loader: DataLoader[Any]) -> None:
    """Drops the iterator of a loader with persistent workers, so that the next one is new."""
    loader._iterator = None


def copy_without_iterator(loader: DataLoader[Any], **own: Any) -> DataLoader[Any]:
    """A copy of a loader with the attributes ``own``, without the iterator that a persistent loader keeps."""
    found: DataLoader[Any] = object.__new__(type(loader))
    vars(found).update({name: value for name, value in vars(loader).items() if name != "_iterator"} | own)
    return found


# -- torch's own iterators ---------------------------------------------------------------------------------------------


def begin_again(iterator: Any, loader: DataLoader[Any]) -> None:
    """Makes an iterator with persistent workers begin another iteration."""
    iterator._reset(loader)


def ask_for_batch(iterator: Any) -> None:
    """Makes an iterator with workers request a batch, if its sampler gives one."""
    iterator._try_put_index()


def num_asked_for(iterator: Any) -> int:
    """Batches that an iterator with workers has requested and not delivered."""
    return iterator._send_idx - iterator._rcvd_idx


def end_workers(iterator: Any) -> None:
    """Ends the workers of an iterator that has some."""
    iterator._shutdown_workers()


def dataset_of(iterator: Any) -> Any:
    """The dataset that an iterator reads."""
    return iterator._dataset


def num_workers_of(iterator: Any) -> int:
    """Declared workers of an iterator; 0 if it names none."""
    return int(getattr(iterator, "_num_workers", 0) or 0)


# -- tensors -----------------------------------------------------------------------------------------------------------


def layout_of_nested(tensor: torch.Tensor) -> tuple[Any, Any, Any]:
    """Sizes, strides and offsets of the tensors in a nested one."""
    return tensor._nested_tensor_size(), tensor._nested_tensor_strides(), tensor._nested_tensor_storage_offsets()


def parts_of_sparse(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Indices and values of a sparse tensor (COO), coalesced or not."""
    return tensor._indices(), tensor._values()


def bytes_of(storage: Any) -> torch.UntypedStorage:
    """The untyped memory of a typed storage."""
    return storage._untyped_storage
