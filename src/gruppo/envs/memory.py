"""A memory that the agent edits (memact: prune_context). Every observation is a record with a number.

    drop 1 2 note cup is in the box

deletes the records 1 and 2 and puts a new one in their place. The context is then written anew, so the turn after it
sees `fresh` text. The task is record 0 and stays. An edit that names no record that is there is an invalid action,
which the agent is told. With a limit in words, a context that has outgrown it ends the episode and costs `overflow`.
"""

from dataclasses import replace
from typing import Any

from gruppo.envs.base import Seen, seats_of
from gruppo.envs.world import NOTHING, number, read
from gruppo.envs.wrappers import Wrapper, cut

Record = tuple[int, str]  # number, text


class Memory(Wrapper):
    """`words` is the limit of the context, 0 for none. With `edits=False` the tool is withheld.

    An edit costs no turn of the world, so put a `TurnLimit` around it.
    """

    def __init__(self, env: Any, words: int = 0, overflow: float = 0.1, edits: bool = True) -> None:
        super().__init__(env)
        if words < 0 or overflow < 0:
            raise ValueError(f"words={words}, overflow={overflow:g}: neither can be negative. Use 0 for no limit.")
        if len(seats_of(env)) > 1:
            raise ValueError("a memory is for one agent: in a game it would hold what another seat saw.")
        self.words, self.overflow, self.edits = words, overflow, edits

    def begun(self, seen: Seen) -> Seen:
        self.records: tuple[Record, ...] = ()
        self.count, self.here = 0, seen
        return self._added(seen)

    def stepped(self, action: str) -> Seen:
        said = read(action)
        if self.edits and said[:1] == ["drop"]:
            return self._edited(said[1:])
        seen = self.here = self.env.step(action)
        acted = f"> {action}" if isinstance(action, str) else ">"
        self.records = (*self.records[:-1], (self.records[-1][0], f"{self.records[-1][1]} {acted}"))
        return self._added(seen)

    def _added(self, seen: Seen) -> Seen:
        """A new record; the text grows by it."""
        self.count += 1
        self.records = (*self.records, (self.count, seen.text))
        seen = replace(seen, text=f"{self.count} : {seen.text}")
        return self._within(seen)

    def _edited(self, words: list[str]) -> Seen:
        at = words.index("note") if "note" in words else len(words)
        named, note = [number(word) for word in words[:at]], " ".join(words[at + 1 :])
        there = {n for n, _ in self.records}
        # The newest record is what the agent acts on now, so it stays.
        if not named or not {n for n in named} <= there - {self.count}:
            return replace(self.here, text=NOTHING, valid=False, rewards={}, outcomes={}, tools=())
        kept = [record for record in self.records if record[0] not in named]
        if note:
            first = min(n for n in named if n is not None)
            kept = sorted([*kept, (first, note)])
        self.records = tuple(kept)
        lines = [f"{n} : {text}" for n, text in self.records]
        text = "\n".join([self.task.prompt, *lines])
        now = replace(self.here, text=text, valid=True, rewards={}, outcomes={}, fresh=True, tools=())
        return self._within(now)

    def _within(self, seen: Seen) -> Seen:
        size = len(self.task.prompt.split()) + sum(2 + len(text.split()) for _, text in self.records)
        if not self.words or size <= self.words or seen.done:
            return seen
        over = cut(self.env, seen)
        cost = {"overflow": -self.overflow} if self.overflow else {}
        return replace(over, rewards={**over.rewards, **cost})

    def own(self) -> Any:
        return self.records, self.count, self.here

    def put_back(self, own: Any) -> None:
        self.records, self.count, self.here = own
