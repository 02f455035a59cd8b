"""Channels between producers and consumers become mbarriers."""

from .lower_channels_to_mbarriers import LowerChannelsToMbarriers as LowerChannelsToMbarriers
