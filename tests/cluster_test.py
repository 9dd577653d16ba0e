#!/usr/bin/env python3
"""Recipes for launchers that do not run here: cluster_test.py [SLUICE] [--level LEVEL] [--only PART]

configs/cluster/kubernetes.yaml against the schemas of Kubernetes, and the commands of the recipes against sluice's flags. SkyPilot has its
schema only in a package of some 200 MB; its file was checked by hand (0.14.1).
"""
import os
import shlex
import sys

import kubernetes_validate
import yaml

from trial import HERE, run_parts

RECIPES = os.path.join(os.path.dirname(HERE), "configs/cluster")
VERSIONS = ("1.31", "1.33", "1.36")  # from the first with podFailurePolicy and backoffLimitPerIndex as used


def recipe(name):
    with open(os.path.join(RECIPES, name), encoding="utf-8") as f:
        return yaml.safe_load(f)


def faults(job, version):
    try:
        kubernetes_validate.validate(job, version, strict=True)
    except kubernetes_validate.ValidationError as e:
        return str(e)[:300]
    return ""


def kubernetes(tally, place, a):
    """The job is one that the API takes; a misspelt key is not."""
    for version in VERSIONS:
        job = recipe("kubernetes.yaml")
        found = faults(job, version)
        tally.check(not found, f"kubernetes.yaml, {version}: {found}")
        job["spec"]["parallelisms"] = job["spec"].pop("parallelism")
        tally.check("parallelisms" in faults(job, version), f"{version}: a misspelt key is taken")


def commands(tally, place, a):
    """What the recipes run are commands of sluice: it misses their model, and complains of nothing before that."""
    args = recipe("kubernetes.yaml")["spec"]["template"]["spec"]["containers"][0]["args"]
    line = recipe("skypilot.yaml")["run"].replace("$SKYPILOT_NODE_RANK", "1")
    for name, words, env in (("kubernetes.yaml", args, {}),
                             ("skypilot.yaml", shlex.split(line)[1:], {"SKYPILOT_NODE_RANK": "1", "SKYPILOT_NUM_NODES": "4"})):
        words = [w.replace("/data/", place.folder + "/") for w in words]
        place.rows("in.jsonl", [{"prompt": "x"}])
        done = place.sluice(*words, **env)
        tally.check(done.code == 5 and "model.gguf" in done.last(), f"{name}: {words}: exit {done.code}: {done.last()}")


if __name__ == "__main__":
    sys.exit(run_parts(__doc__, [kubernetes, commands]))
