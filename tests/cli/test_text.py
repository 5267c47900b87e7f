"""What verbs say, by eye: times and tables."""

from labelwise.cli.text import duration, show_table


def test_times_are_told_in_the_unit_people_would_use():
    told = [duration(seconds) for seconds in (0.4, 119, 150, 3 * 3600, 1.2e6)]
    assert told == ["0 seconds", "119 seconds", "2.5 minutes", "3.0 hours", "13.9 days"]


def test_a_table_too_wide_is_turned_and_its_numbers_stand_below_each_other(capsys):
    columns = ["row", "", *(f"measure {k}" for k in range(30))]
    rows = [["a", "paper", *["–"] * 30], ["", "ours", "10.5 ± 0.25", *["1.5"] * 29]]
    show_table(columns, rows, names=2)
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == "            a paper         ours"
    assert lines[1] == "measure 0         –  10.5 ± 0.25"
    assert lines[2] == "measure 1         –          1.5"
    assert len(lines) == 31


def test_a_table_that_fits_or_is_wider_turned_stays_as_it_is(capsys):
    show_table(["method", "mAP"], [["bce", "1"], ["spa", "2"]], names=1)
    assert capsys.readouterr().out.splitlines()[0].split() == ["method", "mAP"]
    many = [[f"a method with a long name, number {k}", "1.5"] for k in range(40)]
    show_table(["method", "mAP " + 200 * "x"], many, names=1)
    assert any(line.startswith("method") for line in capsys.readouterr().out.splitlines())
