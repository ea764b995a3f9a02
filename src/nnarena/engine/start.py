"""Start values by an initialiser, in the place of a model's own.

What counts as a weight: the matrix of every linear layer, the kernel of every convolution, and in other layers a matrix
(m, n) that has one of the names under which torch's layers and ours keep theirs: `weight_ih…`, `weight_hh…` (and other
letters before the h), `in_proj_weight`. Those that lead from a state to the next are `weight_?h…` but for the i.
Biases, norms, embeddings, conductances, rotations and what is not trained stay as the model made them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from nnarena.core.components import find
from nnarena.core.errors import Unfit

MATRIX = re.compile(r"weight_[a-z]h(_|$)|(in|q|k|v)_proj_weight$")
RECURRENT = re.compile(r"weight_[^i]h(_|$)")


@torch.no_grad()
def set_start(model: nn.Module, name: str, seed: int) -> None:
    """Fill all weights of `model` by an initialiser; the same numbers for the same seed. Unfit if it has none."""
    initialiser = find("initialiser", name)
    fill = initialiser.load()
    generator = torch.Generator().manual_seed(seed)
    found = 0
    for own_name, weight, inputs, outputs in weights_of(model):
        if initialiser.sets == "all" or RECURRENT.match(own_name):
            fill(weight, inputs, outputs, generator)
            found += 1
    if not found:
        what = "weights" if initialiser.sets == "all" else "matrix from a state to the next one"
        raise Unfit(f"init={name} has nothing to set: it has no {what} that can be told by name and shape.")


def weights_of(model: nn.Module) -> Iterator[tuple[str, Tensor, int, int]]:
    """Every weight once: its name in its own module, the tensor, inputs and outputs of a unit."""
    seen: set[int] = set()
    for module in model.modules():
        for name, weight in module.named_parameters(recurse=False):
            sizes = _sizes(module, name, weight)
            if sizes is not None and weight.requires_grad and id(weight) not in seen:
                seen.add(id(weight))
                yield name, weight, *sizes


def _sizes(module: nn.Module, name: str, weight: Tensor) -> tuple[int, int] | None:
    """How many inputs and outputs a unit has; none where it is no such weight."""
    if isinstance(module, _ConvNd) and name == "weight":
        positions = weight[0, 0].numel()
        ins, outs = weight.shape[1] * positions, weight.shape[0] // module.groups * positions
        return (outs, ins) if isinstance(module, _ConvTransposeNd) else (ins, outs)
    if weight.ndim == 2 and (isinstance(module, nn.Linear) or MATRIX.match(name)):
        return weight.shape[1], weight.shape[0]
    return None
