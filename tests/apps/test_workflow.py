"""Mistyped overrides and run ids end the run before any work."""

import pytest

from candor_monai.apps import workflow
from candor_monai.utils import UserError


def test_a_key_that_nothing_declares_or_refers_to_is_unknown():
    config = {"mine": 1, "other": "@mine", "lost": 2, "output_dir": "x", "tracking_uri": "sqlite:///a.db"}
    assert workflow.unknown_keys(config) == ["other", "lost"]


def test_the_nearest_override_is_named():
    with pytest.raises(UserError, match=r"unknown option '--encodr'. Did you mean '--encoder'\?"):
        workflow.check_keys({"encodr": "rad_dino"})


def test_a_key_of_the_config_is_no_run_id():
    config = {"candor_eval": [], "device": "cpu"}
    with pytest.raises(UserError, match="unknown run id 'device'"):
        workflow.check_run_id("device", ["candor_eval", "encode"], config)
    with pytest.raises(UserError, match="Did you mean 'candor_eval'"):
        workflow.check_run_id("candor_evil", ["candor_eval", "encode"], config)


def test_outside_a_bundle_run_it_says_so():
    with pytest.raises(SystemExit, match="no running bundle workflow"):
        workflow.check_run(["run"])
