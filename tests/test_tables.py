"""Tables as users have them: what is read, what is refused and at which line, and what an import makes of it."""

import gzip
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from planner import cells
from planner.errors import InputError, Problem
from planner.records import Design
from planner.spec import StudySpec, parse_study_spec
from planner.tables import Table, import_rows, read_table

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_file(content: str | bytes, name: str = "runs.csv") -> Path:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write_file


def only_problem(path: Path, **wanted: Any) -> Problem:
    with pytest.raises(InputError) as caught:
        read_table(path, **wanted)
    (problem,) = caught.value.problems
    return problem


def read(path: Path, *numeric: str, **wanted: Any) -> Table:
    return read_table(path, numeric=numeric, **wanted)


# ---- cells ----------------------------------------------------------------------------------------------------------


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False, max_value=1e308, min_value=-1e308), max_size=20))
@settings(deadline=None, derandomize=True)
def test_every_double_is_read_back_exactly(values: list[float]) -> None:
    assert cells.read_numbers([repr(value) for value in values]).values.tolist() == values
    # A cell that cannot be read at once sends the whole column down the slow path.
    assert cells.read_numbers([*(repr(value) for value in values), ""]).values[:-1].tolist() == values


@given(st.integers(-(10**30), 10**30))
@settings(deadline=None, derandomize=True)
def test_integers_of_any_size_are_read(value: int) -> None:
    assert cells.read_numbers([str(value), "2e24", value]).values.tolist() == [float(value), 2e24, float(value)]


@given(st.lists(st.text(max_size=6) | st.sampled_from(["1,234", "1,5", "", "nan", "1e9", "7B", "１", "1_0"])))
@settings(deadline=None, derandomize=True)
def test_a_cell_is_a_number_missing_or_refused(texts: list[str]) -> None:
    column = cells.read_numbers(texts)

    assert column.values.shape == (len(texts),)
    refused = {cell.position for cell in column.refused}
    for position, text in enumerate(texts):
        if np.isnan(column.values[position]) and position not in refused:
            assert text.strip().casefold() in cells.MISSING_WORDS


@pytest.mark.parametrize("text", ["", " ", "NA", "n/a", "null", "None", "<NA>"])
def test_words_for_missing(text: str) -> None:
    column = cells.read_numbers(["1", text])

    assert column.values[0] == 1.0 and np.isnan(column.values[1])
    assert column.blank == [1] and not column.refused


def test_a_written_nan_is_not_blank() -> None:
    column = cells.read_numbers(["NaN", "nan", ""])

    assert np.isnan(column.values).all()
    assert column.blank == [2]


@pytest.mark.parametrize("text", ["inf", "-Infinity", "1e400", "1.797e308", 10**400])
def test_infinite_numbers_are_flagged(text: str | int) -> None:
    column = cells.read_numbers(["1", text])

    assert np.isinf(column.values[1])
    assert column.infinite == [1]


@pytest.mark.parametrize(
    ("text", "value"),
    [("1,234,567", 1234567.0), ("-12,345,678.5", -12345678.5), ("1,234.5", 1234.5), ("+1,000,000", 1e6)],
)
def test_thousands_separators_that_leave_no_doubt(text: str, value: float) -> None:
    column = cells.read_numbers(["1", text])

    assert column.values[1] == value
    assert column.thousands == [1] and not column.refused


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("2,5", "write 2.5"),
        ("-0,25", "write -0.25"),
        ("2,5e9", "write 2.5e9"),
        ("1,234", "ambiguous: write 1234 or 1.234"),
        ("12,34,567", "such as 1e9"),
        ("1.234.567", "Write 1234567"),
        ("1.234,5", "Write 1234.5"),
        ("1 234 567", "Write 1234567"),
        ("1_000", "Write 1000"),
        ("7B", "Write 7e9"),
        ("1.5 k", "Write 1.5e3"),
        ("35%", "per cent"),
        ("0x10", "such as 1e9"),
        ("abc", "such as 1e9"),
        (True, "write a number"),
        ([1], "write a number"),
    ],
)
def test_other_cells_are_refused_with_a_hint(text: Any, hint: str) -> None:
    (refused,) = cells.read_numbers(["1", text, ""]).refused

    assert refused.position == 1
    assert hint.lower() in refused.hint.lower()


# ---- CSV ------------------------------------------------------------------------------------------------------------


def test_a_plain_file(write: Write) -> None:
    table = read_table(
        write("N, loss ,who\n1e9,2.5,a\n\n2000000000, 2.25 ,  b c \n"), numeric=["N", "loss"], text=["who"]
    )

    assert table["N"].tolist() == [1e9, 2e9]
    assert table["loss"].tolist() == [2.5, 2.25]
    assert table["who"].tolist() == ["a", "b c"]
    assert table.lines.tolist() == [2, 4]
    assert table.header == ("N", "loss", "who")
    assert len(table) == 2 and table.warnings == ()


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_line_ends_and_byte_order_mark(write: Write, newline: str) -> None:
    table = read(write("\ufeff" + newline.join(["N,loss", "1e9,2.5", ""])), "N", "loss")

    assert table["N"].tolist() == [1e9]


def test_tabs_gzip_and_quotes(write: Write) -> None:
    assert read(write("N\tloss\n1e9\t2.5\n", "x.tsv"), "loss")["loss"].tolist() == [2.5]
    assert read(write(gzip.compress(b"N,loss\n1e9,2.5\n"), "x.csv.gz"), "loss")["loss"].tolist() == [2.5]
    table = read_table(write('who,loss\n"a, ""b""\nc",2.5\nd,3\n'), numeric=["loss"], text=["who"])
    assert table["who"].tolist() == ['a, "b"\nc', "d"]
    assert table.lines.tolist() == [3, 4]


def test_a_trailing_comma_never_shifts_columns(write: Write) -> None:
    problem = only_problem(write("N,loss\n1e9,2.0,\n"), numeric=["N", "loss"])

    assert (problem.line, problem.hint) == (2, "Remove the trailing comma")
    assert "has 3 cells, the header has 2" in problem.message


def test_short_and_long_rows_are_all_named(write: Write) -> None:
    with pytest.raises(InputError) as caught:
        read(write("N,D,loss\n1,2,3\n1,2\n1,2,3,4\n1,2,3\n1\n"), "N")

    assert [problem.line for problem in caught.value.problems] == [3, 4, 6]
    assert "quotes" in caught.value.problems[1].hint


def test_at_most_twenty_problems_and_the_number_of_the_rest(write: Write) -> None:
    with pytest.raises(InputError) as caught:
        read(write("N\n" + "x\n" * 50), "N")

    assert len(caught.value.problems) == 21
    assert "30 more" in str(caught.value.problems[-1])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "the file is empty"),
        (" \n\n", "the file is empty"),
        ("N,loss\n", "has a header but no rows"),
        ("N,loss,\n1,2,\n", "column 3 of the header has no name. Remove the trailing comma"),
        ("N,N\n1,2\n", "repeats the name 'N'"),
        ("1e9,2.5\n2e9,2.4\n", "the first line holds numbers"),
        ("N;loss\n1;2\n", "separated by ';'"),
        ('N,loss\n1,"2\n', "not valid CSV"),
        ("N,los\n1,2\n", "has no column 'loss'. Did you mean 'los'? known: N, los"),
        (b"N,loss\n1,\xff\n", "csv:2: is not UTF-8 text"),
        ("N,loss\n1,2\n".encode("utf-16"), "is not UTF-8 text"),
        (b"PK\x03\x04", "Save the sheet as CSV"),
        (b"\x1f\x8b\x08broken", "damaged gzip"),
        ("[{}]", "One object per line".lower()),
    ],
)
def test_files_that_are_no_tables(write: Write, content: str | bytes, words: str) -> None:
    with pytest.raises(InputError) as caught:
        read(write(content), "N", "loss")

    assert words.lower() in str(caught.value).lower()


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.csv: there is no such file"):
        read(tmp_path / "none.csv", "N")
    with pytest.raises(InputError, match="cannot be read"):
        read(tmp_path, "N")


def test_all_missing_columns_are_listed_unless_optional(write: Write) -> None:
    path = write("N,loss\n1,2\n")

    with pytest.raises(InputError) as caught:
        read(path, "N", "D", "cost")
    assert [str(problem.message) for problem in caught.value.problems] == ["has no column 'D'", "has no column 'cost'"]
    table = read_table(path, numeric=["N", "cost"], text=["domain"], optional=["cost", "domain"])
    assert "cost" not in table and "domain" not in table and table["N"].tolist() == [1.0]


def test_refused_cells_have_line_column_value_and_hint(write: Write) -> None:
    with pytest.raises(InputError) as caught:
        read(write('N,loss\n1e9,"2,5"\n7B,2\n'), "N", "loss")

    found = {(problem.line, problem.key, problem.value, problem.hint) for problem in caught.value.problems}
    assert found == {(2, "loss", "2,5", "Decimal comma: write 2.5"), (3, "N", "7B", "Write 7e9")}
    assert "runs.csv:3: N: is not a number (got 7B). Write 7e9" in str(caught.value)


def test_oddities_that_are_read_are_said(write: Write) -> None:
    table = read(write('N,loss\n"1,234,567",2\n1,inf\n2,1e400\n'), "N", "loss")

    assert table["N"].tolist() == [1234567.0, 1.0, 2.0]
    assert table["loss"].tolist() == [2.0, math.inf, math.inf]
    thousands, infinite = table.warnings
    assert thousands.startswith("W:thousands_separator") and "'N'" in thousands and "line 2" in thousands
    assert infinite.startswith("W:infinite") and "lines 3, 4" in infinite


def test_huge_integers_mixed_with_exponents(write: Write) -> None:
    table = read(write(f"N,loss\n{10**24},2\n2e24,3\n{7 * 10**9},4\n"), "N")

    assert table["N"].tolist() == [1e24, 2e24, 7e9]


# ---- JSON lines and Parquet -----------------------------------------------------------------------------------------


def test_json_lines(write: Write) -> None:
    rows = [
        '{"N": 1000000000000000000000000, "loss": NaN, "who": "a"}',
        "",
        '{"N": "2e24", "loss": null}',
        '{"N": 1, "loss": 1e400, "who": 3}',
        '{"N": ' + "9" * 5000 + ', "loss": -Infinity}',
        '{"loss": 2.5, "N": 2}',
    ]
    table = read_table(write("\n".join(rows), "x.jsonl"), numeric=["N", "loss"], text=["who"])

    assert table["N"].tolist() == [1e24, 2e24, 1.0, math.inf, 2.0]
    assert np.isnan(table["loss"][:2]).all() and table["loss"][2:].tolist() == [math.inf, -math.inf, 2.5]
    assert table.blank["loss"].tolist() == [False, True, False, False, False]
    assert table["who"].tolist() == ["a", "", "3", "", ""]
    assert table.lines.tolist() == [1, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ('{"N": 1, "N": 2}', "has the key 'N' twice"),
        ('{"N": 1', "is not a JSON object"),
        ("[1]", "is not a JSON object"),
        ('{"N": true}', "is not a number"),
        ('{"N": [1]}', "is not a number"),
        ('{"M": 1}', ""),
    ],
)
def test_json_lines_that_are_refused(write: Write, row: str, words: str) -> None:
    path = write('{"N": 1}\n' + row + "\n", "x.jsonl")

    if not words:
        assert np.isnan(read(path, "N")["N"][1])
        return
    problem = only_problem(path, numeric=["N"])
    assert words in problem.message and problem.line == 2


def test_parquet(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    columns = {
        "N": pa.array([1, 2**40, None], pa.int64()),
        "loss": pa.array([2.5, math.nan, math.inf]),
        "text": pa.array(["1e3", "2", ""]),
        "who": pa.array(["a", None, "b"]).dictionary_encode(),
        "ok": pa.array([True, False, None]),
    }
    parquet.write_table(pa.table(columns), path)

    table = read_table(path, numeric=["N", "loss", "text"], text=["who", "ok"])

    assert table["N"][:2].tolist() == [1.0, 2.0**40] and np.isnan(table["N"][2])
    assert table["loss"][[0, 2]].tolist() == [2.5, math.inf] and np.isnan(table["loss"][1])
    assert (table.blank["N"].tolist(), table.blank["loss"].tolist()) == ([False, False, True], [False] * 3)
    assert table["text"][:2].tolist() == [1000.0, 2.0]
    assert table["who"].tolist() == ["a", "", "b"] and table["ok"].tolist() == ["true", "false", ""]
    assert table.lines.tolist() == [1, 2, 3]
    with pytest.raises(InputError, match="is not a number"):
        read(path, "ok")
    with pytest.raises(InputError, match="has no column 'D'"):
        read(path, "D")


def test_parquet_that_is_damaged_or_empty(tmp_path: Path, write: Write) -> None:
    path = tmp_path / "x.parquet"
    parquet.write_table(pa.table({"N": pa.array([], pa.float64())}), path)
    with pytest.raises(InputError, match="no rows"):
        read(path, "N")
    with pytest.raises(InputError, match="not a readable Parquet file"):
        read(write(b"PAR1 broken", "y.parquet"), "N")


# ---- importing finished runs ----------------------------------------------------------------------------------------


def spec_of(**sections: Any) -> StudySpec:
    base: dict[str, Any] = {
        "study": {"name": "small"},
        "axes": [{"name": "N", "low": 1e6, "high": 1e9}, {"name": "D", "low": 1e8, "high": 1e11}],
        "cost": {"terms": [{"coefficient": 6, "powers": {"N": 1, "D": 1}}]},
        "budget": {"total": 1e21},
    }
    return parse_study_spec(base | sections)


def codes(warnings: tuple[str, ...]) -> list[str]:
    return [warning.partition(" ")[0] for warning in warnings]


def test_rows_become_attachments(write: Write) -> None:
    text = "N,D,loss,cost,se,seed,run\n1e7,1e9,3.5,7e16,0.01,2,abc\n2e7,1e9,3.25,,,,\n"
    found = import_rows(spec_of(), write(text))

    assert [dict(row) for row in found] == [
        {
            "design": Design(domain="default", axes={"N": 1e7, "D": 1e9}, seed=2),
            "response": 3.5,
            "cost": 7e16,
            "se": 0.01,
            "successes": None,
            "trials": None,
            "curve": "abc",
            "source": "runs.csv:2",
        },
        {
            "design": Design(domain="default", axes={"N": 2e7, "D": 1e9}),
            "response": 3.25,
            "cost": 1.2e17,
            "se": None,
            "successes": None,
            "trials": None,
            "curve": None,
            "source": "runs.csv:3",
        },
    ]
    assert found.warnings == () and found.skipped == {}


def test_unfinished_schedules_never_pass_as_final(write: Write) -> None:
    text = "N,D,loss,schedule_complete\n1e7,1e9,3.5,false\n1e7,1e9,3.0,true\n2e7,1e9,3.1,\n3e7,1e9,9,0\n"
    found = import_rows(spec_of(), write(text))

    assert [row["response"] for row in found] == [3.0, 3.1]
    assert codes(found.warnings) == ["W:schedule_incomplete"] and "lines 2, 5" in found.warnings[0]
    assert found.skipped == {"W:schedule_incomplete": 2}


def test_diverged_runs_are_kept_and_unfinished_ones_left_out(write: Write) -> None:
    text = """\
N,D,loss,state
1e7,1e9,nan,
2e7,1e9,inf,completed
3e7,1e9,,Diverged
4e7,1e9,3.5,finished
5e7,1e9,3.5,crashed
6e7,1e9,,completed
7e7,1e9,3.5,running
"""
    found = import_rows(spec_of(), write(text))

    assert [row["design"].axes["N"] for row in found] == [1e7, 2e7, 3e7, 4e7]
    assert not any(math.isfinite(row["response"]) for row in found.rows[:3]) and found.rows[3]["response"] == 3.5
    assert found.skipped == {"W:not_finished": 2, "W:missing_response": 1}


def test_a_repeated_row_is_one_observation(write: Write) -> None:
    text = "N,D,loss\n1e7,1e9,3.5\n2e7,1e9,3\n10000000,1e9,3.50\n2e7,1e9,nan\n2e7,1e9,NaN\n"
    found = import_rows(spec_of(), write(text))

    assert [(row["design"].axes["N"], row["design"].seed) for row in found] == [(1e7, 0), (2e7, 0), (2e7, 1)]
    assert codes(found.warnings) == ["W:duplicate_row", "W:replicate_row"]
    assert "2 rows" in found.warnings[0] and "lines 4, 6" in found.warnings[0]


def test_different_results_of_one_design_are_replicates(write: Write) -> None:
    text = "N,D,loss,seed\n1e7,1e9,3.5,0\n1e7,1e9,3.6,0\n1e7,1e9,3.7,1\n1e7,1e9,3.5,4\n1e7,1e9,3.6,0\n"
    found = import_rows(spec_of(), write(text))

    seeds = {row["response"]: row["design"].seed for row in found.rows[:3]}
    assert seeds[3.5] == 0 and len(set(seeds.values())) == 3
    assert len(found) == 4 and found.rows[3]["design"].seed == 4
    assert found.skipped == {"W:duplicate_row": 1}
    assert len({row["design"].key() for row in found}) == 4


@pytest.mark.parametrize(
    ("text", "key", "words"),
    [
        ("N,D,loss\n0,1e9,3\n", "N", ("log scale", "got 0")),
        ("N,D,loss\n,1e9,3\n", "N", ("missing",)),
        ("N,D,loss\ninf,1e9,3\n", "N", ("infinite",)),
        ("N,D,loss,cost\n1e7,1e9,3,-3\n", "cost", ("not negative", "-3")),
        ("N,D,loss,cost\n1e7,1e9,3,inf\n", "cost", ("finite",)),
        ("N,D,loss,se\n1e7,1e9,3,0\n", "se", ("greater than 0",)),
        ("N,D,loss,seed\n1e7,1e9,3,0.5\n", "seed", ("whole number",)),
        ("N,D,loss,state\n1e7,1e9,3,complet\n", "state", ("not a run state", "complete")),
        ("N,D,loss,schedule_complete\n1e7,1e9,3,maybe\n", "schedule_complete", ("true or false", "maybe")),
        ("N,D,loss,domain\n1e7,1e9,3,wbe\n", "domain", ("not a domain", "wbe")),
    ],
)
def test_values_that_cannot_be_meant_are_refused_by_line(
    write: Write, text: str, key: str, words: tuple[str, ...]
) -> None:
    with pytest.raises(InputError) as caught:
        import_rows(spec_of(), write(text))

    (problem,) = [p for p in caught.value.problems if p.key == key]
    assert problem.line == 2
    for word in words:
        assert word in str(problem)


def test_a_negative_loss_needs_another_link_than_log(write: Write) -> None:
    path = write("N,D,loss\n1e7,1e9,-5.34\n2e7,1e9,-0.7\n")

    with pytest.raises(InputError, match=r'runs\.csv:2: loss: link log needs.*-5\.34.*link = "identity"'):
        import_rows(spec_of(response={"link": "log"}), path)
    assert [row["response"] for row in import_rows(spec_of(), path)] == [-5.34, -0.7]


def test_success_counts(write: Write) -> None:
    spec = spec_of(response={"name": "p", "link": "neg_log", "noise": "binomial", "trials": 200})
    found = import_rows(spec, write("N,D,successes,trials\n1e7,1e9,0,200\n2e7,1e9,200,\n3e7,1e9,5,10\n"))

    assert [(r["response"], r["successes"], r["trials"]) for r in found] == [(0, 0, 200), (1, 200, 200), (0.5, 5, 10)]
    found = import_rows(spec, write("N,D,p\n1e7,1e9,0.25\n"))
    assert [(r["response"], r["successes"], r["trials"]) for r in found] == [(0.25, None, 200)]
    with pytest.raises(InputError, match="more successes than trials"):
        import_rows(spec, write("N,D,p,successes,trials\n1e7,1e9,0.25,11,10\n"))
    with pytest.raises(InputError, match=r"link neg_log needs a share.*got 25.*per cent"):
        import_rows(spec, write("N,D,p\n1e7,1e9,25\n"))


def test_domains_are_found_by_column_by_factors_or_by_name(write: Write) -> None:
    domains = [
        {"name": "web-small", "factors": {"corpus": "web", "size": 1}},
        {"name": "web-large", "factors": {"corpus": "web", "size": 2}},
    ]
    spec = spec_of(domains=domains)

    def found(text: str, **options: Any) -> list[str]:
        return [row["design"].domain for row in import_rows(spec, write(text), **options)]

    assert found("N,D,loss,domain\n1e7,1e9,3,web-large\n") == ["web-large"]
    assert found("N,D,loss,corpus,size\n1e7,1e9,3,web,2\n1e7,1e9,3,web,1\n") == ["web-large", "web-small"]
    assert found("N,D,loss,size\n1e7,1e9,3,2\n") == ["web-large"]
    assert found("N,D,loss\n1e7,1e9,3\n", domain="web-small") == ["web-small"]
    for text, words in (
        ("N,D,loss\n1e7,1e9,3\n", "several domains and the file names none"),
        ("N,D,loss,corpus\n1e7,1e9,3,web\n", "fit several domains"),
        ("N,D,loss,size\n1e7,1e9,3,3\n", "no domain has factors"),
    ):
        with pytest.raises(InputError, match=words):
            found(text)
    with pytest.raises(InputError, match="unknown domain 'web'"):
        found("N,D,loss\n1e7,1e9,3\n", domain="web")


def test_where_and_names_of_the_file(write: Write) -> None:
    text = "params,D,final,split\n1e7,1e9,3,pool\n2e7,1e9,4,target\n"
    found = import_rows(spec_of(), write(text), where={"split": "target"}, columns={"N": "params", "loss": "final"})

    assert [(row["design"].axes["N"], row["response"]) for row in found] == [(2e7, 4.0)]
    with pytest.raises(InputError, match="has no column 'params'"):
        import_rows(spec_of(), write("N,D,loss\n1,1,1\n"), columns={"N": "params"})


def test_an_import_without_usable_rows_is_an_error(write: Write) -> None:
    with pytest.raises(InputError, match="no row can be imported: 1 rows stopped before the end of their schedule"):
        import_rows(spec_of(), write("N,D,loss,schedule_complete\n1e7,1e9,3,false\n"))
    with pytest.raises(InputError, match="has no column 'loss'"):
        import_rows(spec_of(), write("N,D,los\n1e7,1e9,3\n"))
    with pytest.raises(InputError, match="no row has"):
        import_rows(spec_of(), write("N,D,loss,k\n1e7,1e9,3,1\n"), where={"k": 2})


def test_runs_outside_the_box_are_kept_and_said(write: Write) -> None:
    found = import_rows(spec_of(), write("N,D,loss\n1e7,1e9,3\n5e9,1e9,2\n"))

    assert len(found) == 2
    assert codes(found.warnings) == ["W:outside_bounds"] and "1 rows" in found.warnings[0]


def test_runs_that_nothing_prices_cost_nothing_and_that_is_said(write: Write, tmp_path: Path) -> None:
    (tmp_path / "pool.csv").write_text("N,D,c\n1e7,1e9,5\n")
    axes = [{"name": "N"}, {"name": "D"}]
    spec = spec_of(axes=axes, cost={"column": "c"}, pool={"file": str(tmp_path / "pool.csv")})
    found = import_rows(spec, write("N,D,loss\n1e7,1e9,3\n2e7,1e9,3\n"))

    assert [row["cost"] for row in found] == [5.0, 0.0]
    assert codes(found.warnings) == ["W:no_cost"] and "line 3" in found.warnings[0]


def test_an_axis_of_one_value_needs_no_column(write: Write) -> None:
    axes = [{"name": "N", "low": 1e8, "high": 1e8}, {"name": "D", "low": 1e8, "high": 1e11}]
    found = import_rows(spec_of(axes=axes), write("D,loss\n1e9,3\n"))

    assert found.rows[0]["design"].axes == {"N": 1e8, "D": 1e9}


def test_json_lines_of_a_tracker(write: Write) -> None:
    rows = [{"N": 10_000_000, "D": 10**24, "loss": 2.5, "state": "finished"}, {"N": 2e7, "D": 1e9, "loss": math.nan}]
    found = import_rows(spec_of(), write("\n".join(map(json.dumps, rows)), "runs.jsonl"))

    assert found.rows[0]["design"].axes == {"N": 1e7, "D": 1e24} and found.rows[0]["response"] == 2.5
    assert math.isnan(found.rows[1]["response"])


def test_large_files_are_read_column_by_column(write: Write) -> None:
    rng = np.random.default_rng(0)
    numbers = np.exp(rng.uniform(0, 40, (50_000, 3)))
    text = "N,D,loss\n" + "\n".join(",".join(map(repr, row)) for row in numbers.tolist()) + "\n"
    path = write(text)

    start = time.process_time()
    table = read(path, "N", "D", "loss")
    seconds = time.process_time() - start

    assert np.array_equal(np.column_stack([table["N"], table["D"], table["loss"]]), numbers)
    # A tenth of this on one core of an ordinary machine; a per-cell path would take more.
    assert seconds < 4.0
