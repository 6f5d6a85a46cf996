"""The language-model trainer: its family of shapes, its text, its training loop and its manners as a job."""

import csv
import itertools
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import planner.spec
from backends import jobfile
from backends.trainers import corpus, language_model, transformer
from backends.trainers import transformer_steps as steps
from backends.trainers import transformer_training as training

ROOT = Path(__file__).resolve().parents[1]
TINY = {"N": 6e3, "D": 2e4}
OPTIONS: dict[str, Any] = {"context": 32, "batch_size": 4, "held_out_bytes": 2048}
SETTINGS = training.Settings(**OPTIONS)


@pytest.fixture(scope="module")
def plan() -> training.Plan:
    return training.plan_run(TINY["N"], TINY["D"], SETTINGS)


@pytest.fixture(scope="module")
def english() -> corpus.Corpus:
    return corpus.load_corpus("english")


@pytest.fixture(scope="module")
def whole_run(plan: training.Plan, english: corpus.Corpus) -> training.Ending:
    return training.train_model(plan, english, seed=3)


# ---- shapes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("low", "high", "tolerance"), [(5e3, 5e4, 0.045), (5e4, 1e9, 0.012)])
def test_the_family_has_a_member_near_every_size(low: float, high: float, tolerance: float) -> None:
    for parameters in np.geomspace(low, high, 100):
        shape = transformer.shape_for(float(parameters))
        assert shape.parameters == pytest.approx(parameters, rel=tolerance)
        assert shape.width % shape.heads == 0 and shape.width // shape.heads % 2 == 0
        assert shape.width % 8 == 0 and shape.depth >= 2


@pytest.mark.parametrize("parameters", [5e3, 2.2e4, 3e5])
def test_the_parameter_count_is_that_of_the_arrays(parameters: float) -> None:
    shape = transformer.shape_for(parameters)
    params = transformer.initial_parameters(np.random.default_rng(0), shape)
    counted = sum(leaf.size for leaf in params.blocks) + params.final_norm.size
    assert counted == shape.parameters


def test_sizes_outside_the_family_are_refused() -> None:
    with pytest.raises(ValueError, match="parameters: 100 is outside"):
        transformer.shape_for(100.0)


# ---- the model -------------------------------------------------------------------------------------------------------


SMALL = transformer.shape_for(6e3)
PARAMS = transformer.initial_parameters(np.random.default_rng(0), SMALL)
TEXT = np.random.default_rng(1).integers(1, 256, (2, 24)).astype(np.uint8)
# Without jit every operation would be compiled on its own.
LOGITS = jax.jit(transformer.byte_logits, static_argnames=("shape",))
LOSSES = jax.jit(transformer.byte_losses, static_argnames=("shape",))


def test_a_byte_changes_later_predictions_only() -> None:
    changed = TEXT.copy()
    changed[0, 10] ^= 1
    before, after = (np.asarray(LOGITS(PARAMS, each, shape=SMALL)) for each in (TEXT, changed))
    np.testing.assert_array_equal(before[0, :11], after[0, :11])  # not its own prediction either
    assert (np.abs(before[0, 11:] - after[0, 11:]).max(axis=-1) > 1e-4).all()
    np.testing.assert_array_equal(before[1], after[1])


def test_attention_knows_the_order_of_the_bytes() -> None:
    swapped = TEXT.copy()
    swapped[0, [3, 4]] = swapped[0, [4, 3]]
    last = [np.asarray(LOGITS(PARAMS, each, shape=SMALL))[0, -1] for each in (TEXT, swapped)]
    assert np.abs(last[0] - last[1]).max() > 1e-4


def test_losses_are_negative_log_probabilities_of_the_bytes() -> None:
    logits = np.asarray(LOGITS(PARAMS, TEXT, shape=SMALL), np.float64)
    log_probability = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    expected = -np.take_along_axis(log_probability, TEXT[..., None].astype(int), axis=-1)[..., 0]
    # Single precision: relative rounding 6e-8 of terms up to about 10, over a sum of 256.
    np.testing.assert_allclose(LOSSES(PARAMS, TEXT, shape=SMALL), expected, atol=1e-5)


# ---- the text --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("domain", ["english", "python"])
def test_no_held_out_passage_was_trained_on(domain: str) -> None:
    text = corpus.load_corpus(domain)
    assert text.held_out.size == pytest.approx(text.train.size / 7, rel=0.05)
    train = text.train.tobytes()
    windows = corpus.held_out_windows(text, num_bytes=32768, context=128)
    assert windows.size == 32768
    seen = sum(window.tobytes() in train for window in windows)
    # Whole paragraphs are told apart; a program also repeats parts of paragraphs, as any later program does.
    assert seen <= 0.03 * len(windows)


def test_blocks_are_dealt_to_one_side_only() -> None:
    paragraphs = [f"paragraph {number:06d} " + "x" * (number % 50) for number in range(2000)]
    text = corpus.split_text("numbers", "\n\n".join(paragraphs))
    together = text.train.size + text.held_out.size
    assert together % corpus.BLOCK_BYTES == 0
    for part in text.held_out.reshape(-1, corpus.BLOCK_BYTES):
        middle = part.tobytes()[40:-40]
        assert middle not in text.train.tobytes()


def test_a_repeated_paragraph_is_kept_once() -> None:
    assert list(corpus.distinct_paragraphs("one\n\ntwo\n \none \n\n  three\n\ntwo")) == ["one", "two", "  three"]


def test_an_epoch_reads_every_window_once(english: corpus.Corpus) -> None:
    context = 128
    per_epoch = english.train.size // context
    starts = corpus.train_windows(english, num=2 * per_epoch, context=context, seed=0)
    first = starts[: per_epoch - 1]
    assert np.unique(first).size == first.size and np.unique(first % context).size == 1
    assert starts.min() >= 0 and starts.max() <= english.train.size - context
    assert first[0] % context != starts[-1] % context  # the second epoch cuts the text elsewhere


def test_a_text_file_becomes_a_domain(tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    path.write_text("\n\n".join(f"line {number}" for number in range(20_000)))
    assert corpus.load_corpus("words", {"words": str(path)}).train.size > 100_000
    with pytest.raises(ValueError, match=r"known: english, python, words\. Add"):
        corpus.load_corpus("wörds", {"words": str(path)})
    with pytest.raises(ValueError, match="No such file"):
        corpus.load_corpus("words", {"words": str(tmp_path / "missing.txt")})
    path.write_text("too short")
    with pytest.raises(ValueError, match="9 distinct bytes"):
        corpus.load_corpus("words", {"words": str(path)})


# ---- plans -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parameters", [1e4, 4e4, 1.6e5])
@pytest.mark.parametrize("tokens", [1e5, 3.3e5, 2e6])
def test_the_cost_is_six_times_parameters_times_bytes(parameters: float, tokens: float) -> None:
    plan = training.plan_run(parameters, tokens, training.Settings())
    cost = plan.cost_after(plan.steps)
    assert cost == 6.0 * plan.shape.parameters * plan.steps * plan.batch * 128
    assert 0.95 * 6.0 * parameters * tokens < cost <= 6.0 * parameters * tokens


@pytest.mark.parametrize("parameters", [1.05e4, 2.3e4, 7.7e4])
def test_a_run_never_costs_more_than_it_was_asked_to(parameters: float) -> None:
    asked = 6.0 * parameters * 3.3e5
    plan = training.plan_run(parameters, 3.3e5, training.Settings(), max_cost=asked)
    assert 0.95 * asked < plan.cost_after(plan.steps) <= asked
    with pytest.raises(ValueError, match="more than max_cost"):
        training.plan_run(parameters, 3.3e5, training.Settings(), max_cost=asked / 1.1)


def test_senseless_runs_are_refused() -> None:
    with pytest.raises(ValueError, match="ask for more tokens"):
        training.plan_run(1e4, 2e3, training.Settings())
    with pytest.raises(ValueError, match="positive number of bytes"):
        training.plan_run(1e4, math.nan, training.Settings())
    with pytest.raises(ValueError, match="known: cosine, wsd"):
        training.Settings(schedule="linear")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="lr_scale: 0"):
        training.Settings(lr_scale=0)


@pytest.mark.parametrize("schedule", ["cosine", "wsd"])
def test_schedules_warm_up_and_come_down(schedule: str) -> None:
    rate = np.asarray(jax.jit(steps.learning_rate_at, static_argnums=2)(np.arange(200), 200, schedule))
    assert 0 < rate[0] < 0.05 and rate.max() == pytest.approx(1.0, abs=0.01) and 0 < rate[-1] < 0.03
    assert rate.argmax() in range(18, 23)
    assert (rate[150] > 0.99) == (schedule == "wsd")


# ---- training --------------------------------------------------------------------------------------------------------


def test_training_learns_and_repeats_itself(
    plan: training.Plan, english: corpus.Corpus, whole_run: training.Ending
) -> None:
    again = training.train_model(plan, english, seed=3)
    other = training.train_model(plan, english, seed=4)
    assert whole_run.held_out is not None and other.held_out is not None
    assert again == whole_run
    assert other.held_out != whole_run.held_out
    counts = np.bincount(english.train, minlength=256) + 1.0
    frequencies = counts / counts.sum()
    unigram = -float(np.mean(np.log(frequencies[english.held_out])))
    assert whole_run.held_out < unigram  # it learnt more than the frequencies of bytes


def test_a_resumed_run_is_the_uninterrupted_one(
    plan: training.Plan, english: corpus.Corpus, whole_run: training.Ending, tmp_path: Path
) -> None:
    path = tmp_path / "checkpoints" / "state.npz"
    asked = 0

    def after_two_chunks() -> str | None:
        nonlocal asked
        asked += 1
        return "terminated" if asked == 3 else None

    stopped = training.train_model(plan, english, seed=3, checkpoint=path, stop_reason=after_two_chunks)
    assert (stopped.stopped, stopped.step, stopped.held_out) == ("terminated", 32, None)
    assert stopped.cost == plan.cost_after(32)
    chunks = iter([None, *["late"] * 100])
    resumed = training.train_model(plan, english, seed=3, checkpoint=path, stop_reason=lambda: next(chunks))
    assert resumed.step == 48  # it went on and did not start over
    finished = training.train_model(plan, english, seed=3, checkpoint=path)
    assert finished.held_out == whole_run.held_out and finished.cost == whole_run.cost


def test_a_checkpoint_that_does_not_fit_is_not_used(
    plan: training.Plan, english: corpus.Corpus, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "state.npz"
    like = steps.initial_state(0, plan.shape, 0.1)
    moved = like._replace(step=np.full((), 7))
    training.save_state(path, "this run", moved)
    assert int(training.load_state(path, "this run", like=like).step) == 7
    assert training.load_state(path, "another run", like=like) is like
    assert "belongs to another" in capsys.readouterr().out
    path.write_bytes(path.read_bytes()[:-100])
    assert training.load_state(path, "this run", like=like) is like
    assert "cannot be read" in capsys.readouterr().out
    assert [file.name for file in tmp_path.iterdir()] == ["state.npz"]


@pytest.mark.parametrize(("lr_scale", "reason"), [(100.0, "guessing bytes evenly has 5.545"), (1e4, "the loss is nan")])
def test_an_absurd_learning_rate_diverges(lr_scale: float, reason: str) -> None:
    outcome = language_model.train_once("english", TINY["N"], TINY["D"], lr_scale=lr_scale, **OPTIONS)
    assert outcome["state"] == "diverged" and outcome["response"] is None
    assert 0 < outcome["cost"] <= 6.0 * outcome["parameters"] * TINY["D"] * 1.02
    assert reason in outcome["diverged"]


def test_progress_is_a_curve_of_held_out_losses(
    plan: training.Plan, english: corpus.Corpus, whole_run: training.Ending, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "EVALUATE_BYTES", 60 * plan.bytes_per_step)
    curve: list[training.Progress] = []
    ending = training.train_model(plan, english, seed=3, on_progress=curve.append)
    evaluated = [(each.step, each.held_out) for each in curve if each.held_out is not None]
    assert [step for step, _ in evaluated] == [60, 120] and ending.step == 156
    assert evaluated[0][1] > evaluated[1][1] > whole_run.held_out  # type: ignore[operator]
    assert curve[-1].cost == plan.cost_after(120)
    assert ending.held_out == whole_run.held_out  # looking on changes nothing


# ---- as a job --------------------------------------------------------------------------------------------------------


def _job(folder: Path, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> jobfile.TrainerJob:
    files = jobfile.JobFolder(folder)
    for name in ("JOB", "METRICS", "RESULT", "CANCEL"):
        path = {"JOB": files.job, "METRICS": files.metrics, "RESULT": files.result, "CANCEL": files.cancel}[name]
        monkeypatch.setenv(f"PLANNER_{name}", str(path))
    for name in ("PLANNER_DEADLINE", "PLANNER_MAX_COST"):
        monkeypatch.delenv(name, raising=False)
    # Restored after the test although the trainer sets them.
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(folder))
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "1")
    fields: dict[str, Any] = {
        "run_id": "r1", "attempt": 1, "domain": "english", "axes": TINY, "seed": 3, "max_cost": None,
        "deadline_seconds": None, "options": OPTIONS | {"trainer": "x", "slots": 2}, "folder": folder,
        "working_folder": folder,
    }  # fmt: skip
    return jobfile.TrainerJob(**(fields | changes))


def test_a_job_ends_with_a_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plan: training.Plan, whole_run: training.Ending
) -> None:
    result = language_model.train(_job(tmp_path, monkeypatch))
    assert result.response == whole_run.held_out and result.cost == whole_run.cost and result.state == "completed"
    assert result.extra["parameters"] == plan.shape.parameters and result.extra["tokens"] == plan.steps * 128
    last = jobfile.last_metric(tmp_path / "metrics.jsonl")
    assert last is not None and last["schedule_complete"] is True
    assert (last["step"], last["value"], last["cost"]) == (plan.steps, result.response, result.cost)
    json.dumps(dict(result.extra), allow_nan=False)


def test_a_cancelled_job_leaves_a_checkpoint_and_its_cost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = _job(tmp_path, monkeypatch)
    (tmp_path / "cancel").touch()
    with pytest.raises(jobfile.Requeue, match="cancelled after 0 of"):
        language_model.train(job)
    assert (tmp_path / "checkpoints" / "state.npz").exists()
    last = jobfile.last_metric(tmp_path / "metrics.jsonl")
    assert last is not None and (last["cost"], last["schedule_complete"]) == (0.0, False)


WSD = OPTIONS | {"schedule": "wsd"}


def _long_job(folder: Path, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> jobfile.TrainerJob:
    """Goes on with the run in `folder`/short, twice as long."""
    continues = jobfile.Continues(
        run_id="short", axis="D", begins=0.8 * TINY["D"], axes=TINY, checkpoints=folder / "short" / "checkpoints"
    )
    longer = {"axes": TINY | {"D": 2 * TINY["D"]}, "options": WSD, "continues": continues}
    (folder / "long").mkdir(exist_ok=True)
    return _job(folder / "long", monkeypatch, **(longer | changes))


def test_a_run_goes_on_from_where_the_decay_of_a_shorter_one_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "short").mkdir()
    short = language_model.train(_job(tmp_path / "short", monkeypatch, options=WSD))
    long = language_model.train(_long_job(tmp_path, monkeypatch))
    steps_of_short, steps_of_long = short.extra["steps"], long.extra["steps"]
    assert long.extra["begins"] == int(0.8 * steps_of_short) and steps_of_long == 2 * steps_of_short
    one = short.cost / steps_of_short  # type: ignore[operator]
    assert long.cost == pytest.approx(one * (steps_of_long - long.extra["begins"]))
    # As from scratch but for the warm-up, which was that of the shorter run.
    scratch = language_model.train(_job(tmp_path, monkeypatch, axes=TINY | {"D": 2 * TINY["D"]}, options=WSD))
    assert scratch.cost == pytest.approx(one * steps_of_long)
    assert long.response < short.response - 0.05  # type: ignore[operator]
    assert abs(long.response - scratch.response) < 0.5 * (short.response - scratch.response)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "cannot go on with run short.*trunk.npz"),
        ({"options": OPTIONS}, "a 'cosine' run cannot be gone on with; set schedule = \"wsd\""),
        ({"options": {name: x for name, x in WSD.items() if name != "batch_size"}}, "set batch_size, so that it stays"),
    ],
)
def test_a_run_that_cannot_go_on_says_why_and_trains_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], message: str
) -> None:
    axes = {"N": 6e3, "D": 4e6} if "batch_size" not in changes.get("options", OPTIONS) else TINY | {"D": 4e4}
    with pytest.raises(jobfile.BadJob, match=message):
        language_model.train(_long_job(tmp_path, monkeypatch, axes=axes, **changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"domain": "klingon"}, "domain 'klingon' has no text; known: english, python"),
        ({"axes": {"N": 6e3}}, "no axis for tokens"),
        ({"axes": TINY | {"tokens": 5.0}}, "axis 'tokens': unknown to the language model, or given twice"),
        ({"axes": TINY | {"rollouts": 5.0}}, "axis 'rollouts': unknown"),
        ({"options": {"lr_scal": 2.0}}, "did you mean 'lr_scale'"),
        ({"options": {"batch_size": 2.5}}, "batch_size: 2.5 must be a whole number"),
        ({"options": {"texts": "file.txt"}}, "must map domains to text files"),
        ({"max_cost": 1e6}, "more than max_cost"),
    ],
)
def test_a_job_that_cannot_run_says_why(
    changes: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(jobfile.BadJob, match=message):
        language_model.train(_job(tmp_path, monkeypatch, **changes))


def test_an_axis_may_be_a_setting() -> None:
    request, settings = language_model.read_request(
        {"parameters": 1e4, "tokens": 1e5, "batch_size": 8.0}, {"batch_size": 4, "schedule": "wsd"}
    )
    assert request == {"parameters": 1e4, "tokens": 1e5}
    assert settings == {"batch_size": 8, "schedule": "wsd"}


def test_the_example_study_prices_runs_as_the_trainer_does() -> None:
    spec = planner.spec.load_study_spec(ROOT / "examples" / "language_model.toml")
    assert spec.backend.options["trainer"] == "backends.trainers.language_model:train"
    corners = itertools.product(*((axis.low, axis.high) for axis in spec.axes))
    for domain, (parameters, tokens) in itertools.product(spec.domain_names, corners):
        plan = training.plan_run(parameters, tokens, training.Settings())
        price = spec.cost_of(domain, {"N": parameters, "D": tokens})
        assert plan.cost_after(plan.steps) == pytest.approx(price, rel=0.05)
        assert corpus.load_corpus(domain).train.size > tokens / 5  # at most five passes


def test_recorded_losses_fall_along_both_axes() -> None:
    with (ROOT / "benchmarks" / "data" / "language_model_grid.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    losses = {
        (row["domain"], float(row["N"]), float(row["D"])): float(row["loss"]) for row in rows if row["seed"] == "0"
    }
    assert len(losses) == 24
    for (domain, parameters, tokens), loss in losses.items():
        for more in ((domain, 4 * parameters, tokens), (domain, parameters, 4 * tokens)):
            assert losses.get(more, 0.0) < loss


def test_importing_the_trainer_starts_no_jax() -> None:
    code = "import sys, backends.trainers.language_model; assert not {'jax', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
