# Uses pseudo-terminals: script, tmux, stty and a readline prompt of Python.
# has: script tmux stty python3
# apt: bsdutils tmux coreutils

script -qec 'tty > /dev/null && stty size && echo $TERM && exit 4' log < /dev/null | tr -d '\r'; echo "status ${PIPESTATUS[0]}"; rm log
export TERM=xterm TMUX_TMPDIR=$PWD
tmux -f /dev/null new-session -d -x 40 -y 5 'sh -c "echo in tmux; read line; echo got \$line; sleep 60"'
sleep 1; tmux send-keys typed Enter; sleep 1; tmux capture-pane -p | head -3; tmux kill-server; rm -r tmux-*
cat > term.py <<'END'
import os, pty, sys
pid, fd = pty.fork()
if pid == 0:
    os.execvp("python3", ["python3", "-c", "name = input('name? '); import os; print('hello', name, os.get_terminal_size(0).lines >= 0); raise SystemExit(3)"])
os.write(fd, b"me\n")
text = b""
while True:
    try: piece = os.read(fd, 1000)
    except OSError: break
    if not piece: break
    text += piece
print(text.decode().split(), os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
END
python3 term.py; tput -T xterm-256color colors; infocmp -1 screen | wc -l
