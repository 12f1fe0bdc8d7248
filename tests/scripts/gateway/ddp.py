"""A real DDP training that runs until it is told to end, or for so many steps."""

import gc
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

steps = int(sys.argv[1])
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(4, 4))
if "stubborn" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    stay = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(300)"
    subprocess.Popen([sys.executable, "-S", "-c", stay], start_new_session=True)
for step in range(steps):
    model(torch.ones(2, 4)).sum().backward()
    if step == 1:
        Path(f"ready-{os.environ.get('DDPARITY_ATTEMPT', '0')}-{dist.get_rank()}").write_text("")
    time.sleep(0.02)
dist.destroy_process_group()
gc.collect()
