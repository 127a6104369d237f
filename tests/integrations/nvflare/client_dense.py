"""A client's script as it is for NVFlare's own FedAvg. client_sparse.py differs in the lines that a user changes."""

import sys

import nvflare.client as flare
from embedding_model import Recommender, train
from nvflare.app_common.abstract.fl_model import FLModel

flare.init()
model = Recommender()
while flare.is_running():
    received = flare.receive()
    model.load_state_dict(received.params)
    steps, loss = train(model, flare.get_site_name(), received.current_round + int(sys.argv[-1]))
    params = model.state_dict()
    meta = {"NUM_STEPS_CURRENT_ROUND": steps}
    trained = FLModel(params=params, metrics={"loss": loss}, meta=meta)
    flare.send(trained)
