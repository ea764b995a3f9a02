"""AlexNet, ZFNet, VGG, GoogLeNet and the deep residual networks: as published, and for small images."""

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
from nnarena.nn.zfnet import AcrossMaps

# For 1000 classes and 224×224 pixels: torchvision's documentation; ZFNet from the layers in its figure 3.
PUBLISHED = {
    "alexnet": 61_100_840,
    "zfnet": 62_357_608,
    "vgg16": 138_357_544,
    "vgg19": 143_667_240,
    "googlenet": 6_624_904,
    "resnet50": 25_557_032,
    "resnet101": 44_549_160,
}
NAMES = list(PUBLISHED)
THEIRS = [name for name in NAMES if name != "zfnet"]
# The first layer's maps, and pixels a side that stem=imagenet needs (where it needs some).
FIRST = {"alexnet": 64, "zfnet": 96, "vgg16": 64, "vgg19": 64, "googlenet": 64, "resnet50": 64, "resnet101": 64}
LEAST = {"alexnet": 63, "zfnet": 47, "vgg16": 32, "vgg19": 32, "googlenet": 15}
DROPS = ["alexnet", "zfnet", "vgg16", "vgg19", "googlenet"]
BRIEF = ["googlenet", "resnet50"]  # to build with the published stem
QUICK = ["alexnet", "zfnet", "vgg16", "googlenet"]


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


@pytest.mark.parametrize("name", NAMES)
def test_the_parameters_are_as_many_as_published(name):
    with torch.device("meta"):
        net = build(name, images(size=224, classes=1000), stem="imagenet")
        assert count(net) == PUBLISHED[name]
        assert net.eval()(torch.empty(2, 3, 224, 224)).shape == (2, 1000)
    assert f"{PUBLISHED[name]:,} for 1000 classes" in catalogue("model")[name].doc


@pytest.mark.parametrize(
    "name", [name if name in BRIEF else pytest.param(name, marks=pytest.mark.slow) for name in THEIRS]
)
def test_with_the_published_stem_it_is_torchvisions(name):
    ours = build(name, images(size=64), stem="imagenet", **({"dropout": 0.2} if name == "googlenet" else {}))
    torch.manual_seed(0)
    more = {"aux_logits": False, "init_weights": True} if name == "googlenet" else {}
    theirs = getattr(torchvision.models, name)(num_classes=10, **more)
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    assert all(torch.equal(tensor, theirs.state_dict()[key]) for key, tensor in ours.state_dict().items())
    x = torch.randn(2, 3, 64, 64)
    assert torch.equal(ours.eval()(x), theirs.eval()(x))


def test_vgg_with_norms_is_torchvisions():
    with torch.device("meta"):
        for name, published in (("vgg16", 138_365_992), ("vgg19", 143_678_248)):
            assert count(build(name, images(size=224, classes=1000), stem="imagenet", norm=True)) == published


@pytest.mark.parametrize("size", [8, 28, 32])
@pytest.mark.parametrize("name", QUICK)
def test_small_images_and_any_channels(name, size):
    for channels in (1, 3):
        net = build(name, images(channels, size), stem="cifar")
        assert net(torch.randn(2, channels, size, size)).shape == (2, 10)
        conv = first(net)
        assert conv.stride == (1, 1) and conv.weight.shape == (FIRST[name], channels, 3, 3)


@pytest.mark.parametrize("name", NAMES)
def test_grey_images_with_the_published_stem(name):
    with torch.device("meta"):
        colour, grey = (build(name, images(channels, 64), stem="imagenet") for channels in (3, 1))
    conv = first(grey)
    assert count(colour) - count(grey) == 2 * FIRST[name] * conv.kernel_size[0] ** 2
    assert conv.stride == first(colour).stride and conv.padding == first(colour).padding


@pytest.mark.parametrize(("name", "size", "inputs"), [("alexnet", 28, 256 * 9), ("zfnet", 32, 256 * 16)])
def test_dense_layers_behind_a_small_stem_read_the_whole_last_map(name, size, inputs):
    dense = [part for part in build(name, images(size=size)).modules() if isinstance(part, nn.Linear)]
    assert [(part.in_features, part.out_features) for part in dense] == [(inputs, 512), (512, 512), (512, 10)]


@pytest.mark.parametrize("name", QUICK)
def test_no_pixel_of_a_small_image_is_left_out(name):
    net = build(name, images(1, 28), stem="cifar", **({"norm": True} if name == "vgg16" else {})).eval()
    x = torch.randn(2, 1, 28, 28, requires_grad=True)
    net(x)[0].std().backward()
    assert bool((x.grad[0] != 0).all()) and not bool(x.grad[1].any())


@pytest.mark.parametrize("name", LEAST)
def test_the_smallest_image_with_the_published_stem(name):
    least = LEAST[name]
    with torch.device("meta"):
        net = build(name, images(size=least), stem="imagenet").eval()
        assert net(torch.empty(2, 3, least, least)).shape == (2, 10)
        with pytest.raises(RuntimeError):  # so it is the network that cannot, and not us that will not
            net(torch.empty(2, 3, least - 1, least - 1))
    with pytest.raises(Unfit, match=rf"it needs {least}×{least} pixels with stem=imagenet.* or stem=cifar\.$"):
        build(name, images(size=least - 1), stem="imagenet")


@pytest.mark.parametrize("name", DROPS)
def test_dropout_is_in_training_only_and_can_be_left_out(name):
    x = torch.randn(4, 1, 8, 8)
    net = build(name, images(1, 8), stem="cifar", **({"init": "scaled"} if name == "zfnet" else {}))
    drops = [part.p for part in net.modules() if isinstance(part, nn.Dropout) and part.p]
    assert set(drops) == {0.4 if name == "googlenet" else 0.5}
    assert torch.equal(net.eval()(x), net(x))
    net.train()
    assert not torch.equal(net(x), net(x))
    still = build(name, images(1, 8), stem="cifar", dropout=0.0)
    assert torch.equal(still(x), still(x))
    with pytest.raises(Unfit, match="dropout must be at least 0 and less than 1, not 1"):
        build(name, images(), dropout=1.0)


@pytest.mark.parametrize("name", NAMES)
def test_sequences_are_refused(name):
    with pytest.raises(Unfit, match=r"it reads images .* and the task gives \(10, 2\)"):
        build(name, TaskSpec(input_shape=(10, 2), output_size=10, target="class"))


def test_who_needs_torchvision_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision", None)
    for name in THEIRS:
        with pytest.raises(Unfit, match=r"torchvision, which is not installed"):
            build(name, images())
    assert build("zfnet", images())


def test_the_maps_of_zfnet_are_as_published():
    net, sides = build("zfnet", images(size=64), stem="imagenet").to("meta"), []
    for part in net.features:
        part.register_forward_hook(lambda module, inputs, output: sides.append((output.shape[1], output.shape[2])))
    net(torch.empty(1, 3, 224, 224, device="meta"))
    seen = list(dict.fromkeys(sides))
    assert seen == [(96, 110), (96, 55), (256, 26), (256, 13), (384, 13), (256, 6)]


def test_the_norm_across_maps_is_torchs():
    x = torch.randn(2, 9, 4, 5, dtype=torch.float64, requires_grad=True) * 50
    ours, theirs = AcrossMaps(), nn.LocalResponseNorm(5, alpha=5e-4, beta=0.75, k=2)
    torch.testing.assert_close(ours(x), theirs(x), rtol=1e-12, atol=0)
    grads = [torch.autograd.grad(norm(x).square().sum(), x)[0] for norm in (ours, theirs)]
    torch.testing.assert_close(*grads, rtol=1e-12, atol=1e-12)
    assert torch.autograd.gradcheck(ours, (torch.randn(1, 6, 2, 2, dtype=torch.float64, requires_grad=True),))
    last = x.detach().contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(ours(last), theirs(x), rtol=1e-12, atol=0)


def test_start_values():
    net = build("zfnet", images())
    assert net.features[0].weight.std().item() == pytest.approx(0.01, rel=0.1) and not net.features[0].bias.any()
    scaled = build("zfnet", images(), init="scaled")
    assert scaled.features[0].weight.std().item() == pytest.approx((2 / 27) ** 0.5, rel=0.1)
    vgg = build("vgg16", images())
    assert vgg.features[0].weight.std().item() == pytest.approx((2 / (64 * 9)) ** 0.5, rel=0.1)
    assert vgg.classifier[0].weight.std().item() == pytest.approx(0.01, rel=0.05) and not vgg.classifier[0].bias.any()
    assert all(bool(tensor.isfinite().all()) for tensor in build("vgg16", images(), norm=True).state_dict().values())


@pytest.mark.parametrize("name", QUICK)
def test_two_as_one_are_each_its_own(name):
    """Gradients under vmap, exact but for rounding in float64."""
    options = {"stem": "cifar", "dropout": 0.0} | ({"norm": True} if name == "vgg16" else {})
    nets = [build(name, images(1, 8), seed=seed, **options).double() for seed in range(2)]
    x, weight = torch.randn(2, 4, 1, 8, 8).double(), torch.randn(2, 4, 10).double()
    keys = [key for key, _ in nets[0].named_parameters()]
    params = {key: torch.stack([net.get_parameter(key).detach() for net in nets]).requires_grad_() for key in keys}
    buffers = {key: torch.stack([net.get_buffer(key) for net in nets]) for key, _ in nets[0].named_buffers()}

    def one(params, buffers, x, weight):
        return (functional_call(nets[0], {**params, **buffers}, (x,)) * weight).sum()

    torch.vmap(one)(params, buffers, x, weight).sum().backward()
    for place, net in enumerate(nets):
        (net(x[place]) * weight[place]).sum().backward()
        for key in keys:
            grad = params[key].grad
            assert grad is not None
            torch.testing.assert_close(grad[place], net.get_parameter(key).grad, rtol=1e-6, atol=1e-10, msg=key)


@pytest.mark.parametrize("name", QUICK)
def test_images_may_lie_as_is_fastest(name):
    net = build(name, images()).eval()
    x = torch.randn(4, 3, 32, 32)
    assert net.channels_last
    torch.testing.assert_close(net(x.contiguous(memory_format=torch.channels_last)), net(x), rtol=1e-4, atol=1e-5)
