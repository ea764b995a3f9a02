"""An actor with AttentionSplit: a narrow dense layer before it, a dense layer behind."""

from __future__ import annotations

from typing import Any, Literal

from torch import Tensor, nn

from nnarena.core.components import model
from nnarena.core.spec import TaskSpec
from nnarena.nn.attention_split import AttentionSplit
from nnarena.nn.head import SequenceModel
from nnarena.nn.recurrent import State


class EmbeddedAttentionSplit(nn.Module):
    """e = GELU(LN(E x + b));   y = AttentionSplit(e)

    Calls like `torch.nn.LSTM`, batch first: input (B, T, F), output (B, T, H); the state is AttentionSplit's.
    """

    def __init__(self, input_size: int, hidden_size: int, heads: int, embed: int, **options: Any) -> None:
        super().__init__()
        self.input_size, self.hidden_size = input_size, hidden_size
        self.embed = nn.Sequential(nn.Linear(input_size, embed), nn.LayerNorm(embed), nn.GELU())
        self.split = AttentionSplit(embed, hidden_size, heads, reads_hidden=False, **options)

    def initial_state(self, batch: int, like: Tensor) -> State:
        return self.split.initial_state(batch, like)

    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        return self.split(self.embed(x), state)


@model(
    "attention_split_actor",
    reference="Kortegaard and Andresen 2024, AttentionSplit, master's thesis, University of Southern Denmark",
)
def attention_split_actor(
    spec: TaskSpec,
    *,
    hidden_size: int = 256,
    heads: int = 4,
    embed: int = 32,
    variant: Literal["printed", "released"] = "printed",
    dropout: float = 0.0,
) -> nn.Module:
    """The actor with which the thesis plays: a dense layer of 32 units, and one of AttentionSplit.

        e = GELU(LN(E x + b));   y = AttentionSplit(e)

    The last output passes a dense layer. Elapsed time, where a task gives it, is one more input.

    Options:
        hidden_size: units of AttentionSplit
        heads: its partitions
        embed: units of the dense layer before it
        variant: as the thesis prints AttentionSplit, or as its authors' code does it
        dropout: of the memory, in training; the thesis has 0.1
    """
    features = spec.input_size + spec.timespans
    layer = EmbeddedAttentionSplit(features, hidden_size, heads, embed, variant=variant, dropout=dropout)
    return SequenceModel(layer, spec)
