"""The sync engine reads kernels and writes barriers, fences and waits; shared-memory offsets."""

from .insert_syncs import InsertSyncs as InsertSyncs
from .merge_shared_buffers import MergeSharedBuffers as MergeSharedBuffers
from .overlay_shared_buffers import OverlaySharedBuffers as OverlaySharedBuffers
