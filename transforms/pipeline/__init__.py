"""Software pipelines: ring slots, prologues, later stages, TMA store groups."""

from .expand_pipeline import ExpandPipeline as ExpandPipeline
from .plan_ring_buffers import PlanRingBuffers as PlanRingBuffers
