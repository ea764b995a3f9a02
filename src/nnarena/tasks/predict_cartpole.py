"""CartPole-v1: a pole on a cart, to be kept upright."""

from __future__ import annotations

from nnarena.core.components import task
from nnarena.tasks.predict import Prediction


@task(
    "predict_cartpole",
    reference="Kortegaard and Andresen 2024, AttentionSplit, master's thesis, University of Southern Denmark",
)
class PredictCartPole(Prediction):
    """Predict which way an agent pushes a cart to balance a pole, from the last ten states.

    x: (length, 4), position and velocity of the cart, angle and angular velocity of the pole; y: left or right.

    The agent is a deep Q-network that has solved Gymnasium's CartPole-v1, with a mean return of at least 475 over 100
    greedy episodes; one that has not fails the trial and says what it scored. It is trained when it is first needed, in
    about a minute, kept with the data, and plays greedily. Windows lie inside of an episode; training, validation and
    test have episodes of their own.
    """

    environment = "cartpole"
