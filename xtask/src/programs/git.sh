# Uses a repository of git with a hook, a worktree, a merge conflict, a rebase and a clone.
# has: git
# apt: git

export GIT_AUTHOR_DATE='2024-01-01T00:00:00Z' GIT_COMMITTER_DATE='2024-01-01T00:00:00Z' GIT_CONFIG_NOSYSTEM=1
git config --global user.name tester; git config --global user.email tester@example.org
git config --global init.defaultBranch main; git config --global advice.detachedHead false
git init -q repo && cd repo
printf '#!/bin/sh\ngrep -q "^[A-Z]" "$1" || { echo "no capital letter" >&2; exit 1; }\n' > .git/hooks/commit-msg
chmod +x .git/hooks/commit-msg
echo one > file; git add .; git commit -qm 'lower'; echo "status $?"
git commit -qm 'First' && git log --format='%h %an %s'
git worktree add -q ../other -b other && (cd ../other && echo two > file && git commit -qam 'Other' && git rev-parse HEAD)
echo three > file; git commit -qam 'Third'
git merge other 2>&1; git status --short; git merge --abort
git rebase -q -X theirs other 2>&1; git log --format=%s; cat file
git stash list; echo dirty >> file; git stash -q; git stash pop -q; git diff --stat
cd ..; git clone -q repo clone && git -C clone log -1 --format=%H
git -C clone archive HEAD | tar tf -
git -C repo gc -q && git -C repo fsck; git -C repo bundle create -q ../all.bundle --all && git bundle verify -q all.bundle; echo "status $?"
rm -rf repo clone other all.bundle
