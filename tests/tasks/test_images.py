"""Images as tasks: bytes in memory, numbers for the model, the published test set, changes in training only."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from nnarena import data
from nnarena.core.components import catalogue, find
from nnarena.core.errors import BadOption, DataError
from nnarena.tasks.augment import GREY
from nnarena.tasks.images import ImageTask

SETS = {
    "cifar10": ("cifar10", (32, 32, 3), 10),
    "cifar100": ("cifar100", (32, 32, 3), 100),
    "svhn": ("svhn", (32, 32, 3), 10),
    "fashion_mnist": ("fashion_mnist", (28, 28), 10),
    "mnist_image": ("mnist", (28, 28), 10),
}
TASKS = [*SETS, "digits_image"]


def make(name: str, **options) -> ImageTask:
    component = find("task", name)
    return component.load()(**component.resolve(options))


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.mark.parametrize("name", TASKS)
def test_every_class_has_a_name_without_the_data(name, tmp_path, monkeypatch):
    monkeypatch.setenv("NNARENA_DATA", str(tmp_path / "nothing"))
    task = make(name)
    names = task.class_names()
    assert len(set(names)) == len(names) == task.spec.output_size
    plain = tuple(map(str, range(10)))
    assert (names == plain) == (name not in ("cifar10", "cifar100", "fashion_mnist"))


def test_names_stand_in_the_order_of_their_numbers():
    """Known of the published sets: CIFAR's classes are numbered by the alphabet, boots come last in Fashion-MNIST."""
    cifar10, cifar100, fashion = (make(name).class_names() for name in ("cifar10", "cifar100", "fashion_mnist"))
    assert [*cifar10] == sorted(cifar10) and [*cifar100] == sorted(cifar100)
    assert (cifar10[3], cifar10[9], cifar100[0], cifar100[99]) == ("cat", "truck", "apple", "worm")
    assert (fashion[0], fashion[6], fashion[9]) == ("T-shirt/top", "shirt", "ankle boot")


@pytest.fixture
def arrays(tmp_path, monkeypatch):
    """A small set in the place of the real one."""
    monkeypatch.setenv("NNARENA_DATA", str(tmp_path / "store"))

    def put(name: str) -> dict[str, np.ndarray]:
        stored, shape, classes = SETS[name]
        made = {}
        for part, count in (("train", 50), ("test", 10)):
            made[f"x_{part}"] = rng().integers(0, 256, (count, *shape), dtype=np.uint8)
            made[f"y_{part}"] = rng().integers(0, classes, count).astype(np.uint8)
        np.savez(tmp_path / "small.npz", **made)
        data.import_files(stored, [tmp_path / "small.npz"])
        return made

    return put


@pytest.mark.parametrize("name", SETS)
def test_bytes_in_memory_and_the_published_test_set(name, arrays):
    wanted, task = arrays(name), make(name)
    samples = task.samples(rng())
    assert samples.inputs.dtype == np.uint8 and samples.inputs.shape == (60, *task.spec.input_shape)
    assert samples.targets.dtype == np.int64 and samples.set_aside is not None
    for part, which in (("train", ~samples.set_aside), ("test", samples.set_aside)):
        theirs = wanted[f"x_{part}"].reshape(-1, *task.spec.input_shape[1:], task.spec.input_shape[0])
        np.testing.assert_array_equal(samples.inputs[which], theirs.transpose(0, 3, 1, 2))
        np.testing.assert_array_equal(samples.targets[which], wanted[f"y_{part}"])


def test_seeds_share_their_images_until_the_file_changes(arrays, tmp_path):
    arrays("cifar10")
    one = make("cifar10").samples(rng())
    assert make("cifar10", augment="flip").samples(np.random.default_rng(5)).inputs is one.inputs
    wanted = {key: value[:8] for key, value in arrays("cifar10").items()}
    np.savez(tmp_path / "other.npz", **wanted)
    data.import_files("cifar10", [tmp_path / "other.npz"])
    assert len(make("cifar10").samples(rng())) == 16


def test_fewer_samples_are_fewer_of_both(arrays):
    wanted = arrays("cifar10")
    samples = make("cifar10", samples=30).samples(rng())
    assert len(samples) == 30 and samples.set_aside is not None and samples.set_aside.sum() == 5
    assert samples.targets.tolist() == [*wanted["y_train"][:25], *wanted["y_test"][:5]]


@pytest.mark.parametrize("name", TASKS)
def test_what_the_model_sees(name):
    task, plain = make(name), make(name, normalise="off")
    x = torch.randint(0, task.images.white + 1, (4, *task.spec.input_shape), dtype=torch.uint8)
    (seen,) = plain.present((x,), None)
    assert seen.dtype == torch.float32 and torch.equal(seen, x.float() / task.images.white)
    (normal,) = task.present((x,), None)
    for channel, (mean, std) in enumerate(zip(task.images.mean, task.images.std, strict=True)):
        torch.testing.assert_close(normal[:, channel], (seen[:, channel] - mean) / std)
    (small,) = make(name, size=6).present((x,), None)
    assert small.shape[1:] == make(name, size=6).spec.input_shape == (task.spec.input_shape[0], 6, 6)


@pytest.mark.parametrize("name", TASKS)
def test_grey_and_coloured(name):
    own = make(name).spec.input_shape
    x = torch.randint(0, make(name).images.white + 1, (4, *own), dtype=torch.uint8)
    (seen,) = make(name, normalise="off").present((x,), None)
    weights = torch.tensor(GREY if own[0] == 3 else [1.0])[:, None, None]
    grey = (weights * seen).sum(1, keepdim=True)
    for channels in (1, 3):
        task = make(name, channels=channels, grey=True, normalise="off")
        assert task.spec.input_shape == (channels, *own[1:])
        torch.testing.assert_close(task.present((x,), None)[0], grey.expand(-1, channels, -1, -1))
    (coloured,) = make(name, channels=3, normalise="off").present((x,), None)
    torch.testing.assert_close(coloured, seen.expand(-1, 3, -1, -1))
    (one,) = make(name, channels=1, normalise="off").present((x,), None)
    torch.testing.assert_close(one, grey)
    (twice,) = make(name, channels=3, size=16).present((x,), None)
    assert twice.shape == (4, 3, 16, 16) and make(name, channels=3, size=16).present((twice,), None)


@pytest.mark.parametrize("name", TASKS)
def test_normalised_as_papers_do_with_any_images(name):
    task = make(name, channels=3, normalise="cifar")
    white = torch.full((1, *task.images.shape), task.images.white, dtype=torch.uint8)
    (seen,) = task.present((white,), None)
    wanted = [(1 - 0.4914) / 0.2023, (1 - 0.4822) / 0.1994, (1 - 0.4465) / 0.2010]
    torch.testing.assert_close(seen[0, :, 0, 0], torch.tensor(wanted))
    for options in ({"channels": 1, "normalise": "cifar"}, {"channels": 1}, {"grey": True}):
        (seen,) = make(name, **options).present((white,), None)
        assert seen.isfinite().all() and seen.unique().numel() == 1


@pytest.mark.parametrize("name", ["cifar10", "svhn"])
def test_the_mean_of_grey_images_is_zero(name):
    """Of images whose colours are the set's mean ones."""
    task = make(name, grey=True)
    colours = torch.tensor(task.images.mean)[None, :, None, None].expand(1, *task.images.shape)
    (seen,) = task.present((colours * task.images.white,), None)
    torch.testing.assert_close(seen, torch.zeros_like(seen), rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", TASKS)
def test_changes_in_training_only(name):
    task, plain = make(name, augment="flip:1"), make(name)
    x = torch.randint(0, task.images.white + 1, (4, *task.spec.input_shape), dtype=torch.uint8)
    assert task.noise == 1 and plain.noise == 0
    (before,) = plain.present((x,), None)
    assert torch.equal(task.present((x,), None)[0], before)
    assert torch.equal(task.present((x,), torch.full((4, 1), 0.5))[0], before.flip(-1))


@pytest.mark.parametrize("name", TASKS)
def test_every_option_is_described_and_checked(name):
    assert name in catalogue("task") and all(option.doc for option in find("task", name).options)
    for wrong in ({"samples": 0}, {"size": 2}, {"channels": 2}, {"augment": "twist"}, {"test_views": "twist"}):
        with pytest.raises(BadOption, match=name):
            make(name, **wrong)


@pytest.mark.parametrize(("kinds", "count"), [("flip", 2), ("shift", 5), ("flip+shift", 10)])
def test_views_are_averaged_as_probabilities(kinds, count):
    task, seen = make("digits_image", test_views=kinds), []

    def model(x):
        seen.append(x)
        return x.flatten(1)[:, :10]

    x = torch.rand(4, 1, 8, 8)
    answer = task.answer(model, (x,))
    assert len(seen) == count and torch.equal(seen[0], x) and len({str(one.tolist()) for one in seen}) == count
    torch.testing.assert_close(answer.exp(), torch.stack([one.flatten(1)[:, :10].softmax(1) for one in seen]).mean(0))
    assert torch.equal(make("digits_image").answer(model, (x,)), model(x))


def test_data_that_are_not_here(tmp_path, monkeypatch):
    monkeypatch.setenv("NNARENA_DATA", str(tmp_path))
    for name in SETS:
        with pytest.raises(DataError, match="`nnarena data get"):
            make(name).check()


def check_moments(task: ImageTask, x: np.ndarray) -> None:
    for channel, (mean, std) in enumerate(zip(task.images.mean, task.images.std, strict=True)):
        assert x[:, channel].mean(dtype=np.float64) / task.images.white == pytest.approx(mean, abs=6e-5)
        assert x[:, channel].std(dtype=np.float64) / task.images.white == pytest.approx(std, abs=6e-5)


def test_mean_and_deviation_of_the_digits():
    check_moments(make("digits_image"), make("digits_image").samples(rng()).inputs)


@pytest.mark.data
@pytest.mark.parametrize("name", SETS)
def test_mean_and_deviation_of_the_real_images(name):
    try:
        samples = make(name).samples(rng())
    except DataError as error:
        pytest.skip(str(error))
    assert samples.set_aside is not None and samples.set_aside.sum() == (26_032 if name == "svhn" else 10_000)
    check_moments(make(name), samples.inputs[~samples.set_aside])
