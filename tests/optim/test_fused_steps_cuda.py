"""The kernels of a step on a GPU: the same numbers, recorded or not, and no look at the host."""

from __future__ import annotations

from unittest import mock

import pytest
import torch
from optim_helpers import start, walk
from test_fused_steps import CASES, SHAPES

from nnarena.kernels.optimizers import multi
from nnarena.optim import SGDP, AdamP, OrthAdam

pytestmark = pytest.mark.gpu
KINDS = (OrthAdam, AdamP, SGDP)


@pytest.mark.parametrize(("kind", "options"), CASES, ids=lambda value: getattr(value, "__name__", str(value)))
def test_steps_are_those_of_lists_of_tensors(kind, options):
    shapes = (*SHAPES, (300, 40), (70, 64, 3, 3))
    exact = walk(lambda params: kind(params, lr=0.01, **options), steps=6, shapes=shapes)
    with mock.patch.object(multi, "step", wraps=multi.step) as kernels:
        found = walk(lambda params: kind(params, lr=0.01, **options), 6, shapes, torch.float32, device="cuda")
    assert kernels.call_count == 6
    assert torch.allclose(found.double(), exact, rtol=2e-5, atol=2e-6)


def on_gpu(seed=0):
    return [torch.nn.Parameter(p.detach().cuda()) for p in start(SHAPES, torch.float32, seed)]


def learn(params, optimizer, steps):
    for _ in range(steps):
        optimizer.zero_grad()
        sum(((p - 1) ** 2).sum() for p in params).backward()
        optimizer.step()


@pytest.mark.parametrize("kind", KINDS)
def test_nobody_waits_for_the_device(kind, never_waiting):
    params = on_gpu()
    optimizer = kind(params, lr=0.01)
    learn(params, optimizer, 2)
    with never_waiting():
        learn(params, optimizer, 2)


@pytest.mark.parametrize("kind", KINDS)
def test_a_recorded_step_is_a_step_and_others_may_come_between(kind):
    plain, recorded = on_gpu(), on_gpu()
    one, other = kind(plain, lr=0.01), kind(recorded, lr=0.01)
    learn(plain, one, 9)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        learn(recorded, other, 3)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    other.zero_grad()
    with torch.cuda.graph(graph):
        sum(((p - 1) ** 2).sum() for p in recorded).backward()
        other.step()
    graph.replay()
    graph.replay()
    kept = [p.grad for p in recorded]
    learn(recorded, other, 2)
    for param, grad in zip(recorded, kept, strict=True):
        param.grad = grad
    graph.replay()
    learn(recorded, other, 1)
    assert all(torch.allclose(p, q, atol=1e-6) for p, q in zip(plain, recorded, strict=True))


def test_with_a_gradient_scaler():
    params = on_gpu()
    optimizer, scaler = OrthAdam(params, lr=0.01), torch.amp.GradScaler("cuda", init_scale=2.0**10)
    for finite in (True, False, True):
        before = [p.detach().clone() for p in params]
        optimizer.zero_grad()
        loss = sum(((p - 1) ** 2).sum() for p in params)
        scaler.scale(loss if finite else loss * torch.inf).backward()
        scaler.step(optimizer)
        scaler.update()
        assert any(not torch.equal(p, q) for p, q in zip(params, before, strict=True)) is finite
