# Checks and formats Python with mypy, ruff and black.
# pip: mypy ruff black

printf 'import os\ndef f(x: int)->str:\n  return x\n' > bad.py
mypy --no-color-output bad.py; echo "status $?"
ruff check --output-format concise bad.py; echo "status $?"; ruff format --diff bad.py; black -q --diff --no-color bad.py | tail -n +3; black -q bad.py; echo "status $?"
rm -r .mypy_cache .ruff_cache
