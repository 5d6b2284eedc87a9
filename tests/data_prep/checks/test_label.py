"""describe finds the label of generated tables such as others wrote, or asks with the candidates."""

import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.__main__ import main
from data_prep.checks.propose import describe
from data_prep.prepared.schema import read_schema
from tests.data_prep.checks.generated_tables import write_csv

ROWS = 1_500


def table(label, values=("0", "1"), rate=0.3, before=(), after=(), seed=1):
    """A table whose label follows a place and an amount; other columns are drawn from the given values."""
    random = np.random.default_rng(seed)
    place, amount = random.integers(0, 8, ROWS), random.gamma(2, 30, ROWS)
    logits = random.normal(0, 1, 8)[place] + amount / 60
    clicks = logits + random.logistic(0, 0.5, ROWS) > np.quantile(logits, 1 - rate)
    columns = {}
    for name, of_column in before:
        columns[name] = random.choice(np.array(list(of_column)), ROWS)
    columns |= {"place": np.array([f"p{number}" for number in place]), "amount": np.round(amount, 2)}
    columns[label] = np.array(values)[clicks.astype(int)]
    for name, of_column in after:
        columns[name] = random.choice(np.array(list(of_column)), ROWS)
    return columns


def described(folder, columns, **chosen):
    """The proposal for a CSV file of these columns."""
    return describe(str(write_csv(folder / "log.csv", columns)), **chosen)


def prepared_clicks(folder, log, proposal):
    """The clicks of a log that is prepared with its proposed description, and the number of rejected lines."""
    (folder / "my.yaml").write_text(proposal.as_yaml())
    words = [str(log), str(folder / "out"), "--data", str(folder / "my.yaml")]
    assert main(["prepare", *words, "prepare.workers=1"]) == 0
    schema = read_schema(folder / "out")
    return sum(split.clicks for split in schema.splits.values()), schema.rejected_rows


BINARY, YES_NO, SEXES = ("0", "1"), ("No", "Yes"), ("Male", "Female")
MARRIED, NO_YES = ("Married", YES_NO), ("no", "yes")
SURE = {  # name: the label's column, its values, which one means a click, and other arguments of `table`
    "churn behind other yes and no": ("Churn", YES_NO, "Yes", {"before": [("Senior", BINARY), ("Partner", YES_NO)]}),
    "no-show": ("No-show", YES_NO, "Yes", {"before": [("Gender", "FM"), ("Grant", BINARY), ("Diabetes", BINARY)]}),
    "first": ("ACTION", BINARY, "1", {"rate": 0.9, "after": [("kind", "abc")]}),
    "second, among ones": ("is_canceled", BINARY, "1", {"before": [("hotel", "xyz")], "after": [("is_guest", BINARY)]}),
    "another form of a label's word": ("subscribe", NO_YES, "yes", {"before": [("default", NO_YES), ("loan", NO_YES)]}),
    "the last one of yes and no": ("Claim", BINARY, "1", {"before": [("Agency", "xy"), ("Channel", "uv")]}),
    "not sick": ("classification", ("notsick", "sick"), "sick", {"before": [("cad", YES_NO)]}),
    "alone, first": ("growth", ("absent", "present"), "present", {"before": [("x", "z")]}),
    "default and y": ("y", NO_YES, "yes", {"before": [("default", NO_YES), ("loan", NO_YES)]}),
    "status last": ("Loan_Status", ("N", "Y"), "Y", {"rate": 0.7, "before": [MARRIED, ("Gender", SEXES)]}),
    "a true and false last": ("Revenue", ("FALSE", "TRUE"), "TRUE", {"before": [("Weekend", ("TRUE", "FALSE"))]}),
    "two texts": ("satisfaction", ("neutral or dissatisfied", "satisfied"), "satisfied", {"before": [("sex", SEXES)]}),
    "two letters": ("class", ("e", "p"), "p", {"rate": 0.35, "after": [("bruises", "tf")]}),
    "amounts": ("income", ("<=50K", ">50K"), ">50K", {"rate": 0.6, "before": [("sex", SEXES)]}),
    "other numbers": ("target", ("1", "2"), "2", {}),
    "minus one": ("label", ("-1", "1"), "1", {}),
    "German": ("gekauft", ("nein", "ja"), "ja", {"before": [("aktiv", ("nein", "ja"))]}),
    "Chinese": ("是否点击", ("否", "是"), "是", {"before": [("会员", ("否", "是"))]}),
    "opposites": ("clk", BINARY, "1", {"before": [("nonclk", BINARY)]}),
    "an arrival": ("Reached.on.Time_Y.N", BINARY, "1", {"before": [("Gender", SEXES), ("mode", "abc")]}),
    "tomorrow": ("RainTomorrow", YES_NO, "Yes", {"before": [("RainToday", YES_NO)]}),
}  # fmt: skip


@pytest.mark.parametrize("name", SURE)
def test_the_label_and_its_positive_value(tmp_path, name):
    label, values, positive, others = SURE[name]
    proposal = described(tmp_path, table(label, values, **others))
    assert (proposal.label.name, proposal.label.clicked) == (label, (positive,))


GAPS = {
    "empty": ("", "1", []),
    "a word": ("NULL", "1", []),
    "a word of other columns too": (r"\N", "true", [("phone", ("a", "b", r"\N"))]),
    "floats": ("", "1.0", [("phone", ("a", "b", ""))]),
}


@pytest.mark.parametrize("name", GAPS)
def test_clicks_joined_to_impressions(tmp_path, name, capsys):
    """A row without a cell of the label is no click: the proposal, its check and prepare agree."""
    gap, click, before = GAPS[name]
    columns = table("click", (gap, click), before=before)
    path, rate = write_csv(tmp_path / "log.csv", columns), np.mean(columns["click"] == click)
    proposal = describe(str(path))
    assert (proposal.label.name, proposal.label.clicked, proposal.click_rate) == ("click", (click,), rate)
    assert "label" not in proposal.settings
    assert prepared_clicks(tmp_path, path, proposal) == (rate * ROWS, 0)
    capsys.readouterr()
    assert main(["describe", str(path), "--data", str(tmp_path / "my.yaml")]) == 0
    assert f"click rate {rate:.2%}" in capsys.readouterr().out


@pytest.mark.parametrize("cells", ["clicked_at", "clicks"])
def test_filled_cells_are_clicks_if_the_user_says_so(tmp_path, cells):
    columns = table("click")
    clicks = columns.pop("click") == "1"
    texts = {
        "clicked_at": [f"2024-05-07 22:{row % 60:02}:{row // 60:02}" for row in range(ROWS)],
        "clicks": np.arange(ROWS) % 3 + 1,
    }
    path = write_csv(tmp_path / "log.csv", columns | {cells: np.where(clicks, texts[cells], "")})
    with pytest.raises(ValueError, match=f"--label {cells}=rest if each filled cell is a click"):
        describe(str(path))
    assert describe(str(path), label=f"{cells}=rest").click_rate == clicks.mean()


@pytest.mark.parametrize("value", [True, 1, 1.0, "1"])
def test_nulls_of_a_table_are_no_clicks(tmp_path, value):
    columns = table("click", ("", "1"))
    columns["click"] = [value if cell else None for cell in columns["click"]]
    pq.write_table(pa.table(columns), tmp_path / "log.parquet")
    proposal = describe(str(tmp_path / "log.parquet"))
    assert prepared_clicks(tmp_path, tmp_path / "log.parquet", proposal) == (proposal.click_rate * ROWS, 0)


WAYS = {
    "numbers": (("0", "0.0"), ("1", "1.0")),
    "cases": (("False", "FALSE"), ("TRUE", "True")),
    "words": (("no", "N"), ("yes", "Y")),
    "words and numbers": (("0", "no"), ("1", "yes")),
}


@pytest.mark.parametrize("name", WAYS)
def test_several_ways_of_writing_two_values(tmp_path, name):
    columns, random = table("label"), np.random.default_rng(1)
    clicks = columns["label"] == "1"
    columns["label"] = np.array(WAYS[name])[clicks.astype(int), random.integers(0, 2, ROWS)]
    proposal = described(tmp_path, columns)
    assert ({*proposal.label.not_clicked}, {*proposal.label.clicked}) == tuple(map(set, WAYS[name]))
    assert proposal.click_rate == clicks.mean()


NO_LABELS = {
    "stars": (np.arange(1, 6), "label has numbers from 1 to 5; --label 'label>=3'"),
    "rates": (np.arange(100) / 99, r"numbers from 0 to 1 \(no kind has labels between them\); --label 'label>=0.[45]"),
    "words": (["a", "b", "c"], "label: it has 3 values: .*; --label label=[abc]"),
}


@pytest.mark.parametrize("name", NO_LABELS)
def test_a_column_named_label_is_a_candidate(tmp_path, name):
    values, message = NO_LABELS[name]
    path = write_csv(tmp_path / "log.csv", table("place 2", SEXES) | {"label": np.resize(values, ROWS)})
    with pytest.raises(ValueError, match=message) as error:
        describe(str(path))
    choice = re.search("--label '?([^' \n]*)'?$", str(error.value))[1]
    assert 0 < describe(str(path), label=choice).click_rate < 1


LABEL_NAMES = ["click", "clicked", "clk", "isClick", "label", "buy", "is_converted", "purchase_flag", "cvr_label"]
LABEL_VALUES = [("0", "1"), ("no", "yes"), ("-1", "1"), ("False", "True"), ("0.0", "1.0")]


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.sampled_from(LABEL_NAMES), min_size=2, max_size=2, unique=True),
    st.lists(st.sampled_from(LABEL_VALUES), min_size=2, max_size=2),
    st.floats(0.2, 0.9),
    st.booleans(),
)
def test_another_label_is_no_feature(tmp_path_factory, names, values, share, is_in_front):
    first, second = names
    columns = table(first, values[0])
    has_second = (columns[first] == values[0][1]) & (np.random.default_rng(2).random(ROWS) < share)
    of_second = {second: np.array(values[1])[has_second.astype(int)]}
    columns = of_second | columns if is_in_front else columns | of_second
    path = write_csv(tmp_path_factory.mktemp("log") / "log.csv", columns)
    with pytest.raises(ValueError, match="not sure") as error:
        describe(str(path))
    assert f"  {first}: " in str(error.value) and f"  {second}: " in str(error.value)
    for label, other in (names, names[::-1]):
        proposal = describe(str(path), label=label)
        (guess,) = [each for each in proposal.guesses if each.name == other]
        assert guess.kind == "ignored" and guess.reason.startswith("named like a label too")


def test_what_may_follow_the_click_has_a_remark(tmp_path):
    columns = table("is_click", after=[("likes_cats", BINARY)])
    columns["liked"] = np.where(np.random.default_rng(2).random(ROWS) < 0.5, columns["is_click"], "0")
    columns["sample_weight"] = np.random.default_rng(3).random(ROWS).round(2)
    reasons = {each.name: each.reason for each in described(tmp_path, columns).guesses}
    assert "'1' is in clicks alone: ignored if" in reasons["liked"] and "alone" not in reasons["likes_cats"]
    assert reasons["sample_weight"].endswith("; weight if it is the row's weight in the loss")


@pytest.mark.parametrize("shown", ["impression", "Impr.", "show"])
def test_counts_of_clicks_and_impressions_have_a_remark(tmp_path, capsys, shown):
    random = np.random.default_rng(1)
    columns = table("click") | {shown: random.integers(4, 9, ROWS)}
    columns["click"] = np.where(columns["click"] == "1", random.integers(1, 4, ROWS).astype(str), "0")
    assert main(["describe", str(write_csv(tmp_path / "log.csv", columns))]) == 0
    assert f"several impressions ({shown}) is one click here" in capsys.readouterr().err


def test_a_column_that_is_nearly_as_likely_is_named(tmp_path):
    columns = table("y", ("no", "yes"), before=[("default", ("no", "yes"))])
    assert "; nearly as likely: --label default)" in described(tmp_path, columns).label_line


def test_a_column_without_names_is_the_label_by_its_place(tmp_path):
    columns = table("label", ("<=50K", ">50K"), before=[("sex", SEXES), ("flag", BINARY)])
    path = write_csv(tmp_path / "log.csv", columns)
    path.write_text(path.read_text().split("\n", 1)[1])
    assert describe(str(path)).label.name == f"column_{len(columns)}"


def test_one_value_of_no_and_many_others(tmp_path, caplog):
    attacks = np.random.default_rng(3).choice(["smurf.", "neptune.", "back."], ROWS)
    columns = table("flag", ("0", "1"), before=[("logged_in", BINARY), ("protocol", ("tcp", "udp"))])
    columns["kind"] = np.where(columns["flag"] == "1", attacks, "normal.")
    columns["flag"] = np.random.default_rng(4).choice(["0", "1"], ROWS)
    path = write_csv(tmp_path / "log.csv", columns)
    path.write_text(path.read_text().split("\n", 1)[1])
    proposal = describe(str(path))
    assert (proposal.label.clicked, proposal.label.not_clicked) == ("rest", ("normal.",))
    caplog.set_level("INFO")
    prepared_clicks(tmp_path, path, proposal)
    assert "a click is any cell but 'normal.'; click rate" in caplog.text


def test_a_label_s_name_in_the_middle_is_a_question_beside_a_last_column_of_yes_and_no(tmp_path):
    columns = table("wanted", ("no", "yes"), before=[("loan", ("no", "yes")), ("default", ("no", "yes"))])
    with pytest.raises(ValueError, match="not sure"):
        described(tmp_path, columns)


def test_whether_a_cell_is_missing_is_a_value(tmp_path):
    columns = table("clicked", before=[("phone", ["yes", ""]), ("one", ["same"])])
    kinds = described(tmp_path, columns).as_format().columns
    assert (kinds["phone"], kinds["one"]) == ("string", "ignored")


def test_two_labels_alike_are_a_question(tmp_path, capsys):
    columns = table("bought", before=[("clicked", BINARY)], after=[("shop", "abc")])
    path = write_csv(tmp_path / "log.csv", columns)
    assert main(["describe", str(path)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    for words in ("not sure", "--label NAME", "bought: a click is '1'", "clicked: a click is '1'", "named like a lab"):
        assert words in printed.err
    assert main(["describe", str(path), "--label", "clicked"]) == 0
    printed = capsys.readouterr()
    assert yaml.safe_load(printed.out)["columns"]["clicked"] == "label"
    assert printed.err.startswith("label clicked, a click is '1' (no click: '0'); click rate ")


def test_a_place_alone_is_not_enough_beside_other_columns_of_two_values(tmp_path, capsys):
    columns = table("personal loan", after=[("online", BINARY), ("credit card", BINARY)])
    assert main(["describe", str(write_csv(tmp_path / "log.csv", columns))]) == 2
    assert "credit card: a click is '1' (no click: '0'); in the last column" in capsys.readouterr().err


def test_a_table_without_a_label_is_refused(tmp_path, capsys):
    columns = table("size", ("small", "large"), before=[("sex", SEXES)])
    del columns["size"]
    assert main(["describe", str(write_csv(tmp_path / "log.csv", columns))]) == 2
    assert "no column looks like a label: none has two values" in capsys.readouterr().err


@pytest.mark.parametrize("words", [(), ("--label", "click")])
def test_a_log_without_any_click_is_refused_by_the_name_of_its_label(tmp_path, capsys, words):
    assert main(["describe", str(write_csv(tmp_path / "log.csv", table("click", ("0", "0")))), *words]) == 2
    assert "click has one value, '0', in these rows, and a label two; look at more (--rows)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("choice", "clicked", "not_clicked"),
    [
        ("place=p3", ("p3",), "rest"),
        ("answer=No", ("No",), ("Yes",)),
        ("amount>=50.5", ">= 50.5", ("0",)),
        ("amount < 5", "< 5", ("0",)),
    ],
)
def test_the_label_may_be_chosen(tmp_path, choice, clicked, not_clicked):
    proposal = described(tmp_path, table("answer", YES_NO), label=choice)
    assert (proposal.label.clicked, proposal.label.not_clicked) == (clicked, not_clicked)
    assert 0 < proposal.click_rate < 1


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ("click", "no column has that name; found place, amount, answer"),
        ("answer=Maybe", "answer has no such value; it has 2 values: 'No', 'Yes'"),
        ("place", "it has 8 values: .* which of them is a click"),
    ],
)
def test_a_choice_that_names_nothing_is_refused(tmp_path, choice, message):
    with pytest.raises(ValueError, match=message):
        described(tmp_path, table("answer", YES_NO), label=choice)


def test_prepare_names_the_labels_that_it_rejects(tmp_path, capsys):
    path = write_csv(tmp_path / "log.csv", table("churn", YES_NO))
    text = "separator: ','\nheader: true\ncolumns: {place: string, amount: float, churn: label}\n"
    (tmp_path / "my.yaml").write_text(text)
    words = ["prepare", str(path), str(tmp_path / "out"), "--data", str(tmp_path / "my.yaml"), "prepare.workers=1"]
    assert main(words) == 2
    error = capsys.readouterr().err
    assert "label churn, a click is '1' (no click: '0'); the first of them hold 'No', 'Yes'" in error
    assert "set prepare.data.clicked and not_clicked" in error
    assert main([*words, "prepare.data.clicked='Yes'", "prepare.data.not_clicked='No'"]) == 0
    capsys.readouterr()
    rest = ["prepare.data.clicked='Yes'", "prepare.data.not_clicked=rest"]
    for command in ([str(tmp_path / "out")], [*words[1:2], *words[3:5], *rest]):
        assert main(["describe", *command]) == 0
        printed = capsys.readouterr().out
        assert "label churn, a click is 'Yes'" in printed
        assert "click rate" in printed
    assert "label churn, a click is &#39;Yes&#39;" in (tmp_path / "out" / "report.html").read_text()
