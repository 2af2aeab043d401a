"""The loop, the learner, the cast, checkpoints: what runs a method."""
