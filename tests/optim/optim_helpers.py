"""Small walks that optimizers are compared on."""

from __future__ import annotations

import math

import torch

SHAPES = ((3, 2), (4,), (5, 3, 2, 2), (), (6, 8))
EVERY = tuple(range(len(SHAPES)))


def start(shapes=SHAPES, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    numbers = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
    return [torch.nn.Parameter(tensor.to(dtype)) for tensor in numbers]


def gradients(params, step, seed=0):
    """Noise; in two of three steps made orthogonal, wholly or nearly, to the tensor or to each of its channels."""
    generator = torch.Generator().manual_seed(1000 * seed + step)
    for place, param in enumerate(params):
        w = param.detach()
        g = torch.randn(w.shape, generator=generator, dtype=torch.float64).to(w.dtype)
        if w.ndim > 1 and (step + place) % 3:
            dims = tuple(range((step + place) % 2, w.ndim))
            along = (g * w).sum(dims, keepdim=True) / (w * w).sum(dims, keepdim=True)
            g = g - (1.0 if step % 2 else 0.95) * along * w
        yield g


def walk(make, steps=20, shapes=SHAPES, dtype=torch.float64, seed=0, device="cpu"):
    """All numbers after every step (steps, numbers)."""
    params = [torch.nn.Parameter(param.detach().to(device)) for param in start(shapes, dtype, seed)]
    optimizer = make(params)
    trace = []
    for step in range(steps):
        for param, grad in zip(params, gradients([p.cpu() for p in params], step, seed), strict=True):
            param.grad = grad.to(device)
        optimizer.step()
        trace.append(torch.cat([param.detach().flatten().cpu() for param in params]))
    return torch.stack(trace)


def cosine(x, y):
    return float((x * y).sum().abs() / (x.norm() * y.norm()))


def norm_growth(make, steps=60):
    """How much the weights in front of batch norms grow, as a factor."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Linear(8, 16, bias=False),
        torch.nn.BatchNorm1d(16),
        torch.nn.ReLU(),
        torch.nn.Linear(16, 16, bias=False),
        torch.nn.BatchNorm1d(16),
        torch.nn.ReLU(),
        torch.nn.Linear(16, 1),
    )
    optimizer = make(net.parameters())
    before = [float(net[place].weight.detach().norm()) for place in (0, 3)]
    for _ in range(steps):
        x = torch.randn(32, 8)
        optimizer.zero_grad()
        ((net(x) - x.prod(-1, keepdim=True).sign()) ** 2).mean().backward()
        optimizer.step()
    after = [float(net[place].weight.detach().norm()) for place in (0, 3)]
    return math.prod(a / b for a, b in zip(after, before, strict=True))
