"""ddparity inside other tools, one file each; a framework is loaded only by importing its file.

* ``lightning.DdparityCallback``, ``transformers.DdparityCallback``, ``accelerate.watch``: one line in a
  training script, which does nothing unless ``ddparity record`` runs it.
* ``tensorboard.export``, ``mlflow.export``: what ``ddparity export`` calls; they read a trial and load no torch.
"""
