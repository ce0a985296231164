"""A folder of text as passages of hashed tokens, and the collate function that packs them into blocks."""

import re
import sysconfig
import zlib
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.utils.data import Dataset

SUFFIXES = {".txt", ".md", ".rst", ".py"}
TOKEN = re.compile(r"\w+|[^\w\s]|\n[ ]*")  # words, single marks, line breaks with the indent that follows
PAD, END, NUM_SPECIAL = 0, 1, 2
IGNORE = -100  # the target that cross_entropy leaves out


def find_text(folder: Path | None) -> list[Path]:
    """The text files of a folder and its sub-folders; without a folder, the modules of Python's standard library."""
    if folder is None:
        return sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    files = sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())
    if not files:
        raise SystemExit(f"`--data` must be a folder with {' '.join(sorted(SUFFIXES))} files, found none in {folder}")
    return files


def tokenise(text: str, vocabulary: int) -> list[int]:
    """One number per word, mark or line break, from a hash of its letters: no vocabulary has to be learnt or kept."""
    size = vocabulary - NUM_SPECIAL
    return [NUM_SPECIAL + zlib.crc32(token.encode()) % size for token in TOKEN.findall(text)]


class Passages(Dataset):
    """A sample is the tokens [n] of a passage: ``passage_bytes`` of one file, less at its end; n differs."""

    def __init__(self, files: list[Path], passage_bytes: int, vocabulary: int):
        self.passage_bytes = passage_bytes
        self.vocabulary = vocabulary
        self.passages = [(path, start) for path in files for start in range(0, path.stat().st_size, passage_bytes)]

    def __len__(self) -> int:
        return len(self.passages)

    def __getitem__(self, index: int) -> torch.Tensor:
        path, start = self.passages[index]
        with path.open("rb") as file:
            file.seek(start)
            text = file.read(self.passage_bytes).decode(errors="replace")
        return torch.tensor([*tokenise(text, self.vocabulary), END])


@dataclass(frozen=True)
class PackBlocks:
    """Packs passages end to end into blocks; as many as they fill, at most ``max_blocks``, the last one padded."""

    block_size: int
    max_blocks: int

    def __call__(self, passages: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        """``tokens`` and ``targets`` [blocks, block_size], where a target is the token that follows."""
        stream = torch.cat(passages)[: self.max_blocks * self.block_size + 1]
        tokens, targets = stream[:-1], stream[1:]
        return {"tokens": self._blocks(tokens, PAD), "targets": self._blocks(targets, IGNORE)}

    def _blocks(self, stream: torch.Tensor, fill: int) -> torch.Tensor:
        width = min(self.block_size, len(stream))
        padding = -len(stream) % width
        return torch.nn.functional.pad(stream, (0, padding), value=fill).view(-1, width)
