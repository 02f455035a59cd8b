"""Instructions that need more than sm_80, as rows of TVM's PTX table.

What no rule names runs on sm_80 already, or on later chips than Hopper alone.

Source: PTX ISA 9.1, "Target ISA Notes" of each instruction. ptxas 13.0 takes each example for the
arch of its rule and refuses it for the ones before (tests/facts/test_instruction_archs.py).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from .arch import Arch

_BF16 = frozenset({"bf16", "bf16x2"})
_PAIRS = frozenset({"s16x2", "u16x2"})
_NUMBERS = frozenset({"s8", "u8", "s16", "u16", "s32", "u32", "s64", "u64", "f64", "f16"})
_FLOAT8 = frozenset({"e4m3", "e5m2"})


@dataclass(frozen=True)
class ArchRule:
    """Forms of instructions that one arch has first.

    Attributes
    ----------
    arch
        As nvcc names it; with a letter at the end, it alone has them.
    rows
        Names of rows, or, with `*`, how they begin.
    tokens
        Of each set one modifier must be there.
    example
        PTX, over the registers `d`, `g` (64 bits), `r`, `s` (32), `h` (16), `f` and `p`.
    """

    arch: str
    rows: tuple[str, ...]
    tokens: tuple[frozenset[str], ...]
    example: str

    def holds(self, row: str, modifiers: Collection[str]) -> bool:
        """Tell whether an instruction is of this rule."""
        named = any(row.startswith(n[:-1]) if n.endswith("*") else row == n for n in self.rows)
        return named and all(not some.isdisjoint(modifiers) for some in self.tokens)


def _rule(arch: str, rows: str, example: str, *tokens: Collection[str]) -> ArchRule:
    return ArchRule(arch, tuple(rows.split()), tuple(map(frozenset, tokens)), example)


RULES = (
    _rule("sm_90a", "wgmma_*", "wgmma.fence.sync.aligned;"),
    _rule("sm_90a", "setmaxnreg", "setmaxnreg.inc.sync.aligned.u32 40;"),
    _rule("sm_90", "cp_async_bulk_*", "cp.async.bulk.commit_group;"),
    _rule(
        "sm_90",
        "cp_reduce_async_bulk_*",
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [g], [s], 16;",
    ),
    _rule("sm_90", "barrier_cluster_*", "barrier.cluster.arrive;"),
    _rule("sm_90", "mapa*", "mapa.shared::cluster.u32 r, s, 0;"),
    _rule("sm_90", "getctarank*", "getctarank.shared::cluster.u32 r, s;"),
    _rule("sm_90", "elect_sync", "elect.sync r|p, -1;"),
    _rule("sm_90", "stmatrix", "stmatrix.sync.aligned.m8n8.x1.shared.b16 [s], {r};"),
    _rule("sm_90", "griddepcontrol", "griddepcontrol.wait;"),
    _rule(
        "sm_90",
        "st_async* red_async*",
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [s], r, [s];",
    ),
    _rule("sm_90", "mbarrier_try_wait*", "mbarrier.try_wait.parity.shared.b64 p, [s], 0;"),
    _rule("sm_90", "mbarrier_expect_tx", "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [s], 16;"),
    _rule(
        "sm_90",
        "mbarrier_complete_tx",
        "mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [s], 16;",
    ),
    _rule(
        "sm_90",
        "mbarrier_arrive_expect_tx* mbarrier_arrive_drop_expect_tx*",
        "mbarrier.arrive.expect_tx.shared.b64 _, [s], 16;",
    ),
    # with a count, but without .noComplete
    _rule(
        "sm_90",
        "mbarrier_arrive mbarrier_arrive_state mbarrier_arrive_drop mbarrier_arrive_drop_state "
        "mbarrier_arrive_count_state mbarrier_arrive_drop_count_state",
        "mbarrier.arrive.shared.b64 d, [s], 2;",
    ),
    _rule(
        "sm_90",
        "mbarrier_arrive*",
        "mbarrier.arrive.relaxed.cta.shared::cta.b64 _, [s];",
        {"relaxed"},
    ),
    _rule("sm_90", "fence_mbarrier_init", "fence.mbarrier_init.release.cluster;"),
    _rule("sm_90", "fence_proxy", "fence.proxy.async;", {"async"}),
    _rule(
        "sm_90",
        "fence_proxy_tensormap*",
        "fence.proxy.tensormap::generic.release.gpu;",
    ),
    _rule("sm_90a", "tensormap_replace*", "tensormap.replace.tile.rank.global.b1024.b32 [g], r;"),
    _rule(
        "sm_90",
        "tensormap_cp_fenceproxy",
        "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned "
        "[g], [s], 128;",
    ),
    _rule("sm_90", "*", "ld.acquire.cluster.global.u32 r, [g];", {"cluster"}),
    _rule("sm_90", "*", "isspacep.shared::cluster p, g;", {"shared::cluster"}),
    _rule("sm_90", "prefetch", "prefetch.tensormap [g];", {"tensormap"}),
    _rule("sm_90", "atom_vec* red_vec*", "red.global.add.v2.f32 [g], {f, f};"),
    _rule("sm_90", "atom_half* red_half", "red.global.add.noftz.bf16 [g], h;", _BF16),
    _rule("sm_90", "atom_*", ".reg .b128 q; atom.global.exch.b128 q, [g], q;", {"b128"}),
    _rule("sm_90", "add_half sub_half mul_half", "add.bf16 h, h, h;", _BF16),
    _rule("sm_90", "tanh_half ex2_half", "tanh.approx.bf16 h, h;", _BF16),
    _rule("sm_90", "set_half* setp_half*", "setp.eq.bf16 p, h, h;", _BF16),
    _rule("sm_90", "add_int", "add.s16x2 r, r, r;", _PAIRS),
    _rule("sm_90", "min max", "min.s16x2 r, r, r;", _PAIRS),
    _rule("sm_90", "min max", "min.relu.s32 r, r, r;", {"relu"}, {"s32"}),
    _rule("sm_90", "fma_half", "fma.rn.oob.f16 h, h, h, h;", {"oob"}),
    _rule("sm_90", "cvt", "cvt.rn.bf16.s32 h, r;", {"bf16"}, _NUMBERS),
    _rule("sm_90", "cvt_tf32_f32", "cvt.rn.tf32.f32 r, f;", {"rn", "rz"}),
    _rule("sm_89", "cvt_f8x2_* cvt_f16x2_f8x2", "cvt.rn.satfinite.e4m3x2.f32 h, f, f;"),
    _rule(
        "sm_89",
        "mma*",
        "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 "
        "{f, f, f, f}, {r, r, r, r}, {r, r}, {f, f, f, f};",
        _FLOAT8,
    ),
)

# Device functions of TVM whose text has such an instruction
FUNCTIONS = {
    "cluster_sync": "sm_90",
    "elect_sync": "sm_90",
    "mbarrier_wait": "sm_90",
    "mbarrier_wait_acquire_cluster": "sm_90",
}


def needed_arch(row: str, modifiers: Collection[str]) -> str:
    """Return the arch that an instruction needs, or an empty string for sm_80 and less.

    Parameters
    ----------
    row : str
        Of TVM's table (`tirx.ptx.<row>`).
    modifiers : collection of str
        As they are in the instruction.
    """
    needs = [rule.arch for rule in RULES if rule.holds(row, modifiers)]
    return max(needs, default="")


def has_instructions(arch: Arch, needed: str) -> bool:
    """Tell whether an architecture has what another one introduced (`needed_arch`)."""
    major, minor = arch.compute_capability
    number = "".join(filter(str.isdigit, needed))
    return arch.name == needed if needed[-1:].isalpha() else 10 * major + minor >= int(number or 0)
