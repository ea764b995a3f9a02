"""Beam search against all sequences there are."""

from __future__ import annotations

import itertools

import pytest
import torch

from nnarena.core.components import catalogue
from nnarena.core.spec import END, PADDING, SPECIAL, TaskSpec
from nnarena.nn.beam import beam_search

B, T, L, V = 3, 4, 4, 5
SPEC = TaskSpec(input_shape=(T,), output_size=V, target="tokens", vocabulary=V, target_length=L)


def make(name="encoder_decoder", seed=0, **options):
    component = catalogue("model")[name]
    sizes = {"hidden_size": 6} if name == "encoder_decoder" else {"d_model": 4}
    torch.manual_seed(seed)
    made = component.load()(SPEC, **component.resolve(sizes | options)).double().eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.9 * torch.randn_like(parameter))  # far from uniform
    return made


def source():
    return torch.randint(SPECIAL, V, (B, T), generator=torch.Generator().manual_seed(1))


def every_sequence():
    """All that can be said: up to an END, then padding."""
    for tokens in itertools.product(range(V), repeat=L):
        ended = tokens.index(END) if END in tokens else L
        if all(token == PADDING for token in tokens[ended + 1 :]):
            yield tokens


@torch.no_grad()
def likelihood(model, tokens):
    """(B,) of tokens (B, L), up to the first END."""
    gain = model(source(), tokens).log_softmax(-1).gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
    before = (tokens == END).cumsum(1) - (tokens == END).long() == 0
    return (gain * before).sum(1)


def search(model, width):
    memory = model.read(source())
    return beam_search(model.advance, memory, model.begin(memory), B, width, L)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ["encoder_decoder", "seq2seq_transformer"])
def test_with_enough_beams_it_is_exhaustive(name, seed):
    model = make(name, seed)
    sequences = list(every_sequence())
    scores = torch.stack([likelihood(model, torch.tensor(tokens).expand(B, L)) for tokens in sequences])
    best = torch.tensor(sequences)[scores.argmax(0)]
    with torch.no_grad():
        said, total = search(model, V**L)
    assert torch.equal(said, best)
    torch.testing.assert_close(total, scores.amax(0))


@pytest.mark.parametrize("cell", ["gru", "lstm"])
@pytest.mark.parametrize("width", [1, 2, 3, 7])
def test_its_score_is_the_likelihood_and_one_beam_is_greedy(width, cell):
    model = make(cell=cell)
    with torch.no_grad():
        said, total = search(model, width)
        torch.testing.assert_close(total, likelihood(model, said))
        greedy = model(source()).argmax(-1)
    before = (greedy == END).cumsum(1) - (greedy == END).long() == 0
    if width == 1:
        assert torch.equal(said, torch.where(before, greedy, PADDING))


def test_more_beams_find_something_better_than_greedy_somewhere():
    better = 0.0
    for seed in range(6):
        model = make(seed=seed)
        with torch.no_grad():
            better += (search(model, V**L)[1] - search(model, 1)[1]).sum().item()
    assert better > 0.01


def test_a_model_with_beams_says_what_they_found():
    model, plain = make(beam=3), make()
    with torch.no_grad():
        assert torch.equal(model(source()).argmax(-1), search(plain, 3)[0])
        torch.testing.assert_close(model(source(), search(plain, 3)[0]), plain(source(), search(plain, 3)[0]))
