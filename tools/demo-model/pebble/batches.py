"""Packs conversations of a token file into streams, and measures the loss on such a file."""
from collections.abc import Iterable

import numpy as np
import torch

import corpus
from token_files import TokenFile

from .network import Network, Stream

# Tokens of one stream while the held-out loss is measured, at least.
_EVALUATION_TOKENS = 4096


class Batches:
    """Streams of conversations in a random order, epoch after epoch.

    `prompt_weight` is what tokens count in the loss that the assistant did not write.
    """

    def __init__(self, file: TokenFile, prompt_weight: float):
        self.file, self._prompt_weight = file, prompt_weight
        self.seek(epoch=0, position=0)

    def seek(self, epoch: int, position: int) -> None:
        """Continues at a conversation of an epoch's order."""
        self.epoch, self.position = epoch, position
        self._order = np.random.default_rng(100 + epoch).permutation(len(self.file))

    def next_stream(self, tokens: int) -> Stream:
        """The next stream of exactly `tokens` tokens; its last conversation is cut."""
        chosen, count = [], 0
        while count < tokens:
            if self.position >= len(self.file):
                self.seek(self.epoch + 1, position=0)
            conversation = self._order[self.position]
            chosen.append(conversation)
            count += self.file.length(conversation)
            self.position += 1
        return self.pack(chosen, tokens)

    def pack(self, conversations: Iterable[int], tokens_max: int | None = None) -> Stream:
        """One stream of these conversations, cut at `tokens_max`."""
        ids, targets, weights, starts = [], [], [], [0]
        for conversation in conversations:
            room = None if tokens_max is None else tokens_max - starts[-1]
            tokens, in_loss = (part[:room] for part in self.file.tokens(conversation))
            weight = np.where(in_loss, 1.0, self._prompt_weight).astype(np.float32)
            ids.append(tokens)
            # The last token of a conversation has nothing to predict.
            targets.append(np.append(tokens[1:], 0))
            weights.append(np.append(weight[1:], np.float32(0)))
            starts.append(starts[-1] + len(tokens))
        parts = (torch.from_numpy(np.concatenate(part)) for part in (ids, targets, weights))
        stream_ids, stream_targets, stream_weights = parts
        return Stream(stream_ids, torch.tensor(starts), stream_targets, stream_weights)


class HeldOutLoss:
    """The mean loss on what the assistant writes, in conversations never trained on."""

    def __init__(self, file: TokenFile):
        self._file = file
        self._batches = Batches(file, prompt_weight=0.0)

    def measure(self, network: Network, tokens: int) -> tuple[float, dict[str, float]]:
        """Over the first `tokens` tokens: the mean, and that of every category."""
        sums, counts = np.zeros(len(corpus.CATEGORIES)), np.zeros(len(corpus.CATEGORIES))
        pending, pending_tokens, seen = [], 0, 0
        for conversation in range(len(self._file)):
            pending.append(conversation)
            pending_tokens += self._file.length(conversation)
            is_last = seen + pending_tokens > tokens or conversation == len(self._file) - 1
            if pending_tokens < _EVALUATION_TOKENS and not is_last:
                continue
            self._add(network, pending, sums, counts)
            seen += pending_tokens
            pending, pending_tokens = [], 0
            if is_last:
                break
        by_category = {
            category: round(float(sums[i] / counts[i]), 4)
            for i, category in enumerate(corpus.CATEGORIES)
            if counts[i]
        }
        return round(float(sums.sum() / counts.sum()), 4), by_category

    def _add(
        self, network: Network, conversations: list[int], sums: np.ndarray, counts: np.ndarray
    ) -> None:
        stream = self._batches.pack(conversations)
        with torch.no_grad():
            _, losses = network.loss(stream)
        lengths = [self._file.length(conversation) for conversation in conversations]
        categories = np.repeat([self._file.category(c) for c in conversations], lengths)
        counted = (stream.weights == 1.0).numpy()
        np.add.at(sums, categories[counted], losses.numpy()[counted])
        np.add.at(counts, categories[counted], 1)
