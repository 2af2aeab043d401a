"""The plain twins against the definitions: what kernels are compared with must itself be right."""

import pytest
import torch
import torch.nn.functional as F
from kernel_cases import SHAPES, attention_case, close, logits_case

from gruppo.engines.base import Request
from gruppo.engines.sampling import draw, noise, settings_of
from gruppo.kernels.attention import MOST_PARTS, PAGE, PROGRAMS, attend, shares_plain
from gruppo.kernels.draw import advance, draw_token
from gruppo.kernels.logprob import logprob
from gruppo.kernels.norm import add_norm
from gruppo.kernels.rope import turn
from gruppo.kernels.swiglu import silu_times, swiglu
from gruppo.kernels.thin import add_linear, norm_linear, norm_swiglu


@pytest.mark.parametrize("shape", SHAPES)
def test_attention_is_that_of_the_whole_row(shape: tuple[int, ...]) -> None:
    """Rows of random length in scattered pages, against plain attention over the last position of a whole row."""
    case = attention_case(shape, torch.float64, "cpu")
    h, rope, pos_B, table_BP = case["h"], case["rope"], case["pos_B"], case["table_BP"]
    before = case["keys"].clone()
    y_BX = attend(**case)
    x = case["qkv_BX"].view(len(pos_B), -1, h.dim)
    q, k, v = x.split([h.heads, h.kv_heads, h.kv_heads], 1)
    if case["norms"] is not None:
        q, k = (F.rms_norm(y, (h.dim,), w, h.eps) for y, w in zip((q, k), case["norms"], strict=True))
    q, k = (turn(y, rope.cos[pos_B][:, None], rope.sin[pos_B][:, None]) for y in (q, k))
    for b, at in enumerate(pos_B.tolist()):
        where = [(int(table_BP[b, p // PAGE]), p % PAGE) for p in range(at)]
        keys = torch.stack([before[page, :, cell] for page, cell in where] + [k[b]], 1)
        values = torch.stack([case["values"][page, :, cell] for page, cell in where] + [v[b]], 1)
        wanted = F.scaled_dot_product_attention(q[b][:, None], keys, values, enable_gqa=True)
        close(y_BX[b].view(h.heads, -1), wanted[:, 0], 1e-5)  # it computes in float32
        close(case["keys"][table_BP[b, at // PAGE].long(), :, at % PAGE], k[b], 1e-5)


def test_nothing_but_the_new_cells_is_written() -> None:
    case = attention_case(SHAPES[0], torch.float32, "cpu")
    before = case["keys"].clone()
    attend(**case)
    changed = (before.nan_to_num(7.0) != case["keys"].nan_to_num(7.0)).any(-1).any(1)
    assert int(changed.sum()) == len(case["pos_B"])


@pytest.mark.parametrize("kv_heads", [1, 2, 8, 32])
@pytest.mark.parametrize(("rows", "longest"), [(1, 2000), (3, 300), (64, 2048), (256, 2048), (512, 100), (1024, 3000)])
def test_every_page_of_a_row_is_read_by_one_program(rows: int, longest: int, kv_heads: int) -> None:
    pos_B = torch.randint(0, longest, (rows,), generator=torch.Generator().manual_seed(rows))
    found = shares_plain(pos_B, kv_heads)
    assert len(found) == rows + PROGRAMS // kv_heads and (found[found < 0] == -1).all()
    found = found[found >= 0]
    row, part, parts = found // 256, found // 16 % 16, found % 16
    pages_B = (-(-pos_B // PAGE)).clamp(min=1)
    each = -(-pages_B[row] // parts)
    read = (torch.minimum((part + 1) * each, pages_B[row]) - part * each).clamp(min=0)
    assert (read > 0).all() and int(parts.max()) <= MOST_PARTS
    assert torch.equal(torch.zeros(rows, dtype=read.dtype).index_add(0, row.long(), read), pages_B)
    if int(parts.max()) < MOST_PARTS:  # no program has much more than the others
        assert int(read.max()) <= -(-int(pages_B.sum()) // max(PROGRAMS // kv_heads, 1))


def test_rows_of_one_length_are_not_shared_if_they_fill_the_gpu() -> None:
    assert (shares_plain(torch.full((256,), 2000), 2)[:256] % 256 == 1).all()


def test_the_draw_is_that_of_the_engine() -> None:
    case = logits_case(64, 5000, "cpu")
    keys, heat = case["key_B"].tolist(), case["heat_B"].tolist()
    prefix = torch.zeros(1, dtype=torch.int64).numpy()
    asked = [Request(prefix, 1, key, temperature=t) for key, t in zip(keys, heat, strict=True)]
    settings = settings_of(asked, (), torch.device("cpu"))
    wanted = draw(case["logits_BV"], settings, noise(settings, case["pos_B"]))
    token_B, logp_B, lost_B = draw_token(**case)
    assert torch.equal(token_B, wanted.token_B) and not lost_B.any()
    close(logp_B, wanted.logp_B, 1e-6)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_logits_without_a_distribution_are_lost(bad: float) -> None:
    case = logits_case(3, 5000, "cpu")
    case["logits_BV"][1] = bad
    assert draw_token(**case)[2].tolist() == [False, True, False]


def test_advance() -> None:
    state, count = torch.tensor([[5, 6, 7], [10, 11, 12], [1, 2, 3]]), torch.tensor([0, 1, 0])
    out = torch.zeros(3, 5, dtype=torch.float64)
    advance(torch.tensor([8, 9]), torch.tensor([-0.5, -1.0]), torch.tensor([False, True]), state, count, out, 11)
    assert state.tolist() == [[8, 9, 7], [11, 11, 12], [1, 2, 3]]  # the last position is not left
    assert count.tolist() == [1, 2, 0]
    assert out.tolist() == [[8, 0, -0.5, 0, 0], [0, 9, 0, -1, 1], [0, 0, 0, 0, 0]]


def test_norms_and_products() -> None:
    x, y, w = torch.randn(5, 96).double(), torch.randn(5, 96).double(), torch.rand(96).double()
    total, normed = add_norm(x.clone(), y, w, 1e-6)
    close(total, x + y, 1e-12)
    close(normed, (x + y) / ((x + y).square().mean(-1, keepdim=True) + 1e-6).sqrt() * w, 1e-12)
    close(add_norm(x.clone(), None, w, 1e-6)[0], x, 0.0)
    close(swiglu(torch.cat([x, y], -1)), x * torch.sigmoid(x) * y, 1e-12)
    close(silu_times(x, y), x * torch.sigmoid(x) * y, 1e-12)


def test_layers_of_few_rows() -> None:
    x, norm, w, b = (torch.randn(s, dtype=torch.float64) for s in ((2, 6), (6,), (4, 6), (4,)))
    h = x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * norm
    close(norm_linear(x, norm, 1e-6, w, b), h @ w.T + b, 1e-12)
    gate, up = h @ w[:2].T, h @ w[2:].T
    close(norm_swiglu(x, norm, 1e-6, w), gate * torch.sigmoid(gate) * up, 1e-12)
    y, before = b.expand(2, 4).clone(), x.clone()
    close(add_linear(y, x, w, b), b + before @ w.T + b, 1e-12)
    close(y, b + before @ w.T + b, 1e-12)  # in place


def test_log_probabilities_and_entropies() -> None:
    hidden, weight = torch.randn(6, 8, dtype=torch.float64), torch.randn(50, 8, dtype=torch.float64)
    token, heat = torch.randint(0, 50, (6,)), torch.rand(6, dtype=torch.float64) + 0.5
    logp, entropy = logprob(hidden, weight, token, heat)
    p = torch.softmax(hidden @ weight.T / heat[:, None], -1)
    close(logp, p[torch.arange(6), token].log(), 1e-9)
    close(entropy, -(p * p.log()).sum(-1), 1e-9)
