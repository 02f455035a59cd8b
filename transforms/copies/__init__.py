"""Copies: choose a mechanism for each, and lower it to bulk asynchronous operations."""

from .lower_async_copies import LowerAsyncCopies as LowerAsyncCopies
from .reuse_operand_tiles import ReuseOperandTiles as ReuseOperandTiles
from .select_copy_mechanisms import SelectCopyMechanisms as SelectCopyMechanisms
