"""Transformers whose attention is summed up, or made, by a recurrent network.

B batch, T time, D model width, h heads, Q queries, K keys.
"""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor, nn

from nnarena.core.components import model
from nnarena.core.errors import Unfit
from nnarena.core.spec import TaskSpec
from nnarena.nn.init import dense
from nnarena.nn.linear import linear
from nnarena.nn.lstm import LSTM
from nnarena.nn.transformer import Transformer, WideAttention
from nnarena.nn.unitary_rnn import Constants, Pair, UnitaryRNN


class LSTMAttention(WideAttention):
    """Attention whose weighted values are read one after the other by an LSTM instead of being added.

        a_ij = softmax_j(q_i · k_j / √D);   o_i = the last output of LSTM(a_i1 v_1, …, a_iK v_K)

    One LSTM of D units a head; the heads' results side by side pass a dense layer. Takes queries (B, Q, D) and memory
    (B, K, D), answers (B, Q, D).
    """

    def __init__(self, d_model: int, nhead: int) -> None:
        super().__init__(d_model, nhead)
        self.readers = nn.ModuleList(LSTM(d_model, d_model) for _ in range(nhead))

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        q, k, v = (self._heads(part) for part in (self.query(x), self.key(memory), self.value(memory)))
        shares = (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1)
        if x.device.type == "cpu" and self.readers[0].backend != "native":
            heads = zip(self.readers, shares.unbind(1), v.unbind(1), strict=True)
            return self.output(torch.cat([read_weighted(*head) for head in heads], -1))  # type: ignore[arg-type]
        weighted = shares.unsqueeze(-1) * v.unsqueeze(2)  # (B, h, Q, K, D)
        # Every query of every sample is a sequence of its own: (B·Q, K, D).
        sequences = (part.flatten(0, 1) for part in weighted.unbind(1))
        read = [
            reader.final(sequence)  # type: ignore[operator]
            for reader, sequence in zip(self.readers, sequences, strict=True)
        ]
        return self.output(torch.cat(read, -1).unflatten(0, (len(x), -1)))


def read_weighted(reader: LSTM, shares: Tensor, values: Tensor) -> Tensor:
    """The last output of `reader` over a_i1 v_1, …, a_iK v_K for each i: (B, Q, K), (B, K, D) → (B, Q, H).

    For a CPU. W (a v) = a (W v), so that the input halves are made from K values instead of Q·K; and the many sequences
    lie side by side behind the few units, (H, B·Q), because neighbours in memory are worked on together.
    """
    told = (values @ reader.weight_ih.t()).permute(2, 1, 0).unsqueeze(-1)  # (4H, K, B, 1)
    constants = (reader.weight_hh, reader.bias.unsqueeze(-1))
    zeros = shares.new_zeros(reader.hidden_size, shares.shape[0] * shares.shape[1])
    inputs = told, shares.permute(2, 0, 1).unsqueeze(0)
    _, (h, _) = reader.drive(weighted_step, constants, inputs, (zeros, zeros), apart=False)
    return h.unflatten(1, shares.shape[:2]).permute(1, 2, 0)


def weighted_step(constants: Pair, u: Pair, state: Pair) -> tuple[Pair, Tensor]:
    """A step of `LSTM` with the units in front: told (4H, B, 1), share (1, B, Q), state (H, B·Q) each; no output."""
    (U, bias), (told, share), (h, c) = constants, u, state
    i, f, g, o = ((told * share).flatten(1) + bias + U @ h).chunk(4)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return (o.sigmoid() * c.tanh(), c), h[:0]


class RecurrentAugmentedTransformer(Transformer):
    """`Transformer` with `LSTMAttention`: the values are weighted as ever, then read by an LSTM along the keys.

        a_ij = softmax_j(q_i · k_j / √D);   o_i = the last output of LSTM(a_i1 v_1, …, a_iK v_K)

    Reference: the published arena (2021). Work and memory grow with the square of the length, and K steps are taken one
    after the other.
    """

    def __init__(
        self,
        input_size: int,
        output_size: int,
        *,
        d_model: int = 8,
        nhead: int = 1,
        dim_feedforward: int = 32,
        num_layers: int = 1,
    ) -> None:
        sizes = {"d_model": d_model, "nhead": nhead, "dim_feedforward": dim_feedforward, "num_layers": num_layers}
        super().__init__(input_size, output_size, **sizes, attention=LSTMAttention)


class UnitaryAttention(nn.Module):
    """A unitary network in place of attention: it reads every value beside the query and says what it made of them.

        o_i = Re of the last state of UnitaryRNN([q_i, v_1], …, [q_i, v_K])

    One network of D units a head; the heads' results side by side pass a dense layer. There are no keys and no
    projections. Takes queries (B, Q, D) and memory (B, K, D), answers (B, Q, D).
    """

    def __init__(self, d_model: int, nhead: int, *, capacity: int = 4) -> None:
        super().__init__()
        self.readers = nn.ModuleList(UnitaryRNN(2 * d_model, d_model, capacity=capacity) for _ in range(nhead))
        self.output = dense(nhead * d_model, d_model)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        read = [read_pairs(reader, x, memory) for reader in self.readers]  # type: ignore[arg-type]
        return self.output(torch.cat(read, -1))


def read_pairs(reader: UnitaryRNN, queries: Tensor, values: Tensor) -> Tensor:
    """The last output of `reader` over [q_i, v_1], …, [q_i, v_K] for each i: (B, Q, D), (B, K, D) → (B, Q, H).

    U [q, v] = U_q q + U_v v, so that the steps are taken without ever writing down all B·Q·K pairs.
    """
    of_query, of_value = reader.weight_ih.split([queries.shape[-1], values.shape[-1]], 1)
    asked, told = linear(queries, of_query), linear(values, of_value)
    state = reader.initial_state(asked.shape[0] * asked.shape[1], asked)
    if asked.is_cuda:  # one kernel for all steps reads them faster than it could add them up
        pairs = (asked.unsqueeze(2) + told.unsqueeze(1)).flatten(0, 1)
        _, (re, _) = reader.drive(UnitaryRNN.step, reader.constants(), pairs, state, last=True)
        return re.unflatten(0, asked.shape[:2])
    _, (re, _) = reader.drive(pair_step, (reader.constants(), asked), told, state, apart=False)
    return re.unflatten(0, asked.shape[:2])


def pair_step(constants: tuple[Constants, Tensor], value: Tensor, state: Pair) -> tuple[Pair, Tensor]:
    """A step of `UnitaryRNN` for every query (B, Q, 2H) beside one value (B, 2H); the state says all, so no output."""
    cell, asked = constants
    (re, im), _ = UnitaryRNN.step(cell, (asked + value.unsqueeze(1)).flatten(0, 1), state)
    return (re, im), value[:, :0]


class RecurrentAttentionTransformer(Transformer):
    """`Transformer` with `UnitaryAttention`: a unitary network reads each query together with every value.

        o_i = Re of the last state of UnitaryRNN([q_i, v_1], …, [q_i, v_K])

    `capacity` is that of the unitary networks: layers of rotations, even and at most `d_model`.

    Reference: the published arena (2021). Work and memory grow with the square of the length, and K steps are taken one
    after the other.
    """

    def __init__(
        self,
        input_size: int,
        output_size: int,
        *,
        d_model: int = 8,
        nhead: int = 1,
        dim_feedforward: int = 32,
        num_layers: int = 1,
        capacity: int = 4,
    ) -> None:
        sizes = {"d_model": d_model, "nhead": nhead, "dim_feedforward": dim_feedforward, "num_layers": num_layers}
        attention = functools.partial(UnitaryAttention, capacity=capacity)
        super().__init__(input_size, output_size, **sizes, attention=attention)


@model(
    "recurrent_network_augmented_transformer",
    reference="Neural Network Arena 2021, github.com/Oidlichtnwoada/NeuralNetworkArena",
)
def recurrent_network_augmented_transformer(
    spec: TaskSpec, *, d_model: int = 8, nhead: int = 1, dim_feedforward: int = 32, num_layers: int = 1
) -> nn.Module:
    """Encoder-decoder Transformer whose weighted values are read by an LSTM instead of being added.

        a_ij = softmax_j(q_i · k_j / √d_model);   o_i = the last output of LSTM(a_i1 v_1, …, a_iK v_K)

    All else is as in `transformer`: sinusoidal positions, of the cumulated time where a task gives it, and one token
    that is decoded.

    Options:
        d_model: width of the model, of every head and of the LSTMs; even
        nhead: attention heads, each with an LSTM of its own
        dim_feedforward: units of the feed-forward nets
        num_layers: encoder layers, and as many decoder layers
    """
    if spec.per_step:
        raise Unfit("it decodes one token, and the task wants an output at every step.")
    sizes = {"d_model": d_model, "nhead": nhead, "dim_feedforward": dim_feedforward, "num_layers": num_layers}
    return RecurrentAugmentedTransformer(spec.input_size, spec.output_size, **sizes)


@model(
    "recurrent_network_attention_transformer",
    reference="Neural Network Arena 2021, github.com/Oidlichtnwoada/NeuralNetworkArena",
)
def recurrent_network_attention_transformer(
    spec: TaskSpec,
    *,
    d_model: int = 8,
    nhead: int = 1,
    dim_feedforward: int = 32,
    num_layers: int = 1,
    capacity: int = 4,
) -> nn.Module:
    """Encoder-decoder Transformer in which a unitary network reads each query with every value, in place of attention.

        o_i = Re of the last state of UnitaryRNN([q_i, v_1], …, [q_i, v_K])

    All else is as in `transformer`: sinusoidal positions, of the cumulated time where a task gives it, and one token
    that is decoded.

    Options:
        d_model: width of the model and units of the unitary networks; even
        nhead: heads, each a unitary network of its own
        dim_feedforward: units of the feed-forward nets
        num_layers: encoder layers, and as many decoder layers
        capacity: layers of rotations of the unitary networks; even and at most d_model
    """
    if spec.per_step:
        raise Unfit("it decodes one token, and the task wants an output at every step.")
    sizes = {"d_model": d_model, "nhead": nhead, "dim_feedforward": dim_feedforward, "num_layers": num_layers}
    return RecurrentAttentionTransformer(spec.input_size, spec.output_size, **sizes, capacity=capacity)
