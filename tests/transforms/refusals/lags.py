"""What is refused of consumers that begin apart."""

from tests.transforms.refusals.case import case
from tests.transforms.refusals.turns import ONE_GROUP, SHARED
from tests.transforms.test_plan_pipeline import BEFORE, NESTED, PLAIN_READER, PLANNED, SECOND
from tests.transforms.test_specialize_warps import asking
from tvm_hopper.transforms import PlanPipeline, SpecializeWarps

LAG = asking("consumer_lag", 1)
STAGES = '"software_pipeline_stage": [0, 0, 1]'
ASK_LAG = (STAGES, f'{STAGES}, "tvm_hopper.consumer_lag": 1')


def lag(name, match, *changes):
    return case(name, PLANNED, (SpecializeWarps,), match, *changes)


LAGS = [
    lag(
        "a lag of plain loops",
        r"loop k, tvm_hopper.consumer_lag = 1: found threads that do not multiply; need 2 or 3 "
        r"warp groups that share a product's tile; take the annotation away",
        PLAIN_READER,
        asking("consumers", 2),
        LAG,
    ),
    lag("a lag of one consumer", r"found one consumer of each tile; need 2 or 3", ONE_GROUP, LAG),
    lag("a lag of turns", r"found one consumer of each tile; need", SHARED, ONE_GROUP, LAG),
    lag(
        "a lag as long as the ring",
        r"consumer_lag = 2: found 2 stages; need at most 1: the first consumer comes no further",
        asking("consumer_lag", 2),
    ),
    lag(
        "a lag without roles",
        r"loop k, tvm_hopper.consumer_lag: found a loop without roles",
        PLAIN_READER,
        LAG,
    ),
    case(
        "a lag of several loops",
        BEFORE,
        (PlanPipeline, SpecializeWarps),
        r"found 2 pipelined loops; need one pipelined loop for each output tile",
        SECOND,
        ASK_LAG,
    ),
    case(
        "a lag inside of a loop",
        BEFORE,
        (PlanPipeline, SpecializeWarps),
        r"found another loop around it; need one pipelined loop for each output tile",
        NESTED,
        ASK_LAG,
    ),
]
