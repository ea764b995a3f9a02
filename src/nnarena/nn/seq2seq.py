"""What turns a sequence of tokens into another one: how it is taught, and how it writes.

B batch, T steps of the source, L steps of the target, H width of the writer's outputs, V tokens to write with.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from nnarena.core.errors import Unfit
from nnarena.core.spec import BEGIN, PADDING, TaskSpec
from nnarena.core.tokens import shifted
from nnarena.nn.beam import beam_search
from nnarena.nn.forcing import Discriminator, Draws, sampled, share_of_truth

ANNEAL, ANNEAL_STEPS = "inverse_sigmoid", 1000
UNITS = 16  # of the discriminator, in each direction


class Seq2Seq(nn.Module):
    """A reader and a writer. A subclass says how, by five functions:

        read(source_BT)              the source, understood: tensors (B, …)
        think(memory, before_BL)     the writer's outputs at all steps, (B, L, H), after the tokens before each
        begin(memory)                the writer's state before its first step: tensors (B, …)
        step(memory, state, token_B, place)
                                     one step of `think`: (output_BH, state) after a token; `place` counts steps
        say(memory, output_BLH)      logits (B, L, V)

    A call with a target gives the logits (B, L, V) of every step after the right tokens; in training after those that
    `forcing` tells it (`nn/forcing.py`), and with professor forcing a second loss besides. `think` must not look ahead,
    and gives what `step` gives step by step. A call with a source alone gives scores (B, L, V), highest at the tokens
    that it writes by itself: greedily, every step after the token it found best before, or by a `beam`.
    """

    def __init__(
        self,
        spec: TaskSpec,
        features: int,
        *,
        forcing: str = "teacher",
        anneal: str | None = None,
        anneal_steps: int | None = None,
        beam: int = 1,
    ) -> None:
        super().__init__()
        if spec.target != "tokens" or not spec.vocabulary:
            raise Unfit(
                "it turns tokens into tokens, and the task asks for no such sequence: there is nothing to force."
            )
        if forcing != "scheduled" and (anneal is not None or anneal_steps is not None):
            raise Unfit(f"it anneals with forcing=scheduled only, not with forcing={forcing}.")
        for name, value in (("anneal_steps", anneal_steps), ("beam", beam)):
            if value is not None and value < 1:
                raise Unfit(f"it takes {name} of at least 1, not {value}.")
        self.target_length, self.tokens = spec.target_length, spec.output_size
        self.forcing, self.beam = forcing, beam
        self.anneal, self.anneal_steps = anneal or ANNEAL, anneal_steps or ANNEAL_STEPS
        with torch.random.fork_rng(devices=[]):  # all start from the same weights, however they are forced
            self.draws = Draws() if forcing in ("scheduled", "professor") else None
            self.discriminator = Discriminator(features + self.tokens, UNITS) if forcing == "professor" else None

    def read(self, source: Tensor) -> Any:
        raise NotImplementedError

    def think(self, memory: Any, before: Tensor) -> Tensor:
        raise NotImplementedError

    def begin(self, memory: Any) -> Any:
        raise NotImplementedError

    def step(self, memory: Any, state: Any, token: Tensor, place: int) -> tuple[Tensor, Any]:
        raise NotImplementedError

    def say(self, memory: Any, output: Tensor) -> Tensor:
        raise NotImplementedError

    def forward(self, source: Tensor, target: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        memory = self.read(source)
        if target is None:
            return self.write(memory, len(source))
        if not self.training or self.forcing in ("teacher", "professor"):
            outputs = self.think(memory, shifted(target))
            logits = self.say(memory, outputs)
            return (logits, self._contest(memory, target, outputs, logits)) if self._is_contested() else logits
        return self._unforced(memory, target)

    def write(self, memory: Any, batch: int) -> Tensor:
        """Scores (B, L, V) of what it writes by itself."""
        if self.beam == 1:
            return self.alone(memory, batch)[1]
        tokens, _ = beam_search(self.advance, memory, self.begin(memory), batch, self.beam, self.target_length)
        return (tokens.unsqueeze(-1) == torch.arange(self.tokens, device=tokens.device)).float()

    def advance(self, memory: Any, state: Any, token: Tensor, place: int) -> tuple[Tensor, Any]:
        """One step of writing: (logits_BV, state)."""
        output, state = self.step(memory, state, token, place)
        return self.say(memory, output.unsqueeze(1))[:, 0], state

    def alone(
        self, memory: Any, batch: int, truth: tuple[Tensor, Tensor] | None = None, noise: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Outputs (B, L, H) and logits (B, L, V) of a writer that hears its own best guesses.

        With `noise` (B, L, V) they are drawn from what it finds likely. With a `truth`, tokens (B, L) and whether each
        of them is told (B, L), it hears these in place of its own.
        """
        state, outputs, found = self.begin(memory), [], []
        token = torch.full((batch,), BEGIN, device=self.device)
        for place in range(self.target_length):
            output, state = self.step(memory, state, token, place)
            logits = self.say(memory, output.unsqueeze(1))[:, 0]
            outputs.append(output)
            found.append(logits)
            heard = logits.detach()
            token = heard.argmax(-1) if noise is None else sampled(heard, noise[:, place])
            if truth is not None:
                token = torch.where(truth[1][:, place], truth[0][:, place], token)
        return torch.stack(outputs, 1), torch.stack(found, 1)

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def _unforced(self, memory: Any, target: Tensor) -> Tensor:
        """Scheduled sampling; or with nothing told at all, free running."""
        truth = None
        if self.draws is not None:
            share = share_of_truth(self.anneal, self.draws.steps, self.anneal_steps)
            truth = target, self.draws(*target.shape) < share
        return self.alone(memory, len(target), truth)[1]

    def _is_contested(self) -> bool:
        return self.training and self.discriminator is not None

    def _contest(self, memory: Any, target: Tensor, outputs: Tensor, logits: Tensor) -> Tensor:
        """Professor forcing's second loss. What lies behind the end of the target shows nothing to anybody."""
        assert self.draws is not None and self.discriminator is not None
        noise = self.draws(len(target), self.target_length * self.tokens).unflatten(1, (-1, self.tokens))
        own_outputs, own_logits = self.alone(memory, len(target), noise=noise)
        seen = (target != PADDING).unsqueeze(-1)
        told = torch.cat([outputs, logits.softmax(-1)], -1) * seen
        alone = torch.cat([own_outputs, own_logits.softmax(-1)], -1) * seen
        return self.discriminator.contest(told, alone)
