"""Acrobot-v1: two links that hang from a joint, to be swung above a line."""

from __future__ import annotations

from nnarena.core.components import task
from nnarena.tasks.predict import Prediction


@task(
    "predict_acrobot",
    reference="Kortegaard and Andresen 2024, AttentionSplit, master's thesis, University of Southern Denmark",
)
class PredictAcrobot(Prediction):
    """Predict which way an agent turns the joint of an acrobot, from the last ten states.

    x: (length, 6), cosine and sine of the two angles, and both angular velocities; y: torque −1, 0 or 1.

    The agent is a deep Q-network that has solved Gymnasium's Acrobot-v1, with a mean return of at least -100 over 100
    greedy episodes; one that has not fails the trial and says what it scored. It is trained when it is first needed, in
    about a minute, kept with the data, and plays greedily. Windows lie inside of an episode; training, validation and
    test have episodes of their own.
    """

    environment = "acrobot"
