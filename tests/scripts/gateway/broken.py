"""A training whose single-device path fails; with processes it would hang."""

import os
import time

import torch

model = torch.nn.Linear(2, 2)
if "RANK" in os.environ:
    time.sleep(300)
model(torch.ones(1, 3))
