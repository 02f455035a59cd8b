"""Measure on other hosts by TVM's RPC tracker, servers and sessions."""
