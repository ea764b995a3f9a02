"""Expected work is known inside its block and nowhere else."""

from __future__ import annotations

from nnarena.core.workload import expected_calls, expecting


def test_it_holds_within_its_block():
    assert expected_calls() == 0
    with expecting(calls=10):
        assert expected_calls() == 10
        with expecting(calls=3):
            assert expected_calls() == 3
        assert expected_calls() == 10
    assert expected_calls() == 0
