"""A trainer on an exact world: policies that are tables, many seeds at once, the method's own rooms, exact measures.

    setup.py    the world and the settings, from Python or from a run's configuration
    tables.py   log-probabilities, entropies and masses of many tables at once
    frame.py    the batch of many independent steps, made without an episode
    learner.py  what update rooms call: gradient and optimiser, for many tables at once
    quick.py    steps on such batches: all seeds in one, or one after another
    whole.py    the training loop itself, for methods that need episodes
    measure.py  expected reward, entropies, KL to the start; noise of the gradient, right answers that fall
    train.py    all of it: train_exact("grpo", seeds=100)

docs/exact_world.md says how it is used.
"""

from gruppo.lab.tabular.setup import Setup, World, exact
from gruppo.lab.tabular.train import Trained, train_exact

__all__ = ["Setup", "Trained", "World", "exact", "train_exact"]
