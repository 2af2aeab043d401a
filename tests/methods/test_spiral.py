"""Evidence for spiral: laws, mistakes, equivalences, resume, games of two seats, and numbers worked by hand."""

import evidence
import numpy as np
import pytest
from drawing import IN_A_WORLD, steps_of
from hand import FAILED, answer, batch_of, close
from in_worlds import Told, played

from gruppo.data import Episode, Growing, Status, name_hash, pack
from gruppo.engines import Request
from gruppo.methods import method
from gruppo.methods.spiral import ROLES, RoleBaseline
from gruppo.policies import CharTokenizer
from gruppo.stages import Context, Memory, StepRecord
from gruppo.stages.tables import Table

test_laws = evidence.laws("spiral")
test_asks = evidence.asks("spiral")
test_planted_mistakes = evidence.planted("spiral")
test_equivalences = evidence.equivalences("spiral")
test_resume = evidence.resume("spiral")

SPIRAL = method("spiral")


def game(uid: int, first: float | None, game: str = "kuhn", turns: tuple[int, int] = (2, 1)) -> Episode:
    """Two seats with contexts of their own take turns; what one wins, the other loses."""
    grown = Growing(uid, "t", "g", domain=game)
    at = {seat: grown.begin(np.array([1, i])) for i, seat in enumerate(("first", "second"))}
    for n in range(max(turns)):
        for seat, many in zip(at, turns, strict=True):
            if n < many:
                grown.switch(at[seat])
                grown.act(np.array([5]), np.full(1, -1.0, np.float32), 0, agent=seat)
    made = grown.finish(Status.OK if first is not None else Status.ENV_ERROR)
    for seat, paid in (("first", first), ("second", None if first is None else -first)):
        last = [t for t in made.turns if t.agent == seat]
        if paid is not None and last:
            last[-1].reward = {"task": paid}
    return made


def by_seat(
    credit: RoleBaseline, episodes: list[Episode], memory: Memory | None = None
) -> dict[tuple[int, str], float]:
    batch = pack(episodes)
    adv_N = credit(Context(memory=memory or Memory()), batch)["adv_N"]
    out: dict[tuple[int, str], set[float]] = {}
    for n, turn in enumerate(batch.turn_N.tolist()):
        uid, seat = int(batch.uid_E[batch.episode_N[n]]), batch.agents[int(batch.agent_K[turn])]
        out.setdefault((uid, seat), set()).add(round(float(adv_N[n]), 6))
    assert all(len(x) == 1 for x in out.values())  # all turns of a seat alike
    return {k: x.pop() for k, x in out.items()}


def after(credit: RoleBaseline, *steps: list[Episode]) -> Memory:
    memory = Memory()
    for step in steps:
        with memory.writing():
            credit.observe(StepRecord(0, (), pack(step), {}), memory)
    return memory


def baseline(memory: Memory, seat: str) -> float:
    found = Table.of(memory, ROLES)
    return float(found.look(found.key_T.new_tensor([name_hash(seat)]), "baseline"))


def test_card() -> None:
    """Card S117: R = +1, +1, −1 for a role: A = 1, .95, −1.0975; b = .05, .0975, .042625. The other seat mirrors it."""
    credit, games = RoleBaseline(baseline_of="role"), [game(i, r) for i, r in enumerate((1.0, 1.0, -1.0))]
    adv = by_seat(credit, games)
    close([adv[i, "first"] for i in range(3)], [1.0, 0.95, -1.0975], 1e-6)
    close([adv[i, "second"] for i in range(3)], [-1.0, -0.95, 1.0975], 1e-6)
    for n, b in ((1, 0.05), (2, 0.0975), (3, 0.042625)):
        close(baseline(after(credit, games[:n]), "first"), b)
        close(baseline(after(credit, *([g] for g in games[:n])), "second"), -b)  # one a step is the same


def test_a_step_goes_on_from_the_last_in_any_order_of_the_batch() -> None:
    credit, games = RoleBaseline(baseline_of="role"), [game(i, r) for i, r in enumerate((1.0, 1.0, -1.0))]
    later = by_seat(credit, games[:0:-1], after(credit, games[:1]))
    close([later[i, "first"] for i in (1, 2)], [0.95, -1.0975], 1e-6)


def test_games_have_baselines_of_their_own() -> None:
    games = [game(0, 1.0), game(1, 1.0, "tictactoe"), game(2, 1.0)]
    own, shared = (by_seat(RoleBaseline(baseline_of=by), games) for by in ("game_role", "role"))  # type: ignore[arg-type]
    close([own[i, "first"] for i in range(3)], [1.0, 1.0, 0.95], 1e-6)
    close([shared[i, "first"] for i in range(3)], [1.0, 0.95, 0.9025], 1e-6)
    assert len(Table.of(after(RoleBaseline(), games), ROLES)) == 4


def test_edges() -> None:
    """A draw moves the baseline towards 0; a failed game and a seat that never acted move nothing."""
    credit = RoleBaseline(baseline_of="role")
    memory = after(credit, [game(0, 1.0)], [game(1, 0.0)], [game(2, None)])
    close(baseline(memory, "first"), 0.05 * 0.95)
    failed = by_seat(credit, [game(3, None)], memory)
    assert set(failed.values()) == {0.0}
    alone = after(credit, [game(4, 1.0, turns=(1, 0))])
    assert len(Table.of(alone, ROLES)) == 1
    assert after(credit, [game(5, None)])[ROLES]["key"].tolist() == []
    with (nothing := Memory()).writing():
        credit.observe(StepRecord(0, (), None, {}), nothing)
    assert not nothing


def test_one_seat_is_reinforce_with_a_baseline_for_each_domain() -> None:
    episodes = [
        answer(0, "g", 2, 1.0, domain="a"),
        answer(1, "g", 1, 1.0, domain="b"),
        answer(2, "g", 1, 1.0, domain="a"),
    ]
    episodes += [answer(3, "g", 1, None, **FAILED)]
    close(RoleBaseline()(Context(), batch_of(episodes))["adv_N"].tolist(), [1.0, 1.0, 1.0, 0.95, 0.0])


def legal(request: Request) -> str:
    """The last free field of the board that is seen, or a bet."""
    seen = CharTokenizer().decode(request.prefix).rpartition("you are")[2]
    return ([c for c in seen if c.isdigit()] or ["bet"])[-1]


@pytest.mark.parametrize("world", ["kuhn", "tictactoe"])
def test_the_policy_plays_both_seats(world: str) -> None:
    """What the seats of a game earned adds up to 0, and is their credit while nothing is known."""
    found = played(SPIRAL, Told(legal), world, tasks=3, samples=1)
    both = [e for e in found if len(e.returns) == 2]
    assert both
    for e in both:
        assert e.status == Status.OK and sum(e.returns.values()) == 0.0 and len(e.sequences) == 2
    adv = by_seat(RoleBaseline(decay=1.0), found)
    assert adv == {(e.uid, seat): r for e in found for seat, r in e.returns.items()}


def test_kuhn_by_hand() -> None:
    """Both always bet: the higher card wins two chips, and each seat is paid on its own last turn."""
    found = played(SPIRAL, Told(lambda r: "bet"), "kuhn", tasks=4, samples=1)
    adv = by_seat(RoleBaseline(decay=1.0), found)
    assert {abs(a) for a in adv.values()} == {2.0} and len(adv) == 8


def test_it_trains_in_games_and_remembers_roles() -> None:
    for world in ("kuhn", "tictactoe"):
        _, records = steps_of(
            SPIRAL, *IN_A_WORLD[:1], f"task={world}", *IN_A_WORLD[3:], "sampling.max_tokens=48", steps=2
        )
        [first, second] = records
        seats = {t.agent for r in records for e in r.drawn for t in e.turns}
        assert second.ctx is not None and len(Table.of(second.ctx.memory, ROLES)) == len(seats) > 0
        assert first.facts["grad_norm"] > 0
