"""Real small trainings that ship with the product: plain scripts that know nothing of ddparity.

``python -m ddparity.workloads.digits`` trains a classifier of handwritten digits,
``python -m ddparity.workloads.tiny_gpt`` a small transformer on random tokens. Both run in one
process or under torchrun, and both take a slice of the same global batch on every rank.
"""
