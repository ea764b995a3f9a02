"""How long a training step takes, on a machine that may be busy with other things too."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from nnarena.core.errors import first_line

Step = Callable[[], object]
Measure = Callable[[int], float]  # from a number of calls to the seconds of one
SLICE = 0.02  # seconds that one measurement lasts at least: a clock and a scheduler are no finer
LONG = 0.1  # seconds of a step on a GPU, from which on three measurements say all that there is to say


def measure(step: Step, device: torch.device, calls: int) -> float:
    """Seconds of one call, from `calls` in a row: by events of the device on a GPU, by the clock elsewhere."""
    if device.type == "cuda":
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize(device)
        begin.record()
        for _ in range(calls):
            step()
        end.record()
        torch.cuda.synchronize(device)
        return begin.elapsed_time(end) / 1e3 / calls
    began = time.perf_counter()
    for _ in range(calls):
        step()
    return (time.perf_counter() - began) / calls


def side_by_side(ours: Measure, reference: Measure, rounds: int, device: torch.device) -> tuple[float, float]:
    """Seconds of a step and of the reference, which takes its turn before every measurement of the step.

    Whatever else runs here slows both alike. Of all rounds the fastest counts on a CPU, because noise only adds; on a
    GPU, whose clock moves both ways, the median.
    """
    seconds = [each(1) for each in (reference, ours)]
    calls = [_calls(each) for each in seconds]
    if device.type == "cuda" and max(seconds) >= LONG:
        rounds = min(rounds, 3)
    turns = [(reference(calls[0]), ours(calls[1])) for _ in range(rounds)]
    middle = statistics.median if device.type == "cuda" else min
    return middle(turn[1] for turn in turns), middle(turn[0] for turn in turns)


def _calls(seconds: float) -> int:
    return max(1, min(100, round(SLICE / max(seconds, 1e-6))))


def graphed(step: Step) -> tuple[Step, str]:
    """The step as one CUDA graph, which takes the host out of it; or as it is, and why."""
    try:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
    except Exception as error:
        torch.cuda.synchronize()
        return step, f"no CUDA graph: {first_line(error)}"

    def replay(owner: Step = step) -> None:  # whose tensors the graph reads, and must not outlive
        graph.replay()

    return replay, ""
