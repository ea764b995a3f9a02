"""torchvision's networks: as it builds them, for images of any channels and classes, alone and stacked."""

from __future__ import annotations

import sys

import pytest
import torch
import torchvision
from torch import nn
from torch.func import functional_call

from nnarena.core.components import catalogue
from nnarena.core.errors import Unfit
from nnarena.core.spec import TaskSpec

# With ten classes.
PARAMETERS = {"resnet18": 11_181_642, "densenet121": 6_964_106, "resnext50_32x4d": 23_000_394}


def images(channels: int = 3, size: int = 32, classes: int = 10) -> TaskSpec:
    return TaskSpec(input_shape=(channels, size, size), output_size=classes, target="class")


def build(name: str, spec: TaskSpec, seed: int = 0, **options) -> nn.Module:
    torch.manual_seed(seed)
    component = catalogue("model")[name]
    return component.load()(spec, **component.resolve(options))


def count(net: nn.Module) -> int:
    return sum(parameter.numel() for parameter in net.parameters())


def first(net: nn.Module) -> nn.Conv2d:
    return next(module for module in net.modules() if isinstance(module, nn.Conv2d))


@pytest.mark.parametrize("name", PARAMETERS)
def test_it_is_torchvisions(name):
    ours = build(name, images())
    torch.manual_seed(0)
    theirs = getattr(torchvision.models, name)(num_classes=10)
    assert count(ours) == count(theirs) == PARAMETERS[name]
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    assert all(torch.equal(tensor, theirs.state_dict()[key]) for key, tensor in ours.state_dict().items())
    x = torch.randn(2, 3, 32, 32)
    assert torch.equal(ours(x), theirs(x))
    hundred = getattr(torchvision.models, name)(num_classes=100)
    assert count(build(name, images(classes=100))) == count(hundred)


@pytest.mark.parametrize("stem", ["imagenet", "cifar"])
@pytest.mark.parametrize("name", PARAMETERS)
def test_channels_and_stems(name, stem):
    side = 7 if stem == "imagenet" else 3
    for channels in (1, 3, 4):
        net = build(name, images(channels), stem=stem)
        assert count(net) == PARAMETERS[name] + 64 * (channels * side**2 - 3 * 7**2)
        assert net(torch.randn(2, channels, 32, 32)).shape == (2, 10)
    # Start values of a new first layer have the deviation that torchvision's kind of them has.
    weight = first(net).weight
    fan = weight[0].numel() if name == "densenet121" else 64 * side**2
    assert weight.std().item() == pytest.approx((2 / fan) ** 0.5, rel=0.06)


@pytest.mark.parametrize(("stem", "shrunk"), [("imagenet", 4), ("cifar", 1)])
@pytest.mark.parametrize(("name", "block"), [("resnet18", "layer1"), ("densenet121", "features.denseblock1")])
def test_how_small_the_image_is_at_the_first_block(name, block, stem, shrunk):
    net, seen = build(name, images(), stem=stem), []
    net.get_submodule(block).register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].shape))
    net(torch.randn(2, 3, 32, 32))
    assert seen[0][2:] == (32 // shrunk, 32 // shrunk)


@pytest.mark.parametrize("name", ["resnet18", "resnext50_32x4d"])
@pytest.mark.parametrize("stem", ["imagenet", "cifar"])
@pytest.mark.parametrize("size", [8, 28])
def test_small_images(name, size, stem):
    assert build(name, images(size=size), stem=stem)(torch.randn(2, 3, size, size)).shape == (2, 10)


@pytest.mark.parametrize(("stem", "least"), [("imagenet", 29), ("cifar", 8)])
def test_the_smallest_image_of_a_dense_net(stem, least):
    assert build("densenet121", images(size=least), stem=stem)(torch.randn(2, 3, least, least)).shape == (2, 10)
    with pytest.raises(Unfit, match=rf"it needs {least}×{least} pixels with stem={stem}.* size=32"):
        build("densenet121", images(size=least - 1), stem=stem)
    net = build("densenet121", images(size=least), stem=stem)
    with pytest.raises(RuntimeError):  # so it is torchvision that cannot, and not us that will not
        net(torch.randn(2, 3, least - 1, least - 1))


@pytest.mark.parametrize("name", PARAMETERS)
def test_sequences_are_refused_and_so_is_a_machine_without_torchvision(name, monkeypatch):
    with pytest.raises(Unfit, match=r"it reads images .* and the task gives \(10, 2\)"):
        build(name, TaskSpec(input_shape=(10, 2), output_size=10, target="class"))
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(Unfit, match=r"torchvision, which is not installed: pip install 'nnarena\[images\]'\."):
        build(name, images())


@pytest.mark.parametrize("name", PARAMETERS)
def test_two_as_one_are_each_its_own(name):
    """Running means, activations in place and convolutions in groups, under vmap: exact but for rounding in float64."""
    nets = [build(name, images(size=8), seed=seed, stem="cifar").double() for seed in range(2)]
    x, weight = torch.randn(2, 4, 3, 8, 8).double(), torch.randn(2, 4, 10).double()
    params = {key: torch.stack([dict(net.named_parameters())[key].detach() for net in nets]) for key in keys(nets[0])}
    params = {key: tensor.requires_grad_() for key, tensor in params.items()}
    buffers = {key: torch.stack([dict(net.named_buffers())[key] for net in nets]) for key, _ in nets[0].named_buffers()}

    def one(params, buffers, x, weight):
        return (functional_call(nets[0], {**params, **buffers}, (x,)) * weight).sum()

    torch.vmap(one)(params, buffers, x, weight).sum().backward()
    for place, net in enumerate(nets):
        (net(x[place]) * weight[place]).sum().backward()
        for key, parameter in net.named_parameters():
            grad = params[key].grad
            assert grad is not None
            torch.testing.assert_close(grad[place], parameter.grad, rtol=1e-6, atol=1e-8, msg=key)
        for key, buffer in net.named_buffers():
            torch.testing.assert_close(buffers[key][place], buffer, msg=key)


def keys(net: nn.Module) -> list[str]:
    return [key for key, _ in net.named_parameters()]


@pytest.mark.parametrize("name", PARAMETERS)
def test_images_may_lie_as_is_fastest(name):
    net = build(name, images()).eval()
    x = torch.randn(4, 3, 32, 32)
    assert net.channels_last
    torch.testing.assert_close(net(x.contiguous(memory_format=torch.channels_last)), net(x), rtol=1e-4, atol=1e-5)
