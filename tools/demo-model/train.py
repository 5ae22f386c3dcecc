"""Trains Pebble, a very small qwen3_5_moe text model, on the CPU.

Weights live in f32, products run in bf16. Start and resume are the same command. Stop with
SIGTERM: the state is saved before the program ends. The learning rate is constant and falls
to zero over the last part of --minutes of accumulated training time. RUN/last.pt is the state;
RUN/stable.pt is the state before the decay began: copy it over last.pt to train on with a
longer --minutes. RUN/log.jsonl has the curve.
"""
import argparse
import json
import math
import signal
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from pebble.batches import Batches, HeldOutLoss
from pebble.check import check
from pebble.config import CONFIG
from pebble.network import Network
from pebble.optimizer import Optimizer
from pebble.workers import join_workers
from token_files import TokenFile

WARMUP_STEPS = 40
RATE_MIN = 0.005
LOG_EVERY_STEPS = 10
HELD_OUT_TOKENS = 24_000
FINAL_HELD_OUT_TOKENS = 60_000


@dataclass
class Progress:
    """How far training has come; saved with the weights."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    epoch: int = 0
    position: int = 0
    data: str = ""
    has_stable: bool = False


class Trainer:
    """Everything that one training run consists of."""

    def __init__(self, options: argparse.Namespace):
        self.options = options
        options.run.mkdir(parents=True, exist_ok=True)
        # Before the other processes start: the first one compiles the kernels.
        self.network = Network()
        self.workers = join_workers(options.world, options.rank, options.rendezvous, options.run)
        self.batches = Batches(TokenFile(options.data, "train"), options.prompt_weight)
        self.held_out = HeldOutLoss(TokenFile(options.data, "heldout"))
        self.optimizer = Optimizer(self.network.parameters, options.lr_muon, options.lr_adam)
        self.progress = Progress(data=str(options.data))
        self.log = (options.run / "log.jsonl").open("a") if self.workers.rank == 0 else None
        self.should_stop = False
        signal.signal(signal.SIGTERM, self._stop)

    def _stop(self, *_signal) -> None:
        self.should_stop = True

    @property
    def state_path(self) -> Path:
        """Where the state is saved to and resumed from."""
        return self.options.run / "last.pt"

    def save(self, path: Path) -> None:
        """Writes the state; the file is never incomplete."""
        state = {
            "weights": {name: w.clone() for name, w in self.network.parameters.weights.items()},
            "first": self.optimizer.flat_first,
            "second": self.optimizer.flat_second,
            "optimizer_steps": self.optimizer.step_count,
            "progress": asdict(self.progress),
            "config": asdict(CONFIG),
        }
        unfinished = path.with_suffix(".tmp")
        torch.save(state, unfinished)
        unfinished.replace(path)

    def resume(self) -> None:
        """Continues from the saved state; other token files are begun at their start."""
        state = torch.load(self.state_path)
        for name, weight in state["weights"].items():
            self.network.parameters.weights[name].copy_(weight)
        self.network.parameters.refresh_copies()
        self.optimizer.flat_first.copy_(state["first"])
        self.optimizer.flat_second.copy_(state["second"])
        self.optimizer.step_count = state["optimizer_steps"]
        self.progress = Progress(**state["progress"])
        if self.progress.data != str(self.options.data):
            self.progress.epoch = self.progress.position = 0
            self.progress.data = str(self.options.data)
        self.batches.seek(self.progress.epoch, self.progress.position)

    def run(self) -> None:
        """Trains until the time is used up or SIGTERM arrives."""
        if self.state_path.exists():
            self.resume()
        is_first, file = self.workers.rank == 0, self.batches.file
        if is_first:
            print(
                f"{self.network.parameters.count / 1e6:.2f} M parameters, {len(file)} "
                f"conversations, {file.token_count / 1e6:.1f} M tokens, from step "
                f"{self.progress.step}",
                flush=True,
            )
        begin = time.time() - self.progress.seconds
        saved = evaluated = time.time()
        meter = Meter(self.progress.tokens)
        while True:
            self.progress.seconds = time.time() - begin
            done, stop = self.workers.agree(
                self.progress.seconds / (self.options.minutes * 60), self.should_stop
            )
            if done >= 1 or stop:
                break
            if done > 1 - self.options.decay and not self.progress.has_stable and is_first:
                self.save(self.options.run / "stable.pt")
            self.progress.has_stable |= done > 1 - self.options.decay
            rate = self._rate(done)
            loss, gradient_norm, loads = self._step(rate)
            self.progress.seconds = time.time() - begin
            meter.add(loss)
            if is_first and (self.progress.step % LOG_EVERY_STEPS == 0 or self.progress.step < 5):
                self._record(meter.read(self.progress, loads) | {
                    "lr": round(rate, 4), "gnorm": round(gradient_norm, 3),
                })
            if is_first and time.time() - evaluated > self.options.eval_every:
                self._record_held_out("heldout", HELD_OUT_TOKENS)
                evaluated = time.time()
            if is_first and time.time() - saved > self.options.save_every:
                self.save(self.state_path)
                saved = time.time()
        if is_first:
            self.save(self.state_path)
            self._record_held_out("final", FINAL_HELD_OUT_TOKENS)

    def _rate(self, done: float) -> float:
        """The learning rate relative to its base: a short rise, a plateau, a linear fall."""
        rise = (self.progress.step + 1) / WARMUP_STEPS
        fall = max(0.0, (1 - done) / self.options.decay) + RATE_MIN
        return min(1.0, rise, fall)

    def _step(self, rate: float) -> tuple[float, float, torch.Tensor]:
        """One step: the mean loss of what the assistant writes, the gradient norm, the loads."""
        options, workers = self.options, self.workers
        # Small steps at first: the loss falls per step, not per token.
        per_worker = 1 if self.progress.step < options.small_steps else options.micro
        count = per_worker * workers.count
        streams = [self.batches.next_stream(options.tokens) for _ in range(count)]
        total_weight = sum(float(stream.weights.sum()) for stream in streams)
        loads = torch.zeros(CONFIG.num_hidden_layers, CONFIG.num_experts, dtype=torch.int32)
        loss_sum, counted = 0.0, 0
        for stream in streams[workers.rank :: workers.count]:
            scaled = stream._replace(weights=stream.weights / total_weight)
            loss, losses = self.network.loss(scaled, options.aux / count, loads)
            loss.backward()
            is_answer = stream.weights == 1.0
            loss_sum += float(losses[is_answer].sum())
            counted += int(is_answer.sum())
        workers.add_up(self.network.parameters.flat_gradients)
        gradient_norm = self.optimizer.step(rate)
        self.progress.step += 1
        self.progress.tokens += sum(len(stream.ids) for stream in streams)
        self.progress.epoch, self.progress.position = self.batches.epoch, self.batches.position
        return loss_sum / max(1, counted), gradient_norm, loads

    def _record_held_out(self, name: str, tokens: int) -> None:
        mean, by_category = self.held_out.measure(self.network, tokens)
        where = {"step": self.progress.step, "tokens": self.progress.tokens}
        self._record(where | {name: mean} | by_category)

    def _record(self, record: dict) -> None:
        line = json.dumps(record)
        self.log.write(line + "\n")
        self.log.flush()
        print(line, flush=True)


class Meter:
    """Loss and speed since the last reading."""

    def __init__(self, tokens: int):
        self._losses: list[float] = []
        self._restart(tokens)

    def add(self, loss: float) -> None:
        """Notes the loss of a step."""
        self._losses.append(loss)

    def read(self, progress: Progress, loads: torch.Tensor) -> dict:
        """A line of the log. `balance` is the entropy of the loads of the experts relative to
        its maximum, `maxload` the largest load relative to the mean."""
        tokens = progress.tokens - self._tokens
        share = loads.float() / loads.sum(1, keepdim=True)
        entropy = float(-(share * (share + 1e-9).log()).sum(1).mean())
        record = {
            "step": progress.step,
            "tokens": progress.tokens,
            "sec": round(progress.seconds, 1),
            "loss": round(float(np.mean(self._losses)), 4),
            "tok_s": round(tokens / (time.time() - self._wall)),
            "tok_cpu_s": round(tokens / (time.process_time() - self._cpu)),
            "balance": round(entropy / math.log(CONFIG.num_experts), 3),
            "maxload": round(float(share.max()) * CONFIG.num_experts, 2),
        }
        self._losses.clear()
        self._restart(progress.tokens)
        return record

    def _restart(self, tokens: int) -> None:
        self._tokens, self._wall, self._cpu = tokens, time.time(), time.process_time()


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = parser.add_argument
    add("--check", action="store_true", help="compare loss and gradients with transformers")
    add("--data", type=Path, default=Path("work/data"), help="folder of prepare.py")
    add("--run", type=Path, default=Path("work/run"), help="folder of the state and the log")
    add("--minutes", type=float, default=50, help="training time, resumed runs included")
    add("--decay", type=float, default=0.35, help="last part of it with a falling rate")
    add("--tokens", type=int, default=4096, help="tokens of a stream")
    add("--micro", type=int, default=2, help="streams per step and process")
    add("--small-steps", type=int, default=300, help="first steps, with a single stream")
    add("--world", type=int, default=1, help="processes; each takes its part of every step")
    add("--aux", type=float, default=0.002, help="weight of the balance loss")
    add("--prompt-weight", type=float, default=0.15, help="weight of text of the user and tools")
    add("--lr-muon", type=float, default=0.02, help="base learning rate of Muon")
    add("--lr-adam", type=float, default=3e-3, help="base learning rate of AdamW")
    add("--save-every", type=float, default=180, help="seconds between saved states")
    add("--eval-every", type=float, default=300, help="seconds between held-out losses")
    # How the first process starts the others.
    add("--rank", type=int, default=0, help=argparse.SUPPRESS)
    add("--rendezvous", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    options = parse_options()
    # One thread: the matrices are too small to share; --world uses more cores.
    torch.set_num_threads(1)
    if options.check:
        check()
    else:
        Trainer(options).run()


if __name__ == "__main__":
    main()
