"""The ring: what is in it, windows and returns by hand."""

from __future__ import annotations

import pytest
import torch

from nnarena.core.errors import BadOption
from nnarena.rl.replay import Replay


def fill(replay: Replay, ends: dict[int, str], steps: int) -> None:
    """One environment whose observation is the number of the step; `ends` says after which steps an episode is over.

    The observation that follows the last one of an episode is the number plus a half: no other row has it.
    """
    age = 0
    for step in range(steps):
        end = ends.get(step, "")
        following = step + 0.5 if end else step + 1.0
        replay.add(
            observation=torch.tensor([[float(step)]]),
            action=torch.tensor([[-float(step)]]),
            reward=torch.tensor([10.0 + step]),
            following=torch.tensor([[following]]),
            terminated=torch.tensor([float(end == "terminated")]),
            over=torch.tensor([bool(end)]),
            age=torch.tensor([age]),
            state=torch.tensor([[100.0 + step]]),
        )
        age = 0 if end else age + 1


def make(capacity: int = 50, frames: int = 1) -> Replay:
    return Replay(capacity, 1, 1, 1, frames=frames, state=1)


def times(*numbers: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor(numbers), torch.zeros(len(numbers), dtype=torch.int64)


def test_the_newest_take_the_place_of_the_oldest():
    replay = make(capacity=5)
    fill(replay, {}, 8)
    assert len(replay) == 5
    assert replay.at("observation", *times(0, 4))[:, 0].tolist() == [3.0, 7.0]
    taken = replay.take(*times(0, 4))
    assert taken["observation"][:, 0].tolist() == [3.0, 7.0]
    assert taken["reward"][:, 0].tolist() == [13.0, 17.0]
    assert taken["state"][:, 0].tolist() == [103.0, 107.0]


def test_windows_never_reach_into_another_episode():
    replay = make(frames=3)
    fill(replay, {3: "truncated"}, 7)
    windows = replay.window(*times(0, 1, 3, 4, 6))[..., 0].tolist()
    assert windows == [[0, 0, 0], [0, 0, 1], [1, 2, 3], [4, 4, 4], [4, 5, 6]]
    following = replay.window(*times(0, 1, 3, 4, 5), following=True)[..., 0].tolist()
    assert following == [[0, 0, 1], [0, 1, 2], [2, 3, 3.5], [4, 4, 5], [4, 5, 6]]


def test_returns_of_one_step_tell_an_end_from_a_limit_of_time():
    replay = make()
    fill(replay, {1: "terminated", 3: "truncated"}, 6)
    reward, discount, last = replay.returns(*times(0, 1, 3), 1, 0.9)
    assert reward.tolist() == [10, 11, 13]
    assert discount.tolist() == pytest.approx([0.9, 0.0, 0.9])
    assert last.tolist() == [0, 1, 3]


def test_returns_of_several_steps_end_with_the_episode_and_discount_by_the_steps_taken():
    replay = make()
    fill(replay, {2: "terminated", 6: "truncated"}, 9)
    reward, discount, last = replay.returns(*times(0, 1, 2, 3, 5, 8), 3, 0.5)
    by_hand = [10 + 5.5 + 3, 11 + 6, 12, 13 + 7 + 3.75, 15 + 8, 18]
    assert reward.tolist() == pytest.approx(by_hand)
    assert discount.tolist() == pytest.approx([0, 0, 0, 0.125, 0.25, 0.5])
    assert last.tolist() == [2, 2, 2, 5, 6, 8]
    assert replay.at("following", last, torch.zeros(6, dtype=torch.int64))[:, 0].tolist() == [2.5, 2.5, 2.5, 6, 6.5, 9]


def test_a_cut_ends_what_runs_without_saying_that_it_was_over_by_itself():
    replay = make()
    fill(replay, {}, 3)
    replay.cut()
    _, discount, last = replay.returns(*times(1), 3, 0.5)
    assert last.tolist() == [2] and discount.tolist() == [0.25]
    assert bool(replay.at("over", *times(2))) and not bool(replay.at("terminated", *times(2)))


def test_all_whole_windows_are_drawn_and_no_other():
    replay = make(capacity=6, frames=3)
    fill(replay, {}, 4)
    torch.manual_seed(0)
    assert set(replay.draw(400)[0].tolist()) == {0, 1, 2, 3}
    fill(replay, {}, 6)
    assert set(replay.draw(400)[0].tolist()) == {2, 3, 4, 5}


def test_environments_side_by_side_are_kept_apart():
    replay = Replay(8, 2, 1, 1, frames=2)
    for step in range(4):
        two = torch.tensor([[float(step)], [50.0 + step]])
        flags = {"terminated": torch.zeros(2), "over": torch.tensor([False, step == 1]), "state": torch.zeros(2, 0)}
        age = torch.tensor([step, step if step < 2 else step - 2])
        replay.add(observation=two, action=two, reward=two[:, 0], following=two + 1, age=age, **flags)
    time, env = torch.tensor([2, 2, 3]), torch.tensor([0, 1, 1])
    assert replay.window(time, env)[..., 0].tolist() == [[1, 2], [52, 52], [52, 53]]
    assert replay.take(time, env)["observation"][:, 0].tolist() == [2, 52, 53]
    assert replay.returns(torch.tensor([0, 0]), torch.tensor([0, 1]), 4, 1.0)[0].tolist() == [6, 50 + 51]


def test_what_was_kept_goes_on_in_another_ring():
    replay, other = make(capacity=5, frames=2), make(capacity=5, frames=2)
    fill(replay, {4: "truncated"}, 7)
    other.load(replay.tensors())
    for ring in (replay, other):
        fill(ring, {}, 1)
    for time in range(1, 5):
        assert torch.equal(replay.window(*times(time)), other.window(*times(time)))
    before = other.tensors()
    with pytest.raises(ValueError, match="other names or shapes"):
        other.load(before | {"action": torch.zeros(5, 1, 3)})
    with pytest.raises(ValueError, match="other names or shapes"):
        other.load({})
    assert all(torch.equal(before[name], tensor) for name, tensor in other.tensors().items())


def test_a_ring_that_does_not_divide_is_refused():
    with pytest.raises(BadOption, match="multiple of 3 environments"):
        Replay(10, 3, 1, 1)
