"""Training in several processes on one machine: each takes its own streams of every step."""
import os
import subprocess
import sys
from pathlib import Path

import torch


class Alone:
    """One process: nothing to agree on."""

    rank, count = 0, 1

    def agree(self, progress: float, should_stop: bool) -> tuple[float, bool]:
        """What the first process says."""
        return progress, should_stop

    def add_up(self, gradients: torch.Tensor) -> None:
        """Replaces gradients by their sum over all processes."""


class Workers:
    """Several processes. The first one starts the others, with its own command line."""

    def __init__(self, count: int, rank: int, rendezvous: Path):
        from torch import distributed

        self.rank, self.count, self._distributed = rank, count, distributed
        if rank == 0:
            for other in range(1, count):
                place = ["--rank", str(other), "--rendezvous", str(rendezvous)]
                subprocess.Popen([sys.executable, *sys.argv, *place])
        distributed.init_process_group(
            "gloo", init_method=rendezvous.resolve().as_uri(), rank=rank, world_size=count
        )

    def agree(self, progress: float, should_stop: bool) -> tuple[float, bool]:
        """What the first process says."""
        message = torch.tensor([progress, float(should_stop)], dtype=torch.float64)
        self._distributed.broadcast(message, 0)
        return float(message[0]), bool(message[1])

    def add_up(self, gradients: torch.Tensor) -> None:
        """Replaces gradients by their sum over all processes."""
        self._distributed.all_reduce(gradients)


def join_workers(
    count: int, rank: int, rendezvous: Path | None, folder: Path
) -> Alone | Workers:
    """Starts or joins `count` processes that meet at a file in `folder`."""
    if count == 1:
        return Alone()
    return Workers(count, rank, rendezvous or folder / f"rendezvous-{os.getpid()}")
