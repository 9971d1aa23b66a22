# Makes keys of SSH, signs a file and verifies the signature.
# has: ssh-keygen
# apt: openssh-client

for type in ed25519 rsa ecdsa; do ssh-keygen -q -t $type -N '' -C me -f key_$type && ssh-keygen -l -f key_$type.pub | grep -o '(.*)'; done
echo text > file; ssh-keygen -q -Y sign -f key_ed25519 -n file file
echo "me $(cat key_ed25519.pub)" > signers
ssh-keygen -Y verify -f signers -I me -n file -s file.sig < file | sed 's/SHA256.*//'; echo "status ${PIPESTATUS[0]}"
ls -l | awk '{ print $1, $NF }' | tail -n +2; rm key_* signers file.sig
eval "$(ssh-agent)" > /dev/null; ssh-add -l; kill "$SSH_AGENT_PID"
