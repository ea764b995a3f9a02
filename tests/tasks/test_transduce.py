"""Copying, turning round and sorting, against a loop."""

from __future__ import annotations

import numpy as np
import pytest

from nnarena.core.components import catalogue
from nnarena.core.errors import BadOption
from nnarena.core.spec import END, PADDING, SPECIAL

RULES = {"copy": list, "reverse": lambda symbols: symbols[::-1], "sort": sorted}


@pytest.mark.parametrize(("length", "shortest", "symbols"), [(10, 5, 10), (3, 1, 2), (4, 4, 7)])
@pytest.mark.parametrize("name", RULES)
def test_every_sample_is_what_the_docstring_says(name, length, shortest, symbols):
    task = catalogue("task")[name].load()(length=length, shortest=shortest, symbols=symbols, samples=300)
    samples = task.samples(np.random.default_rng(1))
    seen, lengths = set(), set()
    for source, target in zip(samples.inputs.tolist(), samples.targets.tolist(), strict=True):
        read = [token for token in source if token != PADDING]
        assert source == [PADDING] * (length - len(read)) + read
        assert target == [*RULES[name](read), END, *[PADDING] * (length - len(read))]
        seen.update(read)
        lengths.add(len(read))
    assert seen == set(range(SPECIAL, SPECIAL + symbols)) and lengths == set(range(shortest, length + 1))
    assert (task.spec.vocabulary, task.spec.output_size, task.spec.target_length) == (*[symbols + 3] * 2, length + 1)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize(
    "options", [{"shortest": 0}, {"shortest": 11}, {"symbols": 1}, {"samples": 0}], ids=lambda options: str(options)
)
def test_wrong_options_are_named(name, options):
    with pytest.raises(BadOption, match=f"{name}: {next(iter(options))} must be"):
        catalogue("task")[name].load()(**options)
