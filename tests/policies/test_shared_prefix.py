"""A prefix that sequences share, computed once, is its copies: states, readouts and gradients, for any tree and cut."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gruppo.data import Batch, Episode, Inputs, Sequence, Source, Turn, micro_batches, pack, single_turn
from gruppo.data.prefix import prefix_nodes
from gruppo.policies import Critic, TinyTransformer, packed
from gruppo.policies import layout as layouts
from gruppo.policies import tiny as tinies
from gruppo.policies.dense import dense_of
from gruppo.policies.layout import Layout, layout_of, lines_of
from gruppo.stages import need
from gruppo.train.forward import States, rows_of, serve, serve_into

NEVER, ANY = 2.0, 0.0
LAW = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
SEEDS = st.integers(0, 2**32 - 1)


def random_sequences(seed: int, most: int = 12) -> list[np.ndarray]:
    """Sequences that continue others from any point, or start afresh; some are equal."""
    rng, out = np.random.default_rng(seed), []
    for _ in range(int(rng.integers(1, most))):
        stem = out[rng.integers(len(out))] if out and rng.random() < 0.8 else np.zeros(0, np.int64)
        stem = stem[: rng.integers(len(stem) + 1)]
        rest = rng.integers(0, 23, int(rng.integers(0 if len(stem) else 1, 14)))
        out.append(np.concatenate([stem, rest])[:60])
    return out


def tree_of(sequences: list[np.ndarray]) -> tuple[Inputs, Inputs, torch.Tensor]:
    """(the sequences, their tree, the row of each position)."""
    plain = packed(sequences)
    node = prefix_nodes(plain.ids_M.numpy(), np.array([len(s) for s in sequences]), ANY)
    tree, row_M = replace(plain, node_M=None if node is None else torch.from_numpy(node)).tree()
    return plain, tree, torch.arange(len(plain.ids_M)) if row_M is None else row_M


LAYOUTS: dict[str, Callable[..., Layout]] = {
    "paths": layout_of,
    "dense": lambda inputs, context, dtype, _=None: dense_of(inputs, context, 32, dtype),
    "dense, short lines": lambda inputs, context, dtype, _=None: dense_of(inputs, context, 1, dtype),
    "dense, whole trees": lambda inputs, context, dtype, _=None: dense_of(inputs, context, 10**6, dtype),
}


@pytest.mark.parametrize("how", LAYOUTS)
@pytest.mark.parametrize("kv_heads", [1, 4])
@LAW
@given(seed=SEEDS)
def test_states_and_gradients_of_a_tree_are_those_of_its_sequences(make, monkeypatch, kv_heads, how, seed):
    monkeypatch.setattr(tinies, "layout_of", LAYOUTS[how])
    policy = make(kv_heads=kv_heads)
    plain, tree, row_M = tree_of(random_sequences(seed))
    want, got = policy(plain, (1,)), policy(tree, (1,))
    torch.testing.assert_close(got[0][row_M], want[0], rtol=0, atol=1e-12)
    torch.testing.assert_close(got[1][1][row_M], want[1][1], rtol=0, atol=1e-12)
    weight = torch.from_numpy(np.random.default_rng(seed).normal(size=want[0].shape))
    one = gradient(policy, (want[0] * weight).sum())
    assert far(one, gradient(policy, (got[0].index_select(0, row_M) * weight).sum())) < 1e-9


def gradient(module: torch.nn.Module, value: torch.Tensor) -> torch.Tensor:
    module.zero_grad()
    value.backward()
    return torch.cat([p.grad.flatten() for p in module.parameters() if p.grad is not None])


def far(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).norm() / a.norm().clamp(min=1e-300))


@pytest.mark.parametrize("how", LAYOUTS)
@LAW
@given(seed=SEEDS)
def test_every_position_stands_in_a_cell_and_lines_hold_little_else(how, seed):
    _, tree, _ = tree_of(random_sequences(seed, most=40))
    layout = LAYOUTS[how](tree, 1000, torch.float64)
    assert layout.row_C[layout.cell_M].tolist() == list(range(len(tree.ids_M)))
    assert len(layout.row_C) == sum(rows * size for rows, size in layout.buckets)
    if how == "paths":
        lines, masks = lines_of(tree, 1000), [m for m in layout.masks if m is not None]
        assert len(layout.row_C) <= 4 * len(tree.ids_M) and (layout.key_C is None) == (not masks)
        assert len(lines.first) == len({tuple(s) for s in leaves(tree)})


def leaves(tree: Inputs) -> list[list[int]]:
    """The path of every row without a child."""
    parent = tree.parent_M.tolist()
    out = []
    for row in sorted(set(range(len(parent))) - set(parent)):
        path = [row]
        while parent[path[-1]] >= 0:
            path.append(parent[path[-1]])
        out.append(path[::-1])
    return out


def test_few_answers_share_a_dense_line_and_long_ones_do_not():
    """A group of eight short answers is one line; long answers copy a short prompt rather than pay for each other."""
    prompt, rng = np.arange(20), np.random.default_rng(0)
    for length, lines in ((4, 1), (500, 8)):
        answers = [np.concatenate([prompt, [30 + i], rng.integers(0, 9, length)]) for i in range(8)]
        layout = dense_of(tree_of(answers)[1], 10**4, dim=8)
        assert sum(rows for rows, _ in layout.buckets) == lines


# ---- through a batch: every level, every view, every cut


def mixed_episodes(seed: int) -> list[Episode]:
    """Groups of several prompts, a group of one, a hint in the prompt, `train_as`, two turns, two sequences."""
    rng, episodes = np.random.default_rng(seed), []

    def ids(n: int) -> np.ndarray:
        return rng.integers(2, 23, n)

    def add(group: str, prompt: np.ndarray, n: int, **fields) -> None:
        logp = np.full(n, -1.0, np.float32)
        episodes.append(single_turn(len(episodes), "t", group, prompt, ids(n), logp, 0, reward={"task": 1.0}, **fields))

    for g, size in enumerate((5, 3, 1)):
        prompt = np.concatenate([[1], ids(int(rng.integers(1, 12)))])
        for _ in range(size):
            add(f"g{g}", prompt, int(rng.integers(1, 9)))
    plain = np.concatenate([[1], ids(7)])
    for i in range(3):
        add("as", np.concatenate([plain, ids(2 + i)]), 4, train_as=plain)
        add("hint", np.concatenate([plain, [5, 6, 7]]), 3, prompt_source=np.array([0] * 8 + [Source.HINT] * 3, np.int8))
    episodes += [_two_sequences(len(episodes) + i, plain, ids) for i in range(2)]
    return episodes


def _two_sequences(uid: int, prompt: np.ndarray, ids: Callable[[int], np.ndarray]) -> Episode:
    """Two turns in one context, and a second context that begins like the first."""
    source = np.array([0] * len(prompt) + [1, 1, 1, 0, 0, 1, 1], np.int8)
    first = np.concatenate([prompt, ids(7)])
    second = np.concatenate([first[: len(prompt) + 3], ids(4)])
    n = len(prompt)

    def sequence(x: np.ndarray) -> Sequence:
        mine = source == Source.POLICY
        return Sequence(x, source, np.where(mine, -1, np.nan).astype(np.float32), np.where(mine, 0, -1).astype("i4"), n)

    turns = [Turn(n, n + 3, s) for s in (0, 1)] + [Turn(n + 5, n + 7, s) for s in (0, 1)]
    return Episode(uid, "t", "two", [sequence(first), sequence(second)], turns, {"task": 1.0})


NEEDS = (
    need("logp", when="step"),
    need("entropy", when="step", at="K"),
    need("entropy", when="step", at="M"),
    need("logp", when="step", view="as_sampled"),
    need("logp", when="step", view="without_hints"),
    need("entropy", when="step", view="as_sampled", at="M"),
    need("pool", when="step", at="S", last=3),
    need("pool", when="step", at="S", last=4, prompt=1),
    need("pool", when="step", at="S", last=2, layer=1),
)
VIEWS = ("as_sampled", "without_hints")


def slopes_of(batch: Batch, seed: int = 0) -> dict[str, torch.Tensor]:
    """A weight for every value of every need, so that a value on a wrong row shows."""
    generator = torch.Generator().manual_seed(seed)
    rows = {n: len(batch.views[n.view].ids_M) if n.at == "M" else batch.size(n.at) for n in NEEDS}
    width = {n: (32,) if n.readout == "pool" else () for n in NEEDS}
    return {n.column: torch.randn(rows[n], *width[n], generator=generator, dtype=torch.float64) for n in NEEDS}


def total_gradient(policy: TinyTransformer, micros: Iterable[Batch], slopes: dict[str, torch.Tensor]) -> torch.Tensor:
    policy.zero_grad()
    for micro in micros:
        now = serve(policy, micro, NEEDS, grad=True)
        sum((slopes[n.column][rows_of(micro, n)] * now[n.column]).sum() for n in NEEDS).backward()
    return torch.cat([p.grad.flatten() for p in policy.parameters()])


@settings(LAW, max_examples=4)
@given(seed=SEEDS, tokens=st.integers(10, 120))
def test_every_readout_and_its_gradient_is_that_of_the_copies_for_any_cut(make, seed, tokens):
    policy, episodes = make(), mixed_episodes(seed)
    copied, shared = (pack(episodes, views=VIEWS, dtype=torch.float64, share=s) for s in (NEVER, ANY))
    want = serve(policy, copied, NEEDS)
    pieces: dict[str, torch.Tensor] = {}
    for micro in micro_batches(shared, tokens):
        serve_into(pieces, policy, shared, micro, NEEDS)
    for got in (serve(policy, shared, NEEDS), pieces):
        for name, x in want.items():
            torch.testing.assert_close(got[name], x, rtol=0, atol=1e-11, msg=name)
    slopes = slopes_of(copied, seed)
    every = torch.arange(copied.size("S"))
    one = total_gradient(policy, [copied.micro(every)], slopes)
    order = torch.from_numpy(np.random.default_rng(seed).permutation(shared.size("S")))
    dealt = [shared.micro(rows) for rows in order.tensor_split(1 + tokens % 5) if len(rows)]
    for micros in ([shared.micro(every)], micro_batches(shared, tokens), dealt):
        assert far(one, total_gradient(policy, micros, slopes)) < 1e-9


def test_a_critic_and_a_second_role_share_too(make):
    policy, episodes = make(), mixed_episodes(1)
    critic, ref = Critic(policy).double(), make(seed=3)
    torch.nn.init.normal_(critic.value.weight)
    copied, shared = (pack(episodes, dtype=torch.float64, share=s) for s in (NEVER, ANY))
    values = [serve(critic, b, [need("value", when="step")], grad=True)["value_N"] for b in (copied, shared)]
    torch.testing.assert_close(*values, rtol=0, atol=1e-11)
    assert far(*(gradient(critic, v.square().sum()) for v in values)) < 1e-9
    kl = need("kl", against="ref", when="step")
    both = [serve(policy, b, [kl], grad=True, cast={"ref": ref})[kl.column] for b in (copied, shared)]
    torch.testing.assert_close(*both, rtol=0, atol=1e-11)


def test_the_same_batch_gives_the_same_gradient_to_the_bit(make):
    """Rows that are read by many add up in a fixed order, whatever the threads do."""
    policy, batch = make(torch.float32), pack(mixed_episodes(2), share=ANY)
    logp = need("logp", when="step")
    runs = [gradient(policy, serve(policy, batch, [logp], grad=True)["logp_N"].sum()) for _ in "ab"]
    assert torch.equal(*runs)


def test_sixteen_leaves_of_a_tree_are_a_third_of_their_copies():
    """By hand, a prompt of 44 and four forks for 16 tokens each: 44 + 16 (2 + 4 + 8 + 16) = 524 rows, not 16 · 108.

    benchmarks/prefix.py times this shape.
    """
    leaves = [np.arange(44)]
    for _ in range(4):
        leaves = [np.concatenate([x, [bit], np.arange(15)]) for x in leaves for bit in (50, 51)]
    whole, tree, row_M = tree_of(leaves)
    assert (len(whole.ids_M), len(tree.ids_M)) == (1728, 524)
    assert torch.equal(tree.ids_M[row_M], whole.ids_M)


def test_the_forward_computes_each_shared_row_once(make):
    policy, episodes = make(), mixed_episodes(4)
    seen: list[int] = []
    policy.model.embed_tokens.register_forward_hook(lambda m, a, y: seen.append(len(y)))
    for share in (NEVER, ANY):
        serve(policy, pack(episodes, share=share), [need("logp", when="step")])
    assert seen[1] == len({tuple(p) for p in prefixes(episodes)}) < seen[0] == len(prefixes(episodes))


def prefixes(episodes: list[Episode]) -> list[list[int]]:
    ids = [s.trained().ids.tolist() for e in episodes for s in e.sequences]
    return [x[: i + 1] for x in ids for i in range(len(x))]


# ---- planted mistakes


def _leaks_a_sibling(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dense line with a causal mask and nothing more: answers see the answers before them."""

    def causal(inputs: Inputs, context: int, dtype: torch.dtype, _: object) -> Layout:
        good = dense_of(inputs, context, 10**6, dtype)
        masks = [None if m is None else torch.triu(torch.full_like(m, float("-inf")), 1) for m in good.masks]
        return replace(good, masks=tuple(masks))

    monkeypatch.setattr(tinies, "layout_of", causal)


def _reads_a_siblings_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """The position of a branch in its path is counted from the last row of the line that it branches from."""
    monkeypatch.setattr(
        layouts.Lines, "path", lambda self, line, index: np.minimum(self.first[line] + index, self.first.max())
    )


def _sees_its_future(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layouts, "additive", lambda seen, dtype: torch.zeros_like(seen, dtype=dtype))


def _positions_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    good = Inputs.tree

    def restart(self: Inputs):
        tree, row_M = good(self)
        lines = lines_of(tree, 10**6)
        pos = torch.from_numpy(np.concatenate([np.arange(b - a) for a, b in pairwise([*lines.first, len(tree.ids_M)])]))
        return replace(tree, pos_M=pos), row_M

    monkeypatch.setattr(Inputs, "tree", restart)


def _drops_the_prompts_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys and values of shared rows as in a cache: used, not trained."""
    good = Layout.paths

    def cached(self: Layout, x_M: torch.Tensor) -> list[torch.Tensor]:
        return [y if m is None else y.detach() for y, m in zip(good(self, x_M), self.masks, strict=True)]

    monkeypatch.setattr(Layout, "paths", cached)


def _reads_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last position of a prompt predicts many first tokens, but is read by one of them with a gradient."""
    good = States.at

    def once(self: States, position: torch.Tensor, layer: int = -1) -> torch.Tensor:
        x = good(self, position, layer)
        rows = position if self.row_M is None else self.row_M[position]
        fresh = torch.tensor([r not in rows[:i] for i, r in enumerate(rows)])
        return torch.where(fresh[:, None], x, x.detach())

    monkeypatch.setattr(States, "at", once)


def _other_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    good = Inputs.tree

    def moved(self: Inputs):
        tree, row_M = good(self)
        return tree, None if row_M is None else row_M.roll(1)

    monkeypatch.setattr(Inputs, "tree", moved)


MISTAKES = {
    "a mask that leaks a sibling": _leaks_a_sibling,
    "a path through a sibling": _reads_a_siblings_path,
    "no mask": _sees_its_future,
    "positions that restart": _positions_restart,
    "the prompt's gradient dropped": _drops_the_prompts_gradient,
    "a shared row learned once": _reads_once,
    "rows of others": _other_rows,
}


def distance(policy: TinyTransformer, seed: int = 6) -> float:
    """How far the gradient with shared prefixes is from that of the copies."""
    episodes = mixed_episodes(seed)
    copied, shared = (pack(episodes, dtype=torch.float64, share=s) for s in (NEVER, ANY))
    now = [serve(policy, b, [need("logp", when="step")], grad=True)["logp_N"] for b in (copied, shared)]
    weight = torch.linspace(-1, 1, len(now[0]), dtype=torch.float64)
    return far(*(gradient(policy, (x * weight).sum()) for x in now))


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_planted_mistake_is_seen(make, monkeypatch, mistake):
    assert distance(make()) < 1e-9
    MISTAKES[mistake](monkeypatch)
    assert distance(make()) > 1e-3


@pytest.mark.parametrize("parent", [7, 6, 2])
def test_a_parent_that_stands_behind_or_in_another_tree_is_refused(make, parent):
    inputs = packed([np.arange(4), np.arange(9)])
    wrong = inputs.parent_M.clone()
    wrong[6] = parent
    with pytest.raises(ValueError, match=r"parent_M.*depth first"):
        make()(replace(inputs, parent_M=wrong))
