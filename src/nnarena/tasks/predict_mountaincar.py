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

    The agent is a deep Q-network that has solved Gymnasium's MountainCar-v0, with a mean return of at least -130 over
    100 greedy episodes; one that has not fails the trial and says what it scored. It is trained when it is first
    needed, in about a minute, kept with the data, and plays greedily. Windows lie inside of an episode; training,
    validation and test have episodes of their own.
    """

    environment = "mountaincar"
