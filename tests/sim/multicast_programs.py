"""Small clusters whose blocks copy into each other's slots: right and disturbed, at random."""

from dataclasses import replace

from tvm_hopper.sim.protocol.agents import Op, SkeletonAgent

from .test_symmetry import meeting


def draw(rng):
    """Draw two blocks that load for both: each slot is free once both blocks' users released it."""
    blocks, slots, trips = range(2), rng.choice([1, 1, 2]), rng.randint(1, 3)
    full = [[(cta, "smem", 8 * s) for s in range(slots)] for cta in blocks]
    empty = [[(cta, "smem", 8 * (slots + s)) for s in range(slots)] for cta in blocks]
    meet = meeting()
    sharing = rng.choice([(0, 1), (0, 1), (0,), (1,)])  # blocks whose copies land in both
    begin = [Op("init", ((key, 1, 0),)) for keys in full for key in keys]
    begin += [
        Op("init", ((key, 2 if cta in sharing else 1, 0),)) for cta in blocks for key in empty[cta]
    ]
    agents = []
    for cta in blocks:
        own = [c for c in blocks if c == cta or c in sharing]  # who copies to this block
        size = 16 * len(own)
        produce, consume = [*(begin if cta == 0 else []), meet], [meet]
        for trip in range(trips):
            slot, parity = trip % slots, trip // slots % 2
            to = blocks if cta in sharing else [cta]
            copy = Op("load", tuple((full[c][slot], 0, 16) for c in to))
            expected = Op("arrive", ((full[cta][slot], 1, size),))
            turn = [copy, expected] if rng.random() < 0.15 else [expected, copy]
            if trip >= slots or rng.random() < 0.8:
                turn = [Op("wait", ((empty[cta][slot], 0, 0),), parity ^ 1, 1), *turn]
            produce += turn
            consume.append(Op("wait", ((full[cta][slot], 0, 0),), parity, 32))
            consume += [Op("arrive", ((empty[c][slot], 1, 0),)) for c in own]
        if rng.random() < 0.3:
            produce, consume = [*produce, meet], [*consume, meet]
        agents.append(SkeletonAgent(cta, f"producer{cta}", tuple(produce)))
        agents.append(SkeletonAgent(cta, f"consumer{cta}", tuple(consume)))
    return agents


def disturbed(agents, rng):
    """Leave out, repeat, move, and change steps: their barriers, counts, bytes and parities."""
    agents = list(agents)
    keys = sorted(
        {key for a in agents for op in a.ops if op.kind != "bar" for key, *_ in op.targets}
    )
    for _ in range(rng.randint(1, 3)):
        number = rng.randrange(len(agents))
        ops = list(agents[number].ops)
        if not ops:
            continue
        place = rng.randrange(len(ops))
        op, (target, *rest) = ops[place], ops[place].targets
        key, count, size = target
        what = rng.choice(
            ["out", "again", "move", "value", "key", "bytes", "count", "expect", "one"]
        )
        if what == "out":
            del ops[place]
        elif what == "again":
            ops.insert(rng.randrange(len(ops) + 1), op)
        elif what == "move":
            ops.insert(rng.randrange(len(ops)), ops.pop(place))
        elif what == "expect":
            ops.insert(rng.randrange(len(ops) + 1), Op("expect", ((rng.choice(keys), 0, 16),)))
        elif op.kind == "bar":
            continue
        elif what == "value":
            ops[place] = replace(op, value=op.value ^ 1)
        elif what == "one" and rest:
            ops[place] = replace(op, targets=tuple(rest))
        elif what == "key":
            ops[place] = replace(op, targets=((rng.choice(keys), count, size), *rest))
        elif what == "bytes" and size:
            changed = size + rng.choice([16, -16]) or 32
            ops[place] = replace(op, targets=((key, count, changed), *rest))
        elif what == "count" and count:
            ops[place] = replace(op, targets=((key, count + 1, size), *rest))
        agents[number] = replace(agents[number], ops=tuple(ops))
    return agents
