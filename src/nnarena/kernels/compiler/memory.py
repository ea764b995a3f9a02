"""The memory that the kernels of a step share, by name:

c0 …       constants, c0t … transposed             u0 …       inputs of every step
start0 …   the first state                         hist0 …    the state before every step, and after the last
output     of every step                           saved0 …   what the way back needs and does not compute again
pull       gradients of outputs: of every E-th     end0 …     the last state, and on the way back its gradient
du0 …      gradients of the inputs                 dstart0 …  of the first state
dc0 …      of the constants, one part a program    left0 …, right0 …   factors of those that are products
terms0 …   of those that are sums over rows        size0 …    how large numbers are at most, one part a program
aside0 …   vectors that are read in other parts than they are computed in
signs0 …   ones where that is above zero of which the way back needs to know no more
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from nnarena.kernels.compiler.graph import shape_of
from nnarena.kernels.compiler.plan import Plan
from nnarena.kernels.compiler.tiles import Carry, Kind, Source
from nnarena.kernels.compiler.trace import Signature, Traced


class Memory:
    """What there is: `shapes` of one sample at one step, by name, and `output`, the name of where the outputs lie."""

    def __init__(self, traced: Traced, signature: Signature, plan: Plan) -> None:
        self.traced, self.signature, self.plan = traced, signature, plan
        states = [*enumerate(traced.state), *enumerate(traced.new_state)]
        same = [part for part, node in states if node is traced.output and not plan.lanes]
        self.output = f"hist{same[0]}" if same else "output"
        self.shapes: dict[str, tuple[int, ...]] = {f"c{i}": shape for i, (shape, _) in enumerate(signature.constants)}
        self.shapes |= {f"u{i}": shape for i, shape in enumerate(signature.inputs)}
        for name in ("start", "hist", "end", "dstart"):
            self.shapes |= {f"{name}{i}": shape for i, shape in enumerate(signature.state)}
        self.shapes["output"] = self.shapes["pull"] = shape_of(traced.output)[1:]

    def given(self) -> dict[Node, Source | Carry]:
        """Constants and inputs."""
        leaves: dict[Node, Source | Carry] = {}
        for place, (shape, dtype) in enumerate(self.signature.constants):
            source = Source(f"c{place}", shape, rows=False, time=False, kind=_kind(dtype))
            leaves[self.traced.constants[place]] = source
        for place, node in enumerate(self.traced.inputs):
            leaves[node] = self.of_steps(f"u{place}", self.signature.inputs[place], every=self.signature.repeats)
        return leaves

    def states(self) -> dict[Node, Source]:
        """What the state was before every step."""
        return {
            node: self.of_steps(f"hist{part}", self.signature.state[part], extra=1)
            for part, node in enumerate(self.traced.state)
        }

    def of_steps(self, name: str, shape: tuple[int, ...], **more: Any) -> Source:
        """What every sample has at every step."""
        self.shapes[name] = shape
        return Source(name, shape, rows=True, time=True, **more)

    def of_samples(self, name: str, part: int) -> Source:
        """What every sample has once, for a part of the state."""
        return Source(f"{name}{part}", self.signature.state[part], rows=True, time=False)

    def room(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of memory for a matrix: its rows begin at even places, so that two numbers are read at a time."""
        *rows, width = shape or (1,)
        even = self.plan.matrices and rows and width > 1
        return (*rows, width + width % 2) if even else shape


def _kind(dtype: torch.dtype) -> Kind:
    if dtype == torch.bool:
        return "bool"
    return "float" if dtype.is_floating_point else "int"
