"""client_dense.py, with the lines that a user changes for sparse updates."""

import sys

import nvflare.client as flare
from embedding_model import Recommender, train
from nvflare.app_common.abstract.fl_model import FLModel
from sparseagg.nvflare import sparse_diff

flare.init()
model = Recommender()
while flare.is_running():
    received = flare.receive()
    model.load_state_dict(received.params)
    steps, loss = train(model, flare.get_site_name(), received.current_round + int(sys.argv[-1]))
    params = model.state_dict()
    meta = {"NUM_STEPS_CURRENT_ROUND": steps}
    trained = FLModel(params=params, metrics={"loss": loss}, meta=meta)
    flare.send(sparse_diff(received, trained, sparse=["embedding.weight"]))
