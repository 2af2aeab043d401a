"""An endpoint like OpenAI's on this machine, so that a program of the user is the agent that is trained."""
