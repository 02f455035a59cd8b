"""The cost model: the estimate where nothing is known, measurements where they are near."""

import numpy as np
import pytest

from tvm_hopper.meta_schedule.cost_model import MOST_POINTS, SPREAD, CostModel, Residuals

RANDOM = np.random.default_rng(0)


def made(count, offset=0.0):
    features = RANDOM.normal(size=(count, 3))
    return Residuals(features, offset + 0.1 * features[:, 0] - 0.05 * features[:, 1])


def test_without_measurements_it_is_the_estimate():
    model = CostModel()
    model.fit(Residuals(np.zeros((0, 3)), np.zeros(0)))
    mean, deviation = model.predict(np.zeros((2, 3)))
    assert mean.tolist() == [0, 0]
    assert deviation.tolist() == [SPREAD, SPREAD]


def test_it_learns_and_is_sure_where_it_measured():
    model, points = CostModel(), made(40, offset=0.5)
    model.fit(points)
    mean, deviation = model.predict(points.features)
    assert mean == pytest.approx(points.residuals, abs=0.03)
    far = np.full((1, 3), 50.0)
    assert model.predict(far)[0][0] == pytest.approx(np.median(points.residuals), abs=0.02)
    assert deviation.max() < model.predict(far)[1][0] == pytest.approx(SPREAD)


def test_it_predicts_what_it_has_not_seen():
    model = CostModel()
    model.fit(made(60))
    fresh = made(30)
    error = model.predict(fresh.features)[0] - fresh.residuals
    assert np.abs(error).mean() < 0.3 * np.abs(fresh.residuals).mean()


def test_others_lend_their_shape_and_not_their_offset():
    model, own = CostModel(), Residuals(np.zeros((1, 3)), np.array([0.0]))
    model.fit(own, [made(60, offset=2.0)])
    fresh = made(30)
    error = model.predict(fresh.features)[0] - fresh.residuals
    assert np.abs(error).mean() < 0.05
    model.fit(Residuals(np.zeros((0, 3)), np.zeros(0)), [made(60, offset=2.0)])
    assert model.predict(np.zeros((1, 3)))[0][0] == pytest.approx(2.0, abs=0.1)


def test_many_measurements_are_cut():
    model = CostModel()
    model.fit(made(MOST_POINTS + 50))
    assert np.isfinite(model.predict(np.zeros((1, 3)))[0]).all()


def test_the_same_point_twice_is_no_trouble():
    model = CostModel()
    model.fit(Residuals(np.zeros((6, 3)), np.array([0.1, 0.1, 0.12, 0.1, 0.1, 0.1])))
    assert model.predict(np.zeros((1, 3)))[0][0] == pytest.approx(0.1, abs=0.02)
