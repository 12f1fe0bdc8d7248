"""The gateway: training jobs over HTTP, apart from the process groups they start.

Importing this package loads no web framework; ``ddparity.gateway.app`` does, and needs ``ddparity[gateway]``.
"""
