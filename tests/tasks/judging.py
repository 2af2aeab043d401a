"""Scorers that misbehave as a text says, and what is asked of a judge of them."""

import asyncio
import os
import sys
import time
from pathlib import Path

from gruppo.tasks import Task
from gruppo.tasks.judge import Judge, Verdict

SCORERS = '''
import ctypes, os, subprocess, sys, time

def one(task, text):
    """What the text says is what happens."""
    if text == "raise": raise RuntimeError("no such unit")
    if text == "exit": sys.exit(3)
    if text == "die": os._exit(7)
    if text == "crash": ctypes.string_at(0)
    if text == "hang": time.sleep(600)
    if text == "spin":
        while True: pass
    if text == "child":
        subprocess.Popen(["sleep", "601"]); time.sleep(600)
    if text == "noise":
        print("[\\"one\\", [{}, \\"ok\\", \\"\\"]]"); sys.stdout.flush()
        os.system("echo shell"); os.write(1, b"raw\\n")
    if text == "input":
        try: input()
        except EOFError: return 0.25
    if text == "closed": os.close(1)
    if text == "garble":
        for fd in range(3, 30):
            try: os.write(fd, b"junk\\n")
            except OSError: pass
    if text == "pid": return os.getpid()
    if text.startswith("="): return eval(text[1:])
    return float(text == task.answer)

def batch(tasks, texts):
    print("noise")
    if "hang" in texts: time.sleep(600)
    if "raise" in texts: raise KeyError("all of it")
    if "die" in texts: os._exit(1)
    if "short" in texts: return [1.0]
    if "dict" in texts: return {"a": 1}
    return (eval(x[1:]) if x.startswith("=") else {"task": 1.0, "length": len(x)} for x in texts)

def wrong_names(task, texts): return 1
def one_argument(task): return 1
def three(task, text, more): return 1
def optional(task, text, scale=2.0): return scale
number = 3

class Callable:
    def __call__(self, task, text): return 0.5
instance = Callable()
'''

TASK = Task("t", "1+1=", "2", 1, "addition", meta={"numbers": [1, 1]})


def score(judge: Judge, *texts: str) -> list[Verdict]:
    return asyncio.run(judge.score([(TASK, text) for text in texts]))


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z" if sys.platform == "linux" else True


def until(condition, seconds: float = 60.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return bool(condition())


RIGHT, WRONG = Verdict({"task": 1.0}), Verdict({"task": 0.0})
