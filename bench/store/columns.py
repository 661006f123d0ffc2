"""The columns of records.parquet: name, type, unit and meaning, once.

The Parquet schema and `bench list columns` are made of them. Columns of what a loop notes are
declared on `decoders.api.Trace`. A change of a column's name, type or meaning raises
SCHEMA_VERSION; rows of another version are refused.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from decoders.api import TRACE_COLUMNS, TraceColumn

Row = dict[str, Any]  # a row of records.parquet, by the names of `ROW`
SCHEMA_VERSION = 10
MERGED = "records.parquet"  # the file of a run
LATENCY, BATCHED, QUALITY, RESEED = "latency", "batched", "quality", "reseed"  # the protocols

TYPES: dict[str, tuple[pa.DataType, Any]] = {  # by name: the type, and an empty cell
    "text": (pa.string(), ""),
    "int": (pa.int64(), 0),
    "float": (pa.float64(), math.nan),
    "bool": (pa.bool_(), False),
    "int16s": (pa.list_(pa.int16()), []),
    "int32s": (pa.list_(pa.int32()), []),
    "bytes": (pa.list_(pa.uint8()), []),
    "floats": (pa.list_(pa.float32()), []),
}


@dataclass(frozen=True)
class Column:
    """A column of a table. unit: "-" where it has none."""

    name: str
    type: str
    unit: str
    meaning: str

    @property
    def empty(self) -> Any:
        return TYPES[self.type][1]


def _columns(lines: str) -> tuple[Column, ...]:
    """Reads one column per line: name, type, unit, meaning."""
    return tuple(Column(*line.split(maxsplit=3)) for line in lines.splitlines()[1:])


def _of_trace(name: str, column: TraceColumn) -> Column:
    """The column of rows that a field of a trace becomes."""
    kind = {"uint8": "byte", "int32": "int", "float32": "float"}[f"{column.dtype}"[6:]]
    if not column.per_code:
        return Column(name, kind, column.unit, column.meaning)
    kind = {"byte": "bytes", "int": "int32s", "float": "floats"}[kind]
    return Column(name, kind, column.unit, f"per code: {column.meaning}")


ROW = (
    _columns("""
schema_version   int     -   version of this table
study            text    -   name of the study
protocol         text    -   latency, batched, quality, or reseed: the baseline under another seed
model            text    -   option of the group model
decoder          text    -   name of the decoder in the study
loop             text    -   its loop with its settings
drafter          text    -   its drafter or proposer with its settings
tree             text    -   its tree with its settings
acceptance       text    -   its rule or verifier with its settings
backend          text    -   option of the group backend
device           text    -   torch device
dtype            text    -   of weights and activations
temperature      float   -   sampling temperature; 0: greedy
cfg              float   -   classifier-free guidance scale
top_k            int     -   codes left to sample from; 0: all
top_p            float   -   probability left to sample from
prompt_index     int     -   index of the prompt in its set
prompt_id        text    -   name of the prompt in its set
prompt           text    -   the prompt
category         text    -   its category, where its set has them
seed             int     -   of the noise, together with the prompt
batch            int     images  decoded at once
block            int     -   block of prompts that were timed at one moment
status           text    -   ok or failed
error            text    -   what the decoder raised
seconds_text     float   s   text encoder
seconds_prefill  float   s   prefill
seconds_draft    float   s   drafting
seconds_forward  float   s   target forwards
seconds_accept   float   s   acceptance, commit and bookkeeping
seconds_vq       float   s   from codes to pixels
seconds_total    float   s   prefill and decoding of the call
seconds_batch    float   s   the same of a call that is not timed
mal              float   codes  committed per target forward
mal_no_bonus     float   drafts  accepted per target forward
cpu_own          float   -   processor seconds of this process per second
cpu_others       float   -   share of the cores that other processes took
cpu_steal        float   -   share of the cores that the hypervisor took
disturbed        bool    -   whether others took more than latency.busy, or the card was slowed
gpu_clock        float   MHz  of the card's multiprocessors at the end of the call
gpu_limits       text    -   what held that clock down
gpu_use          float   -   share of the time in which the card was busy
gpu_others       float   -   share of the card that other processes took
idle             float   -   share of row-steps without an image left to decode
nfe              int     -   target forwards
tree_depth       int     -   depth of the draft tree
tree_nodes       int     -   nodes of the draft tree
accepted         int16s  drafts  accepted, per step
""")
    + tuple(_of_trace(*named) for named in TRACE_COLUMNS.items())
    + _columns("""
codes            int32s  -   the codes of the image
tv_output        floats  -   per recorded pair: TV of the rule's output from p
tv_declared_bound  floats  -  per recorded pair: what the rule declares, over all children
tv_output_bound  floats  -   per recorded pair: what its acceptance allows (decoders.md, lemma R)
alpha            floats  -   per recorded pair: what the exact rule accepts of its first child
target_mass      floats  -   of its n likeliest codes, n of metrics.ambiguity.RANKS, mean
target_entropy   float   bits  of the target at recorded pairs, mean
drafter_mass     floats  -   the same of the drafter; none where it draws none
drafter_entropy  float   bits  of the drafter at recorded pairs, mean
path             text    -   how each phase was executed
image            text    -   path of the picture in the run's folder
image_hash       text    -   start of the SHA-256 of the picture's file
peak_memory_mb   float   MB  most memory during the call; with CUDA graphs that which is reserved
git_commit       text    -   commit of the project
git_dirty        bool    -   whether there were uncommitted changes
code             text    -   digest of the code and weights that decoded it
versions         text    -   versions of packages, as JSON
cpu              text    -   processor
gpu              text    -   graphics card
threads          int     -   threads of torch
config_hash      text    -   digest of the settings that decide what rows hold
started_at       text    UTC  start of the call
""")
)
LACKING_IN_OLDER_ROWS = {  # read as empty
    *("depth", "alpha", "target_mass", "target_entropy", "drafter_mass", "drafter_entropy"),
    *(name for name, column in TRACE_COLUMNS.items() if column.optional),
    *("gpu_clock", "gpu_limits", "gpu_use", "gpu_others"),
}
LISTS = tuple(column.name for column in ROW if pa.types.is_list(TYPES[column.type][0]))
SCHEMA = pa.schema([(column.name, TYPES[column.type][0]) for column in ROW])
_NAMES = [column.name for column in ROW]
EMPTY = {  # what is measured of an image, as in a row where nothing was
    column.name: column.empty
    for column in ROW[_NAMES.index("seconds_text") : _NAMES.index("git_commit")]
}
