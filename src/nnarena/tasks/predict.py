"""What tasks that predict an agent's actions have in common."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nnarena.core.errors import ArenaError, BadOption
from nnarena.core.spec import Samples, TaskSpec
from nnarena.core.task import Task
from nnarena.rl.environments import Episode, find, make, play
from nnarena.rl.teachers import Teacher, get_teacher
from nnarena.tasks.windows import Windows, check_windows, cut, window_counts

TEST = 0.2  # share of the windows whose episodes are kept for the test: 5,000 beside 20,000
CONSTANT = 0.99  # a policy that does the same thing more often has nothing to predict
TOGETHER = 32  # episodes that are played at a time
PATIENCE = 128  # episodes that may pass with less than a window each


class Prediction(Task):
    """Predict what an agent does from the last states that it saw. A subclass names its `environment`.

    x: (length, F), the states of an episode, one after another; y: what the agent does in the last of them, one of the
    environment's actions; cross entropy.

    The agent, called the teacher, is a deep Q-network that has solved the environment (`nnarena/rl/dqn.py`), or the
    trial fails and says what it scored. It is trained when it is needed for the first time, which takes about a minute,
    and then kept with the data. It plays greedily from starts that the seed decides. A window never reaches into the
    next episode; the test has episodes of its own, and so has the validation.

    Options:
        samples: windows, of which a fifth is for the test
        length: states a window
        teacher: which teacher, by the seed it was trained with
    """

    environment: str

    def __init__(self, *, samples: int = 25_000, length: int = 10, teacher: int = 0) -> None:
        name = f"predict_{self.environment}"
        check_windows(name, samples, length, 1)
        if teacher < 0:
            raise BadOption(f"{name}: option 'teacher' takes a whole number from 0 on, not {teacher}.")
        self.name, self.count, self.length, self.teacher = name, samples, length, teacher
        self.world = find(self.environment)
        self.spec = TaskSpec(
            input_shape=(length, self.world.observations), output_size=self.world.actions, target="class"
        )

    def check(self) -> None:
        make(self.world).close()

    def samples(self, rng: np.random.Generator) -> Samples:
        """Episodes for training until there are windows enough, and then others for the test."""
        teacher = get_teacher(self.environment, self.teacher)
        episodes, test = greedy_episodes(teacher, rng), round(self.count * TEST)
        learn, other = (self._windows(episodes, count) for count in (self.count - test, test))
        inputs, targets = (np.concatenate([learn[part], other[part]]) for part in (0, 1))
        check_varied(self.world.name, targets)
        series = np.concatenate([learn[2], other[2] + learn[2].max() + 1])
        return Samples(inputs, targets, series=series, set_aside=np.arange(self.count) >= self.count - test)

    def _windows(self, episodes: Iterator[Episode], count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The first `count` windows of episodes to come: states, actions in the last of them, episode of each."""
        taken: list[Episode] = []
        found = 0
        while found < count:
            taken.append(next(episodes))
            found += int(window_counts(np.array([len(taken[-1].actions)]), self.length, 1)[0])
            if len(taken) >= PATIENCE and found < len(taken):
                longest = max(len(one.actions) for one in taken)
                raise BadOption(
                    f"{self.name}: too few episodes are as long as length={self.length}; of {len(taken)} that were "
                    f"played the longest has {longest} states."
                )
        windows: Windows = cut(np.array([len(one.actions) for one in taken]), self.length, 1, count)
        states, actions = (np.concatenate([getattr(one, part) for one in taken]) for part in ("states", "actions"))
        return windows.of(states), actions[windows.last], windows.series


def greedy_episodes(teacher: Teacher, rng: np.random.Generator) -> Iterator[Episode]:
    """Endless episodes of the greedy policy, each from a start of its own; the generator decides which."""
    first, policy = int(rng.integers(2**30)), teacher.policy
    while True:
        yield from play(teacher.environment, policy, range(first, first + TOGETHER))
        first += TOGETHER


def check_varied(environment: str, actions: np.ndarray) -> None:
    """An agent that always does the same is no teacher, whatever it scored."""
    counts = np.bincount(actions)
    share = counts.max() / len(actions)
    if share > CONSTANT:
        raise ArenaError(
            f"The teacher for {environment} does the same thing (action {counts.argmax()}) in {100 * share:.1f} % of "
            "all states: there is nothing to predict. Take another one, as in [teacher=1]."
        )
