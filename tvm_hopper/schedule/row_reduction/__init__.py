"""Row reductions (norms, softmax) in one pass over memory: recognise, choose, apply."""
