"""Small handwritten digits: 1,797 images of 8×8, the quick cousin of MNIST. Ships with NNArena.

`x` (1797, 8, 8) uint8 from 0 to 16, `y` (1797,) uint8 classes. The test part of "Optical Recognition of Handwritten
Digits" by E. Alpaydin and C. Kaynak (1998), UCI Machine Learning Repository, https://doi.org/10.24432/C50P49,
licensed CC BY 4.0; the same images in the same order as scikit-learn's `load_digits`, unchanged but for the format.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from nnarena.core.errors import DataError
from nnarena.data.dataset import Arrays, DataSet, need
from nnarena.data.formats import read_plain_npz


def read(paths: Sequence[Path]) -> Arrays:
    return read_plain_npz(paths[0])


def check(arrays: Arrays) -> None:
    x = need(arrays, "x", np.uint8, (1797, 8, 8))
    y = need(arrays, "y", np.uint8, (1797,))
    if x.max() > 16 or y.max() > 9:
        raise DataError("a pixel or a class is out of range")


SET = DataSet(
    name="digits",
    summary="1,797 small handwritten digits, 8×8 pixels, 10 classes",
    size="45 kB",
    licence="CC BY 4.0",
    source="https://doi.org/10.24432/C50P49 (Alpaydin, Kaynak 1998)",
    read=read,
    check=check,
    accepts="nothing: it ships with NNArena",
    shipped=Path(__file__).with_name("digits.npz"),
)
