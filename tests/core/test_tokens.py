"""Targets of tokens: loss and metrics by hand, and who is told the target."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from nnarena.core.errors import Unfit
from nnarena.core.spec import BEGIN, END, PADDING, SPECIAL, Samples, TaskSpec
from nnarena.core.task import Task
from nnarena.core.tokens import shifted, token_hits, token_loss

A, B = SPECIAL, SPECIAL + 1
TARGET = torch.tensor([[A, B, END], [B, END, PADDING]])


def make() -> Task:
    task = Task()
    task.spec = TaskSpec(input_shape=(4,), output_size=5, target="tokens", vocabulary=6, target_length=3)
    return task


def saying(*rows):
    """Scores that are highest at these tokens."""
    return 3.0 * F.one_hot(torch.tensor(rows), 5).float()


def test_the_loss_is_torchs_with_padding_left_out():
    logits = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64).requires_grad_()
    theirs = F.cross_entropy(logits.flatten(0, 1), TARGET.flatten(), ignore_index=PADDING)
    torch.testing.assert_close(token_loss(logits, TARGET), theirs)
    ours = torch.autograd.grad(token_loss(logits, TARGET), logits)[0]
    torch.testing.assert_close(ours, torch.autograd.grad(theirs, logits)[0])
    assert not ours[1, 2].any()


@pytest.mark.parametrize(
    ("said", "tokens", "whole"),
    [
        (((A, B, END), (B, END, A)), 1.0, 1.0),  # what comes after the end is nobody's concern
        (((A, B, END), (B, B, END)), 4 / 5, 0.5),  # one that does not end is wrong
        (((B, B, END), (A, END, PADDING)), 3 / 5, 0.0),
    ],
)
def test_hits_are_counted_up_to_the_end(said, tokens, whole):
    hits = token_hits(saying(*said), TARGET)
    assert hits["token_accuracy"].item() == pytest.approx(tokens) and hits["exact_match"].item() == whole
    assert list(make().score(saying(*said), TARGET)) == ["cross_entropy", "token_accuracy", "exact_match"]


def test_before_the_first_step_there_is_the_begin():
    assert shifted(TARGET).tolist() == [[BEGIN, A, B], [BEGIN, B, END]]


def test_the_output_of_a_model_is_a_score_for_every_token_at_every_step():
    assert make().spec.output_shape == (3, 5)
    with pytest.raises(Unfit, match="it reads sequences of numbers, and the task gives tokens"):
        _ = make().spec.length


def test_only_teaching_and_the_loss_are_told_the_target():
    task, source = make(), torch.zeros(2, 4, dtype=torch.int64)
    right, wrong = saying((A, B, END), (B, END, PADDING)), saying((A, A, A), (A, A, A))
    calls = []

    def model(*inputs):
        calls.append(len(inputs))
        return right if len(inputs) == 2 else wrong

    assert task.teach(model, (source,), TARGET) == token_loss(right, TARGET)
    judged = task.judge(model, (source,), TARGET)
    assert calls == [2, 1, 2]
    assert judged["cross_entropy"] == token_loss(right, TARGET) and judged["exact_match"] == 0
    assert list(judged) == ["cross_entropy", "token_accuracy", "exact_match"]


def test_a_model_may_have_more_to_be_lowered():
    task, logits = make(), saying((A, B, END), (B, END, PADDING))
    more = task.teach(lambda *inputs: (logits, torch.tensor(2.0)), (TARGET,), TARGET)
    assert more.item() == pytest.approx(token_loss(logits, TARGET).item() + 2)


def test_others_are_never_told():
    task = Task()
    task.spec = TaskSpec(input_shape=(3, 2), output_size=1, target="values")
    x, y = torch.ones(4, 1), torch.zeros(4, 1)
    assert task.teach(lambda *inputs: inputs[0], (x,), y) == 1.0
    assert task.judge(lambda *inputs: inputs[0], (x,), y) == {"mse": 1.0}


def test_the_best_constant_answer_counts_tokens_by_place():
    targets = np.array([[A, END, 0], [A, B, END], [B, B, END], [A, END, 0]])
    samples = Samples(np.zeros((4, 4), np.int64), targets)
    (score,) = make().baselines(samples, samples).values()
    entropy = -(3 * math.log(3 / 4) + math.log(1 / 4) + 4 * math.log(1 / 2)) / 10
    assert score["cross_entropy"] == pytest.approx(entropy, rel=1e-5)
    assert score["token_accuracy"] == pytest.approx((3 + 2 + 2) / 10)
