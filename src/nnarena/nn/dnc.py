"""DNC: a recurrent network with a memory beside it that it addresses by content, by age and by order of writing.

B batch, T time, F input features, H controller units, N memory slots, W their width, R read heads, O outputs.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nnarena.core.components import model
from nnarena.core.spec import TaskSpec
from nnarena.kernels.linear import Projection
from nnarena.nn.head import SequenceModel
from nnarena.nn.init import dense
from nnarena.nn.linear import linear
from nnarena.nn.lstm import LSTM
from nnarena.nn.recurrent import Recurrent

SMALL = 1e-6  # where memory and weightings start, and what keeps norms and usages from zero


class Constants(NamedTuple):
    weight_input: Tensor  # (4H, F)
    weight_read: Tensor  # (R·W, 4H)
    weight_hh: Tensor  # (H, 4H)
    bias: Tensor  # (4H,)
    interface: tuple[Tensor, Tensor]  # weight and bias
    head: tuple[Tensor, Tensor]
    apart: Tensor  # (N, N) one where two slots are not the same
    earlier: Tensor  # (N, N) whether slot j has a lower number than slot i
    clip: float


class State(NamedTuple):
    h: Tensor  # (B, H) the controller's output
    c: Tensor  # (B, H) and its cell
    memory: Tensor  # (B, N, W)
    usage: Tensor  # (B, N) how much a slot is in use, 0 … 1
    links: Tensor  # (B, N, N) [i, j]: how much i was written right after j
    precedence: Tensor  # (B, N) how much a slot was the last one written
    write: Tensor  # (B, N) the write weighting
    read: Tensor  # (B, R, N) the read weightings
    vectors: Tensor  # (B, R, W) what was read


class Interface(NamedTuple):
    """What the controller asks of the memory at one step."""

    read_keys: Tensor  # (B, R, W)
    read_strengths: Tensor  # (B, R)
    write_key: Tensor  # (B, 1, W)
    write_strength: Tensor  # (B, 1)
    erase: Tensor  # (B, W)
    data: Tensor  # (B, W)
    free: Tensor  # (B, R)
    allocation_gate: Tensor  # (B, 1)
    write_gate: Tensor  # (B, 1)
    modes: Tensor  # (B, R, 3) backward, by content, forward


class DNC(Recurrent):
    """Differentiable neural computer: an LSTM that writes to and reads from N slots of W numbers.

        h, c ← LSTM([x_t, r¹ … rᴿ], h, c)
        W_ξ h + b_ξ = [kʳ, βʳ, k, β, e, v, fʳ, g_a, g_w, πʳ]                 each brought into its range
        u ← (u + w − u ∘ w) ∘ Π_r (1 − fʳ wʳ)                                usage
        a_i = (1 − u_i) Π_{j less used than i} u_j                           allocation
        w ← g_w (g_a a + (1 − g_a) C(M, k, β))                               write weighting
        M ← M ∘ (1 − w eᵀ) + w vᵀ
        L_ij ← (1 − w_i − w_j) L_ij + w_i p_j,  L_ii = 0                     links: i was written after j
        p ← (1 − Σ w) p + w                                                  precedence
        wʳ ← πʳ₁ Lᵀ wʳ + πʳ₂ C(M, kʳ, βʳ) + πʳ₃ L wʳ                         read weightings
        rʳ = Mᵀ wʳ
        y_t = clip(W_y [h, r¹ … rᴿ] + b_y)

    with C(M, k, β)_i = softmax_i(β cos(M_i, k)); keys k, strengths β, erase e, data v, free gates f, allocation and
    write gate g_a, g_w, read modes π (backward, by content, forward). The weightings are never negative and never sum
    to more than one, nor do the rows and columns of L.

    Output (B, T, O): the answer itself, no dense layer is needed behind it. The state has nine parts (`State`).

    Differs from Graves et al. 2016 as the published arena does: strengths are softplus(1 + softplus(·)) instead of
    1 + softplus(·); y, and h on its way to the memory and to y, are clipped to ±`clip`; the LSTM has one layer and one
    bias; M, w, wʳ and rʳ start at 1e-6 instead of 0; squared norms in cos are at least 1e-6, and usages enter the
    allocation as (1 − 1e-6) u + 1e-6. Of slots used alike, the one with the lower number counts as less used.
    The allocation is worked out from comparisons instead of a sort, as exp Σ_{j before i} ln u_j: a sum has a plain
    gradient where a product must look for zeros.

    Reference: Graves et al. 2016.
    """

    def __init__(
        self,
        input_size: int,
        output_size: int,
        *,
        hidden_size: int = 64,
        slots: int = 16,
        width: int = 8,
        reads: int = 2,
        clip: float = 20.0,
        batch_first: bool = True,
        backend: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size, batch_first=batch_first, backend=backend)
        for name, size in {"output_size": output_size, "slots": slots, "width": width, "reads": reads}.items():
            if size < 1:
                raise ValueError(f"{name} must be at least 1, not {size}.")
        if not clip > 0:
            raise ValueError(f"clip must be above 0 (math.inf clips nothing), not {clip}.")
        self.output_size, self.slots, self.width, self.reads, self.clip = output_size, slots, width, reads, clip
        read = reads * width
        self.controller = LSTM(input_size + read, hidden_size, device=device, dtype=dtype)
        self.interface = dense(hidden_size, sum(_interface_sizes(reads, width))).to(device=device, dtype=dtype)
        self.head = dense(hidden_size + read, output_size).to(device=device, dtype=dtype)

    def initial_state(self, batch: int, like: Tensor) -> State:
        zeros, slots = like.new_zeros(batch, self.hidden_size), like.new_zeros(batch, self.slots)
        return State(
            h=zeros,
            c=zeros,
            memory=like.new_full((batch, self.slots, self.width), SMALL),
            usage=slots,
            links=like.new_zeros(batch, self.slots, self.slots),
            precedence=slots,
            write=like.new_full((batch, self.slots), SMALL),
            read=like.new_full((batch, self.reads, self.slots), SMALL),
            vectors=like.new_full((batch, self.reads, self.width), SMALL),
        )

    def constants(self) -> Constants:
        weight_input, weight_read = self.controller.weight_ih.split([self.input_size, self.reads * self.width], 1)
        ones = torch.ones(self.slots, self.slots, device=weight_read.device, dtype=weight_read.dtype)
        return Constants(
            weight_input,
            weight_read.t(),
            self.controller.weight_hh.t(),
            self.controller.bias,
            (self.interface.weight, self.interface.bias),
            (self.head.weight, self.head.bias),
            apart=ones - torch.diag(ones[0]),
            earlier=ones.tril(-1) > 0,
            clip=self.clip,
        )

    def project(self, constants: Constants, x: Tensor, timespans: Tensor | None) -> Projection:
        return Projection(x, constants.weight_input, constants.bias)

    @staticmethod
    def step(constants: Constants, u: Tensor, state: tuple[Tensor, ...]) -> tuple[State, Tensor]:
        old = State(*state)
        gates = u + old.vectors.flatten(1) @ constants.weight_read
        (h, c), _ = LSTM.step((constants.weight_input, constants.weight_hh, constants.bias), gates, (old.h, old.c))
        shown = h.clamp(-constants.clip, constants.clip)
        asked = parse(F.linear(shown, *constants.interface), *old.vectors.shape[1:])

        usage = used(old.usage, old.write, old.read, asked.free)
        found = lookup(old.memory, asked.write_key, asked.write_strength).squeeze(1)
        allocated = allocation(usage, constants.earlier)
        write = asked.write_gate * (asked.allocation_gate * allocated + (1 - asked.allocation_gate) * found)
        memory = old.memory * (1 - outer(write, asked.erase)) + outer(write, asked.data)

        kept = 1 - write.unsqueeze(2) - write.unsqueeze(1)
        links = constants.apart * (kept * old.links + outer(write, old.precedence))
        precedence = (1 - write.sum(1, keepdim=True)) * old.precedence + write

        found = lookup(memory, asked.read_keys, asked.read_strengths)
        backward, content, forward = asked.modes.unsqueeze(2).unbind(-1)
        read = backward * (old.read @ links) + content * found + forward * (old.read @ links.mT)
        vectors = read @ memory

        new = State(h, c, memory, usage, links, precedence, write, read, vectors)
        return new, torch.cat([shown, vectors.flatten(1)], 1)

    def finish(self, constants: Constants, x: Tensor, outputs: Tensor) -> Tensor:
        return linear(outputs, *constants.head).clamp(-constants.clip, constants.clip)

    def extra_repr(self) -> str:
        sizes = f"hidden_size={self.hidden_size}, slots={self.slots}, width={self.width}, reads={self.reads}"
        return f"{self.input_size}, {self.output_size}, {sizes}"


def _interface_sizes(reads: int, width: int) -> tuple[int, ...]:
    return reads * width, reads, width, 1, width, width, reads, 1, 1, 3 * reads


def parse(vector: Tensor, reads: int, width: int) -> Interface:
    """The controller's wishes out of one vector, each in its range."""
    parts = Interface(*vector.split(_interface_sizes(reads, width), -1))
    return Interface(
        read_keys=parts.read_keys.unflatten(-1, (reads, width)),
        read_strengths=strength(parts.read_strengths),
        write_key=parts.write_key.unsqueeze(-2),
        write_strength=strength(parts.write_strength),
        erase=parts.erase.sigmoid(),
        data=parts.data,
        free=parts.free.sigmoid(),
        allocation_gate=parts.allocation_gate.sigmoid(),
        write_gate=parts.write_gate.sigmoid(),
        modes=parts.modes.unflatten(-1, (reads, 3)).softmax(-1),
    )


def strength(x: Tensor) -> Tensor:
    return F.softplus(1 + F.softplus(x))


def lookup(memory: Tensor, keys: Tensor, strengths: Tensor) -> Tensor:
    """softmax_i(β cos(M_i, k)): memory (B, N, W), keys (B, K, W), strengths (B, K) → (B, K, N)."""
    return (strengths.unsqueeze(-1) * (unit(keys) @ unit(memory).mT)).softmax(-1)


def unit(x: Tensor) -> Tensor:
    """Vectors of length one; those shorter than 1e-3 stay shorter."""
    return x * x.square().sum(-1, keepdim=True).clamp(min=SMALL).rsqrt()


def used(usage: Tensor, write: Tensor, read: Tensor, free: Tensor) -> Tensor:
    """What was written is in use; what was read is free again where its free gate says so."""
    usage = usage + write - usage * write
    for retained in (1 - free.unsqueeze(-1) * read).unbind(1):
        usage = usage * retained
    return usage


def allocation(usage: Tensor, earlier: Tensor) -> Tensor:
    """(1 − u_i) Π_j u_j over the slots j that come before i, by usage and then by number: (B, N) → (B, N)."""
    usage = (1 - SMALL) * usage + SMALL
    mine, other = usage.unsqueeze(-1), usage.unsqueeze(-2)
    before = (other < mine) | ((other == mine) & earlier)
    return (1 - usage) * torch.where(before, other.log(), 0).sum(-1).exp()


def outer(a: Tensor, b: Tensor) -> Tensor:
    return a.unsqueeze(-1) * b.unsqueeze(-2)


@model(
    "differentiable_neural_computer",
    reference="Graves et al. 2016, Hybrid computing using a neural network with dynamic external memory, Nature 538",
)
def differentiable_neural_computer(
    spec: TaskSpec, *, hidden_size: int = 64, slots: int = 16, width: int = 8, reads: int = 2
) -> nn.Module:
    """Differentiable neural computer: an LSTM with a memory it writes to and reads by content, age and order.

        h, c ← LSTM([x_t, r], h, c), which asks for all that follows
        w ← g_w (g_a allocation + (1 − g_a) softmax(β cos(M, k)))
        M ← M ∘ (1 − w eᵀ) + w vᵀ
        wʳ ← πʳ₁ Lᵀ wʳ + πʳ₂ softmax(βʳ cos(M, kʳ)) + πʳ₃ L wʳ;   rʳ = Mᵀ wʳ
        y_t = clip(W [h, r] + b)

    L remembers which slot was written after which. The last y is the answer. Elapsed time, where a task gives it, is
    one more input.

    Options:
        hidden_size: units of the controlling LSTM
        slots: rows of the memory
        width: numbers in each row
        reads: read heads
    """
    inputs = spec.input_size + spec.timespans
    layer = DNC(inputs, spec.output_size, hidden_size=hidden_size, slots=slots, width=width, reads=reads)
    return SequenceModel(layer, spec, features=0)
