"""A piece of work that is done again and again on a GPU, as one CUDA graph.

Launching a kernel costs the host some microseconds, and a step of training has hundreds. A graph records them once and
replays them all with one call. What is recorded must read and write the same memory every time and must never ask the
device for a number; so a step takes its batch by a counter that lies on the device, and puts its loss down there.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import SGD, Adam, AdamW, Optimizer

from nnarena.core.errors import first_line

WARM_UP = 3  # calls before the recording: libraries load, optimizers make their state, kernels are chosen
SYNCHRONISES = "called a synchronizing CUDA operation"


class Replayed:
    """`work`, called as it is on a CPU; on a GPU recorded after a few calls, and replayed from then on.

    The first calls are real ones, so nothing has to be put back: recording itself computes nothing. Where recording is
    not possible, `work` is called as it is for good, and `log` is told why, once.
    """

    def __init__(self, work: Callable[[], None], device: torch.device, log: Callable[[str], None], name: str) -> None:
        self.work, self.log, self.name = work, log, name
        self.calls = 0
        self.graph: torch.cuda.CUDAGraph | None = None
        self.recordable = device.type == "cuda"

    def __call__(self) -> None:
        if self.recordable and self.graph is None and self.calls == WARM_UP:
            self._record()
        if self.graph is not None:
            self.graph.replay()
        elif self.recordable:
            self._warm_up()
        else:
            self.work()

    def _warm_up(self) -> None:
        """A call on a stream of its own; the last one shows whether the host waits for the device in it."""
        self.calls += 1
        stream = _beside(torch.cuda.current_device())
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            reason = _watched(self.work) if self.calls == WARM_UP else self.work()
        torch.cuda.current_stream().wait_stream(stream)
        if reason:
            self._give_up(reason)

    def _record(self) -> None:
        graph = torch.cuda.CUDAGraph()
        generator = torch.cuda.default_generators[torch.cuda.current_device()]
        noise = generator.get_state()
        try:
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                self.work()
        except Exception as error:
            reason = f"{type(error).__name__}: {first_line(error)}"
        else:
            self.graph = graph
            return
        del graph
        _renew(generator, noise)
        self._give_up(reason)

    def _give_up(self, reason: str) -> None:
        self.recordable = False
        self.log(f"{self.name} runs without a CUDA graph: {reason}")


@functools.cache
def _beside(device: int) -> torch.cuda.Stream:
    """The stream for all first calls on a device: libraries keep tens of megabytes for every stream that they meet."""
    return torch.cuda.Stream(device)


def _watched(work: Callable[[], None]) -> str | None:
    """Do the work, and say if the host had to wait for the device. (Found in time, this costs no broken recording.)"""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        before = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("warn")
        try:
            work()
        finally:
            torch.cuda.set_sync_debug_mode(before)
    waits = any(SYNCHRONISES in str(warning.message) for warning in caught)
    return "the host waits for the device in the middle of it" if waits else None


def _renew(generator: torch.Generator, noise: torch.Tensor) -> None:
    """A recording that broke off leaves the random numbers waiting for its end: let them go on from before it."""
    fresh = torch.Generator(generator.device)
    fresh.set_state(noise)
    generator.graphsafe_set_state(fresh.graphsafe_get_state())


def make_recordable(optimizer: Optimizer, device: torch.device) -> Optimizer:
    """Before its first step: let an optimizer that can keep its counters on the GPU do so."""
    for group in optimizer.param_groups:
        if device.type == "cuda" and "capturable" in group:
            group["capturable"] = True
            optimizer._warned_capturable_if_run_uncaptured = True  # type: ignore[attr-defined]  # the first steps are
    return optimizer


def all_at_once(optimizer: Optimizer) -> Optimizer:
    """Let torch's Adam move all its tensors in one launch, or one call on a CPU. Other optimizers stay as they are.

    That kernel wants gradients that lie in memory as their parameters do; those that lie otherwise are copied.
    """
    groups = optimizer.param_groups
    real = all(param.is_floating_point() for group in groups for param in group["params"])
    if type(optimizer) in (Adam, AdamW) and real and not all(group["fused"] for group in groups):
        for group in groups:
            group["fused"], group["foreach"] = True, False
        optimizer.register_step_pre_hook(_lay_alike)
    return optimizer


@torch.no_grad()
def _lay_alike(optimizer: Optimizer, *_: Any) -> None:
    for group in optimizer.param_groups:
        for param in group["params"]:
            if param.grad is not None and param.grad.stride() != param.stride():
                param.grad = torch.empty_like(param).copy_(param.grad)


def is_recordable(optimizer: Optimizer) -> bool:
    """Whether a step is the same kernels on the same memory every time. One that counts on the host is not."""
    return type(optimizer) is SGD or all(group.get("capturable") for group in optimizer.param_groups)
