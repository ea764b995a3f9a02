"""What a task makes of a batch before the model sees it: alone, in company, stopped and continued."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from engine_helpers import CPU, assert_same, bits, make, run, run_together

from nnarena.core.errors import ArenaError
from nnarena.core.protocol import Protocol
from nnarena.engine.members import Member
from nnarena.engine.prepare import prepare
from nnarena.engine.splits import split
from nnarena.engine.stack import Stacked
from nnarena.engine.trainer import Alone
from nnarena.results.folder import TrialFolder

TASK = "digits_image[augment='pad_crop:1+cutout:2+noise:0.02',test_views=shift]"


def trial(seed: int = 0, task: str = TASK):
    return make(":pixels", task, seed=seed)


def member(path, seed: int = 0) -> Member:
    made = Member(trial(seed), TrialFolder(path), CPU, exclusive=True)
    made.prepare(print)
    return made


def test_stopped_and_continued_is_the_same(tmp_path):
    run(trial(), tmp_path / "whole")
    for epoch in (1, 3):
        with pytest.raises(KeyboardInterrupt):
            run(trial(), tmp_path / "stopped", stop_after=epoch)
    run(trial(), tmp_path / "stopped")
    assert bits(tmp_path / "stopped") == bits(tmp_path / "whole")
    run(trial(task="digits_image"), tmp_path / "plain")
    assert bits(tmp_path / "plain") != bits(tmp_path / "whole"), "the augmentation must do something"


def test_a_population_is_its_trials(tmp_path):
    trials, logs = [trial(seed) for seed in range(3)], []
    run_together(trials, tmp_path / "together", logs=logs)
    assert not logs
    for place, one in enumerate(trials):
        run(one, tmp_path / "alone" / str(place))
        assert_same(tmp_path / "together" / str(place), tmp_path / "alone" / str(place))


def test_bytes_on_the_device_numbers_for_the_model():
    ready = prepare(trial(), CPU)
    train, index = ready.parts["train"], torch.arange(8)
    assert train.inputs[0].dtype == torch.uint8
    (plain,), targets = train.batch(index)
    assert plain.dtype == torch.float32 and torch.equal(targets, train.targets[:8])
    keys = [torch.tensor([key]) for key in (1, 1, 2)]
    one, same, other = (train.batch(index, key)[0][0] for key in keys)
    assert torch.equal(one, same) and not torch.equal(one, other) and not torch.equal(one, plain)
    (backwards,), _ = train.batch(index.flip(0), keys[0])
    torch.testing.assert_close(backwards, one.flip(0))


def test_a_stack_sees_what_its_members_see(tmp_path):
    members = [member(tmp_path / str(seed), seed) for seed in range(3)]
    keys = [one.noise() for one in members]
    assert len(set(keys)) == 3
    apart = [
        one.ready.parts["train"].batch(torch.arange(16), torch.tensor([key]))[0][0]
        for one, key in zip(members, keys, strict=True)
    ]
    stacked = Stacked(members[0].trial, members, 16, CPU, print)
    stacked.set_noise(keys)
    (together,), _ = stacked._batch(stacked.train_data, torch.arange(16).expand(3, -1), stacked.keys_S)
    torch.testing.assert_close(together, torch.stack(apart))


def test_every_epoch_has_its_own_noise(tmp_path):
    one = member(tmp_path)
    trainer, first = Alone(one, 16, CPU, print), one.noise()
    trainer.set_noise([first])
    assert trainer.keys_S.tolist() == [first]
    one.schedule.see(1.0)
    assert one.noise() != first


def test_the_publishers_test_set():
    set_aside = np.arange(1000) % 5 == 0
    protocol = Protocol(batch_size=16)
    found = split(1000, None, protocol, np.random.default_rng(0), set_aside)
    assert [len(part) for part in (found.test, found.validation, found.train)] == [200, 80, 720]
    assert set_aside[found.test].all() and not set_aside[np.concatenate([found.validation, found.train])].any()
    assert len(set(np.concatenate([found.test, found.validation, found.train]))) == 1000
    with pytest.raises(ArenaError, match="800 samples for training and 200 for the test are too few"):
        split(1000, None, Protocol(batch_size=256), np.random.default_rng(0), set_aside)


@pytest.mark.gpu
def test_a_recorded_step_has_other_noise_at_every_replay(tmp_path):
    device, logs = torch.device("cuda"), []
    run_together([trial(seed) for seed in range(2)], tmp_path / "gpu", logs=logs, device=device)
    assert not logs, "everything is recorded"
    for place in range(2):
        run(trial(place), tmp_path / "cpu" / str(place))
        assert_same(tmp_path / "gpu" / str(place), tmp_path / "cpu" / str(place), tolerance=1e-2)
    run(trial(), tmp_path / "alone", device=device, logs=logs)
    assert not logs
    assert_same(tmp_path / "alone", tmp_path / "cpu" / "0", tolerance=1e-2)
