"""A method inside another trainer: that trainer draws, scores, forwards and steps; credit and objective are ours."""
