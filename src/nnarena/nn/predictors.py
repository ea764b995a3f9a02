"""Three networks of one shape that predict what an agent does: a dense layer, two layers of a kind, a dense layer.

    e = GELU(E x + b);   two layers over e;   the last step passes a dense layer

B batch, T time, F input features, H units, h heads.
"""

from __future__ import annotations

from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from nnarena.core.components import model
from nnarena.core.errors import Unfit
from nnarena.core.spec import TaskSpec
from nnarena.nn.attention_split import AttentionSplitStack
from nnarena.nn.head import SequenceModel
from nnarena.nn.init import dense
from nnarena.nn.lstm import LSTM
from nnarena.nn.transformer import attend

LSTMState = tuple[Tensor, Tensor]


class LSTMStack(nn.Module):
    """A dense layer and two of LSTM, of which the second starts where the first ended.

        e = GELU(E x + b);   o, s = LSTM₁(e, state);   y, s = LSTM₂(o, s)

    Calls like `torch.nn.LSTM`, batch first: input (B, T, F), output (B, T, H). The state s = (h, c) that comes out is
    the second layer's, and what goes in is the first layer's. Since the first layer has read all steps when the second
    begins, an output knows of later inputs.
    """

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.input_size, self.hidden_size = input_size, hidden_size
        self.embed = dense(input_size, hidden_size)
        self.first, self.second = LSTM(hidden_size, hidden_size), LSTM(hidden_size, hidden_size)

    def forward(self, x: Tensor, state: LSTMState | None = None) -> tuple[Tensor, LSTMState]:
        read, handed = self.first(F.gelu(self.embed(x)), state)
        return self.second(read, handed)


class EncoderLayer(nn.Module):
    """A Transformer's encoder layer as `torch.nn.TransformerEncoderLayer` has it, whose weights it can take.

        x ← LN(x + dropout(W_o attention(x)));   x ← LN(x + dropout(W₂ dropout(relu(W₁ x))))
        attention: softmax(Q Kᵀ / √(H / h)) V in each of h heads, H / h wide, with dropout of the shares

    Input and output (B, T, H). Written in plain operations, which can be mapped over a population.
    """

    def __init__(self, hidden_size: int, heads: int, feedforward: int, dropout: float = 0.0) -> None:
        super().__init__()
        if heads < 1 or hidden_size % heads:
            raise ValueError(f"hidden_size must be divisible by heads, and {hidden_size} is not by {heads}.")
        self.heads, self.dropout = heads, dropout
        self.attended = dense(hidden_size, 3 * hidden_size)
        self.mixed = dense(hidden_size, hidden_size)
        self.wide, self.narrow = dense(hidden_size, feedforward), dense(feedforward, hidden_size)
        self.norms = nn.ModuleList(nn.LayerNorm(hidden_size) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.attended(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        read = attend(q, k, v, self.dropout if self.training else 0.0).transpose(1, 2).flatten(2)
        x = self.norms[0](x + self._drop(self.mixed(read)))
        return self.norms[1](x + self._drop(self.narrow(self._drop(F.relu(self.wide(x))))))

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training)


class EncoderStack(nn.Module):
    """A dense layer and two encoder layers, h and 2 h heads, the second of which reads the first.

        e = GELU(E x + b);   y = encoder_2h(encoder_h(e))

    Input (B, T, F), output (B, T, H) and no state. As in the thesis nothing says which step is which: only the last
    one is asked, and it sees the others in any order.
    """

    def __init__(self, input_size: int, hidden_size: int, heads: int, feedforward: int, dropout: float) -> None:
        super().__init__()
        self.input_size, self.hidden_size = input_size, hidden_size
        self.embed = dense(input_size, hidden_size)
        self.first = EncoderLayer(hidden_size, heads, feedforward, dropout)
        self.second = EncoderLayer(hidden_size, 2 * heads, feedforward, dropout)

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        return self.second(self.first(F.gelu(self.embed(x)))), None


@model(
    "predictor_lstm",
    reference="Kortegaard and Andresen 2024, AttentionSplit, master's thesis, University of Southern Denmark",
)
def predictor_lstm(spec: TaskSpec, *, hidden_size: int = 256) -> nn.Module:
    """Two LSTMs behind a dense layer, the second starting from the first one's last state.

        e = GELU(E x + b);   o, s = LSTM₁(e);   y, s = LSTM₂(o, s)

    The last y passes a dense layer. Elapsed time, where a task gives it, is one more input.

    Options:
        hidden_size: units of every layer; the thesis has 256
    """
    return _after_the_last(spec, LSTMStack(_inputs(spec), hidden_size))


@model(
    "predictor_transformer",
    reference="Kortegaard and Andresen 2024, AttentionSplit, master's thesis, University of Southern Denmark",
)
def predictor_transformer(
    spec: TaskSpec, *, hidden_size: int = 256, heads: int = 4, dim_feedforward: int = 256, dropout: float = 0.1
) -> nn.Module:
    """Two encoder layers of a Transformer behind a dense layer, the second reading the first.

        e = GELU(E x + b);   y = encoder_2h(encoder_h(e))
        encoder: x ← LN(x + attention(x));  x ← LN(x + W₂ relu(W₁ x))

    The last y passes a dense layer. In the code that came with the thesis the second layer read e again, so that the
    first did nothing. Elapsed time, where a task gives it, is one more input.

    Options:
        hidden_size: units of every layer; the thesis has 256
        heads: of the first layer; the second has twice as many
        dim_feedforward: units of the feed-forward nets
        dropout: in training
    """
    return _after_the_last(spec, EncoderStack(_inputs(spec), hidden_size, heads, dim_feedforward, dropout))


@model(
    "predictor_attention_split",
    reference="Kortegaard and Andresen 2024, AttentionSplit, master's thesis, University of Southern Denmark",
)
def predictor_attention_split(
    spec: TaskSpec,
    *,
    hidden_size: int = 256,
    heads: int = 4,
    variant: Literal["printed", "released"] = "printed",
    dropout: float = 0.1,
) -> nn.Module:
    """Two layers of AttentionSplit behind a dense one, the second given the first one's memories.

        e = GELU(E x + b);   o, Z = AttentionSplit_h(e);   y = AttentionSplit_2h(o, hidden=Z)

    The last y passes a dense layer. It is `attention_split` in the size that the thesis compares it in. Elapsed time,
    where a task gives it, is one more input.

    Options:
        hidden_size: units of every layer; the thesis has 256
        heads: of the first layer; the second has twice as many
        variant: as the thesis prints it, or as its authors' code does it
        dropout: of the memory, in training
    """
    stack = AttentionSplitStack(_inputs(spec), hidden_size, heads, variant=variant, dropout=dropout)
    return _after_the_last(spec, stack)


def _inputs(spec: TaskSpec) -> int:
    return spec.input_size + spec.timespans


def _after_the_last(spec: TaskSpec, stack: nn.Module) -> nn.Module:
    """What the last step of the stack says; earlier ones may know of later inputs."""
    if spec.per_step:
        raise Unfit("it answers after the last step, and the task wants an output at every step.")
    return SequenceModel(stack, spec)
