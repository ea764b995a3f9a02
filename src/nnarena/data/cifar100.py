"""CIFAR-100: 60,000 photographs of 32×32 coloured pixels in 100 classes (Krizhevsky 2009).

Kept as x_train (50000, 32, 32, 3) and x_test (10000, 32, 32, 3) uint8, y_train and y_test uint8: the 100 fine classes.
The 20 coarse ones are not kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from nnarena.data.cifar import read_cifar
from nnarena.data.dataset import Arrays, DataSet, Remote
from nnarena.data.images import check_images, is_npz, read_images_npz

# The fine classes, numbered by the alphabet.
CLASSES = (
    *("apple", "aquarium fish", "baby", "bear", "beaver"),
    *("bed", "bee", "beetle", "bicycle", "bottle"),
    *("bowl", "boy", "bridge", "bus", "butterfly"),
    *("camel", "can", "castle", "caterpillar", "cattle"),
    *("chair", "chimpanzee", "clock", "cloud", "cockroach"),
    *("couch", "crab", "crocodile", "cup", "dinosaur"),
    *("dolphin", "elephant", "flatfish", "forest", "fox"),
    *("girl", "hamster", "house", "kangaroo", "keyboard"),
    *("lamp", "lawn mower", "leopard", "lion", "lizard"),
    *("lobster", "man", "maple tree", "motorcycle", "mountain"),
    *("mouse", "mushroom", "oak tree", "orange", "orchid"),
    *("otter", "palm tree", "pear", "pickup truck", "pine tree"),
    *("plain", "plate", "poppy", "porcupine", "possum"),
    *("rabbit", "raccoon", "ray", "road", "rocket"),
    *("rose", "sea", "seal", "shark", "shrew"),
    *("skunk", "skyscraper", "snail", "snake", "spider"),
    *("squirrel", "streetcar", "sunflower", "sweet pepper", "table"),
    *("tank", "telephone", "television", "tiger", "tractor"),
    *("train", "trout", "tulip", "turtle", "wardrobe"),
    *("whale", "willow tree", "wolf", "woman", "worm"),
)
PARTS = {"train": ["train"], "test": ["test"]}


def read(paths: Sequence[Path]) -> Arrays:
    """The archive as published, python or binary, its unpacked files, or an NPZ file."""
    if is_npz(paths):
        return read_images_npz(paths[0], "ours")
    return read_cifar(paths, PARTS, "fine_labels", 2)


def check(arrays: Arrays) -> None:
    check_images(arrays, (32, 32, 3), 100)


SET = DataSet(
    name="cifar100",
    summary="60,000 photographs, 32×32 coloured pixels, 100 classes",
    size="169 MB",
    licence="not stated by its authors",
    source="https://www.cs.toronto.edu/~kriz/cifar.html (Krizhevsky 2009)",
    read=read,
    check=check,
    accepts="cifar-100-python.tar.gz, cifar-100-binary.tar.gz, the folder they unpack to, "
    "or an .npz with x_train, y_train, x_test, y_test",
    # As the page above names it.
    files=(
        Remote(
            "cifar-100-python.tar.gz",
            ("https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",),
            "eb9058c3a382ffc7106e4002c42a8d85",
        ),
    ),
    rows={"x_train": 50_000, "x_test": 10_000},
    classes=CLASSES,
)
