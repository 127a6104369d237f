"""Jobs of the small recommender in NVFlare's simulator."""

import dataclasses
import hashlib
import pathlib
import re

import numpy as np
import torch
from embedding_model import Recommender
from nvflare.apis.fl_context import FLContext
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.shareablegenerators.full_model_shareable_generator import FullModelShareableGenerator
from nvflare.app_common.workflows.scatter_and_gather import ScatterAndGather
from nvflare.app_opt.pt.file_model_persistor import PTFileModelPersistor
from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.fuel.utils.constants import FrameworkType
from nvflare.job_config.api import FedJob
from nvflare.job_config.script_runner import ScriptRunner
from nvflare.recipe.sim_env import SimEnv
from sparseagg.nvflare import SparseAggregator

HERE = pathlib.Path(__file__).parent
NUM_SITES = 8
SITES = [f"site-{number}" for number in range(1, NUM_SITES + 1)]


@dataclasses.dataclass
class Run:
    """What a job has left."""

    weights: dict
    log: str
    checkpoint: pathlib.Path

    @property
    def digest(self):
        """A hash of the bits of all weights."""
        total = hashlib.sha256()
        for name, array in sorted(self.weights.items()):
            total.update(name.encode() + array.tobytes())
        return total.hexdigest()[:16]


def make_recipe(script="client_dense.py", num_rounds=2, first_round=0, **options):
    """Returns a recipe for all sites; ``first_round`` is the number of the round that a later job goes on with."""
    return FedAvgRecipe(
        name="recommender",
        model=Recommender(),
        min_clients=NUM_SITES,
        num_rounds=num_rounds,
        train_script=str(HERE / script),
        train_args=str(first_round),
        **options,
    )


def make_scatter_and_gather(script, aggregator, num_rounds=2):
    """Returns the job of a ScatterAndGather controller."""
    job = make_job(script, ScatterAndGather(min_clients=NUM_SITES, num_rounds=num_rounds, persistor_id="persistor"))
    job.to_server(FullModelShareableGenerator(), id="shareable_generator")
    job.to_server(aggregator, id="aggregator")
    return job


def make_job(script, workflow):
    """Returns the job of a controller, for all sites."""
    job = FedJob(name="recommender", min_clients=NUM_SITES)
    job.to_server(PTFileModelPersistor(model=Recommender()), id="persistor")
    job.to_server(workflow)
    job.to_clients(ScriptRunner(script=str(HERE / script), script_args="0", framework=FrameworkType.PYTORCH))
    return job


def simulate(make_job, folder):
    """Runs the job or recipe that ``make_job`` returns with a process for each site; returns what it has left.

    Threads of NVFlare 2.9's simulator share the name that they hand to a site's process (``build_ctx`` in
    simulator_runner.py). So at times one site runs twice and another one never, which is another job: it is made again.
    """
    for attempt in range(5):
        workspace = pathlib.Path(folder) / str(attempt)
        job = make_job()
        if isinstance(job, FedJob):
            SimEnv(num_clients=NUM_SITES, workspace_root=str(workspace)).deploy(job)
        else:
            job.execute(SimEnv(num_clients=NUM_SITES, workspace_root=str(workspace)))
        log = "\n".join(path.read_text() for path in sorted(workspace.glob("**/log.txt")))
        started = {site: len(re.findall(rf"Initialize ClientRunner for client: {site}\b", log)) for site in SITES}
        if set(started.values()) == {1}:
            (checkpoint,) = workspace.glob("**/FL_global_model.pt")
            weights = torch.load(checkpoint, weights_only=True)["model"]
            return Run({name: tensor.numpy() for name, tensor in weights.items()}, log, checkpoint)
        print(f"how often the simulator started each site: {started}; the job is made again")
    raise AssertionError("in five runs, NVFlare's simulator has not started each site once")


def result_of(site, params, steps=1, **options):
    """Returns a site's result as NVFlare's FedAvg gives it to an aggregator."""
    meta = {"client_name": site, "NUM_STEPS_CURRENT_ROUND": steps}
    return FLModel(params=params, meta=meta, **options)


def aggregator_of(model, **options):
    """Returns an aggregator that has been given the model of a round."""
    aggregator = SparseAggregator(**options)
    aggregator.fl_ctx = FLContext()
    aggregator.set_model(model)
    return aggregator


def as_numpy(model):
    return {name: np.asarray(array) for name, array in model.items()}
