"""Software pipelines: ring slots, prologues, later stages, TMA store groups."""

from .expand_pipeline import ExpandPipeline as ExpandPipeline
from .inject_barrier_pipeline import InjectBarrierPipeline as InjectBarrierPipeline
