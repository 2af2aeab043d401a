"""Pitfall 1: "decode → re-encode". Rule: "train on the sampled ids".

If the bug came back, the batch would hold the ids of a text that was encoded again: a <bos> or <eos> that the policy
sampled would be missing or moved, and the trainer's log-probabilities would not be the sampler's.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_runs import batch_of, drawn, in_world, running

from gruppo.data import Episode, Source, pack
from gruppo.engines.native import NativeEngine
from gruppo.policies import CharTokenizer
from gruppo.stages import need
from gruppo.train.forward import serve


def sampled(e: Episode) -> np.ndarray:
    s = e.sequences[0]
    return s.ids[s.source == Source.POLICY]


def encoded_again(e: Episode) -> Episode:
    """The bug: ids from the text, columns cut or filled to fit."""
    s, n = e.sequences[0], len(sampled(e))
    ids = np.concatenate([CharTokenizer().encode(e.text), np.full(n, CharTokenizer.eos)])[:n]
    return replace(e, sequences=[replace(s, ids=np.concatenate([s.ids[: s.prompt_len], ids]))])


def gap(run: Any, episodes: list[Episode]) -> float:
    """The largest |log π of the trainer − log π of the sampler|."""
    batch = pack(episodes)
    now = serve(run.models["policy"], batch, [need("logp", "old")])["logp_old_N"]
    return float((now - batch.logp_gen_N).abs().max())


def test_the_batch_holds_the_ids_that_the_engine_sampled(policy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers: dict[int, Any] = {}

    async def listening(engine: Any, requests: Any) -> Any:
        async for i, completion in generate(engine, requests):
            answers[i] = completion
            yield i, completion

    generate = NativeEngine.generate
    monkeypatch.setattr(NativeEngine, "generate", listening)
    with running(policy) as run:
        episodes = drawn(run)
        assert list(answers) != sorted(answers)  # they end in another order, so the order is put right somewhere
        batch = batch_of(run, episodes)
        assert torch.equal(batch.token_N, torch.from_numpy(np.concatenate([answers[i].ids for i in sorted(answers)])))
        assert gap(run, episodes) < 1e-4

        other = [e for e in episodes if not np.array_equal(sampled(e), sampled(encoded_again(e)))]
        assert len(other) > 5  # answers with a <bos> or <eos> in them: the two ways differ
        assert gap(run, [encoded_again(e) for e in other]) > 0.1


def test_a_special_in_the_middle_does_not_survive_text() -> None:
    tokenizer, ids = CharTokenizer(), np.array([30, CharTokenizer.bos, 31, CharTokenizer.eos])
    assert not np.array_equal(tokenizer.encode(tokenizer.decode(ids)), ids)


def test_ids_of_another_length_are_refused(policy: Path) -> None:
    with running(policy) as run:
        e = next(e for e in drawn(run) if len(e.text) < e.tokens)
    s = e.sequences[0]
    with pytest.raises(ValueError, match="misaligned"):
        replace(s, ids=np.concatenate([s.ids[: s.prompt_len], CharTokenizer().encode(e.text)]))


def test_in_a_world_each_turn_goes_on_from_the_ids_of_the_last(
    policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prompt begins with the previous prompt and completion, and the batch holds the completions."""
    heard: dict[tuple[int, ...], Any] = {}
    ask = NativeEngine.ask

    async def listening(engine: Any, request: Any) -> Any:
        completion = await ask(engine, request)
        heard[(request.key, *request.prefix.tolist())] = completion
        return completion

    monkeypatch.setattr(NativeEngine, "ask", listening)
    with running(policy, task=in_world(tmp_path)) as run:
        episodes = drawn(run)
        tokens: list[int] = []
        for e in episodes:
            [s], before = e.sequences, 0
            for t in e.turns:
                said = heard.pop((e.uid, *s.ids[: t.start].tolist())).ids
                assert s.ids[t.start : t.stop].tolist() == said.tolist() and t.start > before
                tokens, before = [*tokens, *said.tolist()], t.stop
        assert not heard and len(episodes[0].turns) == 3
        assert batch_of(run, episodes).token_N.tolist() == tokens
        assert gap(run, episodes) < 1e-4

        wrong = [replace(e, sequences=[replace(e.sequences[0], ids=again(e))]) for e in episodes]  # the bug
        assert gap(run, wrong) > 0.1


def again(e: Episode) -> np.ndarray:
    """The text of each action, encoded, cut or filled to fit."""
    ids = e.sequences[0].ids.copy()
    for t in e.turns:
        n = t.stop - t.start
        ids[t.start : t.stop] = np.concatenate([CharTokenizer().encode(t.text), np.full(n, CharTokenizer.eos)])[:n]
    return ids
