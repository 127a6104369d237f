"""What the export of a job makes of the aggregator and the filters, and which sites allow them."""

import json
import subprocess
import sys

import pytest
import sparseagg
from jobs import make_job, make_recipe
from nvflare.fuel.utils.class_utils import instantiate_class
from sparseagg.nvflare import SparseAggregator, SparseFedBuff, add_sparse_filters

OPTIONS = {
    "sparse": ["embedding.weight"],
    "op": "coordinate_mean",
    "server": "localhost:1",
    "tls": "ca.pem",
    "token": "secret",
    "elements": ["output.weight"],
    "aggregation_weights": {"site-1": 2.0},
    "exclude_vars": "^norm",
    "rows": False,
    "options": {"numerics": "canonical"},
}
BUFFERED = {
    **{
        name: OPTIONS[name]
        for name in ("sparse", "elements", "op", "server", "tls", "token", "exclude_vars", "options")
    },
    "num_versions": 5,
    "buffer": 3,
    "staleness": 1.0,
    "max_staleness": 4,
    "stream_id": "kept",
    "task_name": "fit",
    "timeout": 600,
    "persistor_id": "mine",
    "task_check_period": 0.5,
}


@pytest.fixture
def exported(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recipe = make_recipe(aggregator=SparseAggregator(**OPTIONS))
    add_sparse_filters(recipe, sparse=["embedding.weight"], top_k=0.5, elements=["output.weight"])
    recipe.export(str(tmp_path / "export"))
    (server,) = tmp_path.glob("export/**/config_fed_server.json")
    (client,) = tmp_path.glob("export/**/config_fed_client.json")
    return server, client


def test_arguments_survive(exported):
    server, client = (json.loads(path.read_text()) for path in exported)
    aggregator = server["workflows"][0]["args"]["aggregator"]
    assert aggregator["args"] == OPTIONS
    built = instantiate_class(aggregator["path"], aggregator["args"])
    assert {name: getattr(built, name) for name in OPTIONS} == OPTIONS
    filters = server["task_data_filters"] + client["task_data_filters"] + client["task_result_filters"]
    assert [(each["tasks"], each["filters"][0]["path"].rpartition(".")[2]) for each in filters] == [
        (["train"], "SendChangedRows"),
        (["train"], "ReceiveChangedRows"),
        (["train"], "SendSparseDiff"),
    ]
    names = {"sparse": ["embedding.weight"], "elements": ["output.weight"]}
    assert filters[2]["filters"][0]["args"] == {**names, "top_k": 0.5}
    for each in filters:
        built = instantiate_class(each["filters"][0]["path"], each["filters"][0]["args"])
        assert (built.sparse, built.elements) == tuple(names.values())


def test_arguments_of_the_workflow_survive(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_job("client_sparse.py", SparseFedBuff(**BUFFERED)).export_job(str(tmp_path / "export"))
    (server,) = tmp_path.glob("export/**/config_fed_server.json")
    (workflow,) = json.loads(server.read_text())["workflows"]
    assert workflow["args"] == BUFFERED
    instantiate_class(workflow["path"], workflow["args"])


def test_copied_modules_leave_the_installed_package_as_it_is(exported):
    custom = exported[0].parents[1] / "custom"
    copied = sorted(str(path.relative_to(custom)) for path in custom.glob("sparseagg/**/*.py"))
    assert "sparseagg/nvflare/aggregator.py" in copied
    assert all(name.startswith("sparseagg/nvflare/") for name in copied)
    script = f"import sys; sys.path.insert(0, {str(custom)!r}); import sparseagg.nvflare as a; print(a.__file__)"
    found = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout
    assert found.startswith(sparseagg.__file__.rpartition("/")[0])
