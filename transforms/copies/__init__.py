"""Which mechanism makes a copy, and the lowering of copies to bulk asynchronous operations."""

from .inject_bulk_async_copies import InjectBulkAsyncCopies as InjectBulkAsyncCopies
from .reuse_operand_tiles import ReuseOperandTiles as ReuseOperandTiles
from .select_copy_mechanisms import SelectCopyMechanisms as SelectCopyMechanisms
