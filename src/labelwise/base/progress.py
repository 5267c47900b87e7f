"""What a person sees while long work goes on: bars on a terminal, plain lines elsewhere."""

import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn


class Watch(ABC):
    """Told what happens: where a run starts, each batch, each look at the loss, each epoch."""

    @abstractmethod
    def say(self, text: str) -> None:
        pass

    def start(self, task: str, total: int, done: int = 0) -> None:  # noqa: B027
        """A task of ``total`` images begins, of which ``done`` are done already."""

    def advance(self, images: int) -> None:  # noqa: B027
        pass

    def look(self, loss: float) -> None:  # noqa: B027
        pass

    def finish(self) -> None:  # noqa: B027
        pass

    def epoch(self, record: Mapping[str, object], epochs: int) -> None:
        """An epoch is over; ``record`` is its line of metrics.jsonl."""
        figures = [f"loss {record['epoch_loss']:.4f}"]
        for key, value in record.items():
            if key.startswith("val_"):
                shown = "undefined" if value is None else f"{value:.4f}"
                figures.append(f"{key.replace('_', ' ', 1)} {shown}")
        mark = "  best so far" if record.get("best") else ""
        self.say(
            f"epoch {record['epoch']:>{len(str(epochs))}}/{epochs}  {'  '.join(figures)}  "
            f"{record['images_per_second']:,.0f} images/s{mark}"
        )


class Silent(Watch):
    """Shows nothing."""

    def say(self, text: str) -> None:
        pass


class LineWatch(Watch):
    """Plain lines, for logs and pipes: one per epoch, and one every ``seconds`` in between."""

    def __init__(self, seconds: float = 30.0, stream: TextIO | None = None) -> None:
        self.seconds, self.stream = seconds, stream
        self._task, self._total, self._done = "", 0, 0
        self._begun = self._shown = 0.0
        self._first = 0

    def say(self, text: str) -> None:
        print(text, file=self.stream, flush=True)

    def start(self, task: str, total: int, done: int = 0) -> None:
        self._task, self._total, self._done, self._first = task, total, done, done
        self._begun = self._shown = time.monotonic()

    def advance(self, images: int) -> None:
        self._done += images
        now = time.monotonic()
        if now - self._shown >= self.seconds and self._done > self._first:
            self._shown = now
            rate = (self._done - self._first) / (now - self._begun)
            left = (self._total - self._done) / rate
            self.say(
                f"{self._task}  {self._done:,}/{self._total:,} images  "
                f"{rate:,.0f} images/s  {left:,.0f} s left"
            )


class Bars(Watch):
    """A bar with rate and time left, and a line above it for each epoch."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed:,.0f}/{task.total:,.0f} images"),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[loss]}"),
            console=console,
            transient=True,
        )
        self._task = self._progress.add_task("", visible=False, rate="", loss="", total=1)

    def say(self, text: str) -> None:
        self._progress.console.print(text, highlight=False)

    def start(self, task: str, total: int, done: int = 0) -> None:
        self._progress.start()
        self._progress.reset(
            self._task,
            total=total,
            completed=done,
            visible=True,
            description=task,
            rate="",
            loss="",
        )

    def advance(self, images: int) -> None:
        speed = self._progress.tasks[0].speed
        rate = f"{speed:,.0f} images/s" if speed else ""
        self._progress.update(self._task, advance=images, rate=rate)

    def look(self, loss: float) -> None:
        self._progress.update(self._task, loss=f"loss {loss:.4f}")

    def finish(self) -> None:
        self._progress.update(self._task, visible=False, loss="")
        self._progress.stop()


class _Around(Watch):
    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def say(self, text: str) -> None:
        self._watch.say(text)

    def start(self, task: str, total: int, done: int = 0) -> None:
        self._watch.start(task, total, done)

    def advance(self, images: int) -> None:
        self._watch.advance(images)

    def look(self, loss: float) -> None:
        self._watch.look(loss)

    def finish(self) -> None:
        self._watch.finish()


class NamedWatch(_Around):
    """One of many runs: the bar of another watch, under the run's name, without its lines."""

    def __init__(self, watch: Watch, name: str) -> None:
        super().__init__(watch)
        self._name = name

    def say(self, text: str) -> None:
        pass

    def start(self, task: str, total: int, done: int = 0) -> None:
        self._watch.start(f"{self._name}, {task}", total, done)


class TimeIsUp(Exception):  # noqa: N818
    """Work went on until the time it was given."""


class LimitedWatch(_Around):
    """Another watch, until a time of the monotonic clock; whoever advances later is stopped."""

    def __init__(self, watch: Watch, until: float) -> None:
        super().__init__(watch)
        self._until = until

    def advance(self, images: int) -> None:
        self._watch.advance(images)
        if time.monotonic() > self._until:
            self._watch.finish()
            raise TimeIsUp


def make_watch(stream: TextIO | None = None) -> Watch:
    """Return bars if the output is a terminal, lines otherwise."""
    if (stream or sys.stdout).isatty():
        return Bars(Console(file=stream))
    return LineWatch(stream=stream)
