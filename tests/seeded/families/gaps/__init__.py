"""What validators of declared pipelines leave to the author, as theirs say; a family each.

NVIDIA's checker of task schedules names its gaps ("Verification Gaps" in CUTLASS'
`ts_validation.rst`): bodies of work that are one opaque step, named and hand-written barriers, the
bytes of the copies that are really issued, and exchange between CTAs.
"""
