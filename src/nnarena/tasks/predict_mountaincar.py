"""MountainCar-v0: a car in a valley, too weak to drive straight up the hill."""

from __future__ import annotations

from nnarena.core.components import task
from nnarena.tasks.predict import Prediction


@task(
    "predict_mountaincar",
    reference="Kortegaard and Andresen 2024, AttentionSplit, master's thesis, University of Southern Denmark",
)
class PredictMountainCar(Prediction):
    """Predict which way an agent drives to get a weak car up a hill, from the last ten states.

    x: (length, 2), position and velocity; y: push left, nothing, or push right.

    The agent is a deep Q-network that has solved Gymnasium's MountainCar-v0: a mean return of at least -130 over 100
    greedy episodes.
    """

    environment = "mountaincar"
