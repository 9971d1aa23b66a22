# Tests with pytest: fixtures, temporary directories, capture, a failure and parallel workers.
# pip: pytest pytest-xdist
# hide: s/in [0-9.]+s/in TIME/; /^out (platform|rootdir|plugins)/d

cat > test_it.py <<'END'
import os, subprocess, sys, pytest
@pytest.mark.parametrize("n", [1, 2, 3])
def test_n(n, tmp_path): (tmp_path / "f").write_text(str(n)); assert (tmp_path / "f").stat().st_size == 1
def test_capture(capfd): os.system("echo child"); assert capfd.readouterr().out == "child\n"
def test_fails(): print("printed"); assert [1, 2] == [1, 3]
def test_env(monkeypatch): monkeypatch.setenv("X", "1"); assert subprocess.check_output([sys.executable, "-c", "import os; print(os.environ['X'])"]) == b"1\n"
END
python -m pytest -q -p no:cacheprovider; echo "status $?"
python -m pytest -q -n 2 -p no:cacheprovider | tail -2; rm -rf __pycache__
