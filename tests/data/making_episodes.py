"""Random episodes with everything in them, and the slow, obvious reading of a batch that the tests compare with."""

from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

from gruppo.data import Episode, Inputs, Note, Sequence, Source, Status, ToolCall, Turn, Use, single_turn
from gruppo.data.episode import FLAGS

GIVEN = [Source.POLICY, Source.POLICY, Source.POLICY, *Source][:9]
AGENTS = ("policy", "rival")
ALL = ("as_trained", "as_sampled", "without_hints")
LAW = settings(max_examples=settings.default.max_examples * 2 // 5)  # see tests/conftest.py


def random_sequence(rng: np.random.Generator, number: int) -> tuple[Sequence, list[Turn]]:
    """A context with some turns in it, in order; ids tell where a token stands: number · 1000 + position."""
    prompt = int(rng.integers(2, 6))
    source = [Source.ENV] * 2 + [Source.HINT if rng.random() < 0.3 else Source.ENV for _ in range(prompt - 2)]
    turns: list[Turn] = []
    for _ in range(int(rng.integers(1, 4))):
        obs = len(source)
        source += [Source.ENV] * int(rng.integers(0, 3))
        start = len(source)
        source += [GIVEN[int(rng.integers(len(GIVEN)))] for _ in range(int(rng.integers(0, 5)))]
        turns.append(Turn(start=start, stop=len(source), obs_start=obs, obs_stop=start))
    n = len(source)
    column = np.array(source, np.int8)
    sampled = column == Source.POLICY
    where = [int(p) for p in np.flatnonzero(sampled) if rng.random() < 0.7]
    sequence = Sequence(
        ids=number * 1000 + np.arange(n),
        source=column,
        logp=np.where(sampled, -rng.exponential(size=n), np.nan).astype(np.float32),
        version=np.where(sampled, rng.integers(0, 9, n), -1).astype(np.int32),
        prompt_len=prompt,
        temperature=None if rng.random() < 0.5 else rng.uniform(0.5, 2, n).astype(np.float32),
        allowed=None if rng.random() < 0.5 else {p: rng.integers(0, 99, int(rng.integers(1, 4))) for p in where},
        node=None if rng.random() < 0.5 else rng.integers(-1, 4, n),
        train_as=None if rng.random() < 0.6 else 90_000_000 + np.arange(int(rng.integers(2, 7))),
    )
    return sequence, turns


def interleave(rng: np.random.Generator, queues: list[list[Turn]]) -> list[Turn]:
    """One time line of all turns, each sequence in its own order."""
    queues = [list(q) for q in queues]
    out: list[Turn] = []
    while any(queues):
        out.append(queues[rng.choice([i for i, q in enumerate(queues) if q])].pop(0))
    return out


def decisions(s: Sequence) -> int:
    """Tokens that are learned or given: those of a prompt that `train_as` replaces are gone."""
    first = 0 if s.train_as is None else s.prompt_len
    return int((s.source[first:] != Source.ENV).sum())


def random_notes(rng: np.random.Generator, e: Episode) -> dict[str, Note]:
    rows = {"E": 1, "S": len(e.sequences), "K": len(e.turns), "N": sum(map(decisions, e.sequences))}
    return {
        f"at_{level}": Note(rng.normal(size=n).astype(np.float32), level, int(rng.integers(-1, 5)))
        for level, n in rows.items()
        if rng.random() < 0.7
    }


def random_episode(rng: np.random.Generator, uid: int, groups: int) -> Episode:
    pieces = [random_sequence(rng, uid % 1000 * 10 + j) for j in range(int(rng.integers(1, 4)))]
    for j, (_, turns) in enumerate(pieces):
        for k, t in enumerate(turns):
            t.sequence, t.agent = j, AGENTS[j % 2]
            t.state, t.action_key = f"state {rng.integers(3)}" * int(rng.integers(4) > 0), f"action {rng.integers(3)}"
            t.reward = {"step": float(rng.normal())} if rng.random() < 0.5 else {}
            t.tools = tuple(ToolCall(f"tool {i}", "{}", float(rng.random()), bool(i)) for i in range(k % 3))
            t.flags = frozenset(f for f in FLAGS if rng.random() < 0.2)
            t.tag, t.seconds = ("", "plan", "explore")[int(rng.integers(3))], float(rng.random())
            t.text = f"text of turn {k}" if rng.random() < 0.5 else ""
    e = Episode(
        uid=uid,
        task=f"task {rng.integers(3)}",
        group=f"group {rng.integers(groups)}",
        sequences=[s for s, _ in pieces],
        turns=interleave(rng, [turns for _, turns in pieces]),
        reward={"task": float(rng.integers(2)), "form": float(rng.normal())},
        status=Status(int(rng.integers(len(Status)))),
        use=Use(int(rng.integers(len(Use)))),
        source=Source.EXPERT if rng.random() < 0.1 else Source.POLICY,
        text=f"text of {uid}",
        final_state=f"state {rng.integers(3)}",
        domain=f"sums/{uid % 3}",
        index=uid % 5 - 1,
        answer=("", "7", "12")[uid % 3],
        replaced=(frozenset(), frozenset({"form"}), frozenset({"step", "form"}))[uid % 7 % 3],
        replayed=bool(rng.random() < 0.2),
        step=int(rng.integers(9)),
        parent=-1 if uid % 2 else uid - 1,
        fork=-1 if uid % 2 else int(rng.integers(3)),
        asked="" if uid % 3 else '{"how":{"hint":0.5},"samples":4}',
    )
    e.notes = random_notes(rng, e)
    return e


def random_episodes(seed: int, count: int, groups: int = 3) -> list[Episode]:
    rng = np.random.default_rng(seed)
    uids = rng.permutation(1000)[:count] + (2**53 + 1) * 1000  # beyond what a float64 holds
    return [random_episode(rng, int(uid), groups) for uid in uids]


@st.composite
def episode_lists(draw: Any, least: int = 1, most: int = 6) -> list[Episode]:
    return random_episodes(draw(st.integers(0, 2**32 - 1)), draw(st.integers(least, most)), draw(st.integers(1, 3)))


def answer(uid: int, n: int = 3, group: str = "g", **fields: Any) -> Episode:
    logp = np.linspace(-1, -2, n).astype(np.float32)
    return single_turn(uid, "t", group, np.array([1, 2]), np.arange(10, 10 + n), logp, 0, **fields)


# ---- the obvious reading


def contexts(view: Inputs) -> list[tuple[int, ...]]:
    """What a causal model has read when it predicts each decision: the chain of parents, to the start."""
    read: list[tuple[int, ...]] = []
    for m, parent in enumerate(view.parent_M.tolist()):
        assert parent < m  # a parent stands before its child
        read.append((*(read[parent] if parent >= 0 else ()), int(view.ids_M[m])))
    return [read[p] for p in view.parent_M[view.at_N].tolist()]


def rows_of_turns(e: Episode) -> list[tuple[int, int, Turn]]:
    """(sequence, place in time, turn) in the order of the rows: by sequence, then by position."""
    keyed = [(t.sequence, t.start, t.stop, i) for i, t in enumerate(e.turns)]
    return [(s, i, e.turns[i]) for s, _, _, i in sorted(keyed)]


def rows_of_decisions(episodes: list[Episode]) -> list[dict[str, Any]]:
    """One dict a decision, in the order of the rows."""
    out: list[dict[str, Any]] = []
    for e in episodes:
        for j, sampled in enumerate(e.sequences):
            s = sampled.trained()
            shift = len(s.ids) - len(sampled.ids)
            mine = [(i, t) for seq, i, t in rows_of_turns(e) if seq == j]
            for p in range(len(s.ids)):
                if s.source[p] == Source.ENV:
                    continue
                holders = [i for i, t in mine if p < t.stop + shift] or [mine[-1][0]]
                out.append({
                    "uid": e.uid, "sequence": j, "position": p, "sampled_position": p - shift,
                    "turn_index": holders[0], "token": int(s.ids[p]), "source": int(s.source[p]),
                    "logp_gen": float(s.logp[p]), "version": int(s.version[p]),
                    "temperature": 1.0 if s.temperature is None else float(s.temperature[p]),
                    "allowed": [] if s.allowed is None else s.allowed.get(p, np.zeros(0)).tolist(),
                    "context": tuple(s.ids[:p].tolist()),
                })  # fmt: skip
    return out
