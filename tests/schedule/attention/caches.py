"""Problems of TVM's paged KV cache, drawn at random, and their results in float64."""

from dataclasses import dataclass, field

import ml_dtypes
import numpy as np
from tvm.target import Target

from tvm_hopper.relax.cache_kernels import unwrapped
from tvm_hopper.schedule import AttentionConfig, paged_attention

PAGE = 16
SCALE = 0.2
NO_KEY = -5e4
ROPE = {"rope_type": "gptj"}
TARGET = Target("nvidia/nvidia-h200", host="llvm")


@dataclass(frozen=True)
class Cache:
    """Sequences by their numbers of queries and keys; decoding has one query each.

    `windows` are (start, sink) of sliding windows: keys between them are hidden, and length is that
    of the whole sequence. `window_size` is what TVM's kernel of a prefill has of them. `shared`
    lets the second sequence begin with the first one's pages. Pools of `page` keys a page.
    """

    keys: tuple
    queries: tuple | None = None
    heads: int = 2
    kv_heads: int = 1
    d: int = 32
    dtype: str = "float16"
    causal: int = 1
    windows: tuple | None = None
    window_size: int = 1024
    page: int = 16
    shared: bool = False
    seed: int = 0
    config: dict = field(default_factory=dict)


def tvm_kernel(case, ragged=False):
    """Return TVM's function of a case."""
    shape = case.kv_heads, case.heads, case.d
    if ragged:
        make = unwrapped("_attention_prefill_ragged")
        return make(*shape, case.d, case.dtype, ROPE, TARGET)
    make = unwrapped("_attention_prefill" if case.queries else "_attention_decode")
    named = {"page_size": case.page}
    if case.queries:
        named["sliding_window_size"] = case.window_size
    return make(*shape, case.dtype, case.windows is not None, ROPE, TARGET, **named)


def our_kernel(case, ragged=False, **config):
    given = AttentionConfig(**{**case.config, **config})
    return paged_attention(tvm_kernel(case, ragged), "tvm_s", given)


def _drawn(case, *shape):
    rng = np.random.default_rng((case.seed, *shape))
    return rng.standard_normal(shape).astype("float16").astype("float32")


def _as(case, array):
    return array.astype(ml_dtypes.bfloat16 if case.dtype == "bfloat16" else case.dtype)


def _offsets(counts):
    return np.concatenate([[0], np.cumsum(counts)]).astype("int32")


def _ends(case, rows):
    outputs = {
        "output": _as(case, np.full((rows, case.heads, case.d), np.nan)),
        "lse": np.full((rows, case.heads), np.nan, "float32"),
    }
    numbers = {"rope_scale": 1.0, "rope_theta": 1e4, "sm_scale": SCALE, "rotary_mode": 0}
    return {**outputs, **numbers}


def ragged_arguments(case):
    """Return the ragged kernel's arguments by name, and each sequence's queries, keys, values."""
    rows, total = sum(case.queries), sum(case.keys)
    q = _as(case, _drawn(case, rows, case.heads, case.d))
    k = _as(case, _drawn(case, total, case.kv_heads, case.d))
    v = _as(case, _drawn(case, total, case.kv_heads, case.d, 1)[..., 0])
    q_indptr, kv_indptr = _offsets(case.queries), _offsets(case.keys)
    given = {
        "q": q, "q_indptr": q_indptr, "k": k, "v": v, "kv_indptr": kv_indptr,
        "q_rope_position": np.zeros(rows, "int32"),
        "k_rope_pos_offset": np.zeros(len(case.keys), "int32"),
        "causal": case.causal, **_ends(case, rows),
    }  # fmt: skip
    parts = [
        (q[a:b], k[c:e], v[c:e])
        for a, b, c, e in zip(q_indptr, q_indptr[1:], kv_indptr, kv_indptr[1:], strict=False)
    ]
    return given, parts


def paged_arguments(case):
    """Return the arguments of a paged kernel by name, and (queries, keys, values) by sequence.

    Pages lie in any order, some belong to nobody, and what no key fills is NaN.
    """
    counts = [-(-n // case.page) for n in case.keys]
    rng = np.random.default_rng(case.seed)
    total = sum(counts)
    table = rng.permutation(total + 3)[:total].astype("int32")
    starts = _offsets(counts)
    if case.shared:
        both = min(counts[0], counts[1] - 1)
        table[starts[1] : starts[1] + both] = table[:both]
    pages = _as(case, np.full((total + 3, 2, case.kv_heads, case.page, case.d), np.nan))
    drawn = _as(case, _drawn(case, sum(case.keys), 2, case.kv_heads, case.d))
    sequences, first = [], 0
    for n, start in zip(case.keys, starts, strict=False):
        for j in range(n):
            pages[table[start + j // case.page], :, :, j % case.page] = drawn[first + j]
        first += n
    for n, start in zip(case.keys, starts, strict=False):  # of shared pages the last one's
        places = [(table[start + j // case.page], j % case.page) for j in range(n)]
        sequences.append(np.array([pages[p, :, :, r] for p, r in places]).reshape(
            n, 2, case.kv_heads, case.d
        ))  # fmt: skip
    last = np.array([(n - 1) % case.page + 1 if n else 0 for n in case.keys], "int32")
    lengths = last
    if case.windows is not None:
        lengths = np.stack([last, *np.array(case.windows, "int32").T]).astype("int32")
        sequences = [
            np.concatenate([x[:sink], x[start:]])
            for x, (start, sink) in zip(sequences, case.windows, strict=True)
        ]
    queries = case.queries or (1,) * len(case.keys)
    rows, q_indptr = sum(queries), _offsets(queries)
    q = _as(case, _drawn(case, rows, case.heads, case.d))
    names = ("page_indptr", "page_values") if case.queries else (
        "page_table_indptr", "page_table_values",
    )  # fmt: skip
    given = {
        "q" if case.queries else "Q": q,
        "pages": pages,
        names[0]: starts,
        names[1]: table,
        "length_info": lengths,
        "k_rope_pos_offset": np.zeros(len(case.keys), "int32"),
        "q_rope_position": np.zeros(rows, "int32"),
        **_ends(case, rows),
    }
    if case.queries:
        given |= {"q_indptr": q_indptr, "causal": case.causal}
    parts = [
        (q[a:b], x[:, 0], x[:, 1])
        for a, b, x in zip(q_indptr, q_indptr[1:], sequences, strict=False)
    ]
    return given, parts


def seen_keys(case, rows, keys):
    """Return which keys each row sees."""
    row, key = np.arange(rows)[:, None], np.arange(keys)
    if not case.queries or not case.causal:
        return np.ones((rows, keys), bool)
    if case.windows is not None and case.window_size:
        return keys - np.maximum(case.window_size - row - 1, 0) <= key
    return key <= keys - rows + row


def reference(case, parts):
    """Return the output and the log-sum-exp in float64, of all sequences after each other."""
    outputs, sums = [], []
    for q, k, v in parts:
        q, k, v = (x.astype("float64").swapaxes(0, 1) for x in (q, k, v))
        k, v = (np.repeat(x, case.heads // case.kv_heads, 0) for x in (k, v))
        score = q @ k.swapaxes(1, 2) * SCALE * np.log2(np.e)
        score = np.where(seen_keys(case, *score.shape[1:]), score, -np.inf)
        top = np.maximum(score.max(2, keepdims=True, initial=NO_KEY), NO_KEY)
        weights = np.exp2(score - top)
        total = weights.sum(2, keepdims=True)
        is_empty = total == 0
        outputs.append((weights @ v / np.where(is_empty, 1, total)).swapaxes(0, 1))
        total = np.where(is_empty, 1, total)
        sums.append((top + np.log2(total))[..., 0].T)
    return np.concatenate(outputs), np.concatenate(sums)
