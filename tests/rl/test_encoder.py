"""What a competitor sees of an episode: frames by frames, or a state that is carried along."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from nnarena.core.components import catalogue
from nnarena.core.errors import BadOption
from nnarena.core.spec import TaskSpec
from nnarena.nn import SequenceModel
from nnarena.rl.encoder import Carried, Frames, make_encoder
from nnarena.rl.replay import Replay

F, A, LENGTH = 3, 2, 12
RECURRENT = ["lstm", "gru", "ct_rnn", "unitary_rnn", "attention_split_actor", "attention_split"]


def build(name: str, frames: int = 4) -> nn.Module:
    torch.manual_seed(0)
    component = catalogue("model")[name]
    return component.load()(TaskSpec(input_shape=(frames, F), output_size=2 * A, target="values")).eval()


def episodes(encoder: Frames | Carried, frames: int, lengths=(LENGTH, 5)) -> tuple[Replay, list[torch.Tensor], list]:
    """Play some episodes into a replay: it, their observations (T + 1, F), and the answers at every step."""
    replay = Replay(40, 1, F, A, frames=frames, state=encoder.state_size)
    seen, answers = [], []
    for length in lengths:
        x = torch.randn(length + 1, F)
        memory = encoder.begin(x[:1])
        for step in range(length):
            state = encoder.state(memory)
            moments, memory = encoder.step(memory, x[step : step + 1])
            answers.append(moments[0].detach())
            replay.add(
                observation=x[step : step + 1],
                action=torch.zeros(1, A),
                reward=torch.zeros(1),
                following=x[step + 1 : step + 2],
                terminated=torch.zeros(1),
                over=torch.tensor([step == length - 1]),
                age=torch.tensor([step]),
                state=state.detach(),
            )
        seen.append(x)
    return replay, seen, answers


def every(replay: Replay) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.arange(len(replay)), torch.zeros(len(replay), dtype=torch.int64)


@pytest.mark.parametrize("name", RECURRENT)
def test_a_carried_state_is_as_reading_the_whole_episode(name):
    model = build(name)
    encoder = make_encoder(model, 4, carry=True, burn_in=0)
    assert isinstance(encoder, Carried) and isinstance(model, SequenceModel)
    _, seen, answers = episodes(encoder, 4)
    whole = [model.head(model.layer(x[None, :-1])[0])[0] for x in seen]
    torch.testing.assert_close(torch.stack(answers), torch.cat(whole), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("burn_in", [0, 1, 2])
@pytest.mark.parametrize("name", RECURRENT)
def test_training_answers_as_acting_did_and_after_it(name, burn_in):
    model = build(name)
    encoder = make_encoder(model, 4, carry=True, burn_in=burn_in)
    replay, seen, answers = episodes(encoder, 4)
    again = encoder.moments(*encoder.inputs(replay, *every(replay)))
    torch.testing.assert_close(again, torch.stack(answers), rtol=1e-4, atol=1e-5)
    after = encoder.moments(*encoder.inputs(replay, *every(replay), following=True))
    assert isinstance(model, SequenceModel)
    whole = [model.head(model.layer(x[None])[0])[0, 1:] for x in seen]
    torch.testing.assert_close(after, torch.cat(whole), rtol=1e-4, atol=1e-5)


def test_burning_in_refreshes_a_stale_state_and_learns_nothing():
    model = build("gru")
    encoder = make_encoder(model, 4, carry=True, burn_in=2)
    replay, _, _ = episodes(encoder, 4)
    time = torch.tensor([8])
    state, burnt, burns, frames, place = encoder.inputs(replay, time, torch.tensor([0]))
    assert burnt.shape == (1, 2, F) and frames.shape == (1, 2, F) and bool(burns) and place.tolist() == [1]
    burnt.requires_grad_()
    frames.requires_grad_()
    encoder.moments(state, burnt, burns, frames, place).sum().backward()
    assert burnt.grad is None and frames.grad is not None
    # Another state comes closer to the right one by the frames that are burnt in.
    wrong = encoder.moments(state + 1, burnt, burns, frames, place)
    other = encoder.moments(state, burnt, burns, frames, place)
    assert not torch.allclose(wrong, other)


def test_early_windows_learn_from_all_their_frames():
    encoder = make_encoder(build("gru"), 4, carry=True, burn_in=2)
    replay, _, _ = episodes(encoder, 4)
    for time, length in ((0, 1), (1, 2), (2, 1), (3, 2), (4, 2)):
        _, _, burns, frames, place = encoder.inputs(replay, torch.tensor([time]), torch.tensor([0]))
        assert bool(burns) == (time >= 2) and place.tolist() == [length - 1]
        torch.testing.assert_close(
            frames[0, length - 1], replay.at("observation", *[torch.tensor([time]), torch.tensor([0])])[0]
        )


@pytest.mark.parametrize("name", ["mlp", "gru", "transformer"])
def test_without_a_state_training_sees_the_frames_that_acting_saw(name):
    encoder = make_encoder(build(name), 4, carry=False, burn_in=0)
    assert isinstance(encoder, Frames) and encoder.state_size == 0
    replay, _, answers = episodes(encoder, 4)
    again = encoder.moments(*encoder.inputs(replay, *every(replay)))
    torch.testing.assert_close(again, torch.stack(answers), rtol=1e-4, atol=1e-5)


def test_models_without_a_state_see_frames_even_if_states_are_carried():
    assert isinstance(make_encoder(build("mlp"), 4, carry=True, burn_in=1), Frames)


def test_a_state_of_another_length_is_refused():
    encoder = make_encoder(build("lstm"), 4, carry=True, burn_in=0)
    with pytest.raises(ValueError, match=r"A state of 128 numbers is carried here, not of 127\."):
        encoder.step(encoder.begin(torch.zeros(1, F))[:, 1:], torch.zeros(1, F))


@pytest.mark.parametrize(("frames", "burn_in", "text"), [(1, 0, "at least 2 frames"), (4, 3, "at most half")])
def test_windows_that_cannot_carry_are_refused(frames, burn_in, text):
    with pytest.raises(BadOption, match=text):
        make_encoder(build("gru"), frames, carry=True, burn_in=burn_in)
