"""Measuring on other hosts, by TVM's own tracker, servers and sessions."""
