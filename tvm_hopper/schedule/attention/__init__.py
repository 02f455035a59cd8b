"""Schedule softmax attention: recognise it in plain loops, rewrite it to its running form."""
