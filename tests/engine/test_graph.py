"""When work is recorded, when it is replayed, and when it runs as it is. A real recording needs a GPU: test_cuda."""

from __future__ import annotations

import warnings
from contextlib import contextmanager, nullcontext

import pytest
import torch
from engine_helpers import CPU

from nnarena.core.components import catalogue
from nnarena.engine import graph
from nnarena.engine.graph import WARM_UP, Replayed, is_recordable

CUDA = torch.device("cuda")


class FakeCuda:
    """Writes down what is asked of it."""

    def __init__(self, trouble: Exception | None = None) -> None:
        self.said: list[str] = []
        self.recording, self.mode, self.trouble = False, "default", trouble
        fake = self

        class Graph:
            def replay(self):
                fake.said.append("replay")

        class Stream:
            def __init__(self, device):
                fake.streams += 1

            def wait_stream(self, other):
                pass

        self.CUDAGraph, self.Stream, self.streams = Graph, Stream, 0
        self.main = Stream(0)
        self.default_generators = [torch.Generator()]

    def current_stream(self):
        return self.main

    def current_device(self):
        return 0

    def stream(self, stream):
        return nullcontext()

    def get_sync_debug_mode(self):
        return self.mode

    def set_sync_debug_mode(self, mode):
        self.mode = mode

    @contextmanager
    def graph(self, made, capture_error_mode):
        self.recording = True
        try:
            yield
            if self.trouble is not None:
                raise self.trouble
        finally:
            self.recording = False

    def work(self):
        self.said.append("record" if self.recording else "run")


@pytest.fixture
def cuda(monkeypatch):
    def install(trouble: Exception | None = None) -> FakeCuda:
        fake = FakeCuda(trouble)
        graph._beside.cache_clear()
        monkeypatch.setattr(graph.torch, "cuda", fake)
        monkeypatch.setattr(graph, "_renew", lambda generator, noise: fake.said.append("renew"))
        return fake

    yield install
    graph._beside.cache_clear()


def test_on_a_cpu_work_is_just_done():
    done, logs = [], []
    replayed = Replayed(lambda: done.append(1), CPU, logs.append, "it")
    for _ in range(5):
        replayed()
    assert len(done) == 5 and not logs and replayed.graph is None


def test_a_few_calls_then_one_recording_then_replays(cuda):
    fake, logs = cuda(), []
    replayed = Replayed(fake.work, CUDA, logs.append, "it")
    for _ in range(WARM_UP + 4):
        replayed()
    assert fake.said == ["run"] * WARM_UP + ["record"] + ["replay"] * 4, "every call computes once"
    assert not logs and fake.mode == "default"


def test_all_first_calls_share_a_stream(cuda):
    """Libraries keep memory for every stream that they meet."""
    fake = cuda()
    for name in ("one", "other"):
        replayed = Replayed(fake.work, CUDA, lambda line: None, name)
        for _ in range(WARM_UP + 1):
            replayed()
    assert fake.streams == 2  # the current one, and one beside it


def test_a_recording_that_fails_is_told_once_and_nothing_is_lost(cuda):
    fake, logs = cuda(RuntimeError("not permitted\nwhen stream is capturing")), []
    replayed = Replayed(fake.work, CUDA, logs.append, "it")
    for _ in range(WARM_UP + 4):
        replayed()
    assert fake.said == ["run"] * WARM_UP + ["record", "renew"] + ["run"] * 4
    assert logs == ["it runs without a CUDA graph: RuntimeError: not permitted"]


def test_work_that_waits_for_the_device_is_never_recorded(cuda):
    fake, logs = cuda(), []

    def waits():
        fake.work()
        if fake.mode == "warn":
            warnings.warn("called a synchronizing CUDA operation (Triggered internally at …)", stacklevel=1)

    replayed = Replayed(waits, CUDA, logs.append, "it")
    for _ in range(WARM_UP + 4):
        replayed()
    assert fake.said == ["run"] * (WARM_UP + 4)
    assert logs == ["it runs without a CUDA graph: the host waits for the device in the middle of it"]
    assert fake.mode == "default"


@pytest.mark.parametrize("name", sorted(catalogue("optimizer")))
def test_optimizers_that_count_on_the_host_are_not_recorded(name):
    component = catalogue("optimizer")[name]
    optimizer = component.load()([torch.zeros(2)], **component.resolve({}))
    before = is_recordable(optimizer)
    assert before == (name in ("sgd", "momentum", "nesterov", "sgdp")), "these count nothing"
    graph.make_recordable(optimizer, CPU)
    assert is_recordable(optimizer) == before, "the CPU has nothing to record"
    graph.make_recordable(optimizer, CUDA)
    capturable = any("capturable" in group for group in optimizer.param_groups)
    assert is_recordable(optimizer) == (capturable or name in ("sgd", "momentum", "nesterov"))


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("name", ["adam", "adamw", "sgd", "orthadam"])
def test_all_tensors_at_once_move_as_one_after_the_other(name, device):
    """Also by gradients that lie in memory in another order than their parameters."""
    component, made = catalogue("optimizer")[name], []
    for change in (
        lambda optimizer: optimizer,
        graph.all_at_once,
        lambda one: graph.all_at_once(graph.all_at_once(one)),
    ):
        numbers = torch.Generator().manual_seed(0)
        params = [torch.randn(shape, generator=numbers).to(device).requires_grad_() for shape in ((5, 3), (3,), ())]
        optimizer = change(component.load()(params, **component.resolve({"weight_decay": 0.1})))
        for _ in range(4):
            for param in params:
                turned = torch.randn(param.shape[::-1], generator=numbers).to(device)
                param.grad = turned.permute(tuple(reversed(range(param.ndim))))
            optimizer.step()
        made.append(params)
        assert bool(optimizer.param_groups[0].get("fused")) == (len(made) > 1 and name.startswith("adam"))
    for plain, *others in zip(*made, strict=True):
        for other in others:
            torch.testing.assert_close(other, plain, rtol=1e-5, atol=1e-7)
