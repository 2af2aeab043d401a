"""`lab.garbled`: the world goes on as before, and only what is seen of it is another text, always the same one."""

from gruppo.envs import make_env
from gruppo.lab.garbled import known_words, lake

WAY = ("up", "down", "left", "right", "up", "down")


def seen(tasks: object, share: float) -> list[tuple[str, str, bool]]:
    task = tasks.train[3]  # type: ignore[attr-defined]
    assert task.meta["share"] == share
    env = make_env(task.meta["env"])
    out = [env.reset(task)]
    for action in WAY:
        if not out[-1].done:
            out.append(env.step(action))
    return [(s.text, s.state, s.done) for s in out]


def test_only_the_text_is_another_one() -> None:
    plain, all_garbled = seen(lake(share=0.0), 0.0), seen(lake(share=1.0), 1.0)
    assert [s[1:] for s in plain] == [s[1:] for s in all_garbled] and len(plain) > 2
    assert plain[0] == all_garbled[0]  # where it begins is seen as it is
    for (text, _, done), (other, _, _) in zip(plain[1:], all_garbled[1:], strict=True):
        assert (other == text) == done
        assert done or set(other.split()) <= set(known_words())
    assert seen(lake(share=1.0), 1.0) == all_garbled


def test_so_many_are_garbled_and_none_that_is_held_out() -> None:
    tasks, count = lake(share=0.5), 0
    for i in range(100):
        env = make_env(tasks.train[i].meta["env"])
        env.reset(tasks.train[i])
        seen = env.step("up")
        count += seen.text not in ("you lose", "you win") and not seen.text.startswith("at ")
    assert 30 < count < 60
    assert all(tasks.held_out[i].meta["env"] == "lake" for i in range(20))
