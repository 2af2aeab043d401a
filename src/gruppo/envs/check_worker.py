"""The process in which an environment is checked: `main()` is the child's end of a channel."""

import pickle

from gruppo.envs.check import LAWS, holds
from gruppo.envs.registry import env_class, made
from gruppo.tasks.child import Parent


def main() -> None:
    parent = Parent()
    name, tasks = pickle.loads(parent.receive())
    try:
        make = env_class(name)
        made(name)  # refuses one that cannot be made
    except ValueError as error:
        parent.send("refused", str(error))
        return
    for law in LAWS:
        parent.send("begun", law.name)
        parent.send("law", [law.name, holds(law, make, tasks)])
    parent.send("done")
