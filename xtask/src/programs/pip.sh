# Makes a virtual environment, installs a package from source and a wheel, and runs its command.
# pip: build setuptools wheel

export PIP_NO_INDEX=1 PIP_DISABLE_PIP_VERSION_CHECK=1
mkdir -p pkg/own
printf '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n[project]\nname = "own"\nversion = "1.5"\n[project.scripts]\nown = "own:main"\n' > pkg/pyproject.toml
echo 'def main(): print("own command", __name__)' > pkg/own/__init__.py
python -m build --no-isolation --wheel -o . pkg > log 2>&1; echo "status $?"
python -m venv --system-site-packages v && v/bin/pip install -q ./own-1.5-py3-none-any.whl && v/bin/own && v/bin/pip show own | sed -n 1,2p
v/bin/pip uninstall -qy own; v/bin/own; echo "status $?"
v/bin/pip install -q --no-build-isolation -e pkg && (cd / && "$OLDPWD/v/bin/python" -c 'import own; own.main()')
v/bin/pip install -q nothing-of-this-name 2>&1 | sed -n 1p; v/bin/pip check
/usr/bin/python3 -m venv clean && clean/bin/pip install -q --no-index own-1.5-py3-none-any.whl && clean/bin/own
rm -r v clean pkg log own-1.5-py3-none-any.whl
