"""Sampling: the protocol of an engine, and the one that runs in the trainer's process."""

from gruppo.engines.base import Completion, Engine, Request, complete
from gruppo.engines.config import EngineConfig, engine_of
from gruppo.engines.native import NativeEngine

__all__ = ["Completion", "Engine", "EngineConfig", "NativeEngine", "Request", "complete", "engine_of"]
