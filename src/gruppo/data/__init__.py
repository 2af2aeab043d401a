"""Episodes, batches, keys and segment operations. Imports nothing else of the package."""

from gruppo.data.batch import Batch, Level
from gruppo.data.episode import Episode, Note, Sequence, Source, Status, ToolCall, Turn, Use, single_turn
from gruppo.data.growing import Growing, in_steps, nodes_of, tokens_once
from gruppo.data.inputs import Inputs, Ragged
from gruppo.data.keyed import key_hash, name_hash, permutation, uniform
from gruppo.data.pack import micro_batches, micro_rows, minibatches, pack
from gruppo.data.pairs import Pairs
from gruppo.data.segment import Key, centre, gather, key_of, lag, scan
from gruppo.data.views import VIEWS

__all__ = [
    "VIEWS",
    "Batch",
    "Episode",
    "Growing",
    "Inputs",
    "Key",
    "Level",
    "Note",
    "Pairs",
    "Ragged",
    "Sequence",
    "Source",
    "Status",
    "ToolCall",
    "Turn",
    "Use",
    "centre",
    "gather",
    "in_steps",
    "key_hash",
    "key_of",
    "lag",
    "micro_batches",
    "micro_rows",
    "minibatches",
    "name_hash",
    "nodes_of",
    "pack",
    "permutation",
    "scan",
    "single_turn",
    "tokens_once",
    "uniform",
]
