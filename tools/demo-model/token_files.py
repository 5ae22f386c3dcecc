"""The files between prepare.py, train.py and eval.py: conversations as token ids.

`NAME.bin` holds 16 bits per token: the id, and in bit 15 whether the token counts fully in the
loss. `NAME.idx` holds two int64 per conversation, the index of its first token and its category;
a last row with category -1 closes the last conversation.
"""
from pathlib import Path

import numpy as np

_IN_LOSS = 0x8000


class TokenWriter:
    """Writes one pair of files."""

    def __init__(self, folder: Path, name: str):
        self._index_path = folder / f"{name}.idx"
        self._tokens = (folder / f"{name}.bin").open("wb")
        self._index: list[tuple[int, int]] = []
        self._token_count = 0

    def add(self, ids: list[int], in_loss: np.ndarray, category: int) -> None:
        """Appends a conversation; `in_loss` says which tokens count fully."""
        words = np.array(ids, np.uint16)
        words[in_loss] |= _IN_LOSS
        self._tokens.write(words.tobytes())
        self._index.append((self._token_count, category))
        self._token_count += len(ids)

    def close(self) -> None:
        """Writes the index; without it the tokens cannot be read."""
        self._tokens.close()
        self._index.append((self._token_count, -1))
        np.array(self._index, np.int64).tofile(self._index_path)


class TokenFile:
    """One pair of files in memory; its length is the number of conversations."""

    def __init__(self, folder: Path, name: str):
        self._words = np.fromfile(folder / f"{name}.bin", np.uint16)
        index = np.fromfile(folder / f"{name}.idx", np.int64).reshape(-1, 2)
        self._starts, self._categories = index[:, 0], index[:-1, 1]

    def __len__(self) -> int:
        return len(self._categories)

    @property
    def token_count(self) -> int:
        """Tokens of all conversations."""
        return len(self._words)

    def length(self, conversation: int) -> int:
        """Tokens of one conversation."""
        return int(self._starts[conversation + 1] - self._starts[conversation])

    def category(self, conversation: int) -> int:
        """The place of its category in `corpus.CATEGORIES`."""
        return int(self._categories[conversation])

    def tokens(self, conversation: int) -> tuple[np.ndarray, np.ndarray]:
        """Its token ids, and for each whether it counts fully in the loss."""
        words = self._words[self._starts[conversation] : self._starts[conversation + 1]]
        return (words & ~np.uint16(_IN_LOSS)).astype(np.int64), (words & _IN_LOSS) != 0
