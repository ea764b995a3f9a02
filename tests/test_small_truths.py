"""Every block of docs/small-truths.md runs as it stands, and would not if what it says were false."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TEXT = (Path(__file__).resolve().parents[1] / "docs" / "small-truths.md").read_text(encoding="utf-8")
TRUTHS = {
    title: re.findall(r"```python\n(.*?)```", body, re.DOTALL)
    for title, body in re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", TEXT, re.DOTALL | re.MULTILINE)
}
# A line of each block, and one in its place that makes it false.
FALSE = {
    "A linear model cannot fit XOR": ("[0, 1, 1, 0]", "[0, 1, 1, 1]"),
    "One hidden layer can, with two units": ("[[1.0], [-2]]", "[[1.0], [-1]]"),
    "The gradient of softmax with cross entropy is p − y": ("p - y, rtol", "p + y, rtol"),
    "Back-propagation through time is a sum over steps": ("later = W.T @ inner", "later = W @ inner"),
    "A deep network of sigmoids loses its gradient": ("by_layer(nn.Sigmoid", "by_layer(nn.Tanh"),
}


@pytest.mark.parametrize("title", TRUTHS)
def test_it_is_true(title: str) -> None:
    (code,) = TRUTHS[title]
    assert "assert" in code
    exec(code, {})


@pytest.mark.parametrize("title", TRUTHS)
def test_its_contrary_is_not(title: str) -> None:
    (code,) = TRUTHS[title]
    right, wrong = FALSE[title]
    assert code.count(right) == 1
    with pytest.raises(AssertionError):
        exec(code.replace(right, wrong), {})
