"""What a competitor sees of an episode: its last frames, or all of it through a state that is carried along.

B samples or environments, K frames, F features, T steps of a segment, A actions, S numbers of a state. A competitor
reads (B, K, F) and answers (B, 2A).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from nnarena.core.errors import BadOption
from nnarena.nn.head import SequenceModel
from nnarena.rl.replay import Replay

Taken = dict[str, Tensor]


def make_encoder(model: nn.Module, frames: int, carry: bool, burn_in: int) -> Frames | Carried:
    """The way that suits a model: only a recurrent layer, which says what its `initial_state` is, has one to carry."""
    if carry and isinstance(model, SequenceModel) and hasattr(model.layer, "initial_state"):
        return Carried(model, frames, burn_in)
    return Frames(model, frames)


class Frames:
    """The model sees the last K frames of an episode, of which the first is repeated at its beginning.

    What is remembered between steps is the window (B, K, F).
    """

    state_size = 0

    def __init__(self, model: nn.Module, frames: int) -> None:
        self.model, self.frames = model, frames

    def begin(self, observation: Tensor) -> Tensor:
        """What is remembered before an episode's first frame (B, F) is read."""
        return observation[:, None].repeat(1, self.frames, 1)

    def state(self, memory: Tensor) -> Tensor:
        """What replay keeps of the memory before a frame is read, (B, S)."""
        return memory[:, 0, :0]

    def step(self, memory: Tensor, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Read a frame (B, F): the moments (B, 2A), and what is remembered from now on."""
        window = observation[:, None]
        if self.frames > 1:
            window = torch.cat([memory[:, 1:], window], 1)
        return self.model(window), window

    def inputs(
        self, replay: Replay, time: Tensor, env: Tensor, following: bool = False, taken: Taken | None = None
    ) -> tuple[Tensor, ...]:
        """What `moments` is called with for some times of a replay, or for the observations that follow them.

        `taken` is what was taken from the replay at these times: a single frame is there already.
        """
        if taken is not None and self.frames == 1:
            return (taken["following" if following else "observation"][:, None],)
        return (replay.window(time, env, following),)

    def moments(self, window: Tensor) -> Tensor:
        return self.model(window)


class Carried:
    """A recurrent layer reads an episode frame by frame; its state is what is remembered between steps.

    Replay keeps the state before every frame, as it was when it was acted on. Training begins with the one before the
    last K frames, reads the first `burn_in` of them without a gradient, so that the state becomes what today's weights
    make of it, and learns from the rest. In the first K steps of an episode the window begins with the episode.

    Reference: Kapturowski et al. 2019, Recurrent experience replay in distributed reinforcement learning (R2D2), ICLR.
    """

    def __init__(self, model: SequenceModel, frames: int, burn_in: int) -> None:
        if frames < 2:
            raise BadOption(f"A carried state needs at least 2 frames to learn from, not {frames}.")
        if not 0 <= burn_in <= frames // 2:
            raise BadOption(f"burn_in must be at most half of the {frames} frames, not {burn_in}.")
        layer: Any = model.layer
        self.model, self.layer, self.frames, self.burn_in = model, layer, frames, burn_in
        self.like = next(model.parameters()).detach()
        self.example = self._first(1)
        self.sizes = [_real(part).numel() for part in _parts(self.example)]
        self.state_size = sum(self.sizes)

    def begin(self, observation: Tensor) -> Tensor:
        return self._flat(self._first(len(observation)))

    def state(self, memory: Tensor) -> Tensor:
        return memory

    def step(self, memory: Tensor, observation: Tensor) -> tuple[Tensor, Tensor]:
        output, state = self.layer(observation[:, None], self._whole(memory))
        return self.model.head(output[:, -1]), self._flat(state)

    def inputs(
        self, replay: Replay, time: Tensor, env: Tensor, following: bool = False, taken: Taken | None = None
    ) -> tuple[Tensor, ...]:
        """The state (B, S) before the window, its frames to burn in (B, burn_in, F), whether to (B,), the frames to
        learn from (B, T, F), and which of them is the last of the window (B,).

        A window shorter than K has nothing to burn in: its state is that of an episode's beginning. All windows are
        T = K − burn_in frames or shorter after that, and filled up behind, where no earlier output can see it.
        """
        age = replay.at("age", time, env)
        last = age + following  # of the window, counted from the episode's beginning
        first = (last - self.frames + 1).clamp(min=0)
        burns = last - first >= self.burn_in
        learns = torch.where(burns, first + self.burn_in, first)
        born = time - age

        def frames(start: Tensor, count: int) -> Tensor:
            which = torch.minimum(start[:, None] + torch.arange(count, device=time.device), last[:, None])
            seen = torch.minimum(which, age[:, None])
            found = replay.at("observation", born[:, None] + seen, env[:, None].expand_as(seen))
            if not following:
                return found
            return torch.where((which > seen)[..., None], replay.at("following", time, env)[:, None], found)

        state = replay.at("state", born + first, env)
        return (
            state,
            frames(first, self.burn_in),
            burns,
            frames(learns, self.frames - self.burn_in),
            last - learns,
        )

    def moments(self, state: Tensor, burnt: Tensor, burns: Tensor, frames: Tensor, place: Tensor) -> Tensor:
        if burnt.shape[1]:
            with torch.no_grad():
                _, after = self.layer(burnt, self._whole(state))
                state = torch.where(burns[:, None], self._flat(after), state)
        output, _ = self.layer(frames, self._whole(state))
        return self.model.head(output.gather(1, place[:, None, None].expand(-1, 1, output.shape[-1]))[:, 0])

    def _first(self, batch: int) -> Any:
        with torch.no_grad():
            return self.layer.initial_state(batch, self.like)

    def _flat(self, state: Any) -> Tensor:
        """A state of several tensors, complex ones too, as real numbers (B, S)."""
        return torch.cat([_real(part).flatten(1) for part in _parts(state)], 1)

    def _whole(self, flat: Tensor) -> Any:
        """The state that `_flat` made flat."""
        if flat.shape[1] != self.state_size:
            raise ValueError(f"A state of {self.state_size} numbers is carried here, not of {flat.shape[1]}.")
        return _like(self.example, iter(flat.split(self.sizes, 1)))


def _parts(state: Any) -> list[Tensor]:
    """The tensors of a state, which may be a tuple of tuples."""
    return [state] if isinstance(state, Tensor) else [part for several in state for part in _parts(several)]


def _real(part: Tensor) -> Tensor:
    return torch.view_as_real(part) if part.is_complex() else part


def _like(example: Any, flat: Iterator[Tensor]) -> Any:
    """Rows of numbers as a state of the example's kind."""
    if not isinstance(example, Tensor):
        return tuple(_like(part, flat) for part in example)
    part = next(flat).reshape(-1, *_real(example).shape[1:])
    return torch.view_as_complex(part) if example.is_complex() else part
