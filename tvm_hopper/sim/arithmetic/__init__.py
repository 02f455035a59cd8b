"""What PTX instructions on registers compute: bits in, bits out, of 32 lanes or any number."""
