"""Runs under torchrun, in processes that can be killed, and runs of one process beside them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import psutil
from running import OFTEN, TEXT, Command, left
from running import _context as context
from torch import Tensor

from fractus_core.cli.main import main
from fractus_core.runs import ranks

ENGINE = ("--preset", "stage0", "--set", "d_model=32", "--set", "thought_stride=24")
"""Thoughts enter in some chunks and not in others, and where in a chunk differs from row to row."""
TRAINER = (
    *("--trainer", "gpu1b", "--device", "cpu", "--gpu1b.precision", "fp32"),
    *("--gpu1b.threads", "1", "--gpu1b.batch_size", "4", "--gpu1b.chunk_len", "16"),
    *("--gpu1b.warmup_steps", "3", "--gpu1b.optimizer", "adamw", "--gpu1b.lr", "1e-4"),
)
"""Small rates, at which a rounding stays one: a larger one it changes which experts are chosen."""
STEPS = 20


def started(data: Path, out: Path, *options: str) -> list[str]:
    size = (*TEXT, *ENGINE, *TRAINER, *OFTEN, "--eval-every", "1000", "--steps", str(STEPS))
    return ["run", "--data", str(data), "--out", str(out), *size, *options]


class Job:
    """`fractus` with `args` in so many processes."""

    def __init__(self, processes: int, args: Sequence[str], *, program: Sequence[str] = ()) -> None:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += ["--nproc-per-node", str(processes)]
        self._process = subprocess.Popen(
            [*command, *(program or ("-m", "fractus_core")), *args],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def ranks(self) -> dict[int, psutil.Process]:
        """Those that have begun, by number."""
        found = psutil.Process(self._process.pid).children()
        return {int(p.environ()["RANK"]): p for p in found if "RANK" in p.environ()}

    def signal(self, number: signal.Signals) -> None:
        """To torchrun, which hands it on."""
        self._process.send_signal(number)

    def wait(self, seconds: float = 120) -> tuple[int, str, str]:
        """Exit code, stdout and stderr, of all processes together."""
        out, err = self._process.communicate(timeout=seconds)
        return self._process.returncode, out, err

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        if self.running:
            for process in psutil.Process(self._process.pid).children(recursive=True):
                process.kill()
            self._process.kill()
            self._process.communicate()


def as_rank(number: int, processes: int, port: int, before: Callable[[int], None]) -> None:
    """What torchrun tells a process."""
    os.environ |= {
        **{"RANK": str(number), "LOCAL_RANK": str(number)},
        **{"WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(processes)},
        **{"MASTER_ADDR": "localhost", "MASTER_PORT": str(port)},
    }
    before(number)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port: int = free.getsockname()[1]
        return port


def on_ranks(processes: int, check: Callable[[int], None], folder: Path) -> None:
    """`check`, given its rank, in so many that have joined."""
    folder.mkdir()
    port = free_port()
    made = [
        context.Process(target=_check, args=(r, processes, port, check, folder / f"{r}.err"))
        for r in range(processes)
    ]
    for process in made:
        process.start()
    for process in made:
        process.join(60)
        process.kill()
    said = "\n".join(path.read_text() for path in sorted(folder.iterdir()))
    assert [process.exitcode for process in made] == [0] * processes, said


def _check(
    number: int, processes: int, port: int, check: Callable[[int], None], errors: Path
) -> None:
    os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT), 2)
    as_rank(number, processes, port, nothing)
    ranks.join()
    check(number)
    ranks.leave()


def nothing(rank: int) -> None:
    """To be done before."""


class Team:
    """`fractus` with `args` in so many processes without torchrun, which are there at once."""

    def __init__(
        self,
        processes: int,
        args: Sequence[str],
        folder: Path,
        *,
        before: Callable[[int], None] = nothing,
    ) -> None:
        """`before` is called in each process first."""
        port = free_port()
        folder.mkdir(exist_ok=True)
        self.ranks = [
            Command(
                list(args), folder / str(r), before=partial(as_rank, r, processes, port, before)
            )
            for r in range(processes)
        ]

    def wait(self) -> list[tuple[int, str, str]]:
        """Exit code, stdout and stderr of each."""
        return [rank.wait() for rank in self.ranks]


@contextmanager
def job(processes: int, args: Sequence[str]) -> Iterator[Job]:
    made = Job(processes, args)
    try:
        yield made
    finally:
        made.kill()


def run_in(processes: int, args: Sequence[str], folder: Path) -> None:
    """Has to end well, and rank 0 alone to speak."""
    if processes == 1:
        assert main(list(args)) == 0
        return
    (code, out, err), *others = Team(processes, args, folder).wait()
    assert code == 0, err
    assert out.startswith("finished: ")
    for code, out, err in others:
        # torch's own warnings, which only an environment that it was imported in can still.
        said = [line for line in err.splitlines() if not line.startswith("[rank")]
        assert (code, out, said) == (0, "", [])


def weights(directory: Path) -> dict[str, Tensor]:
    """Of the newest checkpoint."""
    tensors = left(directory).tensors
    return {k: v for k, v in tensors.items() if k.startswith(("engine/", "frontend"))}


def distance(one: Path, other: Path) -> float:
    """The largest difference of a weight of two runs."""
    a, b = weights(one), weights(other)
    assert a.keys() == b.keys()
    return max(float((a[name] - b[name]).abs().max()) for name in a)


def cursors(directory: Path) -> object:
    return left(directory).values["info"]["cursors"]


def losses(directory: Path) -> list[float]:
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if line["kind"] == "train"]
