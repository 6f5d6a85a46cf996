"""The whole loop on real recorded runs: a study file, a strict budget, hidden targets."""

import os
import tomllib
from pathlib import Path

import numpy as np
import pytest

import planner
from backends import open_backend
from planner import loop

CORPUS = Path(os.environ.get("PLANNER_CORPUS", Path(__file__).parents[2] / "shared" / "corpus"))

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CORPUS.is_dir(), reason=f"no recorded runs at {CORPUS}; set PLANNER_CORPUS to their folder"),
]

ROLES = {
    "unique_tokens": "unique_tokens",
    "params": "parameters",
    "tokens": "tokens",
    "non_vocab_parameters": "parameters",
    "vocab_size": "vocabulary",
    "num_characters": "tokens",
    "num_params": "parameters",
    "parallel_size": "streams",
}


def _study_file(folder, scenario, share):
    import pandas as pd

    with (CORPUS / "manifest.toml").open("rb") as file:
        entry = tomllib.load(file)[scenario]
    table = CORPUS / entry["file"]
    frame = pd.read_parquet(table)
    pool = frame[frame["split"] == "pool"]
    axes = "\n".join(
        f'[[axes]]\nname = "{axis["name"]}"\nlow = {frame[axis["name"]].min()}\nhigh = {frame[axis["name"]].max()}\n'
        f'role = "{ROLES[axis["name"]]}"\n'
        for axis in entry["axes"]
    )
    response = entry["responses"][0]["name"]
    text = f"""
[study]
name = "{scenario}"

[response]
name = "{response}"

{axes}
[cost]
column = "cost"

[budget]
total = {share * pool["cost"].sum()}

[pool]
file = "{table}"
domain = "group"
where = {{ split = "pool" }}

[[targets]]
kind = "prediction"
file = "{table}"
where = {{ split = "target" }}

[backend]
kind = "replay"
slots = 8
file = "{table}"
response = "{response}"
domain = "group"
"""
    path = folder / f"{scenario}.toml"
    path.write_text(text)
    return path, frame[frame["split"] == "target"], response


@pytest.mark.parametrize(
    ("scenario", "share", "least"), [("data_constrained", 0.05, 0.85), ("vocab", 0.05, 0.95), ("parallel", 0.10, 0.97)]
)
def test_bought_runs_predict_the_hidden_targets(tmp_path, scenario, share, least):
    path, target, response = _study_file(tmp_path, scenario, share)
    with planner.Study.open(path) as study:
        study.run(open_backend("replay", loop.backend_options(study.spec), study.spec.folder))
        state = study.state
        points = target[[*study.spec.axis_names]].assign(domain=target["group"].astype(str))
        predicted = study.predict(points)["median"].to_numpy()
    truth = target[response].to_numpy()
    score = 1.0 - ((truth - predicted) ** 2).sum() / ((truth - truth.mean()) ** 2).sum()
    print(f"{scenario}: R^2 {score:.3f} from {len(state.runs)} runs, {state.spent / state.total:.1%} of the budget")
    assert state.spent <= state.total * (1.0 + 1e-9)
    assert np.isfinite(predicted).all()
    assert score >= least
