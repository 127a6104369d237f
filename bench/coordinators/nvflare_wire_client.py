"""A client of nvflare_wire.py: touches some rows of an embedding. Both kinds of aggregation use it as it is."""

import sys

import numpy as np
import nvflare.client as flare
import torch
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare_wire_model import NAME

num_touched = int(sys.argv[-1])
flare.init()
site = int(flare.get_site_name().rpartition("-")[2])
while flare.is_running():
    received = flare.receive()
    weights = received.params[NAME].clone()
    ranks = np.arange(1, len(weights) + 1)
    shares = np.random.default_rng(0).permutation(ranks**-1.1 / (ranks**-1.1).sum())  # popular rows, for all sites
    rng = np.random.default_rng([received.current_round, site])
    keys = torch.from_numpy(rng.choice(len(weights), num_touched, replace=False, p=shares))
    weights[keys] += torch.from_numpy(rng.standard_normal((num_touched, weights.shape[1]), np.float32)) * 1e-3
    flare.send(FLModel(params={NAME: weights}, metrics={"loss": 1.0}, meta={"NUM_STEPS_CURRENT_ROUND": site}))
