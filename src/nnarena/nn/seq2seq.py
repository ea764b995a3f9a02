"""What turns a sequence of tokens into another one: how it is taught, and how it writes.

B batch, T steps of the source, L steps of the target, V tokens to write with.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from nnarena.core.errors import Unfit
from nnarena.core.spec import BEGIN, TaskSpec
from nnarena.core.tokens import shifted

State = Any  # tensors (B, …), one or in tuples


class Seq2Seq(nn.Module):
    """A reader and a writer. A subclass says how, by three functions:

        read(source_BT)               the source, understood: tensors (B, …)
        write(memory, before_BL)      the logits of every step, (B, L, V), from the tokens before it
        begin(memory)                 the writer's state before its first step: tensors (B, …)
        advance(memory, state, token_B, place)
                                      one step of the same: (logits_BV, state) after a token; `place` counts steps

    A call with a target gives the logits (B, L, V) of every step after the right tokens (teacher forcing); `write` must
    not look ahead, and gives what `advance` gives step by step. A call with a source alone writes by itself, every
    step after the token it has found best before (greedy).
    """

    def __init__(self, spec: TaskSpec) -> None:
        super().__init__()
        if spec.target != "tokens" or not spec.vocabulary:
            raise Unfit(
                "it turns tokens into tokens, and the task asks for no such sequence: there is nothing to force."
            )
        self.target_length = spec.target_length

    def read(self, source: Tensor) -> Any:
        raise NotImplementedError

    def write(self, memory: Any, before: Tensor) -> Tensor:
        raise NotImplementedError

    def begin(self, memory: Any) -> State:
        raise NotImplementedError

    def advance(self, memory: Any, state: State, token: Tensor, place: int) -> tuple[Tensor, State]:
        raise NotImplementedError

    def forward(self, source: Tensor, target: Tensor | None = None) -> Tensor:
        memory = self.read(source)
        return self.greedy(memory, source) if target is None else self.write(memory, shifted(target))

    def greedy(self, memory: Any, source: Tensor) -> Tensor:
        state, token, found = self.begin(memory), torch.full_like(source[:, 0], BEGIN), []
        for place in range(self.target_length):
            logits, state = self.advance(memory, state, token, place)
            token = logits.argmax(-1)
            found.append(logits)
        return torch.stack(found, 1)
