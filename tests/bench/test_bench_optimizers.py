"""The times of optimizers: a row for each, and none for one that is wrong."""

from __future__ import annotations

import pytest
import torch

from nnarena.bench import optimizers
from nnarena.core.errors import ArenaError

SMALL = {"small": [(3, 2), (4,)]}
CPU = torch.device("cpu")


def rows():
    return {row.optimizer: row for row in optimizers.compare(CPU, SMALL, rounds=1, tell=lambda text: None)}


def test_every_optimizer_has_a_row():
    found = rows()
    assert found.keys() == {*optimizers.torchs(), *optimizers.ours(), *optimizers.peers()}
    for name, row in found.items():
        assert row.note.startswith("skipped") or (row.ratio and row.ratio > 0 and row.graph is None)
        assert (row.error is not None) is (name in optimizers.ours())


def test_who_is_wrong_has_no_time(monkeypatch):
    def wrong(params, foreach=None):
        return torch.optim.SGD(params, lr=1.0 if foreach else 2.0)

    monkeypatch.setattr(optimizers, "ours", lambda: {"wrong": wrong})
    row = rows()["wrong"]
    assert row.ratio is None and row.error == pytest.approx(1.0) and "wrong" in row.note


def test_who_cannot_go_with_this_torch_has_a_reason(monkeypatch):
    def broken(params):
        raise TypeError("no such thing")

    monkeypatch.setattr(optimizers, "peers", lambda: {"old": broken})
    row = rows()["old"]
    assert row.ratio is None and row.note == "failed: TypeError: no such thing"


def test_networks_have_their_published_sizes():
    sizes = {name: sum(map(prod, shapes)) for name, shapes in optimizers.choose([]).items() if name != "cell"}
    assert sizes == {"resnet18": 11_181_642, "densenet121": 6_964_106, "resnext50_32x4d": 23_000_394}


def prod(shape):
    return int(torch.tensor(shape).prod())


def test_an_unknown_network_is_told():
    with pytest.raises(ArenaError, match="did you mean 'resnet18'"):
        optimizers.choose(["resnet81"])
