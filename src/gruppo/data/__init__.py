"""Episodes, batches, keys and segment operations. Imports nothing else of the package."""

from gruppo.data.batch import Batch, Inputs, Level, Ragged
from gruppo.data.episode import Episode, Note, Sequence, Source, Status, ToolCall, Turn, Use, single_turn
from gruppo.data.keyed import key_hash, name_hash, permutation, uniform
from gruppo.data.pack import VIEWS, micro_batches, minibatches, pack
from gruppo.data.segment import Key, centre, gather, key_of, lag, scan

__all__ = [
    "VIEWS",
    "Batch",
    "Episode",
    "Inputs",
    "Key",
    "Level",
    "Note",
    "Ragged",
    "Sequence",
    "Source",
    "Status",
    "ToolCall",
    "Turn",
    "Use",
    "centre",
    "gather",
    "key_hash",
    "key_of",
    "lag",
    "micro_batches",
    "minibatches",
    "name_hash",
    "pack",
    "permutation",
    "scan",
    "single_turn",
    "uniform",
]
