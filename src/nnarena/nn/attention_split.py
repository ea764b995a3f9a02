"""AttentionSplit: a memory in partitions, each with a row of weights of its own.

B batch, T time, F input features, H hidden units, h heads, j = H / h units of a head, w = H h / F.
"""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple, overload

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nnarena.core.components import model
from nnarena.core.spec import TaskSpec
from nnarena.nn.head import SequenceModel
from nnarena.nn.init import dense, glorot_, orthogonal_
from nnarena.nn.linear import Linear, linear
from nnarena.nn.norm import layer_norm
from nnarena.nn.recurrent import Recurrent, State

VARIANTS = ("printed", "released")
ATTENTIONS = ("fixed", "dot_product")
EPSILON = 1e-5  # of all layer norms


class Constants(NamedTuple):
    variant: str
    given: tuple[str, ...]  # what the input of a step consists of, in order
    weights: Tensor | None  # (h, j), what Ĉ is multiplied by
    values: Tensor | None  # (h, j, j), W_v
    norm: tuple[Tensor, Tensor] | None  # (h, j) each, if the step needs it
    gates: Tensor | None  # (h, j, 3j), U_g


class AttentionSplit(Recurrent):
    """A recurrent memory Ĉ in h partitions, beside an encoding X of the input that is partitioned alike.

        X = GELU(LN(D W_h)),   D: the input as rows of h features, then X to (B, T, h, j)
        R = GELU(LN(Z U_h)),   Z: a hidden sequence as rows of h, if there is one, then R to (B, T, h, j)
        C_i = GELU(A ⊙ (dropout(Ĉ) + R_i))
        Y_i = GELU(LN(X_i + C_i)),   Ĉ ← SELU(Y_i)
        O = GELU(W_f Y + b_f)

    The norms of D W_h and Z U_h run along their rows, w and h wide, that of a step along the j units of every head.
    F and H must be divisible by h, and H h by F. A frame is partitioned by itself: frames do not blend.

    **What it remembers** are two things. The *state* is the last Ĉ, (B, h, j), carried from call to call: two calls
    over two pieces are one over the whole. The *hidden sequence* is Ĉ after every step, (B, T, H): the H that
    Algorithm 7 returns and takes in, one entry a step. Ask for it with `return_hidden`, and give it as `hidden` to a
    layer above, or to the same layer when it reads the same frames again:

        output, state, hidden = first(x, return_hidden=True)
        output, state = second(output, hidden=hidden)

    The thesis starts every call from Ĉ = 0, which is `state=None`. A layer that will never be given one is made with
    `reads_hidden=False` and has no U_h.

    `variant="printed"` is Algorithm 7. Two slips are mended. A Ĉ is printed with indices nhi, bhj → bhj, which sums
    every row of A before it is used; we take i for j, as the text has it: every partition meets one row of A. And A has
    rows of H / h numbers, not F / h. `variant="released"` is the authors' code, which made their figures:

                   printed                            released
        X          the norm along the rows of D W_h   along j, after the partition
        R          GELU(LN(·)), norm along h          LN(GELU(·)), norm along j
        dropout    of Ĉ                               of Ĉ + R_i, and again of C_i
        C_i        A ⊙ ·                              a ⊙ ·, a the sums of the rows of A: one number a head
        Ĉ          SELU(Y_i), after norm and GELU     SELU(X_i + C_i), before them
        besides                                       a norm of H units that is counted and never used

    Start values are the released ones in both, N(0, variance): A 2/H, W_h and U_h 2/(h w), W_f 2/H². `dropout` (the
    thesis has 0.1) acts in training only.

    Beyond the thesis, what its authors expect to be better:

    `gated=True` (printed only) puts an LSTM's memory M between the sum and the norm; the state is (Ĉ, M):
        p_a, f_a, o_a = σ(split(X_ia W_ga + Ĉ_a U_ga + b_ga))       of every head a, from its own partition
        M ← f ⊙ M + p ⊙ (X_i + C_i)
        Y_i = o ⊙ GELU(LN(M)),   Ĉ ← SELU(Y_i)
    With p and o open and f shut it is the layer without gates.

    `attention="dot_product"` puts attention in place of A. Head a of the input asks all partitions b of the memory,
    with weights (j, j) of its own:
        P = Ĉ + R_i,   s_ab = softmax_b(X_ia W_qa · P_b W_ka / √j),   C_ia = GELU(Σ_b s_ab P_b W_va)

    Shapes: input (B, T, F), output (B, T, H). Start values of both: Glorot, orthonormal columns for U_g, zero biases,
    but one for the forget gate.

    Reference: Kortegaard and Andresen 2024, AttentionSplit, master's thesis, University of Southern Denmark.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        heads: int,
        *,
        variant: Literal["printed", "released"] = "printed",
        gated: bool = False,
        attention: Literal["fixed", "dot_product"] = "fixed",
        dropout: float = 0.0,
        reads_hidden: bool = True,
        batch_first: bool = True,
        backend: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size, batch_first=batch_first, backend=backend)
        _check_choice("variant", variant, VARIANTS)
        _check_choice("attention", attention, ATTENTIONS)
        if gated and variant == "released":
            raise ValueError("gated=True goes beyond the thesis, from what it prints: variant must be 'printed'.")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must be at least 0 and less than 1, not {dropout}.")
        width = _row_width(input_size, hidden_size, heads)
        units = hidden_size // heads
        norms = {"input": width, "hidden": heads if reads_hidden else 0, "cell": units}
        if variant == "released":
            norms |= {"input": units, "hidden": units if reads_hidden else 0, "unused": hidden_size}
        _check_norms(norms, input_size, hidden_size, heads)
        self.heads, self.units, self.width = heads, units, width
        self.variant, self.gated, self.attention = variant, gated, attention
        self.dropout, self.reads_hidden = dropout, reads_hidden

        def parameter(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(shape, device=device, dtype=dtype))

        self.weight_ih = parameter(heads, width)
        self.weight_hh = parameter(heads, heads) if reads_hidden else None
        self.weight_cell = parameter(heads, units) if attention == "fixed" else None
        self.weight_attention = parameter(3, heads, units, units) if attention == "dot_product" else None
        self.weight_gates = parameter(2, heads, units, 3 * units) if gated else None
        self.bias_gates = parameter(heads, 3 * units) if gated else None
        self.norms = nn.ModuleDict(
            {name: nn.LayerNorm(size, EPSILON, device=device, dtype=dtype) for name, size in norms.items() if size}
        )
        self.output = Linear(hidden_size, hidden_size, device=device, dtype=dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        of_rows = math.sqrt(2 / (self.heads * self.width))
        nn.init.normal_(self.weight_ih, std=of_rows)
        if self.weight_hh is not None:
            nn.init.normal_(self.weight_hh, std=of_rows)
        if self.weight_cell is not None:
            nn.init.normal_(self.weight_cell, std=math.sqrt(2 / self.hidden_size))
        if self.weight_attention is not None:
            nn.init.uniform_(self.weight_attention, -math.sqrt(3 / self.units), math.sqrt(3 / self.units))
        if self.weight_gates is not None and self.bias_gates is not None:
            for of_input, of_memory in zip(*self.weight_gates.detach(), strict=True):
                glorot_(of_input)
                orthogonal_(of_memory.t())
            with torch.no_grad():
                self.bias_gates.zero_()
                self.bias_gates[:, self.units : 2 * self.units] = 1
        for norm in self.norms.values():
            norm.reset_parameters()  # type: ignore[operator]
        self.output.reset_parameters()
        nn.init.normal_(self.output.weight, std=math.sqrt(2) / self.hidden_size)

    def initial_state(self, batch: int, like: Tensor) -> State:
        zeros = like.new_zeros(batch, self.heads, self.units)
        return (zeros, zeros) if self.gated else zeros

    @overload
    def forward(
        self,
        x: Tensor,
        state: State | None = None,
        timespans: Tensor | None = None,
        *,
        hidden: Tensor | None = None,
        return_hidden: Literal[False] = False,
    ) -> tuple[Tensor, State]: ...

    @overload
    def forward(
        self,
        x: Tensor,
        state: State | None = None,
        timespans: Tensor | None = None,
        *,
        hidden: Tensor | None = None,
        return_hidden: Literal[True],
    ) -> tuple[Tensor, State, Tensor]: ...

    def forward(
        self,
        x: Tensor,
        state: State | None = None,
        timespans: Tensor | None = None,
        *,
        hidden: Tensor | None = None,
        return_hidden: bool = False,
    ) -> tuple[Tensor, State] | tuple[Tensor, State, Tensor]:
        x, start, timespans = self.ready(x, state, timespans)
        constants = self.constants()
        projected = self.project(constants, x, timespans)
        if hidden is not None:
            hidden = hidden if self.batch_first else hidden.transpose(0, 1)
            projected = (*projected, self._read(hidden, x))
            constants = constants._replace(given=(*constants.given, "hidden"))
        outputs, last = self.drive(self.step, constants, projected, start)
        output = self.finish(constants, x, outputs)
        output = output if self.batch_first else output.transpose(0, 1)
        if not return_hidden:
            return output, last
        memories = F.selu(outputs).flatten(2)
        return output, last, memories if self.batch_first else memories.transpose(0, 1)

    def constants(self) -> Constants:
        weights = self.weight_cell
        if weights is not None and self.variant == "released":
            weights = weights.sum(-1, keepdim=True).expand_as(weights)
        norm = None
        if self.variant == "printed":  # written out for every head, so that a step need not add up its gradients
            norm = tuple(part.expand(self.heads, self.units) for part in self._norm("cell"))
        return Constants(
            variant=self.variant,
            given=self._given(),
            weights=weights,
            values=None if self.weight_attention is None else self.weight_attention[2],
            norm=norm,  # type: ignore[arg-type]
            gates=None if self.weight_gates is None else self.weight_gates[1],
        )

    def _given(self) -> tuple[str, ...]:
        parts = {
            "x": True,
            "gates": self.gated,
            "query": self.attention == "dot_product",
            "keep": self._drops(),
            "keep_after": self._drops() and self.variant == "released",
        }
        return tuple(name for name, yes in parts.items() if yes)

    def _drops(self) -> bool:
        return self.training and self.dropout > 0

    def project(self, constants: Constants, x: Tensor, timespans: Tensor | None) -> tuple[Tensor, ...]:
        """X, (B, T, h, j), and what else a step is given: all that depends on the input only, and what is dropped."""
        encoded = linear(x.unflatten(-1, (-1, self.heads)), self.weight_ih.t())
        if self.variant == "printed":
            encoded = self._parted(self._normed("input", encoded, gelu=True))
        else:
            encoded = self._normed("input", self._parted(encoded), gelu=True)
        parts = [encoded]
        if self.weight_gates is not None and self.bias_gates is not None:
            parts.append(torch.einsum("bthj,hjk->bthk", encoded, self.weight_gates[0]) + self.bias_gates)
        if self.weight_attention is not None:
            asked = self.weight_attention[0] @ self.weight_attention[1].mT / math.sqrt(self.units)
            parts.append(torch.einsum("bthj,hjk->bthk", encoded, asked))
        while len(parts) < len(constants.given):  # no kernel draws random numbers: they are one more input
            parts.append(F.dropout(torch.ones_like(encoded), self.dropout))
        return tuple(parts)

    def _read(self, hidden: Tensor, x: Tensor) -> Tensor:
        """R, (B, T, h, j), of a hidden sequence."""
        if self.weight_hh is None:
            raise ValueError("This AttentionSplit was made with reads_hidden=False: it takes no hidden sequence.")
        wanted = (*x.shape[:2], self.hidden_size)
        if hidden.dim() == 4:
            hidden = hidden.flatten(2)
        if hidden.shape != wanted:
            raise ValueError(f"AttentionSplit wants a hidden sequence {wanted} for this input, not {(*hidden.shape,)}.")
        encoded = linear(hidden.unflatten(-1, (-1, self.heads)), self.weight_hh.t())
        if self.variant == "printed":
            return self._parted(self._normed("hidden", encoded, gelu=True))
        return self._normed("hidden", self._parted(F.gelu(encoded)))

    @staticmethod
    def step(constants: Constants, u: tuple[Tensor, ...], state: Any) -> tuple[Any, Tensor]:
        given = dict(zip(constants.given, u, strict=True))
        past, kept = state if constants.gates is not None else (state, None)
        total = given["x"] + _context(constants, given, past)
        if constants.norm is None:  # released: what nothing recurs on is for `finish`
            return F.selu(total), total
        if kept is None:
            shown = F.gelu(_norm(total, constants.norm))
            return F.selu(shown), shown
        take, keep, show = (given["gates"] + _of_each(past, constants.gates)).sigmoid().chunk(3, -1)
        kept = keep * kept + take * total
        shown = show * F.gelu(_norm(kept, constants.norm))
        return (F.selu(shown), kept), shown

    def finish(self, constants: Constants, x: Tensor, outputs: Tensor) -> Tensor:
        if self.variant == "released":
            outputs = self._normed("cell", outputs, gelu=True)
        return F.gelu(self.output(outputs.flatten(2)))

    def _parted(self, rows: Tensor) -> Tensor:
        """(B, T, rows, width) as (B, T, h, j): the same numbers in the same order."""
        return rows.flatten(2).unflatten(-1, (self.heads, self.units))

    def _norm(self, name: str) -> tuple[Tensor, Tensor]:
        norm: Any = self.norms[name]
        return norm.weight, norm.bias

    def _normed(self, name: str, rows: Tensor, gelu: bool = False) -> Tensor:
        return layer_norm(rows, *self._norm(name), EPSILON, gelu=gelu, fused=self.backend != "eager")

    def extra_repr(self) -> str:
        options = {"variant": self.variant, "gated": self.gated, "attention": self.attention, "dropout": self.dropout}
        return ", ".join(
            [super().extra_repr(), str(self.heads), *(f"{key}={value!r}" for key, value in options.items())]
        )


def _context(constants: Constants, given: dict[str, Tensor], past: Tensor) -> Tensor:
    """C_i, (B, h, j), from Ĉ."""
    released = constants.variant == "released"
    if "keep" in given and not released:
        past = past * given["keep"]
    if "hidden" in given:
        past = past + given["hidden"]
    if "keep" in given and released:
        past = past * given["keep"]
    if constants.values is None:
        context = F.gelu(constants.weights * past)  # type: ignore[operator]
    else:
        mixed = (given["query"] @ past.mT).softmax(-1) @ past
        context = F.gelu(_of_each(mixed, constants.values))
    return context * given["keep_after"] if "keep_after" in given else context


def _of_each(parts: Tensor, weights: Any) -> Tensor:
    """(B, h, j), (h, j, k) → (B, h, k): every partition times the matrix of its head."""
    return (parts.unsqueeze(2) @ weights).squeeze(2)


def _norm(x: Tensor, norm: tuple[Tensor, Tensor]) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], eps=EPSILON) * norm[0] + norm[1]


def _check_choice(name: str, value: str, choices: tuple[str, str]) -> None:
    if value not in choices:
        raise ValueError(f"{name} is {choices[0]!r} or {choices[1]!r}, not {value!r}.")


def _row_width(input_size: int, hidden_size: int, heads: int) -> int:
    """w = H h / F, and an error that names the sizes that would do where it is not whole."""
    if heads < 1:
        raise ValueError(f"heads must be at least 1, not {heads}.")
    _check_divisible("input_size", input_size, heads, f"heads ({heads})")
    _check_divisible("hidden_size", hidden_size, heads, f"heads ({heads})")
    both = math.lcm(heads, input_size // heads)
    _check_divisible(
        "hidden_size", hidden_size, both, f"heads ({heads}) and input_size / heads ({input_size // heads})"
    )
    return hidden_size * heads // input_size


def _check_divisible(name: str, size: int, by: int, words: str) -> None:
    if size % by:
        low = size // by * by
        near = f"{low} or {low + by}" if low else str(by)
        raise ValueError(f"{name} must be divisible by {words}: {near}, not {size}.")


def _check_norms(norms: dict[str, int], input_size: int, hidden_size: int, heads: int) -> None:
    """A norm along one number answers with its bias, whatever it is given."""
    for name, width in norms.items():
        if width == 1:
            sizes = f"input_size {input_size}, hidden_size {hidden_size} and heads {heads}"
            raise ValueError(f"With {sizes} the {name} norm would be over a single number, and forget it.")


class AttentionSplitStack(nn.Module):
    """The network in which the thesis compares: a dense layer, and two of AttentionSplit, h and 2 h heads.

        e = GELU(E x + b);   o, Z = AttentionSplit_h(e);   y = AttentionSplit_2h(o, hidden=Z)

    Calls like `torch.nn.LSTM`, batch first: input (B, T, F), output (B, T, H); the state is a pair, that of each layer.
    Nothing of Z has to be carried: its entry of a step is what the first layer remembers after that step.
    """

    def __init__(self, input_size: int, hidden_size: int, heads: int, **options: Any) -> None:
        super().__init__()
        self.input_size, self.hidden_size = input_size, hidden_size
        self.embed = dense(input_size, hidden_size)
        self.first = AttentionSplit(hidden_size, hidden_size, heads, reads_hidden=False, **options)
        self.second = AttentionSplit(hidden_size, hidden_size, 2 * heads, **options)

    def initial_state(self, batch: int, like: Tensor) -> tuple[State, State]:
        return self.first.initial_state(batch, like), self.second.initial_state(batch, like)

    def forward(self, x: Tensor, state: tuple[State, State] | None = None) -> tuple[Tensor, tuple[State, State]]:
        before = state or (None, None)
        read, one, hidden = self.first(F.gelu(self.embed(x)), before[0], return_hidden=True)
        read, other = self.second(read, before[1], hidden=hidden)
        return read, (one, other)


@model(
    "attention_split",
    reference="Kortegaard and Andresen 2024, AttentionSplit, master's thesis, University of Southern Denmark",
)
def attention_split(
    spec: TaskSpec,
    *,
    hidden_size: int = 96,
    heads: int = 4,
    variant: Literal["printed", "released"] = "printed",
    gated: bool = False,
    attention: Literal["fixed", "dot_product"] = "fixed",
    dropout: float = 0.0,
) -> nn.Module:
    """AttentionSplit: a memory in partitions that meets an encoding of the input, partitioned alike.

        X = GELU(LN(D W_h)),   R = GELU(LN(Z U_h)),   D and Z: input and memories below, as rows of h numbers
        C_i = GELU(A ⊙ (Ĉ + R_i)),   Y_i = GELU(LN(X_i + C_i)),   Ĉ ← SELU(Y_i)
        O = GELU(W_f Y + b_f)

    As in the thesis: a dense layer with GELU, then two of AttentionSplit, of which the second has twice the heads and
    reads the memories Z of the first. The last output passes a dense layer. Elapsed time, where a task gives it, is one
    more input.

    Options:
        hidden_size: units of every layer; divisible by twice the heads
        heads: partitions of the first layer; the second has twice as many
        variant: as the thesis prints it, or as its authors' code does it
        gated: an LSTM's gates around the memory
        attention: a fixed matrix A, or scaled dot-product attention over the partitions
        dropout: of the memory, in training; the thesis has 0.1
    """
    options = {"variant": variant, "gated": gated, "attention": attention, "dropout": dropout}
    return SequenceModel(AttentionSplitStack(spec.input_size + spec.timespans, hidden_size, heads, **options), spec)
