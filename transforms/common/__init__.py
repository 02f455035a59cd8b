"""Code that several stages share: transfers, channels, load sites, shared-memory sizes, notes."""
