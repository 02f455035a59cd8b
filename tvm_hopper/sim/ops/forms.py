"""Forms of instructions: the rows of TVM's table that a handler serves, and forms it refuses."""

from __future__ import annotations

from collections.abc import Container, Mapping

# Handler (`Warp.op_<name>`) -> further rows of the table that it serves.
_ROWS: dict[str, tuple[str, ...]] = {
    "atom": ("red", "atom_exch", "atom_f32", "red_f32"),
    "atom_vec_f32": ("red_vec_f32",),
    "atom_vec_half": ("atom_half", "red_half", "red_vec_half"),
    "bar_red": ("bar_red_popc", "bar_red_pred"),
    "cp_async_bulk_g2s": (
        *("cp_async_bulk_g2s_cluster", "cp_async_bulk_g2s_cta"),
        "cp_async_bulk_g2s_cluster_multicast16",
    ),
    "cp_async_bulk_s2c": ("cp_reduce_async_bulk_s2c",),
    "cp_async_bulk_s2g": ("cp_reduce_async_bulk_s2g", "cp_reduce_async_bulk_s2g_f32"),
    "cp_async_bulk_tensor_g2s": (
        *("cp_async_bulk_tensor_g2s_cluster", "cp_async_bulk_tensor_g2s_cta"),
        "cp_async_bulk_tensor_g2s_cluster_multicast16",
        *("cp_async_bulk_tensor_g2s_cluster_im2col", "cp_async_bulk_tensor_g2s_cta_im2col"),
    ),
    "cp_async_bulk_tensor_s2g": (
        *("cp_reduce_async_bulk_tensor", "cp_async_bulk_tensor_s2g_im2col_no_offs_w"),
        "cp_reduce_async_bulk_tensor_im2col_no_offs_w",
    ),
    "cp_async_ca": (
        *("cp_async_cg", "cp_async_ca_src_size", "cp_async_cg_src_size"),
        *("cp_async_ca_ignore_src", "cp_async_cg_ignore_src"),
    ),
    "createpolicy": tuple(
        f"createpolicy_{kind}" for kind in ("fraction", "fractional", "range", "cvt")
    ),
    "getctarank": ("getctarank_generic",),
    "ld_vec": ("ld_vec256", "ldu_vec"),
    "mapa": ("mapa_u64_raw",),
    "mapa_u32": ("mapa_u64_shared",),
    "mbarrier_arrive": (
        *("mbarrier_arrive_drop", "mbarrier_arrive_expect_tx", "mbarrier_arrive_drop_expect_tx"),
    ),
    "mbarrier_arrive_no_complete": (
        *("mbarrier_arrive_no_complete_sink", "mbarrier_arrive_drop_no_complete"),
        "mbarrier_arrive_drop_no_complete_sink",
    ),
    "mbarrier_try_wait": (
        *("mbarrier_try_wait_parity", "mbarrier_test_wait", "mbarrier_test_wait_parity"),
    ),
    "mma": ("mma_f16acc", "mma_f16c_f32d", "mma_int", "mma_f64"),
    "mma_sp": (
        *("mma_sp_pair", "mma_sp_all", "mma_sp_f16acc", "mma_sp_f16acc_pair"),
        *("mma_sp_int_pair", "mma_sp_int_all"),
    ),
    "redux_sync": ("redux_sync_bitwise",),
    "st_async": ("st_async_vec",),
    "st_vec": ("st_vec256",),
    "tensormap_replace": tuple(
        f"tensormap_replace_{field}"
        for field in (
            *("address", "rank", "stride", "dim", "elemtype", "interleave_layout"),
            *("swizzle_mode", "fill_mode"),
        )
    ),
    "vote_sync": ("vote_sync_ballot",),
    "wgmma": tuple(
        f"wgmma_{kind}_{operands}"
        for kind in ("f16", "f16_f16acc", "bf16", "tf32", "fp8", "fp8_f16acc", "int", "b1")
        for operands in ("ss", "rs")
    ),
}
_HANDLER_OF = {row: handler for handler, rows in _ROWS.items() for row in rows}
# Rows that end so do the same: operands are left out, the result is, or subnormal numbers stay.
_SUFFIXES = ("_count", "_nocount", "_no_hint", "_hint", "_state", "_bitbucket", "_noftz")

_SPACES = ("global", "shared", "shared::cta", "shared::cluster")
_LATER = ("im2col::w", "im2col::w::128", "im2col_no_offs::w")
_ADDRESSES = ("cvta", "cvta_generic", "isspacep")


def handler_of(row: str, handlers: Container[str]) -> str | None:
    """Return the method of `Warp` that runs a row of TVM's table; None if nothing models it."""
    handler = f"op_{_HANDLER_OF.get(row, row)}"
    if handler in handlers:
        return handler
    if row.startswith("barrier_"):
        return handler_of(row.replace("barrier_", "bar_", 1), handlers)
    for suffix in _SUFFIXES:
        if row.endswith(suffix):
            return handler_of(row.removesuffix(suffix), handlers)
    return None


def refused_form(name: str, mods: Mapping[str, str]) -> str:
    """Return why a form of an instruction with a handler is not modelled; empty if it is."""
    if mods.get("type") == "b128":
        return "registers of 128 bits"
    if "im2col" in name:
        wide = (mods.get("multicast") or "").endswith("32b")
        if mods.get("load_mode") in _LATER or mods.get("report") or mods.get("cta_group") or wide:
            return "a later chip's modes, reports, CTA groups and masks of 32 bits"
    if name in _ADDRESSES and mods["space"] not in _SPACES:
        return f"the state space {mods['space']}"
    return ""
