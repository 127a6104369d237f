"""SparseFedBuff without a network: against arithmetic in float64, with every fault of a site."""

import types

import numpy as np
import pytest
import sparseagg as sa
from nvflare.apis.client import Client
from nvflare.apis.controller_spec import ClientTask
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import make_reply
from nvflare.apis.signal import Signal
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from sparseagg.nvflare import SparseFedBuff, sparse_diff

SEED, SITES, VERSIONS = 64, 5, 6


def initial():
    rng = np.random.default_rng(SEED)
    return {
        "table": rng.standard_normal((50, 4)).astype(np.float32),
        "factor": rng.standard_normal((6, 5)).astype(np.float32),
        "dense": rng.standard_normal((3, 3)),
        "mask": np.array([0, -np.inf, 1], np.float32),
        "batches": np.array(7, np.int64),
    }


class Local(SparseFedBuff):
    """Runs each site when it is sent a task, so that those that are asked later commit to a later version. The last one
    is slow: its result comes when the others have been asked again.
    """

    def __init__(self, send, **options):
        super().__init__(**{"sparse": ["table"], "elements": ["factor"], "task_check_period": 0.001, **options})
        self.send, self.fl_ctx, self.abort_signal = send, FLContext(), Signal()
        self.engine = types.SimpleNamespace(get_clients=lambda: [Client(f"site-{at}", "") for at in range(SITES)])
        self.models, self.trained, self.lines, self.late = [], [], [], None

    def load_model(self):
        self.models.append(initial())
        return FLModel(params=initial())

    def save_model(self, model):
        self.models.append({name: array.copy() for name, array in model.params.items()})

    def cancel_all_tasks(self, *args, **options):
        pass

    def log_warning(self, fl_ctx, msg, *args):
        self.lines.append(msg)

    def _send_to_idle_sites(self):
        late, self.late = self.late, None
        have_failed = super()._send_to_idle_sites()
        if late:
            self.finish(*late)
        return have_failed

    def broadcast(self, task, fl_ctx, targets):
        (site,) = targets
        if site == f"site-{SITES - 1}":
            self.late = task, site
        else:
            self.finish(task, site)

    def finish(self, task, site):
        received = FLModelUtils.from_shareable(task.data)
        number = int(site.rpartition("-")[2])
        after = {name: array.copy() for name, array in received.params.items()}
        rng = np.random.default_rng([SEED, number, received.current_round])
        after["table"][rng.choice(50, 5, replace=False)] += 1
        after["factor"][0, number] -= 2
        after["dense"] += rng.standard_normal((3, 3))
        after["batches"] = after["batches"] + number
        self.trained.append((number, received.current_round, received.params, after))
        client_task = ClientTask(Client(site, ""), task)
        client_task.result = self.send(number, received, after)
        task.result_received_cb(client_task=client_task, fl_ctx=self.fl_ctx)
        task.task_done_cb(task=task, fl_ctx=self.fl_ctx)


def rows(number, received, after):
    trained = FLModel(params=after, meta={"NUM_STEPS_CURRENT_ROUND": number + 1})
    model = sparse_diff(received, trained, ["table"], ["factor"])
    return FLModelUtils.to_shareable(model)


def whole(number, received, after):
    return FLModelUtils.to_shareable(FLModel(ParamsType.FULL, after))


def check(controller, buffer, counts):
    trained = [each for each in controller.trained if counts(each[0])]
    stalenesses = set()
    for version in range(1, len(controller.models)):
        before = controller.models[version - 1]
        for name, array in before.items():
            step, total = np.zeros(array.shape), 0
            for number, base, old, new in trained[(version - 1) * buffer : version * buffer]:
                stalenesses.add(version - 1 - base)
                np.testing.assert_array_equal(old[name], controller.models[base][name])
                same = old[name] == new[name]
                factor = (version - base) ** -0.5 * (number + 1 if controller.options else 1)
                step += factor * np.where(same, 0, new[name].astype(float) - np.where(same, 0, old[name]))
                total += factor
            step = step / (total if controller.options else buffer)
            step = np.rint(step) if array.dtype.kind == "i" else step
            np.testing.assert_allclose(controller.models[version][name], array + step, rtol=0, atol=1e-6, err_msg=name)
    return stalenesses


BY_STEPS = {"weighting": "by_weight", "mean_divisor": "weights"}


@pytest.mark.parametrize(("send", "options"), [(rows, None), (rows, BY_STEPS), (whole, None)])
@pytest.mark.parametrize("server", [None, ":local:"])
def test_versions_are_those_of_float64_arithmetic(send, options, server):
    controller = Local(send, num_versions=VERSIONS, buffer=2, server=server, options=options)
    controller.run()
    assert len(controller.models) == VERSIONS + 1
    assert check(controller, 2, lambda number: True) == {0, 1, 4}
    assert controller.lines == []


def test_bad_sites_cost_their_own_results_alone():
    def send(number, received, after):
        if number == 1:
            return make_reply(ReturnCode.EXECUTION_EXCEPTION)
        if number == 2:
            after["table"][0, 0] = np.nan
        if number == 3:
            return FLModelUtils.to_shareable(FLModel(ParamsType.DIFF, {"other": np.zeros(3)}))
        return rows(number, received, after)

    controller = Local(send, num_versions=VERSIONS, buffer=2)
    controller.run()
    assert check(controller, 2, lambda number: number in (0, 4)) == {0, 1}
    text = "\n".join(controller.lines)
    assert "client 'site-1' does not count: it is EXECUTION_EXCEPTION" in text
    assert "client 'site-2'" in text
    assert "table" in text
    assert "client 'site-3'" in text
    assert "unknown tensor 'other'" in text
    numbers = [number for number, *_ in controller.trained]
    assert numbers.count(1) == VERSIONS  # asked again after each version


def test_a_result_beyond_max_staleness_does_not_count():
    controller = Local(rows, num_versions=VERSIONS, buffer=2, max_staleness=1)
    controller.run()
    assert check(controller, 2, lambda number: number < 4) == {0, 1}
    assert controller.lines
    assert all("client 'site-4' does not count: stale by " in line for line in controller.lines)


def test_a_version_is_cut_early_if_all_sites_have_failed():
    controller = Local(None, num_versions=1, buffer=2)
    controller.send = lambda *result: (
        rows(*result) if len(controller.trained) == 1 else make_reply(ReturnCode.EMPTY_RESULT)
    )
    controller.run()
    assert check(controller, 1, lambda number: True) == {0}
    assert len(controller.models) == 2


def test_the_job_ends_if_all_sites_fail_and_leaves_no_stream():
    with sa.Client(":local:") as client:
        controller = Local(lambda *_: make_reply(ReturnCode.EXECUTION_EXCEPTION), num_versions=1, buffer=1)
        controller.server = client.address
        with pytest.raises(sa.errors.FailedPreconditionError, match="all sites have failed since version 0"):
            controller.run()
        assert not list(client.list_streams())
