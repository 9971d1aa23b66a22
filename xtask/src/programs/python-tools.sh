# Uses modules of the standard library as commands: http.server, json.tool, zipapp, unittest, venv, sqlite3 and dbm.
# has: python3 curl
# hide: s/in [0-9.]+s/in TIME/

mkdir app; echo 'print("zipped", __name__)' > app/__main__.py; python3 -m zipapp app -o app.pyz && python3 app.pyz; rm app.pyz
echo '{"b":1,"a":[]}' | python3 -m json.tool --sort-keys
printf 'import unittest\nclass T(unittest.TestCase):\n  def test_ok(self): self.assertTrue(1)\n  def test_bad(self): self.assertEqual(1, 2)\n' > test_t.py
python3 -m unittest 2>&1 | tail -3; python3 -m compileall -q test_t.py; rm -r __pycache__
python3 -m http.server 8129 --bind 127.0.0.1 > log 2>&1 &
curl -s --retry 20 --retry-delay 1 --retry-connrefused http://127.0.0.1:8129/test_t.py | sed -n 1p; kill %1; wait; grep -c 'GET /test_t' log; rm log
python3 -c 'import dbm, shelve, sqlite3, lzma, bz2, zlib, ssl, ctypes, readline, curses, tkinter' 2>&1 | tail -1
python3 -c 'import ctypes; ctypes.CDLL(None).puts(b"from C"); print("from Python")'
python3 -c 'import platform, os, getpass; print(platform.system(), os.cpu_count() == len(os.sched_getaffinity(0)), getpass.getuser(), os.path.expanduser("~") == os.environ["HOME"])'
python3 -c 'raise SystemExit("message")'; echo "status $?"; python3 -c 'import sys; sys.stdout.write("no newline"); sys.exit(2)'; echo " status $?"
echo 'import sys; print(sys.argv, sys.path[0] != "")' > s.py; python3 s.py a; python3 - b < s.py; python3 -m s c; rm -rf __pycache__
